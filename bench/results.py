"""What a run of a suite found: kept as JSON, written as Markdown, compared with another run.

A contestant is compared with the baseline within each round, because machines drift between rounds. Its ratio is the
median of the ratios of all rounds, so it always lies between their quartiles; it need not be the ratio of the medians.
"""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Unit = Literal["s", "MB"]
RESULTS = Path(__file__).parent / "results"
LEAST = 0.05  # a smaller difference is none on any machine that was measured, whatever the twin's spread


@dataclass(frozen=True)
class Row:
    """A contestant: the amount of every round (seconds of a call, or MB), and its seconds of processor time.

    `difference` and `same_answers` compare its output with the baseline's: the largest difference relative to the
    largest logit, and the share of images with the same top class. A contestant without numbers has a `failure`.
    """

    name: str
    amounts: tuple[float, ...]
    cpu: tuple[float, ...] = ()
    difference: float | None = None
    same_answers: float | None = None
    failure: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.amounts) if self.amounts else None


@dataclass(frozen=True)
class CaseResult:
    """The rows of a case: the baseline first, then its twin, then the others. `limit` is in seconds."""

    title: str
    unit: Unit
    images: int
    beside: int
    limit: float | None
    rows: tuple[Row, ...]

    @property
    def baseline(self) -> Row:
        return self.rows[0]

    @property
    def noise(self) -> float:
        """How far from 1 (as a logarithm) a ratio may be without meaning anything; at least `LEAST`.

        The distance from 1 of the quartiles of a call against itself, whichever is farthest: of the baseline against
        its twin, and of a row without an engine against the same one with `torch`, which is the default.
        """
        named = {row.name: row for row in self.rows}
        pairs = [(self.rows[1], self.baseline)]
        pairs += [(row, named[same]) for row in self.rows if (same := f"{row.name}, engine torch") in named]
        spreads = [spread for row, same in pairs if (spread := _quartiles(self._ratios_to(row, same)))]
        return max([LEAST, *(abs(math.log(one)) for spread in spreads for one in spread)])

    def ratios(self, row: Row) -> list[float]:
        """Return, for each round, how many times as fast as the baseline a row was; of memory, how many times as much
        it took.
        """
        return self._ratios_to(row, self.baseline)

    def _ratios_to(self, row: Row, other: Row) -> list[float]:
        pairs = zip(row.amounts, other.amounts, strict=False)
        return [base / own if self.unit == "s" else own / base for own, base in pairs]

    def ratio(self, row: Row) -> float | None:
        """Return the median of a row's ratios."""
        ratios = self.ratios(row)
        return statistics.median(ratios) if ratios else None

    def quartiles(self, row: Row) -> tuple[float, float] | None:
        """Return the lower and upper quartile of a row's ratios; of a single round, its ratio twice."""
        return _quartiles(self.ratios(row))

    def of_limit(self, row: Row) -> float | None:
        """Return the share of the limit's speed that a row reaches."""
        return self.limit / row.median if self.limit and row.median else None


def _quartiles(ratios: Sequence[float]) -> tuple[float, float] | None:
    if len(ratios) < 2:
        return (ratios[0], ratios[0]) if ratios else None
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class SuiteResult:
    """All cases of a suite, where and how they were measured."""

    suite: str
    about: str
    command: str
    rounds: int
    machine: dict[str, object]
    cases: tuple[CaseResult, ...]


