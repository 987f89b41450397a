"""Images per second, memory and largest batch of models against image size, measured: `vitlab cost` (figure 12)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Literal, cast

import torch
from rich.console import Console
from torch import nn

from vitlab.costing.child import OPEN_AT_ONCE, Task
from vitlab.costing.children import ChildFailed
from vitlab.costing.measuring import Measuring
from vitlab.costing.memory import default_limit, free_memory, parse_memory, show_memory
from vitlab.costing.search import Largest
from vitlab.costing.work import Mode
from vitlab.counting import count_spec
from vitlab.engines.making import missing_packages
from vitlab.errors import InvalidValue, printable
from vitlab.files.store import locked, refuse_strange, replacing, write_json
from vitlab.files.strict_json import from_json, read_json
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.paper.models import AXIAL, model_spec
from vitlab.paper.names import canonical, is_model
from vitlab.process import busy
from vitlab.require import check_arguments, require
from vitlab.runs.measure.cost_table import FIGURE, Cost, Costs
from vitlab.runs.measure.inputs import ImageSize, ModelLike, as_list, label_of
from vitlab.runs.progress import Points, default_console, duration, say
from vitlab.spec import AttentionLike, EngineName, ModelSpec, SwinSpec, ViTSpec, image_size
from vitlab.spec.patterns import EXAMPLES, OF_SWIN, no_pattern, parse_pattern
from vitlab.weights.load import load_model
from vitlab.weights.released.catalogue import releases
from vitlab.world.device import environment, pick_device

SIZES = (64, 128, 224, 384, 512)  # of figure 12
MEASUREMENTS = "measurements.json"
REVISION = 3  # of how rows are measured; 1 trained without streams, 2 measured the conversion of a model too
STARTING = 5.0  # seconds to start a process and to build a model, about
SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".bin")  # of files with weights
FIGURE_12 = "R50x1, R50x2, ViT-B/32, ViT-L/32, ViT-B/16, ViT-L/16, ViT-H/14, R152x4"


@dataclass(frozen=True)
class Plan:
    """How every row is measured; rows of the same plan and environment are not measured again."""

    device: str
    seconds: float
    batches: tuple[int, ...]
    memory: int | None  # bytes that the user allows; None for what is free
    environment: dict[str, str]
    engine: EngineName = "torch"  # of inference
    revision: int = 1  # of rows that do not say


@dataclass(frozen=True)
class Subject:
    """A model as tables call it, and its spec: of a name that takes an image size, or of weights or a module."""

    label: str
    spec: ModelSpec | None = None  # None for a name
    attention: str = ""  # a pattern to measure it with; empty for its own
    merge: int | None = None  # tokens to merge in every layer; None for its own

    @property
    def name(self) -> str:
        """How tables call the model with this pattern and merging."""
        merge = "" if self.merge is None else f"merge {self.merge}"
        return ", ".join(filter(None, [self.label, merge, self.attention]))

    @property
    def has_patterns(self) -> bool:
        """Whether the model can be measured with a pattern of attention."""
        return isinstance(model_spec(self.label) if self.spec is None else self.spec, ViTSpec)

    def at(self, size: tuple[int, int]) -> ModelSpec:
        """The spec at an image size; a ValueError if the model cannot take it, or cannot attend or merge like this."""
        spec = model_spec(self.label, image=size) if self.spec is None else replace(self.spec, image=size)
        if self.merge is not None:
            if not isinstance(spec, ViTSpec):
                raise ValueError(f"merge {self.merge} is for ViTs and hybrids; this model has no tokens to merge")
            spec = replace(spec, merge=self.merge)
        if not self.attention:
            return spec
        if not isinstance(spec, ViTSpec):
            why = OF_SWIN if isinstance(spec, SwinSpec) else "this model has no attention between patches"
            raise ValueError(no_pattern(self.attention, why))
        if self.attention == "axial":  # as an Axial-ViT has it, without a class token
            return replace(spec, **AXIAL, distilled=False)
        return replace(spec, attention=self.attention)


@dataclass(frozen=True)
class Kept:
    """The rows of a folder, and the plan they were measured by."""

    plan: Plan
    rows: tuple[Cost, ...]


def cost(
    model: ModelLike | Sequence[ModelLike],
    *,
    image: ImageSize | Sequence[ImageSize] = SIZES,
    mode: Literal["inference", "training", "both"] = "inference",
    batch: int | Sequence[int] = (),
    memory: int | str | None = None,
    attention: AttentionLike | Sequence[AttentionLike] = (),
    merge: int | None = None,
    seconds: float = 30.0,
    out: str | Path | None = None,
    device: str = "auto",
    engine: EngineName | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> Costs:
    """Measure what models cost: images per second, memory and the largest batch, against the image size (figure 12).

    `model` is one or several of: a name such as "ViT-B/16", weights as for `load_model`, or a module; only the
    architecture counts. `image` lists sizes, each one side or a pair (H, W). A training step is forward, backward and
    AdamW, in fp32, in the streams that `pretrain` would choose. `engine` is what computes inference, by default
    "torch": see `vitlab.open_engine`. Speed is the best over `batch`, by default powers of two until it falls. `memory`
    limits each process, in bytes or as text such as "8GiB", by default to what is free now minus a margin; on a GPU it
    is the memory there. `attention` lists patterns such as "window:7" to measure every model with, or is "all": one of
    each kind. `merge` is the number of tokens that every ViT merges in each layer (default: its own). A row takes at
    most `seconds`, apart from starting its process and converting the model. A size that a model cannot take is a row
    with a note.

    Rows are measured in child processes, which are killed when they exceed the memory. They are written to the folder
    `out` as they come, at the end with the figure if matplotlib is installed; the same call continues there, and tries
    rows without a measurement again. The rows of other models, sizes and modes stay in the folder; rows that were
    measured in another way are an error. `quiet` prints no progress.
    """
    check_arguments(cost, locals())
    chosen = _engine(engine, mode)
    screen = default_console(console, quiet=quiet)
    where = pick_device(device)
    is_known = where.type in ("cpu", "cuda")
    require(is_known, f"cost measures on cpu and cuda, not on {where.type}; give device='cpu'")
    allowed = None if memory is None else parse_memory(memory)
    if where.type == "cpu":
        _check_free(allowed)
    if merge is not None and merge < 0:
        raise InvalidValue(f"is {merge}; give the number of tokens to merge in every layer, 0 for none", field="merge")
    plan = Plan(str(where), _positive(seconds), _batches(batch), allowed, environment(where), chosen, REVISION)
    modes = cast(list[Mode], ["inference", "training"] if mode == "both" else [mode])
    wanted = list(product(modes, _subjects(model, _attentions(attention), merge), _sizes(image)))
    require(bool(wanted), f"give at least one model and one image size; figure 12 of the paper shows {FIGURE_12}")
    if out is None:
        return Costs(tuple(_rows(wanted, plan, (), screen)))
    folder, done = Path(out), []
    refuse_strange(folder, (MEASUREMENTS,))
    with locked(folder):
        known = _read(folder, plan)
        try:
            for row in _rows(wanted, plan, known, screen):
                done.append(row)
                rows = (*_others(known, done), *done)
                write_json(folder / MEASUREMENTS, asdict(Kept(plan, rows)))
                Costs(rows).save(folder)
        except KeyboardInterrupt:
            said = f"stopped; {len(done)} of {len(wanted)} rows are in {folder}, and the same command continues"
            raise KeyboardInterrupt(said) from None
        _draw(Costs((*_others(known, done), *done)), folder, screen)
    return Costs(tuple(done))


# -- What is given ---------------------------------------------------------------------------------


def _subjects(
    given: ModelLike | Sequence[ModelLike], attentions: Sequence[str], merge: int | None = None
) -> list[Subject]:
    """Every model with every pattern; beside ViTs, a model that has no patterns is measured once, as it is."""
    subjects = list(dict.fromkeys(replace(_subject(one), merge=merge) for one in as_list(given)))
    are_any = any(one.has_patterns for one in subjects)
    return [
        replace(one, attention=attention)
        for one in subjects
        for attention in ((one.has_patterns or not are_any) and attentions) or ("",)
    ]


def _attentions(given: AttentionLike | Sequence[AttentionLike]) -> list[str]:
    """The string forms of the patterns; "all" is one of each kind."""
    listed = [EXAMPLES if one == "all" else [str(parse_pattern(one))] for one in as_list(given)]
    return list(dict.fromkeys(attention for several in listed for attention in several))


def _subject(given: ModelLike) -> Subject:
    if isinstance(given, nn.Module):
        check_model(given)
        return Subject(label_of(given, cast(Model, given)), cast(Model, given).spec)
    name = str(given)
    if not is_model(name) and name not in releases() and not Path(name).exists():
        if Path(name).suffix in SUFFIXES:
            raise FileNotFoundError(f"{name} does not exist; give weights, or a name such as ViT-B/16")
        canonical(name)  # raises, with the names that may have been meant
    return Subject(name) if is_model(name) else Subject(name, load_model(given).spec)


def _sizes(given: ImageSize | Sequence[ImageSize]) -> list[tuple[int, int]]:
    sizes = [image_size(one) for one in (given if isinstance(given, Sequence) else [given])]
    for height, width in sizes:
        problem = f"has the size {height}x{width}; sides are positive, as in 224 or 224x320"
        if min(height, width) < 1:
            raise InvalidValue(problem, field="image")
    return list(dict.fromkeys(sizes))


def _batches(given: int | Sequence[int]) -> tuple[int, ...]:
    batches = sorted(set(given if isinstance(given, Sequence) else [given]))
    if any(not isinstance(batch, int) or batch < 1 for batch in batches):
        shown = " ".join(map(str, given)) if isinstance(given, Sequence) else given
        raise InvalidValue(f"is {shown!s:.60}; expected positive whole numbers", field="batch")
    return tuple(batches)


def _engine(given: EngineName | None, mode: str) -> EngineName:
    """The engine of inference; an error if it has no effect or cannot be used here."""
    if given is not None and mode == "training":
        advice = "leave it out; training steps are measured as a run makes them"
        raise InvalidValue(f"is {given!r}; engines compute inference, and mode is 'training': {advice}", field="engine")
    if why := missing_packages(given or "torch"):
        raise ModuleNotFoundError(why)
    return given or "torch"


def _check_free(memory: int | None) -> None:
    free = free_memory()
    if memory is not None and free is not None and memory > free:
        given = f"is {show_memory(memory)}, more than the {show_memory(free)} that are free now"
        raise InvalidValue(f"{given}; give less, or leave it out for what is free minus a margin", field="memory")


def _positive(seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise InvalidValue(f"is {seconds}; expected a positive number", field="seconds")
    return float(seconds)


# -- The folder ------------------------------------------------------------------------------------


def _read(folder: Path, plan: Plan) -> tuple[Cost, ...]:
    """The rows that an earlier call with the same plan measured; what failed, for want of memory say, may work now.

    Raises FileExistsError if the folder has rows of another plan, which this call would replace.
    """
    if not (folder / MEASUREMENTS).exists():
        return ()
    kept = from_json(Kept, read_json(folder / MEASUREMENTS), MEASUREMENTS)
    others = [field.name for field in fields(Plan) if getattr(kept.plan, field.name) != getattr(plan, field.name)]
    measured = tuple(row for row in kept.rows if row.timings)
    if others and measured:
        how = ", ".join("batch" if name == "batches" else name for name in others)
        differ = f"has {len(measured)} row{'s' * (len(measured) != 1)} measured in another way ({how})"
        raise FileExistsError(f"{folder} {differ}; choose another folder, or measure as before")
    return measured


def _others(known: Sequence[Cost], done: Sequence[Cost]) -> tuple[Cost, ...]:
    """The rows of earlier calls that this one has not measured: they stay in the folder's table and figure."""
    keys = set(map(_key, done))
    return tuple(row for row in known if _key(row) not in keys)


