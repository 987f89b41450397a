"""The trainings of a study as run folders: where they are, their specs, and the choice among rivals.

OUT/trained/NAME/seed-N/       a run folder; studies in the same OUT share equal trainings
OUT/trained/NAME/picking/N/    a run folder for each rival, trained without development images and judged on them
OUT/trained/NAME/choice.json   which of them was best
OUT/data/PLACE.npz             images that are drawn, or slow to open, packed once
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from vitlab.data.class_names import renumbered
from vitlab.data.fingerprint import fingerprint
from vitlab.data.source import decode
from vitlab.data.sources.catalogue import open_source, with_absolute_path
from vitlab.files.store import replacing, sha256, write_json
from vitlab.files.strict_json import read_json
from vitlab.jobs.job import Job
from vitlab.require import require
from vitlab.run_dir import CONTENTS, DIVERGED, MODEL, RESULT, RUN, VERSION, RunDir, RunSpec
from vitlab.run_dir import DATA as RUN_DATA
from vitlab.runs.progress import announced
from vitlab.runs.sweep.point_run import PLACES, check_same, train_point
from vitlab.runs.training.data import read_card
from vitlab.runs.training.exactness import compared, differences, read_record
from vitlab.spec.recipe import CHOSEN, Execution, Recipe, measure_of
from vitlab.studies.study import PLACE, Training, sized
from vitlab.studies.study_file import TRAINED
from vitlab.train.streams import resolved, unfit
from vitlab.weights.load import weights_sha256
from vitlab.world.device import default_workers, pick_device

PICKING, CHOICE, DATA = "picking", "choice.json", "data"
SAVES = 4  # checkpoints of a run that is made small
Pair = tuple[Training, int]  # with its seed


@dataclass(frozen=True)
class Lab:
    """Where the runs of studies are, what the places of their data stand for, and how runs are executed."""

    out: Path
    places: Mapping[str, str]
    execution: Execution

    def folder(self, training: Training, seed: int) -> Path:
        """The run folder of a training."""
        return self.out / TRAINED / training.name / f"seed-{seed}"

    def expanded(self, spec: str) -> str:
        """A data spec with its places filled in and absolute; after the first `?` another one is read as `&`."""
        text = PLACE.sub(lambda found: self.places[found[1]], spec)
        first, *options = text.split("?")
        return with_absolute_path(f"{first}?{'&'.join(options)}" if options else first)


def is_usable(folder: Path) -> bool:
    """Whether a run is finished and has a model: one that diverged has none."""
    return (folder / RESULT).exists() and not (folder / DIVERGED).exists()


def unique(trainings: Iterable[Training]) -> list[Training]:
    """Every training once, with what it starts from before it."""
    return list(dict.fromkeys(one for training in trainings for one in training.chain))


def run_spec(lab: Lab, training: Training, seed: int, recipe: Recipe, *, is_picking: bool = False) -> RunSpec:
    """The run of a training; what it starts from must be finished, except for an estimate (`planned_spec`)."""
    spec = planned_spec(lab, training, seed, recipe, is_picking=is_picking)
    if training.start is None:
        return spec
    weights = lab.folder(training.start, seed) / MODEL
    return replace(spec, start=str(weights), start_sha256=weights_sha256(weights))


def planned_spec(lab: Lab, training: Training, seed: int, recipe: Recipe, *, is_picking: bool = False) -> RunSpec:
    """The run of a training without the weights that it starts from."""
    model, device = sized(training.model, recipe), pick_device(lab.execution.device)
    how = lab.execution
    workers = default_workers(device) if how.workers == CHOSEN else how.workers
    every = how.save_every or max(recipe.schedule.total // SAVES, 1)
    placed = replace(how, device=str(device), workers=workers, keep=1, save_every=every)
    placed = replace(placed, streams=0) if unfit(model, placed) else placed
    return RunSpec(
        format="vitlab-run",
        version=VERSION,
        kind="pretrain" if training.start is None else "finetune",
        model=model,
        recipe=recipe,
        data=lab.expanded(training.data),
        execution=replace(placed, streams=resolved(model, recipe, placed)),
        seed=seed,
        held_out=training.development if is_picking else training.held_out,
        test="" if is_picking else lab.expanded(training.test),
    )


def training_jobs(lab: Lab, pairs: Sequence[Pair]) -> list[Job]:
    """A job for each training whose start is usable; rivals must have been compared."""
    jobs = []
    for training, seed in pairs:
        if training.start is not None and not is_usable(lab.folder(training.start, seed)):
            continue
        recipe = chosen_recipe(lab, training) if training.rivals else training.recipe
        jobs.append(_job(lab, lab.folder(training, seed), run_spec(lab, training, seed, recipe)))
    return jobs


def picking_jobs(lab: Lab, pairs: Sequence[Pair]) -> list[Job]:
    """A job for every rival of every training that has some and is not decided; the first seed is used."""
    first = dict(reversed(pairs))
    jobs = []
    for training, seed in first.items():
        folder = lab.out / TRAINED / training.name
        if not training.rivals or (folder / CHOICE).exists():
            continue
        for number, recipe in enumerate((training.recipe, *training.rivals)):
            spec = run_spec(lab, training, seed, recipe, is_picking=True)
            jobs.append(_job(lab, folder / PICKING / f"{number}", spec))
    return jobs


def choose_recipes(lab: Lab, trainings: Iterable[Training]) -> None:
    """Write which rival was best on the development images; of equal ones the first, which has the smaller rate."""
    for training in trainings:
        folder = lab.out / TRAINED / training.name
        if not training.rivals or (folder / CHOICE).exists():
            continue
        scores = [_validated(folder / PICKING / f"{number}") for number in range(1 + len(training.rivals))]
        best = max(range(len(scores)), key=scores.__getitem__)
        require(scores[best] >= 0, f"every recipe that was tried for {training.name} diverged; see {folder / PICKING}")
        write_json(folder / CHOICE, {"best": best, "development accuracy": scores})


def chosen_recipe(lab: Lab, training: Training) -> Recipe:
    """The recipe that was best on the development images."""
    choice = cast(dict[str, Any], read_json(lab.out / TRAINED / training.name / CHOICE))
    return (training.recipe, *training.rivals)[int(choice["best"])]


def _validated(folder: Path) -> float:
    """The accuracy on development images; -1 if the run diverged."""
    if not is_usable(folder):
        return -1.0
    numbers = cast(dict[str, Any], read_json(folder / RESULT))["validation"]
    return float(numbers[measure_of(numbers)])


def _job(lab: Lab, folder: Path, spec: RunSpec) -> Job:
    check_same(folder, spec, apart_from=PLACES)  # `check_data` has compared what they hold
    name = str(folder.relative_to(lab.out / TRAINED))
    return Job(name, train_point, (folder, spec, folder / "known", {}), folder, (RESULT, DIVERGED))


# -- Data that must stay the same ------------------------------------------------------------------


def check_data(lab: Lab, trainings: Iterable[Training], seeds: Sequence[int], console: Console) -> None:
    """Raise if a run of the trainings, of whatever seed, saw other data than there is now.

    Its contents count, not its place. It is read only if a training has runs and others are missing, or if it is given
    at another place.
    """
    same: set[tuple[object, ...]] = set()  # what was compared already: most runs have equal records
    for training in trainings:
        folder = lab.out / TRAINED / training.name
        places = {"data": lab.expanded(training.data), "test": lab.expanded(training.test)}
        is_complete = all(_is_finished(folder / f"seed-{seed}") for seed in seeds)
        for path in sorted([*folder.glob(f"seed-*/{RUN}"), *folder.glob(f"{PICKING}/*/{RUN}")]):
            run = RunDir.open(path.parent)
            held = vars(run.spec())
            moved = [
                f"{name} was {held[name]} and is {now}" for name, now in places.items() if held[name] not in ("", now)
            ]
            records = [run.path / name for name in (CONTENTS, RUN_DATA)]
            key = (*places.values(), bool(moved), *(sha256(file) for file in records if file.exists()))
            if key in same or (is_complete and not moved):
                continue
            said = _changes(run, places, console, has_moved=bool(moved))
            advice = "give the data of the earlier runs, or choose another out="
            require(not said, f"{run.path} was trained on other data: {'; '.join([*said, *moved, advice])}")
            same.add(key)


def _changes(run: RunDir, places: Mapping[str, str], console: Console, *, has_moved: bool) -> list[str]:
    """How the data at some places differs from what a run saw, in sentences."""
    before = read_record(run.path / CONTENTS)
    if not before:
        return ["there is no record of its data"] if has_moved else []
    sets = {name: open_source(place) for name, place in places.items() if name in before}
    try:
        sets["data"] = renumbered(sets["data"], read_card(run).class_names)
    except ValueError as error:
        return [str(error)]
    found = {name: compared(before[name], one, fingerprint(one), console) for name, one in sets.items()}
    return differences(found, sets)


def _is_finished(folder: Path) -> bool:
    return (folder / RESULT).exists() or (folder / DIVERGED).exists()


# -- Data that is packed once ----------------------------------------------------------------------


def packed(out: Path, specs: Mapping[str, str], console: Console) -> dict[str, str]:
    """Pack each data set, unless it is there, into an npz file of equally large images; returns their specs."""
    found = {}
    for place, spec in specs.items():
        file = out / DATA / f"{place}.npz"
        if not file.exists():
            with announced(console, f"packing {spec} ..."):
                _pack(spec, file)
        found[place] = f"npz:{file}"
    return found


def _pack(spec: str, file: Path) -> None:
    source = open_source(spec)
    samples = [source.item(number) for number in range(len(source))]
    pictures = [np.asarray(decode(sample, source.max_pixels).image) for sample in samples]
    require(len({one.shape for one in pictures}) == 1, f"{spec!r} cannot be packed: its images have several sizes")
    labels = np.array([sample.labels[0] for sample in samples], np.int64)
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(
            stream,
            images=np.stack(pictures),
            labels=labels,
            class_names=np.array(source.class_names, "U"),
        )
