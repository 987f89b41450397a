"""The table of VTAB-1k: a row for each task, the means of the groups and of all tasks, beside table 9 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from vitlab.data.vtab.image_sets import image_set
from vitlab.paper.results import TABLE_9
from vitlab.paper.vtab import TASKS, VtabTask
from vitlab.report.tables import Cell, Results, Tabular

SHORT: Final = {"JFT-300M": "JFT", "ImageNet-21k": "I21k"}


@dataclass(frozen=True)
class Score:
    """The accuracies of one task in percent, by method, with one value per run; `count` are the test images."""

    task: VtabTask
    runs: dict[str, tuple[float, ...]]
    count: int
    chance: float  # percent, of always guessing the commonest class of the test images
    not_scored: int = 0  # test images that could not be read

    def mean(self, method: str) -> float:
        """The mean over the runs."""
        return fmean(self.runs[method])


@dataclass(frozen=True)
class VtabResult(Tabular):
    """The scores of the tasks that ran, and why the others did not."""

    scores: tuple[Score, ...]
    problems: dict[str, str]  # by the key of the task

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were measured: fine-tuned, or few-shot and linear probe."""
        return tuple(dict.fromkeys(method for score in self.scores for method in score.runs))

    def mean(self, method: str, group: str = "") -> float | None:
        """The unweighted mean over a group or over all tasks; None unless all its tasks have run."""
        own = [score for score in self.scores if group in ("", score.task.group)]
        whole = sum(group in ("", task.group) for task in TASKS)
        return fmean(score.mean(method) for score in own) if len(own) == whole else None

    @property
    def table(self) -> Results:
        """A row for each task, then the means, beside what the paper prints."""
        methods, printed = self.methods, [model for model, _ in TABLE_9.rows]
        spread = any(len(values) > 1 for score in self.scores for values in score.runs.values())
        columns = ["task", "group"]
        for method in methods:
            columns += [f"{method} %"] + ([f"{method} std"] if spread else [])
        columns += ["chance %", "test images", *(f"{model} {SHORT.get(data, data)}" for model, data in printed), "note"]
        rows = [self._row(score, spread) for score in self.scores]
        rows += [self._missing(TASKS_BY_KEY[key], problem, spread) for key, problem in self.problems.items()]
        for group in ("natural", "specialized", "structured", ""):
            rows += self._means(group, spread)
        return Results(tuple(columns), tuple(rows))

    def _row(self, score: Score, spread: bool) -> tuple[Cell, ...]:
        cells: list[Cell] = [score.task.name, score.task.group]
        for method in self.methods:
            values = score.runs[method]
            cells += [fmean(values)] + ([stdev(values) if len(values) > 1 else None] if spread else [])
        notes = [image_set(score.task).order] if image_set(score.task).order else []
        given = score.count + score.not_scored
        notes += [f"{score.not_scored:,} of {given:,} test images could not be read"] if score.not_scored else []
        notes += [f"{given:,} of {score.task.test.images:,} test images"] if given < score.task.test.images else []
        paper = [TABLE_9[model, score.task.name] for model, _ in TABLE_9.rows]
        return (*cells, score.chance, score.count, *paper, "; ".join(notes))

    def _missing(self, task: VtabTask, problem: str, spread: bool) -> tuple[Cell, ...]:
        empty = (None,) * len(self.methods) * (2 if spread else 1)
        paper = [TABLE_9[model, task.name] for model, _ in TABLE_9.rows]
        return (task.name, task.group, *empty, None, None, *paper, f"not run: {problem}")

    def _means(self, group: str, spread: bool) -> list[tuple[Cell, ...]]:
        own = [score for score in self.scores if group in ("", score.task.group)]
        wanted = [task for task in TASKS if group in ("", task.group)]
        if not own:
            return []
        cells: list[Cell] = []
        for method in self.methods:
            cells += [fmean(score.mean(method) for score in own)] + ([None] if spread else [])
        names = {score.task.name for score in own}
        paper = [fmean(TABLE_9[model, name] for name in sorted(names)) for model, _ in TABLE_9.rows]
        part = "" if len(own) == len(wanted) else f" over {len(own)} of {len(wanted)} tasks"
        return [(f"mean{part}", group or "all", *cells, None, None, *paper, "")]


TASKS_BY_KEY: Final = {task.key: task for task in TASKS}


def chance_of(labels: Sequence[int]) -> float:
    """Percent of the commonest class."""
    return 100 * max(labels.count(label) for label in set(labels)) / len(labels) if labels else 0.0
