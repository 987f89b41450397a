"""docs/findings.md and its figures, made from a ledger of rows alone: the same rows give the same bytes.

LEDGER/SCALE/STUDY/CELL,seed=N.json     a row for each run, as `vitlab study --ledger LEDGER` writes them
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from vitlab.drawing.canvas import Drawn
from vitlab.drawing.charts import Measured, draw_intervals
from vitlab.report.tables import Results
from vitlab.require import require
from vitlab.runs.study.presentation import sorted_rows, study_figure, study_table
from vitlab.runs.study.trainings import unique
from vitlab.strict_json import from_json, read_json
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import FEWEST, Judged, Row, Verdict, verdict
from vitlab.studies.scales import find_scale
from vitlab.studies.study import FEW_SHOT, TOP_1, Study, cell_name

PAGE, FIGURES, OVERVIEW = "findings.md", "figures", "findings.svg"
COLOURS: Final = {"confirmed": "#1b7837", "not confirmed": "#b2182b", "undecided": "#7f7f7f"}
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
fine-tuning uses 1,000 images of other sets. Its learning rate, the same for fresh and for trained weights, was
chosen of two before the first of these runs, with a seed that is not counted. `docs/howto/studies.md` has the
details and how to run everything again.
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
    verdicts = verdicts_of(rows)
    seen = find_scale(scale).shrinking
    files: dict[str, bytes] = {}
    overview = _overview(verdicts)
    if overview is not None:
        files[f"{FIGURES}/{OVERVIEW}"] = overview.svg
    parts = [OPENING, _summary(verdicts, is_drawn=bool(files)), _compute(rows, scale)]
    parts += [SCALE.format(scale=scale, seen=seen.seen if seen else 0), RULE.format(fewest=FEWEST), ENDING]
    for name, study in STUDIES.items():
        parts.append("\n".join(_section(study, rows[name], verdicts[name])))
        if any(row.values for row in rows[name]):
            files[f"{FIGURES}/{_figure(study)}"] = study_figure(study, rows[name]).svg
    return {PAGE: "\n".join(parts).encode(), **files}


def verdicts_of(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Verdict]]:
    """The verdicts on the claims of every study."""
    return {name: [verdict(claim, rows[name]) for claim in study.claims] for name, study in STUDIES.items()}


def _overview(verdicts: Mapping[str, Sequence[Verdict]]) -> Drawn | None:
    """All comparisons of accuracies in one figure; None without any."""
    lines = []
    for one in itertools.chain(*verdicts.values()):
        for number, judged in enumerate(one.judged, 1):
            compared, found = judged.comparison, judged.interval
            if found is None or compared.value not in (TOP_1, FEW_SHOT):
                continue
            name = f"{one.claim.name}{f' ({number})' if len(one.judged) > 1 else ''}"
            limit = compared.threshold
            expected = (limit, math.inf) if compared.expects == "above" else (-limit, limit)
            lines.append(Measured(name, found.mean, found.half, expected, judged.answer))
    return draw_intervals(lines, COLOURS, x="difference in points of accuracy, 95 % interval") if lines else None


def _compute(rows: Mapping[str, Sequence[Row]], scale: str) -> str:
    """How many trainings the rows rest on, and their compute, each counted once."""
    size, trained = find_scale(scale), dict[tuple[object, int], float]()
    for name, study in STUDIES.items():
        seeds: dict[str, set[int]] = {}
        for row in rows[name]:
            seeds.setdefault(cell_name(row.levels), set()).add(row.seed)
        for cell in study.cells(size):
            own = [] if cell.training is None else unique([cell.training])
            trained |= {(one, seed): one.exaflops for one in own for seed in seeds.get(cell.name, ())}
    total = f"{sum(trained.values()):.2g} exaFLOPs"
    return f"These results took {len(trained):,} trainings and {total}.\n" if trained else ""


def _summary(verdicts: Mapping[str, Sequence[Verdict]], *, is_drawn: bool) -> str:
    every = [one for own in verdicts.values() for one in own]
    counts = {answer: sum(one.answer == answer for one in every) for answer in dict.fromkeys(v.answer for v in every)}
    said = ", ".join(f"{number} {answer}" for answer, number in counts.items())
    rows = [
        (one.claim.says, one.claim.source, one.answer, "; ".join(map(interval_text, one.judged)), _seeds(one.judged))
        for one in every
    ]
    words = "every claim about accuracies: the difference, its interval, and in grey where the paper expects it"
    figure = f"![{words}]({FIGURES}/{OVERVIEW})\n\n" if is_drawn else ""
    return f"Of {len(every)} claims: {said}.\n\n{figure}{Results(SUMMARY, tuple(rows)).to_markdown()}"


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
    said = f"{one.comparison}: {interval_text(one)}" if one.interval else f"{one.comparison}"
    said += f", {one.answer}"
    if one.answer != "undecided":
        return said
    needed = f"about {one.seeds_needed} seeds" if one.seeds_needed else "more than 1,000 seeds"
    return f"{said}; {needed} would decide it at the same mean and deviation"


def interval_text(one: Judged) -> str:
    """A mean with its interval."""
    found = one.interval
    return "-" if found is None else f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _seeds(judged: Sequence[Judged]) -> str:
    found = sorted({one.interval.seeds for one in judged if one.interval})
    return ", ".join(map(str, found)) or "0"


def _figure(study: Study) -> str:
    return f"study-{study.name}.svg"
