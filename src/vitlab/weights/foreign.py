"""Weights of other libraries: recognise the format, describe the model, read every tensor under vitlab's names."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.files.store import sha256
from vitlab.models.build import Model, empty_model
from vitlab.npz import NpzError
from vitlab.require import require
from vitlab.spec import ModelSpec, Task
from vitlab.weights.files.containers import Container, WeightsError, fitting
from vitlab.weights.formats import bit, google, swin, timm, timm_config, timm_resnet, torchvision
from vitlab.weights.formats import huggingface as hf
from vitlab.weights.formats.layouts import Entry
from vitlab.weights.formats.sizes import Hints, heads_of
from vitlab.weights.released.catalogue import Fetched, read_fetched

UNBUILT = (  # pattern of tensor names: what such a model does
    (r"(^|/)MAPHead_\d+/|^probe$|^attn_pool\.|^head\.probe$", "pools by attention (a MAP head)"),
    (r"^norm_pre\.|^pre_layernorm\.", "has a norm before its first layer"),
    (r"^fc_norm\.", "normalises after pooling"),
    (r"\.ls[12]\.gamma$|\.gamma_[12]$|\.layer_scale[12]?\.", "scales its residual branches (LayerScale)"),
    (r"\.attn\.(q_norm|k_norm|norm)\.|/(query|key)_(norm|ln)/", "normalises queries and keys"),
    (r"\.mlp\.(norm|w12|w3|fc1_[gx])\b", "has another MLP"),
    (r"^reg_tokens?$|register_tokens$", "has register tokens"),
    (r"\.cpb_mlp\.|continuous_position_bias_mlp|logit_scale", "computes its position bias (Swin V2)"),
    (r"rel_pos|relative_position", "has a relative position bias"),
    (r"\.running_(mean|var)$", "has batch norms"),
)
OF_SWIN = tuple(part for part in UNBUILT if part[1] != "has a relative position bias")


@dataclass(frozen=True)
class Format:
    """How one library writes its models. `describe` makes the spec that `table` takes."""

    matches: Callable[[Container], bool]
    describe: Callable[[Container, Hints], ModelSpec]
    table: Callable[[Any, dict[str, torch.Size], Container | None], list[Entry]]
    normalised: Callable[[Container], Container] = lambda container: container
    assumptions: Callable[..., list[str]] = lambda container, *, is_told: []  # issued as warnings
    class_names: Callable[[Container], object] = timm_config.class_names
    task: Callable[[Container], Task] = lambda container: "single-label"
    unbuilt: tuple[tuple[str, str], ...] = UNBUILT


FORMATS = {  # the first that matches is used
    "bit-npz": Format(bit.matches, bit.describe, bit.table, bit.normalised),
    "google-npz": Format(google.matches, google.describe, google.table, google.normalised, google.assumptions),
    "microsoft": Format(
        swin.matches_microsoft, swin.describe_microsoft, swin.table_microsoft, swin.normalised, unbuilt=OF_SWIN
    ),
    "timm-swin": Format(swin.matches_timm, swin.describe_timm, swin.table_timm, swin.normalised, unbuilt=OF_SWIN),
    "hf-swin": Format(
        swin.matches_hf,
        swin.describe_hf,
        swin.table_hf,
        swin.normalised_hf,
        class_names=hf.class_names,
        task=hf.task,
        unbuilt=OF_SWIN,
    ),
    "hf": Format(hf.matches, hf.describe, hf.table, hf.normalised, hf.assumptions, hf.class_names, hf.task),
    "torchvision": Format(torchvision.matches, torchvision.describe, torchvision.table, torchvision.normalised),
    "timm": Format(timm.matches, timm.describe, timm.table, assumptions=timm.assumptions),
    "timm-resnet": Format(timm_resnet.matches, timm_resnet.describe, timm_resnet.table),
}


@dataclass(frozen=True)
class Found:
    """The content of a file or folder: tensors under vitlab's names, maybe not all; class names if it has them."""

    model: Model  # without values
    tensors: dict[str, Tensor]
    class_names: tuple[str, ...] | None
    task: Task
    provenance: dict[str, str]
    assumptions: tuple[str, ...] = ()


