"""Write the tables of results into README.md and docs/results.md, from evidence/, results/ and bench/results/.

python docs/results.py writes them; tests/test_documents.py fails where a table and the evidence disagree.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vitlab.runs.study.findings import counts_text, measured_text, read_ledger, verdicts_of
from vitlab.spec import CONVENTIONS
from vitlab.studies.scales import TINY

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import results as speed  # noqa: E402 - its folder is not installed
from bench.experiments.merging import speeds  # noqa: E402
from bench.suites import SUITES  # noqa: E402

CONTESTS = ("inference", "busy", "endtoend", "training", "memory")  # suites that come first
SHORT = ("inference", "endtoend")  # in the README
SHOWN = ("torch", "auto", "onnxruntime-int8")  # engines in the README, whichever is fastest
TELLING = (  # findings in the README, by the names of their claims
    "ViT-L/16 at most 1 point behind BiT on average (JFT-300M)",
    "ViT-B/16 better after JFT-300M than after ImageNet",
    "ViT-B/16 gains more than R50x2 from 2,000 to 50,000 images",
    "half the patch size above the base model",
    "fine-tuning at a higher resolution above the same one",
)
NOT_MEASURED = "No results are committed yet: `make bench` writes them to `bench/results/`.\n"
Row = tuple[str, str, str]  # what, result, the command and the file that holds its output


def evidence(name: str, pattern: str) -> tuple[str, ...]:
    """The groups of the last match of `pattern` in a file of evidence/."""
    found = list(re.finditer(pattern, (ROOT / "evidence" / f"{name}.txt").read_text("utf-8"), re.MULTILINE))
    assert found, f"evidence/{name}.txt has no {pattern!r}"
    return found[-1].groups()


def demo_rows() -> list[tuple[str, ...]]:
    """Labels per class, pre-trained, from scratch, difference: the table that the demo printed."""
    line = r"^\s*(1|5|10|50|all)\s+(\S+ ± \S+ %)\s+(\S+ ± \S+ %)\s+([+-]\S+)\s*$"
    return re.findall(line, (ROOT / "evidence" / "demo.txt").read_text("utf-8"), re.MULTILINE)


def accuracy_rows() -> Iterator[Row]:
    """What was trained or scored, with failures."""
    demo = {row[0]: row[1:] for row in demo_rows()}
    for labels in ("1", "10", "all"):
        tuned, scratch, _ = demo[labels]
        which = "all labels" if labels == "all" else f"{labels} label{'s' if labels != '1' else ''} per class"
        yield (
            f"Handwritten digits, {which}: pre-trained on letters, and from scratch (3 seeds)",
            f"{tuned} and {scratch}",
            "`make demo`, `evidence/demo.txt`",
        )
    mean, deviation = evidence("learning_digits", r"mean (\S+)%, standard deviation (\S+)%")
    yield (
        "Digits, ViT-Ti/2 from fresh weights, 3,000 steps (5 seeds)",
        f"{mean} ± {deviation} %",
        "`bench/experiments/learning.py digits`, `evidence/learning_digits.txt`",
    )
    (tuned,) = evidence("learning_cifar", r"^fine-tuned from ImageNet: (\S+)%")
    (scratch,) = evidence("learning_cifar", r"^from scratch: (\S+)%")
    yield (
        "CIFAR-10, 1,000 images, 100 steps: ViT-Ti/16 with ImageNet weights, and from scratch",
        f"{tuned} % and {scratch} % (one run each)",
        "`bench/experiments/learning.py cifar`, `evidence/learning_cifar.txt`",
    )
    for line in (ROOT / "results" / "ledger.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        name = "DeiT-Ti/16" if "DeiT" in entry["weights"] else "ViT-Ti/16 AugReg"
        (conventions,) = re.findall(r"--conventions (\w+)", entry["command"])
        how = CONVENTIONS[conventions]
        side = int(224 / how.preprocessing.fraction)
        seen = f"shorter side to {side} {how.preprocessing.interpolation}, centre crop 224, {how.gelu} GELU"
        yield (
            f"{name} on {entry['n']} ImageNet validation photographs (not in this repository), with {conventions}'s "
            f"conventions: {seen}",
            f"{entry['got']} % (standard error 3 points); {entry['expected_from']}: {entry['expected']}",
            "`vitlab evaluate`, `results/ledger.jsonl`",
        )
    location, orientation = (
        tuple(evidence("dsprites", rf"^{task}: chance (\S+) %.*\n  few-shot ridge: (\S+) %.*\n  linear probe: (\S+) %"))
        for task in ("dSpr-Loc", "dSpr-Ori")
    )
    (tested,) = evidence("dsprites", r"^dSpr-Loc: chance \S+ % \((\S+) test images\)")
    yield (
        "dSpr-Loc and dSpr-Ori of VTAB-1k: ridge regression and linear probe on features of ViT-Ti/16 AugReg, "
        f"tested on {tested} of 73,728 test images",
        f"{location[1]} and {location[2]} % (chance {location[0]} %); {orientation[1]} and {orientation[2]} % "
        f"(chance {orientation[0]} %)",
        "`bench/experiments/dsprites.py`, `evidence/dsprites.txt`",
    )
    gain, spread = evidence("masked_patches", r"minus fresh weights is \+(\S+)% ± (\S+)%")
    yield (
        "Digits, 10 labels per class: gain from masked-patch pre-training over fresh weights (3 seeds)",
        f"{gain} ± {spread} points: no clear gain",
        "`bench/experiments/masked.py`, `evidence/masked_patches.txt`",
    )
    for name, what in (
        ("distillation", "all labels, 400 steps"),
        ("distillation_few", "a tenth of the labels, 300 steps"),
        ("distillation_few_1000", "a tenth of the labels, 1,000 steps"),
    ):
        scores = []
        for way in ("no teacher", "hard distillation", "soft distillation"):
            mean, deviation = evidence(name, rf"^{way}: mean (\S+)%, standard deviation (\S+)%")
            scores.append(f"{float(mean):.1f} ± {float(deviation):.1f}")
        yield (
            f"Digits, {what}: no teacher, hard and soft distillation (3 seeds)",
            f"{', '.join(scores)} %",
            f"`bench/experiments/distillation.py`, `evidence/{name}.txt`",
        )


def robustness_rows() -> Iterator[Row]:
    """What was broken on purpose, and what it costs."""
    kills, runs, lost = evidence("kills", r"^(\d+) kills in (\d+) runs, .*; (\d+) checkpoints lost")
    yield (
        f"{kills} kills of {runs} trainings",
        f"{lost} checkpoints lost; every run ended with the same bits as the unbroken one",
        "`make soak`, `evidence/kills.txt`",
    )
    trials = re.findall(r"^(\d+) trials", (ROOT / "evidence" / "ranks.txt").read_text("utf-8"), re.MULTILINE)
    yield (
        f"{sum(map(int, trials))} faults of ranks: killed, frozen, failing, stopped",
        "every run reported the cause, continued and ended with the same bits",
        "`make soak`, `evidence/ranks.txt`",
    )
    files, formats, crashes = evidence("mutations", r"^in all: (\S+) mutated files of (\d+) formats.* (\d+) crashes")
    yield (
        f"{files} damaged weight files of {formats} formats",
        f"{crashes} crashes",
        "`make soak`, `evidence/mutations.txt`",
    )
    possible, made, caught, slow, left, reasons = evidence(
        "mutants", r"^all +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$"
    )
    yield (
        f"{made} of {int(possible):,} small faults put into the numeric core",
        f"{int(caught) + int(slow)} caught by the tests; of the other {left}, {reasons} change nothing that one rank "
        "computes and the rest have a test now",
        "`make mutants`, `evidence/mutants.txt`",
    )
    first, second = (evidence("huge", rf"^rank {rank}: peak (\S+) GiB")[0] for rank in (0, 1))
    yield (
        "One step of ViT-H/14 (634 M parameters) sharded over two CPU ranks, one image each",
        f"peak memory {first} and {second} GiB",
        "`bench/experiments/huge.py ViT-H/14`, `evidence/huge.txt`",
    )
    (peak,) = evidence("inspection_memory", r"ViT-L/16 at 384(?:.*\n)*? *128 pictures: peak (\S+) GB")
    yield (
        "Inspecting ViT-L/16 at 384 pixels with 128 images",
        f"peak memory {peak} GB",
        "`bench/experiments/inspect_memory.py`, `evidence/inspection_memory.txt`",
    )


def findings_table() -> str:
    """How many claims have which verdict, and the most telling ones: what was tested, and what the paper says."""
    verdicts = verdicts_of(read_ledger(ROOT / "results" / "studies", TINY.name), TINY)
    found = {one.claim.name: one for own in verdicts.values() for one in own}
    rows = [
        (one.claim.name, one.answer, measured_text(one), one.claim.says.rstrip("."))
        for one in map(found.__getitem__, TELLING)
    ]
    heading = ("tested here", "verdict", "points [95 % interval]", "the paper says")
    return f"{counts_text(verdicts)} Five of them:\n\n{_table(heading, rows)}"


def measured(folder: Path) -> dict[str, speed.SuiteResult]:
    """The committed results of `bench run` by suite, in the order of CONTESTS and then of their names."""
    found = [speed.load(path) for path in sorted(folder.glob("*.json"))]
    rank = {name: number for number, name in enumerate(CONTESTS)}
    found.sort(key=lambda result: rank.get(result.suite, len(rank)))
    return {result.suite: result for result in found}


def speed_rows(folder: Path, suites: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """For each case against timm: the contestants of SHOWN, the best of the other libraries, what is no difference."""
    for suite, result in measured(folder).items():
        for case in (case for case in result.cases if suite in suites and case.rows[0].name.startswith("timm")):
            shown = [_of_engine(case, name) for name in SHOWN]
            if any(shown):
                peers = (_best_peer(case, is_int8=is_int8) for is_int8 in (False, True))
                yield f"{suite}: {case.title}", *(one or "none" for one in (*shown, *peers)), speed.noise_text(case)


def _of_engine(case: speed.CaseResult, engine: str) -> str:
    """The ratio of vitlab's row for an engine, of `torch` beside that of the same call without an engine, if there is
    one; empty if there is none.
    """
    named = {row.name: row for row in case.rows if row.name.startswith("vitlab")}
    rows = [row for name, row in named.items() if name.endswith(f", engine {engine}")]
    same = [row for name, row in named.items() if engine == "torch" and f"{name}, engine torch" in named]
    return ", ".join(speed.marked(case, row) for row in (*same, *rows[:1]))


def _best_peer(case: speed.CaseResult, *, is_int8: bool) -> str:
    """The row of another library with the highest ratio to the baseline, with its name; empty if there is none."""
    rows = [row for row in case.rows[2:] if not row.name.startswith("vitlab") and ("int8" in row.name) == is_int8]
    found = [(ratio, row) for row in rows if (ratio := case.ratio(row)) is not None]
    if not found:
        return ""
    _, row = max(found, key=lambda one: one[0])
    return f"{speed.marked(case, row)} ({row.name.removesuffix(', int8')})"


def speed_table(folder: Path, suites: tuple[str, ...] = SHORT) -> str:
    """The short table of speed: a row for each case of these suites that has engines."""
    rows = list(speed_rows(folder, suites))
    heading = ("timm = 1.00", *(f"`{name}`" for name in SHOWN), "best other", "best other, int8", "no difference")
    return _table(heading, rows) if rows else NOT_MEASURED


def suite_table(folder: Path) -> str:
    """Where and when each suite was measured."""
    found, rows = measured(folder), []
    for suite in SUITES:
        facts = found[suite].machine if suite in found else {}
        rounds = f"{found[suite].rounds}" if suite in found else "no committed result"
        rows.append((suite, *(str(facts.get(name, "")) for name in ("processor", "date", "commit")), rounds))
    return _table(("suite", "processor", "date", "commit", "rounds"), rows)


def speed_tables(folder: Path) -> str:
    """Every row of every case of every suite."""
    lines = []
    for suite, result in measured(folder).items():
        facts = result.machine
        lines += [f"### {suite}", "", result.about, ""]
        command = result.command.partition(" --rounds")[0]
        lines += [
            f"`{command}` ({result.rounds} rounds) on {facts['processor']}, {facts['cores']} cores, "
            f"commit {facts['commit']}, {facts.get('date', 'date unknown')}.",
            "",
        ]
        for case in result.cases:
            lines += [f"**{case.title}**", "", *speed.table(speed.headings(case), speed.case_rows(case)), ""]
    return "\n".join(lines) if lines else NOT_MEASURED


def merging_table() -> str:
    """The accuracy of token merging from evidence/, beside its speed in the rounds of the suite `merging`."""
    heading, _, *rows = (
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (ROOT / "evidence" / "merging.txt").read_text("utf-8").splitlines()
    )
    fast = speeds()
    joined = [(*row, f"{fast[int(row[0])]:.2f}") for row in rows]
    return _table((*heading, "speed (merge 0 = 1.00)"), joined)


def tables() -> dict[str, str]:
    """Every table by the name of its marks."""
    accuracy, robustness = list(accuracy_rows()), list(robustness_rows())
    heading = ("what", "result", "made by")
    return {
        "demo": _table(("labels per class", "pre-trained", "from scratch", "difference"), demo_rows()),
        "accuracy": _table(heading, accuracy),
        "robustness": _table(heading, robustness),
        "short": _table(heading, [accuracy[0], _brief(accuracy[5]), robustness[0], robustness[2]]),
        "findings": findings_table(),
        "speed": speed_table(speed.RESULTS),
        "suites": suite_table(speed.RESULTS),
        "all speed": speed_tables(speed.RESULTS),
        "patterns": (ROOT / "evidence" / "patterns.txt").read_text("utf-8"),
        "merging": merging_table(),
    }


def with_tables(page: str) -> str:
    """The page with every table between its marks."""
    for name, text in tables().items():
        mark = f"<!-- results: {name} -->\n"
        page = re.sub(
            f"{mark}.*?<!-- end -->\n", lambda _, new=f"{mark}{text}<!-- end -->\n": new, page, flags=re.DOTALL
        )
    return page


def _brief(row: Row) -> Row:
    """A row without what its name says after the colon."""
    return row[0].partition(": ")[0], *row[1:]


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pages() -> list[Path]:
    """Every document that has a table of results."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in documents if "<!-- results: " in page.read_text("utf-8")]


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
