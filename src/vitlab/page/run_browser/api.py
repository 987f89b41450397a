"""A folder of runs as JSON values: what the run browser of the page shows. No torch.

    GET api/runs?page=&words=&state=&order=   the runs, the last changed first
    GET api/runs/ID                           one run: settings, results, classes, mistakes, pictures
    GET api/runs/ID/events?after=BYTE         its events from there on, and where to continue
    GET api/runs/ID/pictures/NUMBER           a picture of it, or of an evaluation
    GET api/compare?ids=ID,ID                 several runs and the settings in which they differ
    GET api/sweeps, api/studies, api/evaluations, api/evaluations/ID, api/ledger

An ID stands for a folder that was found below the root, and no path comes from a client. Every text is printable, and
is text to a browser.
"""

import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vitlab.errors import printable
from vitlab.files.store import is_locked
from vitlab.files.user_files import read_regular
from vitlab.page.run_browser.events import Tally, measured, number, read_events
from vitlab.page.run_browser.folders import Folders, Found, Kind
from vitlab.page.run_browser.mistakes import Pictures
from vitlab.page.run_browser.studies import Studies
from vitlab.page.run_browser.values import (
    LISTED,
    SETS,
    Values,
    answers_on,
    check_there,
    class_names,
    differences,
    ending,
    evaluation_samples,
    evaluation_table,
    flat,
    is_regular,
    ledger_table,
    read_list,
    read_object,
    row_details,
    run_samples,
    settings_of,
    stamp_of,
    summary,
    swept,
)
from vitlab.report.answers import RESULTS
from vitlab.report.ledger import LEDGER
from vitlab.require import require
from vitlab.run_dir import CHOICE, DATA, EVENTS, NOT_EXACT, PICTURE, RESULT, RUN, SWEEP, RunDir, RunSpec, answers_file
from vitlab.spec.recipe import VALIDATION, measure_of

STATES = ("running", "finished", "stopped", "failed", "unreadable")
ORDERS = ("changed", "name", "best", "loss")
PAGE, COMPARED = 50, 12  # runs of a page, and side by side
LARGEST_PICTURE = 2**24  # bytes
LONGEST = 2_000  # characters of a text
Listed = list[Found]
PNG = b"\x89PNG\r\n\x1a\n"


class NotThere(LookupError):  # noqa: N818 - says what is wrong
    """Nothing has this id, or what it had is gone."""


@dataclass
class _Known:
    """What is known of a run since its events had this time and size."""

    stamp: tuple[int, int] = (-1, -1)
    tally: Tally = field(default_factory=Tally)
    spec: RunSpec | None = None
    ended: tuple[str, str] = ("", "")  # the state unless it is running, and why
    about: Values = field(default_factory=dict)