def save(result: SuiteResult, folder: Path = RESULTS) -> list[Path]:
    """Write SUITE.json and SUITE.md; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{result.suite}.json", folder / f"{result.suite}.md"]
    paths[0].write_text(json.dumps(asdict(result), indent=1, allow_nan=False) + "\n", "utf-8")
    paths[1].write_text(markdown(result), "utf-8")
    return paths


def load(path: Path) -> SuiteResult:
    """Read a SUITE.json; raises ValueError for any other file."""
    try:
        found = json.loads(path.read_text("utf-8"))
        return SuiteResult(**(found | {"cases": tuple(_case(one) for one in found["cases"])}))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a result of `bench run`; give a SUITE.json, or a folder of them") from error


def render(folder: Path = RESULTS) -> list[Path]:
    """Write SUITE.md again for every SUITE.json in a folder and the folders in it; returns the pages."""
    found = sorted(folder.rglob("*.json"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no .json file; write some with `python -m bench run --out {folder}`")
    for path in found:
        path.with_suffix(".md").write_text(markdown(load(path)), "utf-8")
    return [path.with_suffix(".md") for path in found]


def load_all(path: Path) -> dict[str, SuiteResult]:
    """Read a file, or every result in a folder, by the name of the suite."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a SUITE.json of `bench run`, or a folder of them")
    found = [load(one) for one in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not found:
        raise FileNotFoundError(f"{path} holds no .json file; write some with `python -m bench run --out {path}`")
    return {result.suite: result for result in found}


def _case(found: dict) -> CaseResult:
    rows = [row | {"amounts": tuple(row["amounts"]), "cpu": tuple(row["cpu"])} for row in found["rows"]]
    for amount in (amount for row in rows for amount in row["amounts"]):
        if not isinstance(amount, int | float) or not 0 < amount < math.inf:
            raise ValueError(f"an amount is {amount!r}")
    return CaseResult(**(found | {"rows": tuple(Row(**row) for row in rows)}))


# -- Markdown --------------------------------------------------------------------------------------


def markdown(result: SuiteResult) -> str:
    """The whole result as a page."""
    lines = [f"# {result.suite}", "", result.about, "", f"    {result.command}", ""]
    lines += [f"- {name}: {_fact(value)}" for name, value in result.machine.items()]
    lines += [f"- rounds: {result.rounds}", ""]
    for case in result.cases:
        lines += [f"## {case.title}", "", _says(case), "", *table(headings(case), case_rows(case)), ""]
    return "\n".join(lines)


def headings(case: CaseResult) -> list[str]:
    """The columns of `case_rows`."""
    if case.unit == "MB":
        return ["", "MB", "times the baseline's", "quartiles"]
    limit = ["of the limit"] if case.limit else []
    compared = ["difference"] if any(row.difference is not None for row in case.rows) else []
    compared += ["same answers"] if any(row.same_answers is not None for row in case.rows) else []
    cpu = ["CPU seconds"] if any(row.cpu for row in case.rows) else []
    return ["", "images/s" if case.images > 1 else "seconds", "speed", "quartiles", *limit, *cpu, *compared]


def case_rows(case: CaseResult) -> Iterator[list[str]]:
    """A row for each contestant, as text."""
    columns = headings(case)
    for row in case.rows:
        if row.median is None:
            yield [row.name, row.failure, *[""] * (len(columns) - 2)]
            continue
        quartiles = case.quartiles(row)
        cells = {
            "": row.name,
            "MB": f"{row.median:.0f}",
            "images/s": f"{case.images / row.median:.1f}",
            "seconds": f"{row.median:.3f}",
            "quartiles": f"{quartiles[0]:.2f} to {quartiles[1]:.2f}" if quartiles else "",
            "of the limit": _number(case.of_limit(row)),
            "CPU seconds": f"{statistics.median(row.cpu):.3f}" if row.cpu else "",
            "difference": f"{row.difference:.1e}" if row.difference is not None else "",
            "same answers": f"{100 * row.same_answers:.1f} %" if row.same_answers is not None else "",
        }
        cells["speed"] = cells["times the baseline's"] = marked(case, row)
        yield [cells[column] for column in columns]


def marked(case: CaseResult, row: Row) -> str:
    """The ratio of a row; `=` marks one that does not differ from 1 by more than the noise."""
    ratio = case.ratio(row)
    if ratio is None:
        return ""
    is_same = row is not case.baseline and abs(math.log(ratio)) <= case.noise
    return f"{ratio:.2f} =" if is_same else f"{ratio:.2f}"


def table(heading: Sequence[str], rows: Iterator[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def _says(case: CaseResult) -> str:
    what = (
        "the memory of each contestant as a multiple of the first one's"
        if case.unit == "MB"
        else "the speed of each contestant as a multiple of the first one's"
    )
    limit = f" The limit is {case.limit:.4f} s." if case.limit else ""
    return f"{what[0].upper()}{what[1:]}; `=` is no difference ({noise_text(case)} here).{limit}"


def noise_text(case: CaseResult) -> str:
    """What counts as no difference in a case, as text."""
    return f"±{100 * math.expm1(case.noise):.0f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- Comparing two runs ----------------------------------------------------------------------------


Placed = tuple[CaseResult, Row] | None  # a row with its case, where a run has it


@dataclass(frozen=True)
class Compared:
    """A row of two runs: the ratio to its baseline in each, the second over the first, and what that means."""

    suite: str
    case: str
    name: str
    first: float | None
    second: float | None
    change: float | None
    verdict: str  # better, worse, no difference, baseline, or where the row has no number


def compare(first: dict[str, SuiteResult], second: dict[str, SuiteResult]) -> Iterator[Compared]:
    """Compare the rows of two runs by their ratios to the baseline, because absolute times drift between runs.

    Raises ValueError if they have no suite in common.
    """
    if not first.keys() & second.keys():
        suites = (", ".join(run) for run in (first, second))
        raise ValueError("the first run has {} and the second {}: no suite is in both".format(*suites))
    return _compared(first, second)


def _compared(first: dict[str, SuiteResult], second: dict[str, SuiteResult]) -> Iterator[Compared]:
    for suite in [*first, *(name for name in second if name not in first)]:
        runs = (run.get(suite) for run in (first, second))
        ours, theirs = ({case.title: case for case in run.cases} if run else {} for run in runs)
        for title in [*ours, *(name for name in theirs if name not in ours)]:
            for name, before, after in _pairs(ours.get(title), theirs.get(title)):
                yield _verdict(suite, title, name, before, after)


def _pairs(first: CaseResult | None, second: CaseResult | None) -> Iterator[tuple[str, Placed, Placed]]:
    """(name, the case and its row in the first run or None, the same in the second)."""
    rows = [{row.name: (case, row) for row in case.rows} if case else {} for case in (first, second)]
    for name in [*rows[0], *(name for name in rows[1] if name not in rows[0])]:
        yield name, rows[0].get(name), rows[1].get(name)


def _verdict(suite: str, title: str, name: str, first: Placed, second: Placed) -> Compared:
    before, after = (placed[0].ratio(placed[1]) if placed else None for placed in (first, second))
    if first is None or second is None or before is None or after is None:
        missing = {(True, True): "in neither", (True, False): "only in the second"}
        verdict = missing.get((before is None, after is None), "only in the first")
        return Compared(suite, title, name, before, after, None, verdict)
    case, row = second
    change = after / before
    if row is case.baseline:
        verdict = "baseline"
    elif abs(math.log(change)) <= max(first[0].noise, case.noise):
        verdict = "no difference"
    else:
        verdict = "better" if (change > 1) == (case.unit == "s") else "worse"
    return Compared(suite, title, name, before, after, change, verdict)


def conditions(first: dict[str, SuiteResult], second: dict[str, SuiteResult]) -> Iterator[str]:
    """A line for each suite that the two runs measured on other processors or in other numbers of rounds."""
    for suite in (name for name in first if name in second):
        runs = first[suite], second[suite]
        if len({(run.machine.get("processor"), run.rounds) for run in runs}) > 1:
            how = (f"{run.rounds} rounds on {run.machine.get('processor', 'an unknown processor')}" for run in runs)
            yield f"{suite}: the first run has {', the second '.join(how)}"


def comparison(rows: Iterator[Compared]) -> list[str]:
    """The lines of a Markdown table of a comparison."""
    cells = (
        [one.suite, one.case, one.name, _number(one.first), _number(one.second), _number(one.change), one.verdict]
        for one in rows
    )
    return table(["suite", "case", "contestant", "first", "second", "second / first", "verdict"], cells)
