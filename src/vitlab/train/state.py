"""The state of a training: all tensors by name, and the numbers of its progress."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.files.strict_json import check_fields, from_json
from vitlab.require import require
from vitlab.world.parallel import like, own_part, part_of

Read = Callable[[str, range | None], Tensor]  # reads a stored tensor by name: all of it or some rows


SETTLED_WINDOWS = 3  # in a row
SETTLED_SHARE = 0.01  # of the first window's mean, by which a window must lower the loss


@dataclass
class Settling:
    """Whether the training loss has settled, so that a run may stop before its last step.

    The mean loss is taken over consecutive windows of steps. A window lowers the loss if its mean is below the lowest
    so far by more than 1 % of the first window's mean. The loss has settled after three windows in a row that did not
    lower it, not counting those that end within the warm-up. All numbers are part of the progress, so a resumed run
    stops at the same step.
    """

    total: float = 0.0  # of the losses in this window
    steps: int = 0  # in this window
    first: float | None = None  # mean of the first window
    lowest: float | None = None  # mean of the last window that lowered the loss
    unchanged: int = 0  # windows in a row that did not

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def has_settled(self) -> bool:
        """Whether the loss has settled."""
        return self.unchanged >= SETTLED_WINDOWS

    def add(self, loss: float, window: int, *, is_warming: bool) -> None:
        """Add the loss of one step; ignored if it is not finite, because the step changed nothing."""
        if not math.isfinite(loss):
            return
        self.total, self.steps = self.total + loss, self.steps + 1
        if self.steps == window:
            self._close(self.total / window, is_warming)

    def _close(self, mean: float, is_warming: bool) -> None:
        self.total, self.steps = 0.0, 0
        if self.first is None or self.lowest is None:
            self.first = self.lowest = mean
        elif mean < self.lowest - SETTLED_SHARE * abs(self.first):
            self.lowest, self.unchanged = mean, 0
        elif not is_warming:
            self.unchanged += 1


@dataclass
class Progress:
    """The numbers of a run that are not tensors; all of them are saved."""

    step: int = 0  # updates so far, including skipped ones
    images: int = 0  # used so far
    skipped: int = 0  # steps whose loss or gradient was not finite
    skipped_in_a_row: int = 0
    best: float | None = None  # value of the validation measure
    best_step: int = 0
    validations_since_best: int = 0
    settling: Settling = field(default_factory=Settling)  # of the training loss
    books: dict[str, Any] = field(default_factory=dict)  # account of the samples, kept by the run

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class TrainState:
    """A module in training with its optimizer, its weight average if there is one, and its progress."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    average: nn.Module | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def trained(self) -> nn.Module:
        """The module to validate and keep: the average if there is one."""
        return self.module if self.average is None else self.average

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """All tensors by group and name, without copies."""
        found = {"model": dict(self.module.state_dict()), "optimizer": dict(self._optimizer_tensors())}
        if self.average is not None:
            found["average"] = dict(self.average.state_dict())
        return found

    def load(self, stored: Mapping[str, tuple[list[str], Read]], progress: Progress) -> None:
        """Load a stored state tensor by tensor, so that nothing is in memory twice."""
        expected = {"model", "optimizer"} | ({"average"} if self.average is not None else set())
        require(set(stored) == expected, f"the checkpoint has {sorted(stored)}, but this run needs {sorted(expected)}")
        _fill(self.module, *stored["model"])
        if self.average is not None:
            _fill(self.average, *stored["average"])
        self._load_optimizer(*stored["optimizer"])
        self.progress = progress

    def first_nonfinite(self) -> str | None:
        """The name of a tensor with NaN or infinity, if there is one."""
        for group, tensors in self.groups().items():
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not own_part(tensor).isfinite().all():
                    return f"{group}/{name}"
        return None

    def _parameters(self) -> list[tuple[str, Tensor]]:
        """The optimizer's parameters with their names, in the optimizer's order."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [(names[id(p)], p) for group in self.optimizer.param_groups for p in group["params"]]

    def _optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._parameters():
            for what, value in self.optimizer.state[parameter].items():
                if value is not None:
                    assert isinstance(value, Tensor), f"the optimizer keeps {what} as {type(value).__name__}, not saved"
                    yield f"{what}/{name}", value

    def _load_optimizer(self, names: list[str], read: Read) -> None:
        own = dict(self._parameters())
        numbers = {name: number for number, name in enumerate(own)}
        found: dict[int, dict[str, Tensor]] = {}
        for stored in names:
            what, _, name = stored.partition("/")
            require(name in numbers, f"the checkpoint has optimizer state of {name!r}, which this run does not train")
            found.setdefault(numbers[name], {})[what] = _read_like(own[name], stored, read)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": found})


@torch.no_grad()
def _fill(module: nn.Module, names: list[str], read: Read) -> None:
    own = module.state_dict()
    differing = sorted(set(own) ^ set(names))
    require(not differing, f"the checkpoint is of another model: {', '.join(differing[:5])} are not in both")
    for name, tensor in own.items():
        part = part_of(tensor)
        stored = read(name, part.rows)
        same = stored.shape == part.values.shape
        require(same, f"the checkpoint's {name} is {tuple(stored.shape)}, the model's {tuple(part.values.shape)}")
        part.values.copy_(stored)


def _read_like(parameter: Tensor, stored: str, read: Read) -> Tensor:
    """Read an optimizer's state of a parameter: a single number, or a tensor split like the parameter."""
    part = part_of(parameter)
    found = read(stored, None if stored.startswith("step/") else part.rows)
    return found if found.dim() == 0 else like(parameter, found.to(part.values.device))


def progress_from(values: Mapping[str, object]) -> Progress:
    """Read saved progress; raises for missing or unknown fields. Older checkpoints may lack `settling`."""
    names = {f.name for f in fields(Progress)}
    require(set(values) | {"settling"} == names, f"the saved progress has {sorted(values)}, not {sorted(names)}")
    return from_json(Progress, dict(values))
