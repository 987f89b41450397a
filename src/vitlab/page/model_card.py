"""What the page says about a model before the first picture: sizes, preprocessing, classes, weights as pictures."""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import PurePath

import PIL
import torch
from torch import Tensor

from vitlab.inspection.weights import as_pictures, position_similarity, principal_filters
from vitlab.models.build import Model
from vitlab.models.classifier import class_names
from vitlab.page.trace import at_size, shows_layers
from vitlab.paper.models import name_of
from vitlab.spec import Image, ViTSpec, image_size

Card = dict[str, object]


def model_card(model: Model, name: str, sizes: Sequence[Image] = (), *, id: str | None = None) -> Card:
    """Describe a model as JSON values: all that the page needs to know besides the trace of a picture.

    `sizes` are the image sizes that the page offers; the model's own is always among them. A size that the model cannot
    take raises ValueError. `patch` is the number of pixels along a side of what one token covers, in a hybrid too.
    `filters` are the principal components of the patch embedding as RGB pictures, `positions` the cosine similarity of
    all pairs of positions, where -1..1 is stored as 0..255; each is None for a model that has none. `preprocessing`
    also names the version of Pillow, whose order of resizing changed in version 13.
    """
    spec = model.spec
    offered = sorted({spec.image, *map(image_size, sizes)})
    for size in offered:
        at_size(model, size)
    names, origin = class_names(model)
    preprocessing = asdict(spec.conventions.preprocessing).items()
    return {
        "id": id or slug(name),
        "name": name,
        "image": list(spec.image),
        "sizes": [list(size) for size in offered],
        **_architecture(model),
        "classes": spec.classes,
        "class_names": list(names),
        "names_from": origin,
        "task": model.task,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "preprocessing": {key: list(value) if isinstance(value, tuple) else value for key, value in preprocessing}
        | {"pillow": PIL.__version__},
        "filters": _filters(model),
        "positions": _positions(model),
        "text": _text(model),
    }


def slug(name: str) -> str:
    """A name as part of a file name or an address: lower-case letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def unique_slugs(names: Iterable[str]) -> list[str]:
    """The slug of each name; those that would be equal get a number."""
    found: list[str] = []
    for name in names:
        tries = (f"{slug(name)}-{number}" if number > 1 else slug(name) for number in range(1, len(found) + 2))
        found.append(next(one for one in tries if one not in found))
    return found


def _architecture(model: Model) -> Card:
    """The numbers of Table 1 and the layout of the sequence; zeros for a model that gives only its answer."""
    spec = model.spec
    if not isinstance(spec, ViTSpec) or not shows_layers(spec):
        nothing = {"patch": 0, "grid": [0, 0], "layers": 0, "heads": 0, "mlp": 0, "prefix": 0}
        return {"kind": "answers only", "width": spec.width, "pool": "mean", **nothing}
    return {
        "kind": "hybrid" if spec.backbone else "vit",
        "patch": spec.stride,
        "grid": list(spec.grid),
        "layers": spec.layers,
        "width": spec.width,
        "heads": spec.heads,
        "mlp": spec.mlp,
        "prefix": spec.prefix,
        "pool": spec.pool,
    }


def _filters(model: Model) -> Card | None:
    """The principal components of the patch embedding as pictures (k, P, P, 3)."""
    try:
        found = principal_filters(model)
    except ValueError:  # no patch embedding of colours, or one without components
        return None
    pictures = _as_bytes(as_pictures(found.directions))
    return {"shape": list(pictures.shape), "values": _base64(pictures), "share": found.share.tolist()}


def _positions(model: Model) -> Card | None:
    """The cosine similarity of the positions of all pairs of patches, (rows, columns, rows, columns)."""
    try:
        similarity = position_similarity(model)
    except ValueError:  # no position table
        return None
    return {"grid": list(similarity.shape[:2]), "values": _base64(_as_bytes((similarity + 1) / 2))}


def _as_bytes(values: Tensor) -> Tensor:
    """0..1 -> 0..255."""
    return (values.clamp(0, 1) * 255).round().to(torch.uint8)


def _base64(values: Tensor) -> str:
    return base64.b64encode(values.contiguous().numpy().tobytes()).decode()


def _text(model: Model) -> str:
    """The architecture in the paper's words, and the file that the weights come from, without its folder."""
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    said = f"{name_of(model.spec)} with {parameters:.1f} million parameters."
    attention = getattr(model.spec, "attention", "full")
    if attention not in ("full", "axial"):  # which the name says
        said += f" Its attention is {attention}."
    if source := model.provenance.get("source"):
        said += f" Weights: {PurePath(source).name}."
    if not shows_layers(model.spec):
        said += " It has no attention between all patches to show, so the page shows its answers only."
    return said
