"""Everybody's weights in: recognise the file, check every key and shape, read, adapt."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from vitlab.errors import WeightsWarning
from vitlab.models.build import Model, build_from_spec, empty_model
from vitlab.require import require
from vitlab.spec import (
    ConventionName,
    Conventions,
    Image,
    ModelSpec,
    Task,
    UnsavedPositions,
    image_size,
    named_conventions,
)
from vitlab.store import MANIFEST, sha256, verify_folder
from vitlab.weights.files import folder
from vitlab.weights.files.containers import Container, NpzError, WeightsError, first_nonfinite, open_container, usable
from vitlab.weights.formats import bit, google, huggingface, timm, timm_config, timm_resnet, torchvision
from vitlab.weights.formats.hints import Hints, heads_of
from vitlab.weights.formats.layouts import Entry
from vitlab.weights.formats.unbuilt import check_built
from vitlab.weights.released.cache import located
from vitlab.weights.released.fetched import Fetched, read_fetched


@dataclass(frozen=True)
class Format:
    """How one source writes its models; what `describe` makes is what `table` takes."""

    matches: Callable[[Container], bool]
    describe: Callable[[Container, Hints], ModelSpec]
    table: Callable[[Any, Container | None], list[Entry]]
    normalised: Callable[[Container], Container] = lambda container: container
    class_names: Callable[[Container], object] = lambda container: None
    task: Callable[[Container], Task] = lambda container: "single-label"
    assumptions: Callable[..., list[str]] = lambda container, *, is_told: []  # said as warnings


FORMATS = {  # the first that matches is taken
    "vitlab": Format(folder.matches, folder.describe, folder.table, class_names=folder.class_names, task=folder.task),
    "bit-npz": Format(bit.matches, bit.describe, bit.table, bit.normalised),
    "google-npz": Format(
        google.matches, google.describe, google.table, google.normalised, assumptions=google.assumptions
    ),
    "hf": Format(
        huggingface.matches,
        huggingface.describe,
        huggingface.table,
        huggingface.normalised,
        huggingface.class_names,
        huggingface.task,
        huggingface.assumptions,
    ),
    "torchvision": Format(torchvision.matches, torchvision.describe, torchvision.table, torchvision.normalised),
    "timm": Format(
        timm.matches, timm.describe, timm.table, class_names=timm_config.class_names, assumptions=timm.assumptions
    ),
    "timm-resnet": Format(
        timm_resnet.matches, timm_resnet.describe, timm_resnet.table, class_names=timm_config.class_names
    ),
}


def load_model(
    path: str | Path,
    *,
    image: Image | None = None,
    classes: int | None = None,
    conventions: ConventionName | Conventions | None = None,
    heads: int | None = None,
    positions: UnsavedPositions | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
) -> Model:
    """A model from weights of Google, timm, Hugging Face, torchvision, DeiT or vitlab, ready for inference.

    `path` is a file, a folder, or the name of released weights that `vitlab download` has fetched.
    The format is recognised from the content and its own conventions are used unless `conventions` says otherwise.
    Positions are resized to `image`; another number of `classes` gets a fresh zero head. Tensors that are missing,
    unexpected or mis-shaped are an error that lists them all; with `allow_partial` the missing ones are initialised
    as the paper does and the others left out. A part that vitlab does not build, such as a MAP head, is always an
    error. `heads` and `positions` are for files that do not say: `positions` for Google's without a position table.
    What a file does not say and changes the answers, such as the normalisation in a bare file, is assumed with a
    WeightsWarning. Pickles are refused: see `vitlab convert`.
    """
    path = located(path)
    hints = Hints(None if image is None else image_size(image), heads, _checked_positions(positions))
    container = open_container(path)
    known = _known(path)
    if known is not None:
        container = replace(container, metadata={"image": f"{known.image}x{known.image}", **container.metadata})
    name, form = _recognise(container)
    if name == "vitlab":
        _verify(path)
    if positions is not None and name != "google-npz":
        raise WeightsError(f"{path.name} is of format {name}, whose files say their positions; leave positions out")
    container = form.normalised(container)
    if name != "vitlab":
        check_built(container)
    try:
        spec = form.describe(container, hints)
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{path.name} describes no model that can be built: {error}") from None
    if heads not in (None, heads_of(spec)):
        raise WeightsError(f"{path.name} has {heads_of(spec)} attention heads, not {heads}; leave heads out")
    assumptions = form.assumptions(container, is_told=conventions is not None) if known is None else []
    if conventions is None and known is not None:
        conventions = known.conventions
    if conventions is not None:
        spec = replace(spec, conventions=named_conventions(conventions))
    tensors, missing = _read(container, spec, form.table(spec, container), allow_partial)
    tensors = usable(tensors, keep_half=name == "vitlab")
    bad = None if allow_nonfinite else first_nonfinite(tensors)
    if bad:
        raise WeightsError(f"{path.name}: {bad!r} holds NaN or infinity; allow_nonfinite loads it all the same")
    model = _assemble(spec, tensors, missing)
    model.class_names = _class_names(form.class_names(container), spec.classes)
    model.task = form.task(container)
    model.provenance = _provenance(path, name, container, known)
    if image is not None:
        model.resize(image)
    if classes is not None and classes != model.spec.classes:
        model.reset_head(classes)
    for assumption in assumptions:
        warnings.warn(assumption, WeightsWarning, stacklevel=2)
    return model.eval()


def _checked_positions(positions: UnsavedPositions | None) -> UnsavedPositions | None:
    if positions is not None and positions not in get_args(UnsavedPositions):
        raise ValueError(f"positions {positions!r:.80} is unknown; give {' or '.join(get_args(UnsavedPositions))}")
    return positions


def _recognise(container: Container) -> tuple[str, Format]:
    for name, form in FORMATS.items():
        if form.matches(container):
            return name, form
    some = ", ".join(repr(name)[:60] for name in sorted(container.shapes)[:4])
    raise WeightsError(
        f"{container.path.name} holds {len(container.shapes)} tensors ({some}, ...) named as no model that vitlab knows"
    )


def _known(path: Path) -> Fetched | None:
    """What the catalogue knows of a file that it fetched, whose every byte is what came."""
    try:
        known = read_fetched(path) if path.is_file() else None
        if known is not None:
            require(sha256(path) == known.sha256, f"{path} is damaged; remove it and fetch it again")
    except ValueError as error:
        raise WeightsError(str(error)) from None
    return known


def _verify(path: Path) -> None:
    """Every byte of a folder of ours is what was written."""
    if not (path / MANIFEST).is_file():
        raise WeightsError(f"{path} has no {MANIFEST}; the folder is incomplete")
    try:
        verify_folder(path, (folder.CARD, folder.WEIGHTS))
    except ValueError as error:
        raise WeightsError(str(error)) from None


def _read(
    container: Container, spec: ModelSpec, table: list[Entry], allow_partial: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Our state dict from their tensors, and the names that could not be had; shapes are judged before any read."""
    own = {name: parameter.shape for name, parameter in empty_model(spec).state_dict().items()}
    missing, misshaped, fitting, expected = [], [], [], set()
    for entry in table:
        if entry.ours not in own:
            continue  # counted as unexpected below
        shapes = entry.shapes(own[entry.ours], heads_of(spec))
        expected |= set(shapes)
        absent = [name for name in shapes if name not in container.shapes]
        wrong = [n for n, s in shapes.items() if n in container.shapes and container.shapes[n] != s]
        missing += absent
        misshaped += [f"{name!r} is {container.shapes[name]}, not {shapes[name]}" for name in wrong]
        if not absent and not wrong:
            fitting.append(entry)
    # The head of a model without classes is not in anybody's file.
    empty = {name: torch.zeros(shape) for name, shape in own.items() if 0 in shape}
    missing += sorted(set(own) - {entry.ours for entry in table} - set(empty))
    unexpected = sorted(set(container.shapes) - expected)
    if (missing or misshaped or unexpected) and not allow_partial:
        raise WeightsError(_mismatch(container.path.name, missing, misshaped, unexpected))
    try:
        tensors = empty | {e.ours: e.layout.read([container.read(name) for name in e.theirs]) for e in fitting}
    except NpzError as error:
        raise WeightsError(f"{container.path.name} is damaged: {error}") from None
    return tensors, sorted(set(own) - set(tensors))