class RunBrowser:
    """The runs, sweeps, studies, evaluations and ledgers below a folder.

    Methods return JSON values and raise LookupError for an unknown id, ValueError for what else is wrong. They may be
    called from several threads. A run whose events have not changed costs one stat in a list.
    """

    def __init__(self, root: str | Path) -> None:
        self.folders = Folders(Path(root))
        self.pictures = Pictures()
        self._known: dict[str, _Known] = {}
        self._studies = Studies()
        self._found: dict[str, Found] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """End the process that decodes pictures, if there is one."""
        self.pictures.close()

    def list(self, page: int = 0, words: str = "", state: str = "", order: str = "changed") -> Values:
        """A page of the runs whose name, model, data or recipe has all the words, in a state, in an order."""
        require(state in ("", *STATES), f"state is {state!r:.40}; allowed are {', '.join(STATES)}")
        require(order in ORDERS, f"order is {order!r:.40}; allowed are {', '.join(ORDERS)}")
        with self._lock:
            runs = self._find("run")
            stamps = {one.id: stamp_of(one.path / EVENTS) for one in runs}
            if words or state or order in ("best", "loss"):
                shown = [self._about(one, stamps[one.id]) for one in runs]
                shown = [one for one in shown if _has(one, words) and state in ("", one["state"])]
                order_of = {one["id"]: _place(one, order) for one in shown}
                runs = [one for one in runs if one.id in order_of]
            else:
                order_of = {one.id: -stamps[one.id][0] if order == "changed" else 0 for one in runs}
            runs.sort(key=lambda one: (order_of[one.id], one.name))
            pages = max(math.ceil(len(runs) / PAGE), 1)
            page = min(max(page, 0), pages - 1)
            listed = [self._about(one, stamps[one.id]) for one in runs[page * PAGE : (page + 1) * PAGE]]
            counts = {"found": len(runs), "total": len(stamps), "page": page, "pages": pages}
            return {"folder": self.folders.root.name, "runs": listed, **counts, "is_cut": self.folders.is_cut}

    def run(self, id: str) -> Values:
        """One run: what the list shows, its settings, results, classes, mistakes and pictures."""
        found, spec, about = self._get(id)
        if spec is None:
            return {**about, "settings": [], "sets": [], "pictures": []}
        names, sets, notes = class_names(found.path), [], []
        for name in SETS:
            try:
                sets += [answers_on(found.path, name, names)] if is_regular(found.path / answers_file(name)) else []
            except (OSError, ValueError) as error:
                notes.append(str(error))
        shown = 0
        for one in sets:
            for mistake in one["mistakes"]:
                mistake["picture"] = shown
                shown += 1
        masked = stamp_of(found.path / PICTURE)
        return {
            **about,
            "settings": [list(one) for one in settings_of(spec)],
            "result": read_object(found.path / RESULT),
            "not_exact": read_list(found.path / NOT_EXACT),
            "sets": sets,
            "pictures": [] if masked[0] < 0 else [{"number": shown, "about": PICTURE, "version": masked[0]}],
            "notes": notes,
            "sweep": next((one.id for one in self._above(found, "sweep")), None),
        }

    def events(self, id: str, after: int = 0) -> Values:
        """The events of a run from byte `after` on, at most a megabyte of them, and where to continue: `next`."""
        found = self._folder(id, "run")
        require(after >= 0, f"after is {after}; it is a number of bytes, from 0")
        read = read_events(found.path, after)
        about = self._get(id)[2]
        return {**vars(read), "events": [flat(event) for event in read.events], "about": about}

    def compare(self, ids: Sequence[str]) -> Values:
        """Several runs, and the settings in which they differ: one value for each run."""
        require(1 <= len(ids) <= COMPARED, f"{len(ids)} runs to compare; 1 to {COMPARED} can be")
        _, specs, runs = zip(*(self._get(id) for id in ids), strict=True)
        tables = [dict(settings_of(spec)) if spec else {} for spec in specs]
        return {"runs": list(runs), **differences(tables)}

    def sweeps(self) -> Values:
        """Every sweep: its points with the settings in which they differ, their results, the choice, the last runs."""
        with self._lock:
            runs = self._find("run")
            return {"sweeps": [self._sweep(one, runs) for one in self._found.values() if one.kind == "sweep"]}

    def studies(self) -> Values:
        """Every study: how far it is, its cells over the seeds so far, and the verdicts on its claims."""
        with self._lock:
            self._find("study")
            return {"studies": self._studies.values(list(self._found.values()))}

    def evaluations(self) -> Values:
        """Every table that `vitlab evaluate` wrote."""
        with self._lock:
            listed = self._find("evaluation")
        listed.sort(key=lambda one: (-stamp_of(one.path / RESULTS)[0], one.name))
        return {"evaluations": [evaluation_table(one) for one in listed[:LISTED]], "total": len(listed)}

    def evaluation(self, id: str) -> Values:
        """One evaluation with the classes, confusions and worst mistakes of each row."""
        found = self._folder(id, "evaluation")
        shown, table = 0, evaluation_table(found)
        for place, row in enumerate(table["rows"], 1):
            row |= row_details(found.path, place)
            for mistake in row["mistakes"]:
                mistake["picture"] = shown
                shown += 1
        return table

    def ledger(self) -> Values:
        """Every ledger as a table, beside the published numbers."""
        with self._lock:
            listed = [(one.name, one.path / LEDGER.name) for one in self._find("ledger")]
        return {"ledgers": [ledger_table(*one) for one in listed[:LISTED]]}

    def picture(self, id: str, number: int) -> tuple[bytes, str]:
        """A picture of a run or an evaluation by its number there, and its media type."""
        found = self._folder(id)
        samples = run_samples(found.path) if found.kind == "run" else evaluation_samples(found.path)
        if 0 <= number < len(samples):
            return self.pictures.get(samples[number]), "image/png"
        if found.kind != "run" or number != len(samples) or not is_regular(found.path / PICTURE):
            raise NotThere(f"there is no picture {number}")
        drawn = read_regular(found.path / PICTURE, LARGEST_PICTURE)
        require(drawn.startswith(PNG), f"{PICTURE} is not a PNG file")
        return drawn, "image/png"

    # -- Folders ---------------------------------------------------------------------------------

    def _find(self, kind: Kind) -> Listed:
        self._found = self.folders.find()
        self._known = {id: known for id, known in self._known.items() if id in self._found}
        return [one for one in self._found.values() if one.kind == kind]

    def _folder(self, id: str, kind: Kind | None = None) -> Found:
        """The folder of an id, if it is still where it was found and no link leads elsewhere."""
        with self._lock:
            found = self._found.get(id)
            if found is None:
                self._found = self.folders.find()
                found = self._found.get(id)
        if found is None or kind not in (None, found.kind) or found.path.resolve() != found.path:
            raise NotThere(f"there is no {kind or 'folder'} with the id {id!r:.40}")
        return found

    def _get(self, id: str) -> tuple[Found, RunSpec | None, Values]:
        """The folder of a run, its spec if that is readable, and what the list shows of it."""
        found = self._folder(id, "run")
        with self._lock:
            about = self._about(found, stamp_of(found.path / EVENTS))
            return found, self._known[id].spec, about

    def _above(self, found: Found, kind: Kind) -> Listed:
        """The folders of a kind that hold this one."""
        with self._lock:
            return [one for one in self._found.values() if one.kind == kind and one.path in found.path.parents]

    def _about(self, found: Found, stamp: tuple[int, int]) -> Values:
        """What the list shows of a run; read again if its events have changed, or while it may be running."""
        known = self._known.setdefault(found.id, _Known())
        if known.stamp != stamp or not known.about:
            known.stamp, known.about = stamp, {"id": found.id, "name": found.name, "changed": stamp[0] / 1e9}
            try:
                check_there(found.path, RUN, DATA)
                known.spec = RunDir(found.path).spec()
                known.tally = known.tally.catch_up(found.path)
                known.about |= summary(known.spec, known.tally)
                known.ended = ending(found.path, known.tally)
            except (OSError, ValueError) as error:
                known.spec, known.ended = None, ("unreadable", str(error))
        is_running = known.ended[0] in ("stopped", "failed") and is_locked(found.path)
        state, why = ("running", "") if is_running else known.ended
        left = known.about.get("seconds_left") if is_running else None
        return known.about | {"state": state, "why": why, "seconds_left": left}

    def _sweep(self, found: Found, runs: Sequence[Found]) -> Values:
        asked, choice = read_object(found.path / SWEEP), read_object(found.path / CHOICE)
        inside = [one for one in runs if found.path in one.path.parents]
        tried = [one for one in inside if one.path.parent == found.path / "grid"]
        last = [one for one in inside if one.path.parent == found.path / "final"]
        results = read_list(found.path / RESULT)
        state = "finished" if results else "running" if is_locked(found.path) else "stopped"
        points = [self._point(one, VALIDATION) for one in tried]
        specs = [self._known[one.id].spec for one in tried]
        return {
            "id": found.id,
            "name": found.name,
            "state": state,
            **{name: asked.get(name) for name in ("recipe", "data", "test", "validation", "held_out", "search")},
            **{name: choice.get(name) for name in ("judged_on", "rule", "pick", "why")},
            "points": points,
            **swept([dict(settings_of(spec)) if spec else {} for spec in specs]),
            "seeds": [self._point(one, "test") for one in last],
            "results": results,
        }

    def _point(self, found: Found, name: str) -> Values:
        """A run of a sweep with its numbers on a set."""
        about = self._about(found, stamp_of(found.path / EVENTS))
        numbers = read_object(found.path / RESULT).get(name)
        numbers = numbers if isinstance(numbers, dict) else {}
        short = {key: about.get(key) for key in ("id", "state", "why", "step", "total")}
        reached = {"measure": measure_of(numbers), "measured": measured(numbers), "loss": number(numbers.get("loss"))}
        return {**short, "name": found.path.name, **reached, "count": number(numbers.get("count"))}


