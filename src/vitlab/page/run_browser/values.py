"""The files of runs, evaluations and ledgers as JSON values. No torch.

Files are read only where they are, never through symbolic links, and within limits.
"""

import csv
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast

from vitlab.counting import count_spec
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.files.user_files import NotRegular, stream_text
from vitlab.page.run_browser.events import Tally, measured, number
from vitlab.page.run_browser.folders import Found
from vitlab.page.run_browser.mistakes import SampleOf
from vitlab.paper.models import name_of
from vitlab.report.answers import RESULTS, Answers, MistakeList, mistakes_file
from vitlab.report.ledger import read
from vitlab.report.report import render
from vitlab.require import require
from vitlab.run_dir import DATA, DIVERGED, RESULT, RUN, RunDir, RunSpec, answers_file
from vitlab.spec.changes import flattened
from vitlab.spec.recipe import VALIDATION, measure_of

LISTED, CONFUSED, LINES, REMARKS = 200, 50, 2_000, 12  # classes, confused pairs, lines of a ledger and remarks on it
LARGEST_LEDGER, LARGEST_TABLE = 2**26, 2**24  # bytes
MOST_ROWS = 1_000_000  # of a CSV file
SETS = ("test", VALIDATION)  # the first that a run has is the one to look at
NOT_SETTINGS = ("format", "version", "recipe.source")
Values = dict[str, Any]


# -- One run ---------------------------------------------------------------------------------------


def summary(spec: RunSpec, tally: Tally) -> Values:
    """What the list shows of a run, besides its name and state."""
    recipe, best, step = spec.recipe, tally.best, tally.step
    speed, last = tally.speed(recipe.batch), number(tally.last.get("time"))
    left = None if not speed else max(recipe.schedule.total - step, 0) * recipe.batch / speed
    found = {} if best is None else {"best": measured(best), "best_step": best.get("step"), "measure": measure_of(best)}
    return {
        "kind": spec.kind,
        "model": name_of(spec.model),
        "parameters": count_spec(spec.model).parameters,
        "image": list(spec.recipe.image),
        "data": spec.data,
        "recipe": recipe.name,
        "objective": "masked patches" if recipe.masking is not None else "classes",
        "seed": spec.seed,
        "batch": recipe.batch,
        "step": step,
        "total": recipe.schedule.total,
        "loss": number(tally.last_step.get("loss")),
        "best": None,
        **found,
        "began": tally.began,
        "seconds": None if tally.began is None or last is None else max(last - tally.began, 0.0),
        "speed": speed,
        "seconds_left": left,
        "damaged": tally.damaged,
    }


def ending(path: Path, tally: Tally) -> tuple[str, str]:
    """The state of a run that no process is at work on, and why it is in it."""
    if is_regular(path / DIVERGED):
        why = str(read_object(path / DIVERGED).get("diverged", "it diverged"))
        return "failed", why
    if tally.is_over or is_regular(path / RESULT):
        return "finished", ""
    if tally.last.get("event") == "stopped":
        return "stopped", "stopped by a signal; its state is saved"
    if tally.last_step.get("skipped") is True:
        return "failed", "it diverged: loss or gradients were not finite"
    return "failed", "it ended without a result: killed, or by an error"


def settings_of(spec: RunSpec) -> tuple[tuple[str, object], ...]:
    """Every setting of a run by its dotted name."""
    return tuple((name, value) for name, value in flattened(to_json(spec)) if name not in NOT_SETTINGS)


def differences(tables: Sequence[Mapping[str, object]]) -> Values:
    """The settings in which several runs differ, each with its value in every run, and how many are the same."""
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = [(name, [table.get(name) for table in tables]) for name in names]
    differing = [{"setting": name, "values": values} for name, values in rows if any(v != values[0] for v in values)]
    return {"differences": differing, "same": len(rows) - len(differing)}


def swept(tables: Sequence[Mapping[str, object]]) -> Values:
    """The settings in which the points of a sweep differ; those of a model that follow its recipe are left out."""
    found = differences(tables)
    tried = {one["setting"]: one["values"] for one in found["differences"]}
    followed = {name for name in tried if tried[name] == tried.get(f"recipe.{name.removeprefix('model.')}")}
    kept = [one for one in found["differences"] if one["setting"] not in followed]
    return {"differences": kept, "same": found["same"]}


def answers_on(path: Path, name: str, names: Sequence[str]) -> Values:
    """The classes, confusions and worst mistakes of the last evaluation of a set."""
    answers = from_json(Answers, read_json(path / answers_file(name)), answers_file(name))
    wrong = sorted((cell for cell in answers.confusion if cell[0] != cell[1]), key=lambda cell: -cell[2])
    called = partial(_called, names)
    classes = [asdict(one) | {"name": called(one.number)} for one in answers.classes]
    classes.sort(key=lambda one: (_share(one), one["number"]))
    return {
        "name": name,
        "numbers": answers.numbers,
        "classes": classes[:LISTED],
        "class_count": len(classes),
        "confused": [{"label": called(a), "answer": called(b), "count": n} for a, b, n in wrong[:CONFUSED]],
        "mistakes": [
            asdict(one) | {"label": called(one.label), "answer": called(one.answer)} for one in answers.mistakes
        ],
    }


def _share(result: Values) -> float:
    """How good the result of a class is, from 0 to 1."""
    if result["right"] is None:
        return result["average_precision"] or 0.0
    return result["right"] / max(result["images"], 1)


def _called(names: Sequence[str], place: int) -> str:
    return names[place] if 0 <= place < len(names) else f"class {place}"


def class_names(path: Path) -> list[str]:
    found = read_object(path / DATA).get("class_names")
    return [str(name) for name in found] if isinstance(found, list) else []