def read_foreign(path: Path, container: Container, hints: Hints, *, allow_partial: bool) -> Found:
    """Read a container of any of `FORMATS`; raise a WeightsError for anything that cannot be built exactly."""
    known = _known(path)
    if known is not None:
        container = replace(container, metadata={"image": f"{known.image}x{known.image}", **container.metadata})
    name = next((name for name, form in FORMATS.items() if form.matches(container)), None)
    if name is None:
        some = ", ".join(repr(name)[:60] for name in sorted(container.shapes)[:4])
        number = len(container.shapes)
        raise WeightsError(f"{container.path.name} is of no format that vitlab reads; it has {number} tensors: {some}")
    form = FORMATS[name]
    container = form.normalised(container)
    _check_built(container, form)
    try:
        spec = form.describe(container, hints)
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{path.name} describes no model that can be built: {error}") from None
    hints.check(path.name, name, spec)
    conventions = hints.conventions or (known.conventions if known else spec.conventions)
    model = empty_model(replace(spec, conventions=conventions))
    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(container, spec, own, form.table(spec, own, container), allow_partial=allow_partial)
    source, digest = (path.name, sha256(container.path)) if known is None else (known.url, known.sha256)
    provenance = {"source": source, "format": name, "sha256": digest}
    is_told = hints.conventions is not None
    assumed = form.assumptions(container, is_told=is_told) if known is None else []
    names = _fitting_names(form.class_names(container), spec.classes)
    return Found(model, tensors, names, form.task(container), provenance, tuple(assumed))


def _check_built(container: Container, form: Format) -> None:
    """Raise a WeightsError for a part that vitlab does not build: without it the logits would be wrong."""
    for pattern, does in form.unbuilt:
        name = next((name for name in sorted(container.shapes) if re.search(pattern, name)), None)
        if name is not None:
            why = "vitlab does not build such a model, and without that part its logits would be wrong"
            raise WeightsError(f"{container.path.name} {does} ({name!r:.100}); {why}")


def _fitting_names(names: object, classes: int) -> tuple[str, ...] | None:
    """Class names that fit the number of classes; a list of another length or type is ignored."""
    fits = isinstance(names, list) and len(names) == classes
    are_names = fits and all(isinstance(name, str) and len(name) <= 1000 for name in names)
    return tuple(names) if are_names else None


def _known(path: Path) -> Fetched | None:
    """The facts recorded when the file was downloaded, if it was; raise if its bytes have changed since."""
    try:
        known = read_fetched(path) if path.is_file() else None
        if known is not None:
            require(sha256(path) == known.sha256, f"{path} is damaged; remove it and download it again")
    except ValueError as error:
        raise WeightsError(str(error)) from None
    return known


def read_tensors(
    container: Container, spec: ModelSpec, own: dict[str, torch.Size], table: list[Entry], *, allow_partial: bool
) -> dict[str, Tensor]:
    """Translate the file's tensors to vitlab's names and layouts; all shapes are checked before any tensor is read."""
    shapes = {entry: entry.shapes(own[entry.ours], heads_of(spec)) for entry in table}
    expected = {name: shape for theirs in shapes.values() for name, shape in theirs.items()}
    # A model without classes has an empty head, which other libraries do not write.
    empty = {name: torch.zeros(shape) for name, shape in own.items() if 0 in shape}
    unmapped = set(own) - {entry.ours for entry in table} - set(empty)
    fits = fitting(container, expected, unmapped, allow_partial=allow_partial)
    try:
        return empty | {
            entry.ours: entry.layout.read([container.read(name) for name in entry.theirs])
            for entry, theirs in shapes.items()
            if fits.issuperset(theirs)
        }
    except NpzError as error:
        raise WeightsError(f"{container.path.name} is damaged: {error}") from None
