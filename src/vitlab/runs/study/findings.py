"""docs/findings.md and its figures, made from a ledger of rows alone: the same rows give the same bytes.

LEDGER/SCALE/STUDY/CELL,seed=N.json     a row for each run, as `vitlab study --ledger LEDGER` writes them
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vitlab.report.tables import Results
from vitlab.require import require
from vitlab.runs.study.presentation import sorted_rows, study_figure, study_table
from vitlab.strict_json import from_json, read_json
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import FEWEST, Judged, Row, Verdict, verdict
from vitlab.studies.scales import find_scale
from vitlab.studies.study import Study, cell_name

PAGE, FIGURES = "findings.md", "figures"
SUMMARY = ("claim of the paper", "where", "verdict here", "mean [95 % interval]", "seeds")
OPENING = """# Findings

After this page you know which claims of the paper hold in our own small experiments, which do not, and which
are open.

Every number below comes from a row of `results/studies/`, which `vitlab study` wrote with its command, versions
and seed. `python docs/findings.py` makes this page and its figures from those rows, byte for byte. A claim that
does not hold at this scale is a finding about this scale, not about the paper.
"""
SCALE = """## The scale

At the scale `{scale}`, models of the same families stand in for those of the paper and keep its names here.
They have about its proportions of compute, and see the paper's number of images times one constant: {seen:,}
for 7 epochs of JFT-300M. Pre-training uses CIFAR-10 and parts of it for JFT-300M, ImageNet-21k and ImageNet;
fine-tuning uses 1,000 images of other sets. `docs/howto/studies.md` has the details and how to run everything
again.
"""
RULE = """## The rule

It was fixed before the runs, in `src/vitlab/studies/`. For every seed, a comparison is a weighted sum of the
measured values of cells, averaged over the factors that it does not name and paired by the seed. Over at least
{fewest} seeds its mean has a 95 % confidence interval by Student's t distribution. Where a value should be
*above* a threshold, the claim is confirmed if the whole interval is above it, and not confirmed if the whole
interval is at or below it. Where it should be *within* a margin, the claim is confirmed if the whole interval
is inside, and not confirmed if all of it is outside. Otherwise the claim is undecided, and the number of seeds
is given that would decide it if mean and deviation stayed the same. A claim of several comparisons is confirmed
if all are, and not confirmed if one is not.
"""
ENDING = "## Claims by study\n"


def read_ledger(folder: Path, scale: str) -> dict[str, list[Row]]:
    """The rows of a ledger at one scale by study, in the order of the grids."""
    found: dict[str, list[Row]] = {}
    for name, study in STUDIES.items():
        files = sorted((folder / scale / name).glob("*.json"))
        rows = [from_json(Row, read_json(file), str(file)) for file in files]
        for row, file in zip(rows, files, strict=True):
            own = (row.study, row.scale, f"{cell_name(row.levels)},seed={row.seed}.json")
            require(own == (name, scale, file.name), f"{file} holds the row of {own}; files are named after their rows")
        found[name] = sorted_rows(rows, tuple(study.cells(find_scale(scale))))
    return found


def findings(ledger: Path, scale: str = "tiny") -> dict[str, bytes]:
    """The page and its figures, by their names below docs/."""
    rows = read_ledger(ledger, scale)
    verdicts = {name: [verdict(claim, rows[name]) for claim in study.claims] for name, study in STUDIES.items()}
    seen = find_scale(scale).shrinking
    parts = [OPENING, _summary(verdicts), SCALE.format(scale=scale, seen=seen.seen if seen else 0)]
    parts += [RULE.format(fewest=FEWEST), ENDING]
    files: dict[str, bytes] = {}
    for name, study in STUDIES.items():
        parts.append("\n".join(_section(study, rows[name], verdicts[name])))
        if any(row.values for row in rows[name]):
            files[f"{FIGURES}/{_figure(study)}"] = study_figure(study, rows[name]).svg
    return {PAGE: "\n".join(parts).encode(), **files}


def _summary(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    every = [one for own in verdicts.values() for one in own]
    counts = {answer: sum(one.answer == answer for one in every) for answer in dict.fromkeys(v.answer for v in every)}
    said = ", ".join(f"{number} {answer}" for answer, number in counts.items())
    rows = [
        (one.claim.says, one.claim.source, one.answer, "; ".join(map(_interval, one.judged)), _seeds(one.judged))
        for one in every
    ]
    return f"Of {len(every)} claims: {said}.\n\n{Results(SUMMARY, tuple(rows)).to_markdown()}"


def _section(study: Study, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"### {study.name}: {study.remakes}\n"
    yield f"{study.question}" + (f" The paper: {study.says}" if study.says else "") + "\n"
    if not any(row.values for row in rows):
        yield "Not run yet: the ledger has no rows of this study.\n"
    else:
        yield study_table(rows).to_markdown()
        yield f"![{study.remakes}]({FIGURES}/{_figure(study)})\n"
        commands = dict.fromkeys(row.command for row in rows)
        yield "\n".join(f"    {command}" for command in commands) + "\n"
    for one in verdicts:
        yield f"**{one.claim.name}: {one.answer}.** {one.claim.says} ({one.claim.source})\n"
        yield "\n".join(f"- {_judged(judged)}" for judged in one.judged) + "\n"


def _judged(one: Judged) -> str:
    """A comparison with its interval, its answer, and what would decide it."""
    said = f"{one.comparison}: {_interval(one)}" if one.interval else f"{one.comparison}"
    said += f", {one.answer}"
    if one.answer != "undecided":
        return said
    needed = f"about {one.seeds_needed} seeds" if one.seeds_needed else "more than 1,000 seeds"
    return f"{said}; {needed} would decide it at the same mean and deviation"


def _interval(one: Judged) -> str:
    found = one.interval
    return "-" if found is None else f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _seeds(judged: Sequence[Judged]) -> str:
    found = sorted({one.interval.seeds for one in judged if one.interval})
    return ", ".join(map(str, found)) or "0"


def _figure(study: Study) -> str:
    return f"study-{study.name}.svg"
