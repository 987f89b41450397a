"""Save weights in vitlab's own format, or in one that other libraries read, if it can express the model."""

import math
from pathlib import Path
from typing import get_args

from safetensors.torch import save_file
from torch import Tensor

from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.spec import CONVENTIONS, GROUPS, ModelSpec, ResNetSpec, SaveFormat, Task, ViTSpec
from vitlab.store import Writer, json_writer, refuse_existing, replacing, write_folder
from vitlab.weights.files import folder
from vitlab.weights.files.containers import WeightsError, as_path
from vitlab.weights.files.npz import write_npz
from vitlab.weights.formats import bit, google, huggingface, timm, timm_resnet
from vitlab.weights.formats.hints import heads_of, metadata
from vitlab.weights.formats.layouts import Entry


def save_model(model: Model, path: str | Path, format: SaveFormat = "vitlab") -> list[str]:
    """Save a model, and return notes on what the format cannot state, one sentence each.

    The format vitlab gives a folder, google-npz one file, timm and hf a folder that their own loaders read, or one bare
    file if `path` ends in .safetensors. A format that would change the model's function is an error, and nothing is
    overwritten.
    """
    check_model(model)
    path = as_path(path)
    spec = model.spec
    refuse_existing(path)
    if format not in get_args(SaveFormat):
        raise ValueError(f"no format is named {format!r}; known are {', '.join(get_args(SaveFormat))}")
    _check_name(path, format)
    bare = path.suffix == ".safetensors"
    reasons = [*_refusals(spec, format, bare), *(_bare_refusals(spec, format) if bare else [])]
    if reasons:
        raise WeightsError(f"{format} cannot hold this model: {'; '.join(reasons)}")
    if model.class_names is not None and len(model.class_names) != spec.classes:
        raise ValueError(f"{len(model.class_names)} class names for {spec.classes} classes; the numbers must agree")
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    if format == "vitlab":
        card = folder.Card("vitlab-model", folder.VERSION, spec, model.class_names, model.provenance, model.task)
        folder.save(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, card)
        return []
    if format == "google-npz":
        table = bit.table(spec, None) if isinstance(spec, ResNetSpec) else google.table(_vit(spec), None)
        arrays = _translated(tensors, table, spec)
        with replacing(path) as temporary:
            write_npz(temporary, arrays)
        return [*_unsaid_image(spec), *_unsaid(spec, model.class_names), *_unsaid_task(model.task)]
    if format == "timm" and isinstance(spec, ResNetSpec):
        arrays = _translated(tensors, timm_resnet.table(spec, None), spec)
        configs = {"config.json": json_writer(timm_resnet.config(spec, model.class_names))}
    elif format == "timm":
        arrays = _translated(tensors, timm.table(_vit(spec), None), spec)
        configs = {"config.json": json_writer(timm.config(_vit(spec), model.class_names))}
    else:
        vit = _vit(spec)
        arrays = _translated(tensors, huggingface.table(vit, None), spec)
        arrays = {huggingface.prefixed(vit, name): tensor for name, tensor in arrays.items()}
        configs = {
            "config.json": json_writer(huggingface.config(vit, model.class_names, model.task)),
            "preprocessor_config.json": json_writer(huggingface.preprocessor(vit)),
        }
    notes = _write_safetensors(path, arrays, configs, spec, model.class_names)
    return notes if format == "hf" and not bare else [*notes, *_unsaid_task(model.task)]


def _write_safetensors(
    path: Path, arrays: dict[str, Tensor], configs: dict[str, Writer], spec: ModelSpec, names: tuple[str, ...] | None
) -> list[str]:
    """Write a folder with configs, or one bare file."""

    def weights(file: Path) -> None:
        save_file(arrays, file, metadata=metadata(spec))

    if path.suffix == ".safetensors":
        with replacing(path) as temporary:
            weights(temporary)
        return _unsaid(spec, names)
    write_folder(path, {"model.safetensors": weights, **configs})
    notes = []
    if not spec.conventions.preprocessing.antialias:
        notes.append("other libraries antialias images when they resize them, this model's preprocessing does not")
    if isinstance(spec, ViTSpec) and spec.stochastic_depth and "preprocessor_config.json" in configs:
        notes.append(f"the files do not state the stochastic depth of {spec.stochastic_depth:g}")
    return notes


def _translated(tensors: dict[str, Tensor], table: list[Entry], spec: ModelSpec) -> dict[str, Tensor]:
    """Translate our tensors to their names and layouts."""
    return {
        name: part.contiguous()
        for entry in table
        for name, part in zip(entry.theirs, entry.layout.write(tensors[entry.ours], heads_of(spec)), strict=True)
    }


def _check_name(path: Path, format: SaveFormat) -> None:
    """Raise if the name of a file suggests another format."""
    if format == "google-npz" and path.suffix != ".npz":
        raise ValueError(f"{path.name!r} is not a name for google-npz; give one that ends in .npz")
    if path.suffix == ".npz" and format != "google-npz":
        raise ValueError(f"{path.name!r} ends in .npz, which is for the format google-npz, not {format}")
    if format == "vitlab" and path.suffix == ".safetensors":
        raise ValueError(
            f"the format vitlab is a folder, and {path.name!r} names a file; bare files have the format timm or hf"
        )