def _has(about: Values, words: str) -> bool:
    text = " ".join(str(about.get(name, "")) for name in ("name", "model", "data", "recipe", "kind")).casefold()
    return all(word in text for word in words.casefold().split())


def _place(about: Values, order: str) -> float:
    """Where a run stands in an order; one without the number comes last."""
    value = about.get({"best": "best", "loss": "loss", "changed": "changed"}.get(order, ""))
    if order == "name":
        return 0.0
    if value is None or value != value:
        return math.inf
    return value if order == "loss" else -value


# -- HTTP ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    media_type: str = "application/json"


Given = Mapping[str, str]  # the parts of the path in braces, and the query
Route = tuple[str, Callable[[Given], Answer]]
PICTURES = "api/runs/{id}/pictures/{number}"  # may take long: the first picture of a data set has to open it
WHOLE = re.compile(r"\d{1,15}")


def routes(browser: RunBrowser) -> list[Route]:
    """What a server mounts: paths such as `api/runs/{id}`, and functions of what was given in path and query.

    The functions read files, so an asynchronous server calls them in a thread.
    """
    values: dict[str, Callable[[Given], Values]] = {
        "api/runs": lambda given: browser.list(
            _whole(given, "page"), given.get("words", ""), given.get("state", ""), given.get("order", "") or "changed"
        ),
        "api/runs/{id}": lambda given: browser.run(given["id"]),
        "api/runs/{id}/events": lambda given: browser.events(given["id"], _whole(given, "after")),
        "api/compare": lambda given: browser.compare([id for id in given.get("ids", "").split(",") if id]),
        "api/sweeps": lambda given: browser.sweeps(),
        "api/studies": lambda given: browser.studies(),
        "api/evaluations": lambda given: browser.evaluations(),
        "api/evaluations/{id}": lambda given: browser.evaluation(given["id"]),
        "api/ledger": lambda given: browser.ledger(),
    }
    return [(path, partial(_answered, get)) for path, get in values.items()] + [(PICTURES, partial(_drawn, browser))]