def _key(row: Cost) -> tuple[object, ...]:
    return row.model, row.image, row.mode, row.macs


def _draw(found: Costs, folder: Path, console: Console) -> None:
    if not any(row.timings for row in found.rows):
        return
    try:
        figure = found.figure
    except ModuleNotFoundError as error:
        say(console, f"no figure is drawn: {error}")
        return
    for suffix in (".svg", ".png"):
        with replacing(folder / f"{FIGURE}{suffix}") as temporary:
            temporary.write_bytes(getattr(figure, suffix[1:]))


# -- Measuring -------------------------------------------------------------------------------------


def _rows(
    wanted: Sequence[tuple[Mode, Subject, tuple[int, int]]], plan: Plan, known: Sequence[Cost], console: Console
) -> Iterator[Cost]:
    """The rows in order; those that are `known` are not measured again."""
    empty = [_empty(subject, size, mode) for mode, subject, size in wanted]
    before = {_key(row): row for row in known}
    fresh = sum(not row.note and _key(row) not in before for row in empty)
    if fresh < len(wanted):
        say(console, f"{len(wanted) - fresh} of {len(wanted)} rows need no measurement")
    if fresh:
        if why := _crowd():
            say(console, f"warning: {why}, so the numbers are not those of a quiet machine", "yellow")
        rows, each = ("1 row", "") if fresh == 1 else (f"{fresh} rows", " each")
        limit = f"up to {plan.seconds:g} s{each}, and about {STARTING:g} s to start"
        converting = "" if plan.engine in OPEN_AT_ONCE else ", apart from converting models"
        say(console, f"{rows}, {limit}: at most about {duration(fresh * (plan.seconds + STARTING))}{converting}")
    with Points(console, len(wanted)) as display:
        for (_, subject, size), row in zip(wanted, empty, strict=True):
            if _key(row) in before:
                row = before[_key(row)]
            elif not row.note:
                row = _measure(row, subject.at(size), plan, display)
            display.finish(printable(_told(row)))
            yield row


