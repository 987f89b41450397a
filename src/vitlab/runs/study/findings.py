"""docs/findings.md and its figures, made from a ledger of rows alone: the same rows give the same bytes.

LEDGER/SCALE/STUDY/CELL,seed=N.json     a row for each run, as `vitlab study --ledger LEDGER` writes them
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from vitlab.drawing.canvas import Drawn
from vitlab.drawing.intervals import Measured, draw_intervals
from vitlab.report.tables import Cell, Results
from vitlab.require import require
from vitlab.runs.study.presentation import runs_of, sorted_rows, study_figure, study_table
from vitlab.runs.study.stand_ins import compute_text, filled, listed, scale_text
from vitlab.studies.architecture import POSITIONS
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Row
from vitlab.studies.rows import read_row
from vitlab.studies.scale import Scale
from vitlab.studies.scales import find_scale
from vitlab.studies.study import DISTANCE_GAIN, FEW_SHOT, LARGEST, SPEED, TOP_1, Study, grid_of
from vitlab.studies.verdicts import FEWEST, Judged, Verdict, verdict

PAGE, FIGURES, OVERVIEW = "findings.md", "figures", "findings.svg"
LOOKS: Final = {  # colour and marker
    "confirmed": ("#1b7837", "o"),
    "not confirmed": ("#b2182b", "X"),
    "undecided": ("#7f7f7f", "D"),
}
ANSWERS = (*LOOKS, "not run yet")
FARTHEST = 20.0  # points of accuracy on the axis of the overview
UNITS = {TOP_1: "", FEW_SHOT: "", SPEED: " images/s", POSITIONS: " in cosine", DISTANCE_GAIN: " % of the image side"}
SUMMARY = ("tested here", "verdict", "mean [95 % interval]", "seeds", "what the paper says", "where")
OPENING = """# Findings

After this page you know which claims of the paper hold in our own small experiments, which do not, and which
are open.

Every number below comes from a row of `results/studies/`, which `vitlab study` wrote with its command, versions
and seed. `python docs/findings.py` makes this page and its figures from those rows, byte for byte. A claim that
does not hold at this scale is a finding about this scale, not about the paper.
"""
READING = """The verdict is on the statement that was *tested here*. The paper often says more, or something more
general; its sentence stands beside it. Numbers are differences in points of accuracy unless a unit is given.
"""
RULE = """## The rule

It was fixed before the runs, in `src/vitlab/studies/`; `docs/log.md` says what was added since. For every seed, a
comparison is a weighted sum of the measured values of cells, averaged over the factors that it does not name and
paired by the seed. A seed counts if it has a value in every cell of the comparison. Over at least {fewest} seeds its
mean has a 95 % confidence interval by Student's t distribution. Where a value should be *above* a threshold, the
claim is confirmed if the whole interval is above it, and not confirmed if the whole interval is at or below it. Where
it should be *within* a margin, the claim is confirmed if the whole interval is inside, and not confirmed if all of it
is outside. Otherwise the claim is undecided, and the number of seeds is given that would decide it if mean and
deviation stayed the same. A claim of several comparisons is confirmed if all are, and not confirmed if one is not.

