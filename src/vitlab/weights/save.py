"""Save weights in vitlab's own format, or in one that other libraries read, if it can express the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from safetensors.torch import save_file
from torch import Tensor

from vitlab.files.store import json_writer, refuse_existing, replacing, write_folder
from vitlab.files.user_files import as_path
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.require import check_arguments
from vitlab.spec import CONVENTIONS, GROUPS, ModelSpec, ResNetSpec, SaveFormat, SwinSpec, Task, ViTSpec
from vitlab.weights.files import folder
from vitlab.weights.files.containers import WeightsError
from vitlab.weights.files.npz import write_npz
from vitlab.weights.formats import bit, google, huggingface, swin, timm, timm_resnet
from vitlab.weights.formats.layouts import Entry
from vitlab.weights.formats.preprocessing import metadata
from vitlab.weights.formats.sizes import heads_of


@dataclass(frozen=True)
class Output:
    """How a library's files are written: the specs it cannot run, its names and layouts, its JSON files by name."""

    refusals: Callable[..., list[str]]
    table: Callable[[Any, dict[str, Any], None], list[Entry]]
    configs: Callable[[Any, tuple[str, ...] | None, Task], dict[str, Any]] = lambda spec, names, task: {}


OUTPUTS: dict[tuple[str, str], Output] = {  # by format and kind of model
    ("google-npz", "vit"): Output(google.refusals, google.table),
    ("google-npz", "bit"): Output(bit.refusals, bit.table),
    ("timm", "vit"): Output(timm.refusals, timm.table, timm.configs),
    ("timm", "bit"): Output(timm_resnet.refusals, timm_resnet.table, timm_resnet.configs),
    ("hf", "vit"): Output(huggingface.refusals, huggingface.table, huggingface.configs),
    ("microsoft", "swin"): Output(swin.refusals_microsoft, swin.table_microsoft),
    ("timm", "swin"): Output(swin.refusals_timm, swin.table_timm, swin.configs_timm),
    ("hf", "swin"): Output(swin.refusals_hf, swin.table_hf, swin.configs_hf),
}


def save_model(model: Model, path: str | Path, format: SaveFormat = "vitlab") -> list[str]:
    """Save a model, and return notes on what the format cannot state, one sentence each.

    The format vitlab gives a folder, google-npz one file, timm and hf a folder that their own loaders read, or one bare
    file if `path` ends in .safetensors; microsoft, for Swins, gives such a bare file. A format that would change the
    model's function is an error, and nothing is overwritten.
    """
    check_model(model)
    check_arguments(save_model, locals())
    path = as_path(path, "path")
    spec = model.spec
    refuse_existing(path)
    if format not in get_args(SaveFormat):
        raise ValueError(f"no format is named {format!r}; known are {', '.join(get_args(SaveFormat))}")
    _check_name(path, format)
    bare = path.suffix in (".safetensors", ".npz")
    if format != "vitlab" and (reasons := _refusals(spec, format, bare)):
        raise WeightsError(f"{format} cannot hold this model: {'; '.join(reasons)}")
    if model.class_names is not None and len(model.class_names) != spec.classes:
        raise ValueError(f"{len(model.class_names)} class names for {spec.classes} classes; the numbers must agree")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if format == "vitlab":
        card = folder.Card("vitlab-model", folder.VERSION, spec, model.class_names, model.provenance, model.task)
        folder.save(path, tensors, card)
        return []
    output = OUTPUTS[format, spec.kind]
    own = {name: tensor.shape for name, tensor in tensors.items()}
    arrays = translated(tensors, output.table(spec, own, None), spec)
    write = partial(save_file, arrays, metadata=metadata(spec))
    if bare:
        with replacing(path) as temporary:
            write_npz(temporary, arrays) if format == "google-npz" else write(temporary)
    else:
        configs = output.configs(spec, model.class_names, model.task)
        files = {name: json_writer(value) for name, value in configs.items()}
        write_folder(path, {"model.safetensors": write, **files})
    return _unstated(model, format, bare)


def translated(tensors: Mapping[str, Tensor], table: list[Entry], spec: ModelSpec) -> dict[str, Tensor]:
    """Translate our tensors to their names and layouts."""
    return {
        name: part.contiguous()
        for entry in table
        for name, part in zip(entry.theirs, entry.layout.write(tensors[entry.ours], heads_of(spec)), strict=True)
    }


