"""Weights out again: ours, or a format that others read, as long as it can say what the model is."""

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
    """Write a model, and return what the format could not say, one sentence each.

    vitlab: a folder. google-npz: one file. timm, hf: a folder as their own loaders read it, or one bare file where
    `path` ends in .safetensors. What would change the model's function is an error, and nothing is written over.
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
        raise ValueError(f"{len(model.class_names)} class names for {spec.classes} classes; set as many as there are")
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
    """A folder with configs, or one bare file that says less."""

    def weights(file: Path) -> None:
        save_file(arrays, file, metadata=metadata(spec))

    if path.suffix == ".safetensors":
        with replacing(path) as temporary:
            weights(temporary)
        return _unsaid(spec, names)
    write_folder(path, {"model.safetensors": weights, **configs})
    notes = []
    if not spec.conventions.preprocessing.antialias:
        notes.append("other libraries smooth pictures when they shrink them, this model's resizing does not")
    if isinstance(spec, ViTSpec) and spec.stochastic_depth and "preprocessor_config.json" in configs:
        notes.append(f"the files do not say the stochastic depth of {spec.stochastic_depth:g}")
    return notes


def _translated(tensors: dict[str, Tensor], table: list[Entry], spec: ModelSpec) -> dict[str, Tensor]:
    """Their tensors from ours."""
    return {
        name: part.contiguous()
        for entry in table
        for name, part in zip(entry.theirs, entry.layout.write(tensors[entry.ours], heads_of(spec)), strict=True)
    }


def _check_name(path: Path, format: SaveFormat) -> None:
    """A file's name must not promise another format than it gets."""
    if format == "google-npz" and path.suffix != ".npz":
        raise ValueError(f"{path.name!r} is to be a google-npz file; give it a name that ends in .npz")
    if path.suffix == ".npz" and format != "google-npz":
        raise ValueError(f"{path.name!r} ends in .npz, which is the format google-npz, not {format}")
    if format == "vitlab" and path.suffix == ".safetensors":
        raise ValueError(f"vitlab writes a folder, {path.name!r} names a file; a bare file is of format timm or hf")


def _bare_refusals(spec: ModelSpec, format: SaveFormat) -> list[str]:
    """Why a file without config.json would be run as another function."""
    if isinstance(spec, ResNetSpec):  # has neither GELU nor LayerNorm
        return []
    usual = CONVENTIONS["hf" if format == "hf" else "timm"]
    own = spec.conventions
    if (own.gelu, own.norm_eps) == (usual.gelu, usual.norm_eps):
        return []
    return [
        f"a bare file is run with {usual.gelu} GELU and LayerNorm epsilon {usual.norm_eps:g}, this model has "
        f"{own.gelu} and {own.norm_eps:g}; write a folder, whose config.json says so"
    ]


def _unsaid(spec: ModelSpec, class_names: tuple[str, ...] | None) -> list[str]:
    """What a bare file of weights leaves to its reader's memory."""
    notes = [f"the file does not say the preprocessing: {spec.conventions.preprocessing}"]
    return [*notes, f"the file does not say the names of the {spec.classes} classes"] if class_names else notes


def _unsaid_task(task: Task) -> list[str]:
    """Only vitlab's folder and Hugging Face's config.json have a place for the task."""
    if task == "single-label":
        return []
    return ["the file does not say that the model is multi-label; its logits need a sigmoid of each class"]


def _unsaid_image(spec: ModelSpec) -> list[str]:
    """An .npz says the image size by its position table alone, and only if that is a square."""
    if isinstance(spec, ViTSpec) and spec.grid[0] == spec.grid[1]:
        return []
    height, width = spec.image
    return [f"the file does not say the image size of {height}x{width}; load it with image=({height}, {width})"]


def _npz_refusals(spec: ViTSpec) -> list[str]:
    """Why Google's code would compute something else from the file."""
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
    """Why a format cannot hold a model."""
    if format == "vitlab":
        return []
    if isinstance(spec, ResNetSpec):
        if format == "hf":
            return ["it is a ResNet; write google-npz, timm or vitlab"]
        if reasons := _narrow_refusals(spec.root):
            return reasons
        if len(spec.stages) != 4:
            return [f"it has {len(spec.stages)} stages, others' BiT has four stages; write vitlab"]
        return bit.refusals(spec) if format == "google-npz" else timm_resnet.refusals(spec, bare=bare)
    if not isinstance(spec, ViTSpec):
        return ["nobody else has an AxialResNet; write vitlab"]
    reasons = _variant_refusals(spec, format)
    if not reasons and spec.backbone is not None:
        reasons = _narrow_refusals(spec.backbone.root)
    checks = {"google-npz": _npz_refusals, "timm": timm.refusals, "hf": huggingface.refusals}
    return reasons or checks[format](spec)


def _narrow_refusals(root: int) -> list[str]:
    """Why others' code cannot build a ResNet whose channels do not divide as theirs do."""
    if root % GROUPS == 0:
        return []
    return [f"others' GroupNorm has {GROUPS} groups, which its root of {root} channels does not fill; write vitlab"]


def _variant_refusals(spec: ViTSpec, format: SaveFormat) -> list[str]:
    """What other libraries' Vision Transformers cannot be."""
    reasons = []
    if (spec.positions, spec.positions_at) != ("1d", "stem"):
        reasons.append(f"its positions are {spec.positions} at {spec.positions_at}, others have 1d at the stem only")
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