def _crowd() -> str:
    """Why other programs disturb the measurement; empty if they do not, or if it is unknown."""
    before = busy.read()
    time.sleep(busy.SHORTEST)
    after = busy.read()
    return "" if before is None or after is None else busy.place().crowd(busy.others_between(before, after))


def _empty(subject: Subject, size: tuple[int, int], mode: Mode) -> Cost:
    """A row without measurements; it has a note if the model cannot take the size."""
    try:
        row = Cost(subject.name, size, mode, count_spec(subject.at(size)).macs)
    except ValueError as error:
        row = Cost(subject.name, size, mode, note=str(error))
    return replace(row, attention=subject.attention)


def _measure(row: Cost, spec: ModelSpec, plan: Plan, display: Points) -> Cost:
    """Time the batches of a row, then search for the largest batch."""
    task = Task(spec, row.mode, plan.device, torch.get_num_threads(), plan.seconds, plan.batches, engine=plan.engine)
    is_gpu = plan.device != "cpu"
    task = replace(task, device_limit=plan.memory if is_gpu else None)
    memory = default_limit() if is_gpu or plan.memory is None else plan.memory
    try:
        with Measuring(task, memory) as measuring:
            for timing in measuring.time_batches():
                display.show(f"{row.name}: batch {timing.batch}, {timing.images_per_second:,.1f} images/s")
            display.show(f"{row.name}: largest batch")
            largest = measuring.find_largest()
    except ChildFailed as error:
        return replace(row, note=str(error))
    row = replace(row, timings=tuple(measuring.timings), matmul=measuring.flops, limit=measuring.limit)
    return replace(row, largest=None if largest is None else largest.batch, note=_note(row, measuring, largest))


def _note(row: Cost, measuring: Measuring, largest: Largest | None) -> str:
    if largest is not None and not largest.batch:
        return f"a batch of one does not fit into {show_memory(measuring.limit or 0)}"
    if not row.timings:
        return f"no batch was finished in {measuring.task.seconds:g} s"
    if largest is None:
        is_unknown = measuring.limit is None or row.timings[0].held is None
        return "memory is not measured on this system" if is_unknown else "no time to search for the largest batch"
    return "" if largest.is_tried else "largest batch extrapolated"


def _told(row: Cost) -> str:
    """A row as a line of progress."""
    if row.best is None:
        return f"{row.name}: {row.note}"
    speed = f"{row.best.images_per_second:,.1f} images/s at batch {row.best.batch}"
    largest = "" if row.largest is None else f", largest batch {row.largest:,} in {show_memory(row.limit or 0)}"
    return f"{row.name}: {speed}{largest}{f' ({row.note})' if row.note else ''}"
