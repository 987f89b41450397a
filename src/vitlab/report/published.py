"""The published accuracies of the paper by model and task."""

from collections.abc import Iterator
from dataclasses import dataclass

from vitlab.paper.finetuning import IMAGE_SETS
from vitlab.paper.results import TABLE_2, TABLE_5, TABLE_6, TABLE_9

TASKS = (*IMAGE_SETS, "ImageNet ReaL", "VTAB")


@dataclass(frozen=True)
class Published:
    """A published accuracy in percent."""

    model: str
    pretraining: str
    task: str
    mean: float
    std: float | None
    source: str


def published(model: str = "", task: str = "", pretraining: str = "") -> list[Published]:
    """All published accuracies, or those of a model, a task or a pre-training data set."""
    return [
        entry
        for entry in _all()
        if model in ("", entry.model) and task in ("", entry.task) and pretraining in ("", entry.pretraining)
    ]


def _all() -> Iterator[Published]:
    for task, scores in TABLE_2.rows:
        for (model, data), score in zip(TABLE_2.columns, scores, strict=True):
            if score is not None:
                yield Published(model, data, task, score.mean, score.std, "table 2")
    for (data, task), values in TABLE_5.rows:
        for model, value in zip(TABLE_5.columns, values, strict=True):
            if value is not None:
                yield Published(model, data, task, value, None, "table 5")
    for (model, epochs), values in TABLE_6.rows:
        for task, value in zip(TABLE_6.columns, values, strict=True):
            if task != "exaFLOPs":
                yield Published(model, "JFT-300M", task, value, None, f"table 6, {epochs} epochs")
    for (model, data), values in TABLE_9.rows:
        for task, value in zip(TABLE_9.columns, values, strict=True):
            yield Published(model, data, "VTAB" if task == "Mean" else task, value, None, "table 9")
