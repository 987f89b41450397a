"""Sizes and rates of a model, from its tensors' shapes, configs, headers, the user, or the models of the paper."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitlab.paper.names import SIZES
from vitlab.spec import Conventions, ModelSpec, ResNetSpec, UnsavedPositions
from vitlab.weights.files.containers import Container, WeightsError


@dataclass(frozen=True)
class Hints:
    """What the user has said about a model; None for what the file is to decide."""

    image: tuple[int, int] | None = None
    heads: int | None = None
    positions: UnsavedPositions | None = None
    conventions: Conventions | None = None

    def check(self, file: str, format: str, spec: ModelSpec) -> None:
        """Raise a WeightsError for hints that contradict a file; call it before reading tensors."""
        if self.positions is not None and format != "google-npz":
            raise WeightsError(f"{file} is of format {format}, which states its positions; leave positions out")
        if self.heads not in (None, heads_of(spec)):
            raise WeightsError(f"{file} has {heads_of(spec)} attention heads, not {self.heads}; leave heads out")


def heads_of(spec: ModelSpec) -> int:
    """Return the number of attention heads; 1 for a BiT ResNet, whose layouts have none."""
    return 1 if isinstance(spec, ResNetSpec) else spec.heads


def find_image(container: Container, rows: int, patch: int, config: object, hints: Hints) -> tuple[int, int]:
    """Return the image size of a position table with `rows` patch rows.

    A stated size that fits takes precedence, then a square. The user's size is only used for a table that is not
    square: a square table is meant to be resized to it.
    """
    stated = stated_image(container, config)
    if stated and rows_of(stated, patch) == rows:
        return stated
    side = math.isqrt(rows)
    if side * side == rows and rows > 0:
        return side * patch, side * patch
    if hints.image is not None and rows_of(hints.image, patch) == rows:
        return hints.image
    raise WeightsError(f"the position table has {rows} patch rows, not a square; give its image size, image=(H, W)")


def find_map_image(container: Container, config: object, hints: Hints) -> tuple[int, int]:
    """Return the image size of a ResNet, whose weights fit any size: as stated, as asked for, or 224."""
    if isinstance(config, list) and len(config) == 3:  # channels, height, width
        config = config[1:]
    return stated_image(container, config) or hints.image or (224, 224)


def find_heads(container: Container, width: int, config: object, hints: Hints) -> int:
    """Return the number of attention heads: given by the user, stated in the file, or known for this width."""
    written = container.metadata.get("heads", "")
    if hints.heads is not None:
        return hints.heads
    if isinstance(config, int):
        return config
    if re.fullmatch(r"\d{1,3}", written):
        return int(written)
    known = {size[1]: size[3] for size in SIZES.values()}
    if width not in known:
        usual = ", ".join(f"{w} has {h}" for w, h in known.items())
        raise WeightsError(f"the file does not state its attention heads; give heads=INT for width {width} ({usual})")
    return known[width]


def stated_image(container: Container, config: object) -> tuple[int, int] | None:
    """Return the image size that a config, or the header of a bare file, states."""
    return _size(config) or _size(container.metadata.get("image"))


def rows_of(image: tuple[int, int], patch: int) -> int:
    """Return the number of patches of an image, or -1 if it is not a whole number."""
    whole = image[0] % patch == 0 and image[1] % patch == 0
    return (image[0] // patch) * (image[1] // patch) if whole else -1


def _size(value: Any) -> tuple[int, int] | None:
    """Parse an image size from a config (224 or [224, 224]) or from metadata ("224x224")."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,5}x\d{1,5}", value):
        value = [int(side) for side in value.split("x")]
    if isinstance(value, int):
        return value, value
    if isinstance(value, list) and len(value) == 2 and all(isinstance(side, int) and side > 0 for side in value):
        return value[0], value[1]
    return None


def vit_sizes(
    container: Container, names: Mapping[str, str], channels: int = 3, kernel: str = ".weight"
) -> dict[str, Any]:
    """Return patch, layers, width, mlp, classes and head of a ViT whose tensors have these `names`.

    `kernel` ends the name of a weight; those of Flax, /kernel, are transposed. `channels` must be embedded.
    """

    def shape(layer: str, rank: int) -> tuple[int, ...]:
        found = container.shape(names[layer].format(0) + kernel, rank)
        return found[::-1] if kernel == "/kernel" else found

    width, given, patch, _ = shape("patches", 4)
    if given != channels:
        raise WeightsError(f"{container.path.name} embeds patches of {given} channels instead of {channels}")
    block = re.compile(re.escape(names["blocks.{}.norm1"].partition("{}")[0]) + r"(\d{1,6})[./]")
    return {
        "patch": patch,
        "layers": len({int(match[1]) for name in container.shapes if (match := block.match(name))}),
        "width": width,
        "mlp": shape("blocks.{}.mlp.dense1", 2)[0],
        "classes": shape("head.logits", 2)[0] if names["head.logits"] + kernel in container.shapes else 0,
        "head": "mlp" if names["head.pre_logits"] + kernel in container.shapes else "linear",
    }


def count_units(container: Container, pattern: str, *, first: int) -> tuple[int, ...]:
    """Count the units of each stage of a ResNet; `pattern` finds the numbers of stage and unit in a name."""
    found = {(int(m[1]), int(m[2])) for name in container.shapes if (m := re.match(pattern, name))}
    last = max((stage for stage, _ in found), default=first - 1)
    return tuple(sum(stage == other for other, _ in found) for stage in range(first, last + 1))


def rate_of(config: dict[str, Any], key: str) -> float:
    """Return a rate that config.json states; 0 if it does not."""
    rate = config.get(key, 0.0)
    if not isinstance(rate, int | float):
        raise WeightsError(f"config.json has {key} {rate!r:.40}; expected a number")
    return rate