There are {comparisons} comparisons, each with an interval of its own. About one in twenty of such intervals misses
the true value, so of {comparisons} one or two can be expected to. Nothing is corrected for the number of comparisons.
The intervals cover what changes with the seed, such as fresh weights and the order of images. They do not cover
another choice of training images, tasks or learning rates. Error bars in the figures of the studies are 95 % intervals
of single points. Those of two points may overlap although their difference, paired by the seed, is decided.
"""
STAGES = """The runs have stages: {fewest} seeds for every study, then more for studies that left a claim undecided:
{studies}. `docs/log.md` has the stages, and what of them was written down before the runs.{open}
Claims that were decided after an earlier stage are judged again with all seeds. Every further look makes a wrong
verdict more likely than the 5 % of a single one.
"""
ENDING = "## Claims by study\n"


def read_ledger(folder: Path, scale: str) -> dict[str, list[Row]]:
    """The rows of a ledger at one scale by study, in the order of the grids.

    Raises for a folder of an unknown study, and for a row that is damaged, misnamed or of no cell of its study.
    """
    size, found = find_scale(scale), dict[str, list[Row]]()
    strange = sorted(path.name for path in (folder / scale).glob("*") if path.name not in STUDIES)
    require(not strange, f"{folder / scale} holds {', '.join(strange)}; known studies are {', '.join(STUDIES)}")
    for name, study in STUDIES.items():
        cells = tuple(study.cells(size))
        names = {cell.name for cell in cells}
        rows = []
        for file in sorted((folder / scale / name).glob("*.json")):
            cell, _, seed = file.stem.rpartition(",seed=")
            require(cell in names, f"{file} is of no cell that the study {name} has at scale {scale}")
            rows.append(read_row(file, study=name, scale=scale, cell=cell, seed=seed))
        found[name] = sorted_rows(rows, cells)
    return found


def findings(ledger: Path, scale: str = "tiny") -> dict[str, bytes]:
    """The page and its figures, by their names below docs/."""
    rows, size = read_ledger(ledger, scale), find_scale(scale)
    verdicts = verdicts_of(rows, size)
    files: dict[str, bytes] = {}
    overview = _overview(verdicts)
    if overview is not None:
        files[f"{FIGURES}/{OVERVIEW}"] = overview.svg
    parts = [OPENING, _summary(verdicts, is_drawn=bool(files)), compute_text(rows, size), scale_text(rows, size)]
    parts += [RULE.format(fewest=FEWEST, comparisons=_comparisons(verdicts)), _stages(rows, verdicts), ENDING]
    for name, study in STUDIES.items():
        parts.append("\n".join(_section(study, rows[name], verdicts[name])))
        if any(row.values for row in rows[name]):
            files[f"{FIGURES}/{_figure(study)}"] = study_figure(study, rows[name]).svg
    return {PAGE: "\n".join(filter(None, parts)).encode(), **files}


def verdicts_of(rows: Mapping[str, Sequence[Row]], scale: Scale) -> dict[str, list[Verdict]]:
    """The verdicts on the claims of every study."""
    found: dict[str, list[Verdict]] = {}
    for name, study in STUDIES.items():
        grid = grid_of(study.cells(scale))
        found[name] = [verdict(claim, rows[name], grid) for claim in study.claims_at(scale)]
    return found


# -- All claims ------------------------------------------------------------------------------------


def counts_text(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """How many claims have which answer, in words."""
    every = [one.answer for own in verdicts.values() for one in own]
    said = ", ".join(f"{every.count(answer)} {answer}" for answer in ANSWERS if answer in every)
    return f"Of {len(every)} claims: {said}."


def measured_text(one: Verdict) -> str:
    """The intervals of a claim, with what they are about if there are several, and those beside it."""
    said = "; ".join(map(_about, one.judged))
    shown = [judged for judged in one.beside if judged.interval]
    if shown:
        said += f"; not judged: {', '.join(map(_about, shown))}"
    return f"{said}. {one.claim.everywhere}" if one.is_everywhere else said


def _about(one: Judged) -> str:
    return f"{one.comparison.about} {interval_text(one)}".strip()


def interval_text(one: Judged) -> str:
    """A mean with its interval, and what it is of unless that is accuracy."""
    found, value = one.interval, one.comparison.value
    if found is None:
        return "-"
    ends, limit, digits = (found.low, found.high), abs(one.comparison.threshold), 2
    while digits < 5 and any(round(abs(end), digits) == limit != abs(end) for end in ends):
        digits += 1  # so that nobody reads an end as the threshold itself
    low, high = (f"{end:+.{digits}f}" for end in ends)
    return f"{found.mean:+.2f} [{low}, {high}]{UNITS.get(value, f' {value}')}"


def _overview(verdicts: Mapping[str, Sequence[Verdict]]) -> Drawn | None:
    """All comparisons of accuracies in one figure; None without any."""
    lines = []
    for one in itertools.chain(*verdicts.values()):
        for number, judged in enumerate(one.judged):
            compared, found = judged.comparison, judged.interval
            if found is None or not _is_accuracy(judged):
                continue
            about = f": {compared.about}" if compared.about else ""
            name = f"{one.claim.name}{about}" if number == 0 else f"... {compared.about}"
            limit = compared.threshold
            expected = (limit, math.inf) if compared.expects == "above" else (-limit, limit)
            lines.append(Measured(name, found.mean, found.half, expected, judged.answer))
    words = "difference in points of accuracy, 95 % interval"
    return draw_intervals(lines, LOOKS, x=words, most=FARTHEST) if lines else None


def _is_accuracy(one: Judged) -> bool:
    return one.comparison.value in (TOP_1, FEW_SHOT)


def _summary(verdicts: Mapping[str, Sequence[Verdict]], *, is_drawn: bool) -> str:
    every = [one for own in verdicts.values() for one in own]
    rows = [
        (one.claim.name, one.answer, measured_text(one), _seeds(one.judged), one.claim.says, one.claim.source)
        for one in every
    ]
    table = Results(SUMMARY, tuple(rows)).to_markdown()
    figure = ""
    if is_drawn:
        words = "every comparison of accuracies: the difference, its interval, and in grey where it is expected"
        others = sum(not _is_accuracy(judged) for one in every for judged in one.judged)
        figure = (
            f"![{words}]({FIGURES}/{OVERVIEW})\n\nThe figure has every comparison of accuracies under the name of its "
            f"claim, grey where it is expected to be.\nArrows lead to values beyond its axis. "
            f"{others} comparisons of other values are in the table only.\n\n"
        )
    return f"{counts_text(verdicts)}\n\n{figure}{READING}\n{table}"


def _seeds(judged: Sequence[Judged]) -> str:
    found = sorted({one.interval.seeds for one in judged if one.interval})
    is_speed = any(one.comparison.value == SPEED for one in judged)
    return (", ".join(map(str, found)) or "0") + (" repeats" if is_speed else "")


def _comparisons(verdicts: Mapping[str, Sequence[Verdict]]) -> int:
    return sum(len(one.judged) for own in verdicts.values() for one in own)


def _stages(rows: Mapping[str, Sequence[Row]], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """What is said about several stages, if some studies have more seeds than others."""
    seeds = {name: len({row.seed for row in own}) for name, own in rows.items() if own}
    fewest = min(seeds.values(), default=0)
    more = [f"`{name}` ({number} seeds in all)" for name, number in seeds.items() if number > fewest]
    first = [name for name, number in seeds.items()
             if number == fewest and any(one.answer == "undecided" for one in verdicts[name])]  # fmt: skip
    left = f" {listed(first)} also left one undecided and had no second stage yet." if first else ""
    return filled(STAGES.format(fewest=fewest, studies=", ".join(more), open=left)) if more else ""


# -- One study -------------------------------------------------------------------------------------


def _section(study: Study, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"### {study.name}: {study.remakes}\n"
    yield f"{study.question}" + (f" The paper: {study.says}" if study.says else "") + "\n"
    if not any(row.values for row in rows):
        yield "Not run yet: the ledger has no rows of this study.\n"
    else:
        yield _rounded(study_table(rows, study.printed)).to_markdown()
        if rows[0].measure == SPEED and not any(LARGEST in row.values for row in rows):
            yield "No row has a largest batch: the time of a measurement ended before a limit of memory was found.\n"
        yield f"![{study.remakes}]({FIGURES}/{_figure(study)})\n"
        commands = dict.fromkeys(row.command for row in rows)
        yield "\n".join(f"    {command}" for command in commands) + "\n"
    for one in verdicts:
        yield f"**{one.claim.name}: {one.answer}.** The paper: {one.claim.says} ({one.claim.source})\n"
        yield "\n".join(f"- {_judged(judged)}" for judged in one.judged) + "\n"
        if one.beside and all(judged.interval for judged in one.beside):
            yield f"Not judged, and added after the runs: {', '.join(map(_about, one.beside))}.\n"
            if one.is_everywhere:
                yield f"{one.claim.everywhere}\n"


def _rounded(table: Results) -> Results:
    """The table with the digits that a reader needs, equally many in all rows of a column."""

    def short(column: Sequence[Cell]) -> list[Cell]:
        largest = max((abs(cell) for cell in column if isinstance(cell, float)), default=0.0)
        form = ".2f" if largest >= 1 else ".3f" if largest >= 0.01 else ".3g"
        return [format(cell, form) if isinstance(cell, float) else cell for cell in column]

    columns = [short(column) for column in zip(*table.rows, strict=True)]
    return Results(table.columns, tuple(zip(*columns, strict=True)))


def _judged(one: Judged) -> str:
    """A comparison with its interval, its answer, and what would decide it."""
    said = f"{one.comparison}: {interval_text(one)}" if one.interval else f"{one.comparison}"
    said += f", {one.answer}"
    if one.answer != "undecided":
        return said
    runs = runs_of(one.comparison.value)
    needed = f"about {one.seeds_needed} {runs}" if one.seeds_needed else f"more than 1,000 {runs}"
    return f"{said}; {needed} would decide it at the same mean and deviation"


def _figure(study: Study) -> str:
    return f"study-{study.name}.svg"