def run_samples(path: Path) -> list[SampleOf]:
    """The samples of a run's worst mistakes, in the order in which `RunBrowser.run` numbers them."""
    check_there(path, RUN)
    spec, samples = RunDir(path).spec(), []
    for name in SETS:
        if not is_regular(path / answers_file(name)):
            continue
        mistakes = from_json(Answers, read_json(path / answers_file(name)), answers_file(name)).mistakes
        data, held_out = getattr(spec, name), 0.0
        if name == VALIDATION and not spec.validation:
            data, held_out = spec.data, spec.held_out
        samples += [SampleOf(data, one.number, one.id, held_out) for one in mistakes]
    return samples


# -- Evaluations and ledgers -----------------------------------------------------------------------


def evaluation_table(found: Found) -> Values:
    """The table of an evaluation."""
    changed, rows = stamp_of(found.path / RESULTS)[0] / 1e9, read_list(found.path / RESULTS)
    kept = [_row(row) for row in rows if isinstance(row, dict)]
    return {"id": found.id, "name": found.name, "changed": changed, "rows": kept[:LISTED]}


def _row(row: Values) -> Values:
    numbers, account = row.get("numbers"), row.get("account")
    bad = account.get("quarantined") if isinstance(account, dict) else None
    named = {name: str(row.get(name, "")) for name in ("model", "architecture", "data", "labels", "engine")}
    kept = numbers if isinstance(numbers, dict) else {}
    return {**named, "numbers": flat(kept), "bad": len(bad) if isinstance(bad, list | dict) else 0}


def row_details(path: Path, place: int) -> Values:
    """The worst classes, the most confused pairs and the worst mistakes of a row."""
    classes = path / f"{place:02d}-classes.csv"
    confused = (one for one in _table(path / f"{place:02d}-confusion.csv") if one.get("class") != one.get("predicted"))
    return {
        "classes": heapq.nsmallest(LISTED, _table(classes), key=_accuracy),
        "class_count": sum(1 for _ in _table(classes)),
        "confused": heapq.nsmallest(CONFUSED, confused, key=lambda one: -(number(one.get("count")) or 0.0)),
        "mistakes": [asdict(one) for one in _mistakes(path, place).mistakes],
    }


def _accuracy(line: Mapping[str, str]) -> float:
    return next((found for name in ("accuracy %", "AP %") if (found := number(line.get(name))) is not None), -1.0)


def _mistakes(path: Path, place: int) -> MistakeList:
    file = path / mistakes_file(place)
    return from_json(MistakeList, read_json(file), file.name) if is_regular(file) else MistakeList("", ())


def evaluation_samples(path: Path) -> list[SampleOf]:
    """The samples of the worst mistakes of every row, in the order in which `evaluation` numbers them."""
    lists = [_mistakes(path, place) for place in range(1, len(read_list(path / RESULTS)) + 1)]
    return [SampleOf(of.data, one.number, one.id) for of in lists for one in of.mistakes]


def _table(file: Path) -> Iterator[dict[str, str]]:
    """Yield the first lines of a CSV file; none if there is no such file. Raises ValueError if it is damaged."""
    if not is_regular(file) or file.stat().st_size > LARGEST_TABLE:
        return
    try:
        for line in islice(csv.DictReader(stream_text(file), restval=""), MOST_ROWS):
            line.pop(None, None)  # pyrefly: ignore - what csv calls the cells that have no column
            yield dict(line)
    except csv.Error as error:
        raise ValueError(f"{file.name} is not a CSV file: {error}") from None


def ledger_table(name: str, file: Path) -> Values:
    try:
        require(file.stat().st_size <= LARGEST_LEDGER, f"it has more than {LARGEST_LEDGER:,} bytes")
        entries, remarks = read(file)
    except (OSError, ValueError) as error:
        return {"name": name, "columns": [], "rows": [], "total": 0, "remarks": [f"it could not be read: {error}"]}
    table = render(entries[-LINES:])
    remarks = [remark.replace(str(file), file.name) for remark in remarks[:REMARKS]]
    rows = [list(row) for row in table.rows]
    return {"name": name, "columns": list(table.columns), "rows": rows, "total": len(entries), "remarks": remarks}


# -- Files -----------------------------------------------------------------------------------------


def stamp_of(path: Path) -> tuple[int, int]:
    """When a file changed, in nanoseconds, and its size; (-1, -1) unless it is a regular file and no link."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return -1, -1
    return (status.st_mtime_ns, status.st_size) if S_ISREG(status.st_mode) else (-1, -1)


def is_regular(path: Path) -> bool:
    return stamp_of(path)[0] >= 0


def check_there(folder: Path, *names: str) -> None:
    """Raise unless the files are regular ones in this very folder."""
    if folder.resolve() != folder:
        raise NotRegular("a symbolic link leads to this folder")
    for name in names:
        if not is_regular(folder / name):
            raise NotRegular(f"{name} is missing, a symbolic link or no regular file")


def _read(path: Path) -> object:
    """A JSON file; None if it is missing or damaged."""
    try:
        return read_json(path) if is_regular(path) else None
    except (OSError, ValueError):
        return None


def read_object(path: Path) -> Values:
    found = _read(path)
    return cast(Values, found) if isinstance(found, dict) else {}


def read_list(path: Path) -> list[Any]:
    found = _read(path)
    return found if isinstance(found, list) else []


def flat(event: Mapping[str, object]) -> Values:
    """The plain values of an event, and its lists of texts; anything nested is left out."""
    return {
        name: value
        for name, value in event.items()
        if value is None
        or isinstance(value, str | int | float)
        or (isinstance(value, list) and all(isinstance(one, str) for one in value))
    }
