"""A table or figure of the paper, or a study of your own: `vitlab.study`, `vitlab study`.

    OUT/trained/, OUT/data/           see trainings.py; studies in one folder share them
    OUT/NAME/study.json               what was asked for: the grid, its trainings, seeds and claims
    OUT/NAME/cells/CELL/seed-N/       row.json: what was measured, with which run, command and versions
    OUT/NAME/table.json, .csv, .md    the table; figure.svg and figure.png

These files are the whole state: the same call continues, and finished runs are not repeated.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.drawing.canvas import Drawn, require_matplotlib
from vitlab.errors import InvalidValue, Stopped
from vitlab.files.store import locked, make_folder, refuse_strange, refuse_unwritable, write_json
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.jobs.job import Here, Job, Ray, Workers
from vitlab.jobs.mapping import Crew, Event
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.progress import Tally, default_console, say
from vitlab.runs.study.measuring import CellRun, measure
from vitlab.runs.study.plan import Plan, make_plan
from vitlab.runs.study.presentation import sorted_rows, study_figure, study_table
from vitlab.runs.study.trainings import DATA, Lab, check_data, choose_recipes, packed, picking_jobs, training_jobs
from vitlab.runs.sweep.point_run import reached
from vitlab.runs.sweep.sweep import workers_of
from vitlab.runs.training.time_estimate import DAY
from vitlab.spec.recipe import UNREPORTED, Execution
from vitlab.studies.catalogue import STUDIES, find_study
from vitlab.studies.claims import GridCell, Row
from vitlab.studies.rows import read_row
from vitlab.studies.scale import Scale
from vitlab.studies.scales import TINY, find_scale
from vitlab.studies.study import (
    PLACE,
    Cell,
    Figure,
    Speed,
    Study,
    cell_name,
    check_claims,
    check_figure,
    check_grid,
    grid_of,
)
from vitlab.studies.study_file import CELLS, IDENTITY, ROW, STUDY, TRAINED, SeedsSoFar, study_file
from vitlab.studies.verdicts import FEWEST, Verdict, verdict

TABLE, FIGURE = "table", "figure"
SEEDS = FEWEST


@dataclass(frozen=True)
class StudyResult(Tabular):
    """The rows of a finished study; a notebook displays their table."""

    study: Study
    scale: Scale
    grid: tuple[GridCell, ...]
    rows: tuple[Row, ...]

    @property
    def table(self) -> Results:
        """A row for each cell, with the mean over seeds, beside what the paper prints."""
        return study_table(self.rows, self.study.printed)

    @property
    def figure(self) -> Drawn:
        """The figure, with the paper's numbers in a panel of their own; needs the extra `plot`."""
        return study_figure(self.study, self.rows)

    def save(self, folder: Path) -> None:
        """Write the table and the figure; a study without a single value has no figure."""
        self.table.save(folder / TABLE)
        if any(row.values for row in self.rows):
            drawn = self.figure
            for suffix in (".svg", ".png"):
                drawn.save(folder / f"{FIGURE}{suffix}")

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the rows say about each claim of the paper."""
        return tuple(verdict(claim, self.rows, self.grid) for claim in self.study.claims_at(self.scale))

    def lines(self) -> Iterator[str]:
        """The verdict on each claim, and what the paper says."""
        for one in self.verdicts:
            why = next((f" ({judged.why})" for judged in one.judged if judged.why), "")
            yield f"{one.claim.name}: {one.answer}{why}"
        if self.study.says:
            yield f"the paper: {self.study.says}"


def study(
    which: str | Study,
    out: str | Path = "studies",
    *,
    scale: str | Scale = "tiny",
    data: Mapping[str, str] | Sequence[str] = (),
    seeds: int = SEEDS,
    first_seed: int = 0,
    jobs: int | None = None,
    ray: str = "",
    execution: Execution = UNREPORTED,
    ledger: str | Path | None = None,
    command: str = "vitlab.study",
    yes: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> StudyResult:
    """Run a table or figure of the paper at a scale, and return its table, its figure and the verdicts on its claims.

    `which` is a name of `list_studies`, or a `Study` of your own. `data` says where the data is, by the names that the
    plan prints: `{"cifar10": "DIR"}`. Every cell is run with `seeds` seeds from `first_seed` on. `jobs` runs take
    place at a time, each in its own process, or on `ray`. Rows are also written to the folder `ledger`. If it is
    stopped or killed, the same call continues.
    """
    check_arguments(study, locals())
    require_matplotlib("the figures of studies")
    screen, folder = default_console(console, quiet=quiet), Path(out)
    workers = workers_of(jobs, ray)
    at_once = 1 if isinstance(workers, Here) else workers.count
    is_usual = execution.keep == UNREPORTED.keep
    require(is_usual, f"keep is {execution.keep}, but a study keeps one checkpoint of each run; leave it out")
    plan = plan_study(which, out, scale=scale, seeds=seeds, first_seed=first_seed, jobs=at_once, execution=execution)
    own, found = folder / plan.study.name, _places(data)
    check_places(plan, found)
    refuse_unwritable(own)
    refuse_strange(own, (STUDY,))
    kept = None if ledger is None else Path(ledger) / plan.scale.name / plan.study.name
    if kept is not None:
        refuse_unwritable(kept)
    say(screen, f"study   {plan.study.name} at scale {plan.scale.name}: {plan.in_words()}")
    for line in plan.remarks:
        say(screen, f"claim   {line}")
    is_allowed = yes or plan.device.type != "cpu" or plan.seconds < DAY
    require(is_allowed, "the study would take more than a day on this CPU; confirm with yes=True, or choose a scale=")
    if kept is not None:
        make_folder(kept)  # now, not after all trainings: some places cannot be written although they seem to
    with locked(own):
        lab = Lab(folder, found | _packed(plan, found, screen), replace(execution, device=str(plan.device)))
        check_data(lab, plan.trainings, plan.seeds, screen)
        _remember(own, plan)
        if isinstance(workers, Ray):
            workers = replace(workers, gpus=int(plan.device.type == "cuda"))
        _run(replace(plan, lab=lab), workers, own, screen, without_places(command, found))
        result = StudyResult(plan.study, plan.scale, grid_of(plan.cells), tuple(read_rows(own, plan)))
        result.save(own)
    if ledger is not None:
        write_ledger(Path(ledger), result.rows)
    return result


def plan_study(
    which: str | Study,
    out: str | Path = "studies",
    *,
    scale: str | Scale = "tiny",
    seeds: int = SEEDS,
    first_seed: int = 0,
    jobs: int = 1,
    execution: Execution = UNREPORTED,
) -> Plan:
    """What a study would run: trainings, exaFLOPs, time on this device and disk. No data is needed."""
    check_arguments(plan_study, locals())
    require(seeds >= 1, f"{seeds} seeds; give at least 1")
    require(first_seed >= 0, f"first_seed is {first_seed}; seeds count from 0")
    chosen = find_study(which) if isinstance(which, str) else which
    size = find_scale(scale) if isinstance(scale, str) else scale
    is_folder = re.fullmatch(r"\w[\w.+-]{0,99}", chosen.name, re.ASCII) and chosen.name not in (TRAINED, DATA)
    allowed = f"give at most 100 letters, digits, . _ + and -, but not {TRAINED} or {DATA}"
    require(bool(is_folder), f"a study cannot be named {chosen.name!r:.120}; {allowed}")
    cells = check_grid(chosen.name, _listed(chosen, size))
    check_figure(chosen.figure, cells)
    check_claims(chosen.claims_at(size), cells)
    return make_plan(chosen, size, cells, range(first_seed, first_seed + seeds), Path(out), execution, jobs)


def _listed(chosen: Study, scale: Scale) -> list[Cell]:
    """What the function of a study lists; raises a ValueError for what is no grid, or no figure."""
    of = f"of the study {chosen.name}"
    is_figure, is_function = isinstance(chosen.figure, Figure), callable(chosen.cells)
    require(is_figure, f"figure {of} is {chosen.figure!r:.60}; expected a Figure, such as Figure('model')")
    require(is_function, f"cells {of} is {chosen.cells!r:.60}; expected a function that takes a Scale and yields Cells")
    found = chosen.cells(scale)
    require(isinstance(found, Iterable), f"cells {of} returned {found!r:.60}; expected Cells: yield each")
    cells = list(found)
    for cell in cells:
        expected = "expected a Cell, such as Cell({'model': 'ViT-B/16'}, scale.few_shot(), training)"
        require(isinstance(cell, Cell), f"cells {of} yielded {cell!r:.60}; {expected}")
    return cells


def list_studies() -> Results:
    """List the studies: their names and what of the paper they reproduce."""
    lines = (
        (one.name, ", ".join(one.aliases) or None, one.remakes, len(one.claims_at(TINY))) for one in STUDIES.values()
    )
    return Results(("study", "also called", "reproduces", "claims"), tuple(lines))


def study_names(names: Sequence[str]) -> list[str]:
    """The names of studies, each once; `all` stands for all of them."""
    chosen = [one for name in names for one in (STUDIES if name == "all" else [find_study(name).name])]
    return list(dict.fromkeys(chosen))


def places_table(plan: Plan) -> Results:
    """Where a study looks for data: the names of data=, and what each stands for."""
    return Results(("data", "what it is"), tuple((name, plan.scale.places.get(name, "")) for name in _asked(plan)))


# -- The data --------------------------------------------------------------------------------------


def _places(data: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """The places by name, from a mapping or from texts such as `cifar10=DIR`."""
    if isinstance(data, Mapping):
        return {name: str(place) for name, place in data.items()}
    texts = (data,) if isinstance(data, str) else data
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidValue(f"is {data!r:.60}; expected places by name, such as {{'cifar10': DIR}}", field="data")
    pairs = [text.partition("=") for text in texts]
    for name, equals, place in pairs:
        is_pair = bool(name and equals and place)
        require(is_pair, f"data {name!r} must be a name and a place, such as cifar10=data/cifar10")
    return {name: place for name, _, place in pairs}


def without_places(command: str, places: Mapping[str, str]) -> str:
    """The command with names in place of paths: a row says nothing about the machine."""
    named = {f"{name}={place}": f"{name}={name.upper()}" for name, place in places.items()}
    words = [named.get(word, word) for word in shlex.split(command)]
    for flag, name in (("--out", "OUT"), ("--ledger", "LEDGER")):
        if flag in words[:-1] and Path(words[words.index(flag) + 1]).is_absolute():
            words[words.index(flag) + 1] = name
    return shlex.join(words)


def _needed(plan: Plan) -> set[str]:
    return {name for cell in plan.cells for name in cell.places}


def _asked(plan: Plan) -> list[str]:
    """The places that a user must give: those of the grid, and of what is packed from other data."""
    needed = _needed(plan)
    drawn = {name for place in needed for name in PLACE.findall(plan.scale.drawn.get(place, ""))}
    return sorted((needed - plan.scale.drawn.keys()) | drawn)


def _packed(plan: Plan, given: Mapping[str, str], console: Console) -> dict[str, str]:
    """Pack the data that the grid needs and the user has not given; returns it by place."""
    wanted = {name: spec for name, spec in plan.scale.drawn.items() if name in _needed(plan) and name not in given}
    lab = replace(plan.lab, places=given)
    return packed(lab.out, {name: lab.expanded(spec) for name, spec in wanted.items()}, console)


def check_places(plan: Plan, data: Mapping[str, str] | Sequence[str]) -> None:
    """Raise a ValueError if data is given that no study knows, or if some is missing."""
    wanted, given = _asked(plan), _places(data)
    known = {*wanted, *plan.scale.places, *plan.scale.drawn}
    strange = sorted(set(given) - known)
    require(not strange, f"no data is named {', '.join(strange)} here; known are {', '.join(sorted(known)) or 'none'}")
    missing = [name for name in wanted if name not in given]
    words = ", ".join(f"{name} ({plan.scale.places.get(name, 'a data spec')})" for name in missing)
    how = " and ".join(f"{name}=PLACE" for name in missing)
    require(not missing, f"{plan.study.name} needs the data {words}; give {how} with data=")


# -- The runs --------------------------------------------------------------------------------------


def _run(plan: Plan, workers: Workers, own: Path, console: Console, command: str) -> None:
    """Train everything, what others start from first, then measure every cell; raises Stopped."""
    silent = Console(quiet=True)  # the lines of every run would hide those of the study
    speeds, others = _measurements(plan, own, command)
    with Crew(workers) as crew:
        for depth in range(1, max((len(one.chain) for one in plan.trainings), default=0) + 1):
            level = [one for one in plan.trainings if len(one.chain) == depth]
            pairs = [(one, seed) for one in level for seed in plan.seeds]
            _map(crew, picking_jobs(plan.lab, pairs), console, own, silent)
            choose_recipes(plan.lab, level)
            _map(crew, training_jobs(plan.lab, pairs), console, own, silent)
        _map(crew, others, console, own, silent)
    # Runs at the same time share the machine: each speed has it to itself.
    with Crew(replace(workers, count=1) if isinstance(workers, Ray) else Here()) as alone:
        _map(alone, speeds, console, own, console)


def _measurements(plan: Plan, own: Path, command: str) -> tuple[list[Job], list[Job]]:
    """A job for every cell and seed: those that measure speed, and all others."""
    speeds: list[Job] = []
    others: list[Job] = []
    for cell in plan.cells:
        for seed in plan.seeds:
            folder = own / CELLS / cell.name / f"seed-{seed}"
            cell_run = CellRun(plan.lab, plan.study.name, plan.scale.name, cell, seed, command, folder)
            job = Job(f"{cell.name},seed={seed}", measure, cell_run, folder, (ROW,))
            (speeds if isinstance(cell.measurement, Speed) else others).append(job)
    return speeds, others


def _map(crew: Crew, jobs: Sequence[Job], console: Console, own: Path, lines: Console) -> None:
    """Finish the jobs, which print to `lines` in this process; raises Stopped."""
    done = sum(job.is_done() for job in jobs)
    if done == len(jobs):
        return
    with Tally(console, len(jobs), done, has_bar=not isinstance(crew.workers, Here)) as tally:
        code = crew.map(jobs, lines, partial(_tell, tally))
    if code:
        raise Stopped(code, own, "the same command")


def _tell(tally: Tally, job: Job, event: Event, words: str) -> None:
    if event != "started":
        tally.tell(job.name, event, words or (_reached(job.folder) if event == "finished" else ""))


def _reached(folder: Path) -> str:
    """What a finished training or measurement reached, in a few words."""
    if not (folder / ROW).exists():
        return reached(folder)
    values = cast(dict[str, Any], read_json(folder / ROW))["values"]
    return ", ".join(f"{name} {value:.4g}" for name, value in list(values.items())[:1]) or "no values"


def _remember(own: Path, plan: Plan) -> None:
    """Write what is asked for, with the seeds of earlier calls; raise if the folder holds another scale or grid."""
    asked = study_file(plan.study, plan.scale, plan.cells, plan.seeds)
    if (own / STUDY).exists():
        before = read_json(own / STUDY)
        require(isinstance(before, dict), f"{own / STUDY} does not describe a study; choose another out=")
        held, wanted = cast(dict[str, Any], before), to_json(asked)
        other = sorted(name for name in IDENTITY if held.get(name) != wanted[name])
        verb = "differs" if len(other) == 1 else "differ"
        require(not other, f"{own} holds another study: its {', '.join(other)} {verb}; choose another out=")
        earlier = from_json(SeedsSoFar, {"seeds": held.get("seeds", [])}, str(own / STUDY))
        asked = replace(asked, seeds=tuple(sorted({*earlier.seeds, *asked.seeds})))
    write_json(own / STUDY, to_json(asked))


# -- Rows ------------------------------------------------------------------------------------------


def read_rows(own: Path, plan: Plan) -> list[Row]:
    """The rows of a study's folder, in the order of its cells; those of other seeds, too.

    Raises for a row that is damaged, or not of its place.
    """
    rows = []
    for cell in plan.cells:
        own_fields = {"study": plan.study.name, "scale": plan.scale.name, "measure": cell.measurement.value}
        own_fields |= {"cell": cell.name, "levels": dict(cell.levels)}
        for file in sorted((own / CELLS / cell.name).glob(f"seed-*/{ROW}")):
            rows.append(read_row(file, seed=file.parent.name.removeprefix("seed-"), **own_fields))
    return sorted_rows(rows, plan.cells)


def write_ledger(folder: Path, rows: Sequence[Row]) -> None:
    """Write each row as FOLDER/SCALE/STUDY/CELL,seed=N.json."""
    for row in rows:
        name = f"{cell_name(row.levels)},seed={row.seed}.json"
        write_json(folder / row.scale / row.study / name, to_json(row))