def _mismatch(name: str, missing: list[str], misshaped: list[str], unexpected: list[str]) -> str:
    parts = [f"{name} does not fit the model it describes (allow_partial loads what does)"]
    for title, items in (("missing", missing), ("mis-shaped", misshaped), ("unexpected", unexpected)):
        if items:
            shown = [item if title == "mis-shaped" else repr(item) for item in items]
            parts.append(f"{len(items)} {title}: {', '.join(shown)}")
    return "; ".join(parts)


def _assemble(spec: ModelSpec, tensors: dict[str, Tensor], missing: list[str]) -> Model:
    """A module that owns the tensors; what is missing gets the paper's initial values."""
    if missing:
        fresh = build_from_spec(spec).state_dict()
        tensors = tensors | {name: fresh[name] for name in missing}
    model = empty_model(spec)
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    return model


def _class_names(names: object, classes: int) -> tuple[str, ...] | None:
    """Names that fit the classes; a stranger's list of another length or type is ignored."""
    if not isinstance(names, list | tuple) or len(names) != classes:
        return None
    listed = cast(list[Any], names)
    return tuple(listed) if all(isinstance(name, str) and len(name) <= 1000 for name in listed) else None


def _provenance(path: Path, name: str, container: Container, known: Fetched | None) -> dict[str, str]:
    if name == "vitlab":
        return dict(folder.read_card(container).provenance or {})
    if known is not None:
        return {"source": known.url, "format": name, "sha256": known.sha256}
    return {"source": path.name, "format": name, "sha256": sha256(container.path)}