def _bare_refusals(spec: ModelSpec, format: SaveFormat) -> list[str]:
    """Return reasons why a reader of a file without config.json would run another function."""
    if isinstance(spec, ResNetSpec):  # has neither GELU nor LayerNorm
        return []
    usual = CONVENTIONS["hf" if format == "hf" else "timm"]
    own = spec.conventions
    if (own.gelu, own.norm_eps) == (usual.gelu, usual.norm_eps):
        return []
    return [
        f"a bare file is run with {usual.gelu} GELU and LayerNorm epsilon {usual.norm_eps:g}, this model has "
        f"{own.gelu} and {own.norm_eps:g}; write a folder, whose config.json states them"
    ]


def _unsaid(spec: ModelSpec, class_names: tuple[str, ...] | None) -> list[str]:
    """Return notes on what a bare file does not state."""
    notes = [f"the file does not state the preprocessing: {spec.conventions.preprocessing}"]
    return [*notes, f"the file does not contain the names of the {spec.classes} classes"] if class_names else notes


def _unsaid_task(task: Task) -> list[str]:
    """Return a note on the task, which only vitlab's folder and Hugging Face's config.json state."""
    if task == "single-label":
        return []
    return ["the file does not state that the model is multi-label; its logits need a sigmoid per class"]


def _unsaid_image(spec: ModelSpec) -> list[str]:
    """Return a note on the image size, which an .npz states only by a square position table."""
    if isinstance(spec, ViTSpec) and spec.grid[0] == spec.grid[1]:
        return []
    height, width = spec.image
    return [f"the file does not state the image size of {height}x{width}; load it with image=({height}, {width})"]


def _npz_refusals(spec: ViTSpec) -> list[str]:
    """Return reasons why Google's code would compute something else from the file."""
    reasons = []
    own, usual = spec.conventions, CONVENTIONS["paper"]
    if (own.gelu, own.norm_eps) != (usual.gelu, usual.norm_eps):
        reasons.append(
            f"Google's code runs {usual.gelu} GELU and LayerNorm epsilon {usual.norm_eps:g}, this model {own.gelu} "
            f"GELU and {own.norm_eps:g}; load it with conventions='paper' if that change is wanted"
        )
    if spec.backbone is not None and spec.conventions.hybrid != CONVENTIONS["paper"].hybrid:
        reasons.append(
            f"Google's code runs hybrids with {CONVENTIONS['paper'].hybrid}, this model {spec.conventions.hybrid}; "
            f"load it with conventions='paper' if that change is wanted"
        )
    patches = math.prod(spec.grid)
    if spec.grid[0] != spec.grid[1] and math.isqrt(patches) ** 2 == patches:
        reasons.append(f"its {spec.grid[0]}x{spec.grid[1]} grid would be read as a square")
    return reasons


def _refusals(spec: ModelSpec, format: SaveFormat, bare: bool) -> list[str]:
    """Return reasons why a format cannot express a model."""
    if format == "vitlab":
        return []
    if isinstance(spec, ResNetSpec):
        if format == "hf":
            return ["it is a ResNet; write google-npz, timm or vitlab"]
        if reasons := _narrow_refusals(spec.root):
            return reasons
        if len(spec.stages) != 4:
            return [f"it has {len(spec.stages)} stages, and BiT has four in other libraries; write vitlab"]
        return bit.refusals(spec) if format == "google-npz" else timm_resnet.refusals(spec, bare=bare)
    if not isinstance(spec, ViTSpec):
        return ["no other library has an AxialResNet; write vitlab"]
    reasons = _variant_refusals(spec, format)
    if not reasons and spec.backbone is not None:
        reasons = _narrow_refusals(spec.backbone.root)
    checks = {"google-npz": _npz_refusals, "timm": timm.refusals, "hf": huggingface.refusals}
    return reasons or checks[format](spec)


def _narrow_refusals(root: int) -> list[str]:
    """Return reasons why other libraries cannot build a ResNet with so few channels."""
    if root % GROUPS == 0:
        return []
    return [
        f"other libraries need a multiple of {GROUPS} channels for GroupNorm, and its root has {root}; write vitlab"
    ]


def _variant_refusals(spec: ViTSpec, format: SaveFormat) -> list[str]:
    """Return the options that the Vision Transformers of other libraries lack."""
    reasons = []
    if (spec.positions, spec.positions_at) != ("1d", "stem"):
        reasons.append(f"its positions are {spec.positions} at {spec.positions_at}, others only have 1d at the stem")
    if spec.attention != "full":
        reasons.append("its attention is axial")
    if spec.distilled and format != "timm":
        reasons.append("it has a distillation token")
    if spec.backbone is not None and format == "hf":
        reasons.append("it is a hybrid")
    return [f"{reason}; write vitlab" for reason in reasons]


def _vit(spec: ModelSpec) -> ViTSpec:
    assert isinstance(spec, ViTSpec), "other families were refused"
    return spec