def _check_name(path: Path, format: SaveFormat) -> None:
    """Raise if the name of a file suggests another format."""
    if (path.suffix == ".npz") != (format == "google-npz"):
        raise ValueError(f"{path.name!r} is not a name for {format}; .npz and google-npz belong together")
    if format == "vitlab" and path.suffix == ".safetensors":
        raise ValueError(
            f"{path.name!r} names a file, but the format vitlab is a folder; bare files are timm, hf or microsoft"
        )


def _unstated(model: Model, format: SaveFormat, bare: bool) -> list[str]:
    """Return notes on what the files do not state."""
    spec, notes = model.spec, []
    if format == "google-npz" and not (isinstance(spec, ViTSpec) and spec.grid[0] == spec.grid[1]):
        height, width = spec.image  # an .npz states it only by a square position table
        notes = [f"the file does not state the image size of {height}x{width}; load it with image=({height}, {width})"]
    if bare:
        notes.append(f"the file does not state the preprocessing: {spec.conventions.preprocessing}")
        if model.class_names:
            notes.append(f"the file does not contain the names of the {spec.classes} classes")
    elif not spec.conventions.preprocessing.antialias:
        notes.append("other libraries antialias images when they resize them, this model's preprocessing does not")
    if format == "hf" and not bare and isinstance(spec, ViTSpec) and spec.stochastic_depth:
        notes.append(f"the files do not state the stochastic depth of {spec.stochastic_depth:g}")
    if model.task == "multi-label" and (format != "hf" or bare):  # whose config.json states it
        notes.append("the file does not state that the model is multi-label; its logits need a sigmoid per class")
    return notes


def _refusals(spec: ModelSpec, format: SaveFormat, bare: bool) -> list[str]:
    """Return reasons why a format cannot express a model."""
    if (format, spec.kind) not in OUTPUTS:
        known = ["vitlab", *(name for name, kind in OUTPUTS if kind == spec.kind)]
        return [f"it has no models of kind {spec.kind}; write {', '.join(known)}"]
    reasons = _variant_refusals(spec, format) if isinstance(spec, ViTSpec) else []
    resnet = spec.backbone if isinstance(spec, ViTSpec) else None if isinstance(spec, SwinSpec) else spec
    if not reasons and resnet is not None and resnet.root % GROUPS:
        reasons = [f"other libraries need roots of a multiple of {GROUPS} channels, not {resnet.root}; write vitlab"]
    if not reasons and isinstance(spec, ResNetSpec) and len(spec.stages) != 4:
        reasons = [f"it has {len(spec.stages)} stages, and BiT has four in other libraries; write vitlab"]
    reasons = reasons or OUTPUTS[format, spec.kind].refusals(spec, bare=bare)
    own, usual = spec.conventions, CONVENTIONS["hf" if format == "hf" else "timm"]
    is_run_otherwise = (own.gelu, own.norm_eps) != (usual.gelu, usual.norm_eps)
    if bare and format != "google-npz" and isinstance(spec, ViTSpec) and is_run_otherwise:
        reasons.append(
            f"a bare file is run with {usual.gelu} GELU and LayerNorm epsilon {usual.norm_eps:g}, this model has "
            f"{own.gelu} and {own.norm_eps:g}; write a folder, whose config.json states them"
        )
    return reasons


def _variant_refusals(spec: ViTSpec, format: SaveFormat) -> list[str]:
    """Return the options that the Vision Transformers of other libraries lack."""
    where = f"its positions are {spec.positions} at {spec.positions_at}, others only have 1d at the stem"
    is_sparse = spec.attention not in ("full", "axial")
    reasons = {
        where: (spec.positions, spec.positions_at) != ("1d", "stem"),
        "its attention is axial": spec.attention == "axial",
        f"its attention is {spec.attention}; turn it off, attention='full' or model.set_attention('full')": is_sparse,
        "it has a distillation token": spec.distilled and format != "timm",
        "it is a hybrid": spec.backbone is not None and format == "hf",
        f"it merges {spec.merge} tokens per layer; turn that off with model.set_merge(0), or merge=0": spec.merge > 0,
    }
    return [f"{reason}; write vitlab" for reason, holds in reasons.items() if holds]
