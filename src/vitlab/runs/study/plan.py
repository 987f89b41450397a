"""The plan of a study: its runs, exaFLOPs, time on this device and disk, before anything starts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from vitlab.counting import count_spec
from vitlab.paper.models import name_of
from vitlab.report.tables import Cell as TableCell
from vitlab.report.tables import Results, Tabular
from vitlab.run_dir import RESULT
from vitlab.runs.progress import counted, duration
from vitlab.runs.study.trainings import Lab, planned_spec, unique
from vitlab.runs.training.time_estimate import TRAINING_COST, TYPICAL_SHARE, training_pace
from vitlab.spec.recipe import Execution
from vitlab.studies.scale import Scale, three_digits
from vitlab.studies.study import Cell, FewShot, Inside, Real, Speed, Study, Training, check_claims
from vitlab.world.device import pick_device

READING = 3e-4  # seconds to read and augment a small image, typically; large ones are read by workers meanwhile
SMALL = 128 * 128  # pixels of a small image
AROUND = {"pretrain": 3.0, "finetune": 6.0}  # seconds of a run besides its steps: opening, checkpoints, testing
MEASURING = 8.0  # seconds to measure a small model
COLUMNS = ("stage", "model", "recipe", "runs", "images each", "exaFLOPs", "hours", "disk MB")
HOUR, MB = 3600, 1e6


@dataclass(frozen=True)
class Plan(Tabular):
    """Everything a study would run at a scale. `jobs` runs take place at a time, on a `device`."""

    study: Study
    scale: Scale
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    lab: Lab
    jobs: int = 1

    @cached_property
    def trainings(self) -> list[Training]:
        """Every training once, what others start from first."""
        return unique(cell.training for cell in self.cells if cell.training is not None)

    @property
    def runs(self) -> int:
        """All trainings: with every seed, and with their rivals once."""
        return sum(map(self._runs, self.trainings))

    @property
    def finished(self) -> int:
        """Trainings that are finished, without rivals."""
        pairs = ((one, seed) for one in self.trainings for seed in self.seeds)
        return sum((self.lab.folder(*pair) / RESULT).exists() for pair in pairs)

    @property
    def exaflops(self) -> float:
        """The compute of all trainings."""
        return sum(map(self._exaflops, self.trainings))

    @property
    def disk(self) -> float:
        """Bytes of all run folders, about."""
        return sum(one.disk * self._runs(one) for one in self.trainings)

    @cached_property
    def device(self) -> torch.device:
        """Where the runs take place."""
        return pick_device(self.lab.execution.device)

    @cached_property
    def seconds(self) -> float:
        """The time of what is not finished, with `jobs` runs at a time; speeds are measured one at a time."""
        left = sum(self._left(one) * self._seconds(one) for one in self.trainings)
        alone = sum(_measuring_seconds(one) for one in self.cells if isinstance(one.measurement, Speed))
        shared = sum(map(_measuring_seconds, self.cells)) - alone
        return (left + len(self.seeds) * shared) / self.jobs + len(self.seeds) * alone

    def together_with(self, others: "Sequence[Plan]") -> "Plan":
        """One plan for several studies in the same folder, which share equal trainings."""
        name = ", ".join(one.study.name for one in (self, *others))
        cells = [cell for one in (self, *others) for cell in one.cells]
        study = replace(self.study, name=name)
        return make_plan(study, self.scale, cells, self.seeds, self.lab.out, self.lab.execution, self.jobs)

    @property
    def table(self) -> Results:
        """A row for each pre-training, and one for all fine-tunings that start from the same model."""
        groups: dict[tuple[str, str, str], list[Training]] = {}
        for one in self.trainings:
            stage = "pre-training" if one.start is None else "fine-tuning"
            recipe = one.recipe.name if one.start is None else f"after {one.chain[0].recipe.name}"
            groups.setdefault((stage, name_of(one.chain[0].model), recipe), []).append(one)
        rows: list[tuple[TableCell, ...]] = []
        for (stage, model, recipe), own in groups.items():
            runs = sum(map(self._runs, own))
            images = max(one.images for one in own)
            hours = sum(self._runs(one) * self._seconds(one) for one in own) / self.jobs / HOUR
            disk = sum(one.disk * self._runs(one) for one in own) / MB
            rows.append(
                (
                    stage,
                    model,
                    recipe,
                    runs,
                    images,
                    three_digits(sum(map(self._exaflops, own))),
                    three_digits(hours),
                    round(disk),
                )
            )
        speeds = [cell for cell in self.cells if isinstance(cell.measurement, Speed)]
        if speeds:
            hours = len(self.seeds) * sum(map(_measuring_seconds, speeds)) / HOUR
            rows.append(("measuring speed", "", "", len(speeds) * len(self.seeds), 0, 0.0, three_digits(hours), 0))
        return Results(COLUMNS, tuple(rows))

    @property
    def remarks(self) -> list[str]:
        """A line for every claim that the grid of this scale cannot decide."""
        return check_claims(self.study.claims_at(self.scale), self.cells)

    def in_words(self) -> str:
        """The whole plan in one line."""
        said = f"{counted(len(self.cells), 'cell')} with {counted(len(self.seeds), 'seed')}: "
        said += counted(self.runs, "training")
        said += f", {self.finished:,} of them finished" if self.finished else ""
        cost = f"{self.exaflops:.3g} exaFLOPs, about {duration(self.seconds)} on {self.device.type}"
        at_once = f" with {self.jobs} at a time" if self.jobs > 1 else ""
        return f"{said}, {cost}{at_once}, about {self.disk / MB:,.0f} MB of disk"

    # -- One training ------------------------------------------------------------------------------

    def _runs(self, one: Training) -> int:
        """Runs of a training: one for every seed, and one for each recipe that is tried."""
        return len(self.seeds) + (1 + len(one.rivals) if one.rivals else 0)

    def _left(self, one: Training) -> int:
        done = sum((self.lab.folder(one, seed) / RESULT).exists() for seed in self.seeds)
        return self._runs(one) - done if done < len(self.seeds) else 0

    def _exaflops(self, one: Training) -> float:
        return len(self.seeds) * one.exaflops + one.picking_exaflops

    def _seconds(self, one: Training) -> float:
        """The time of one run, with its share of the threads."""
        image, step = self._pace(one)
        is_small = self.device.type == "cpu" and one.recipe.image[0] * one.recipe.image[1] <= SMALL
        around = AROUND["pretrain" if one.start is None else "finetune"]
        return one.images * (image + READING * is_small) + step * one.recipe.schedule.total + around

    @cached_property
    def _paces(self) -> dict[object, tuple[float, float]]:
        return {}

    def _pace(self, one: Training) -> tuple[float, float]:
        """Seconds for an image and for the optimizer of a step; equal models are measured once."""
        spec = planned_spec(self.lab, one, self.seeds[0], one.recipe)
        key = replace(spec.model, classes=10), spec.recipe.batch
        if key not in self._paces:
            expected = count_spec(spec.model).macs * TRAINING_COST / self._speed
            before = torch.get_num_threads()
            torch.set_num_threads(max(before // self.jobs, 1))
            try:
                self._paces[key] = tuple(training_pace(spec, self.device, expected))
            finally:
                torch.set_num_threads(before)
        return self._paces[key]

    @cached_property
    def _speed(self) -> float:
        """Multiply-accumulates per second of a large matrix product, as far as trainings reach it."""
        side = 1024
        a = torch.ones(side, side, device=self.device)
        (a @ a).sum().item()
        began = time.perf_counter()
        (a @ a @ a @ a).sum().item()
        return TYPICAL_SHARE * 3 * side**3 / max(time.perf_counter() - began, 1e-9)


def make_plan(
    study: Study,
    scale: Scale,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    execution: Execution,
    jobs: int = 1,
) -> Plan:
    """A plan whose places need not exist."""
    names = {name for cell in cells for name in cell.places}
    lab = Lab(out, {name: f"{name}:" for name in names}, execution)
    return Plan(study, scale, tuple(cells), tuple(seeds), lab, jobs)


def _measuring_seconds(cell: Cell) -> float:
    """Seconds to measure a cell; the accuracy of a fine-tuned model is known already."""
    how = cell.measurement
    return 2 * how.seconds if isinstance(how, Speed) else MEASURING * isinstance(how, FewShot | Inside | Real)