def _answered(get: Callable[[Given], Values], given: Given) -> Answer:
    try:
        return Answer(200, dumped(get(given)))
    except LookupError as error:
        return Answer(404, dumped({"error": str(error.args[0])}))
    except ValueError as error:
        return Answer(400, dumped({"error": str(error)}))
    except RecursionError:
        return Answer(400, dumped({"error": "a file of it is nested too deeply"}))
    except OSError as error:
        return Answer(404, dumped({"error": f"it cannot be read: {error.strerror or type(error).__name__}"}))


def _drawn(browser: RunBrowser, given: Given) -> Answer:
    found: list[tuple[bytes, str]] = []
    answer = _answered(lambda _: found.append(browser.picture(given["id"], _whole(given, "number"))) or {}, given)
    return Answer(200, *found[0]) if found else answer


def _whole(given: Given, name: str) -> int:
    text = given.get(name, "") or "0"
    require(WHOLE.fullmatch(text) is not None, f"{name} is {text!r:.40}; expected a whole number from 0")
    return int(text)


def dumped(value: object) -> bytes:
    """JSON: texts printable and not too long, non-finite numbers as text."""
    return json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if isinstance(value, str):
        text = value if len(value) <= LONGEST else f"{value[:LONGEST]} ..."
        return text if text.isprintable() else printable(text)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(str(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(one) for one in value]
    return value
