"""Preprocessing and augmentation of images as frozen values. Standard library only."""

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require

Interpolation = Literal["bilinear", "bicubic", "area"]
CropKind = Literal["inception", "uniform-area", "square-crop", "shorter-crop", "none"]
RandAugmentFlavour = Literal["tf", "timm"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation turns an image into the pixels that a model expects.

    `square` resizes to a square of size / `fraction`; `shorter` resizes the shorter side and keeps the aspect ratio.
    Then the centre is cropped.
    """

    resize: Literal["square", "shorter"] = "square"
    fraction: float = 1.0
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        check_fields(self)
        require(0.1 <= self.fraction <= 1, f"fraction {self.fraction} is outside [0.1, 1]")
        require(self.antialias or self.interpolation != "bicubic", "bicubic interpolation needs antialias")
        require(all(map(math.isfinite, self.mean)), f"mean {self.mean} is not finite")
        require(all(0 < s < math.inf for s in self.std), f"std {self.std} must be positive and finite")

    def __str__(self) -> str:
        how = "stretch" if self.resize == "square" else "shorter side"
        how += f", crop {self.fraction:g}" if self.fraction < 1 else ""
        smooth = "antialiased" if self.antialias else "not antialiased"
        return f"{how}, {self.interpolation} {smooth}, mean {_triple(self.mean)}, std {_triple(self.std)}"


@dataclass(frozen=True)
class RandAugment:
    """RandAugment: `layers` random operations per image, each applied with a `probability`; 0 layers turn it off.

    The flavour `tf` is TensorFlow's with 16 operations, used by AugReg: magnitude 10 is full strength and more is
    allowed, but some operations are strongest at 0. `timm` has 15 operations that grow with the magnitude, up to 10,
    used by DeiT. No magnitude suits both, so that it has no default.
    """

    layers: int = 0
    magnitude: float | None = None
    flavour: RandAugmentFlavour = "tf"
    probability: float = 1.0
    deviation: float = 0.0  # standard deviation of the magnitude
    fill: tuple[int, int, int] = (128, 128, 128)  # colour outside the image

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.layers <= 16, f"layers {self.layers} is outside 0..16")
        most = 10 if self.flavour == "timm" else 30
        usual = "AugReg's are 10 to 20 with the flavour tf, DeiT's is 9 with timm"
        given = self.magnitude is not None or not self.layers
        require(given, f"randaugment.layers {self.layers} needs randaugment.magnitude: {usual}")
        require(0 <= (self.magnitude or 0) <= most, f"magnitude {self.magnitude} is outside [0, {most}]")
        require(0 <= self.probability <= 1, f"probability {self.probability} is outside [0, 1]")
        require(0 <= self.deviation <= 10, f"deviation {self.deviation} is outside [0, 10]")
        require(all(0 <= part <= 255 for part in self.fill), f"fill {self.fill} has parts outside 0..255")


@dataclass(frozen=True)
class Erasing:
    """Random erasing: with a `probability`, cover a box with normal noise of `mean` and `std`, where white is 1."""

    probability: float = 0.0
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.probability <= 1, f"probability {self.probability} is outside [0, 1]")
        require(all(map(math.isfinite, (*self.mean, *self.std))), f"mean {self.mean}, std {self.std} are not finite")
        require(all(s >= 0 for s in self.std), f"std {self.std} must not be negative")


@dataclass(frozen=True)
class Augmentation:
    """Random augmentation in training; the default is the authors' crop and flip.

    `smallest_area` applies only to the crops inception and uniform-area, `enlarged` only to those that first resize to
    a larger image; the others ignore them. Flip, RandAugment, colour jitter and erasing follow, in this order.
    `repeats` is the number of times that a sample is used in a row, augmented anew each time.
    """

    crop: CropKind = "inception"
    smallest_area: float = 0.05
    enlarged: float = 448 / 384
    flip: bool = True
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    randaugment: RandAugment = RandAugment()
    colour_jitter: float = 0.0  # largest relative change of brightness, contrast and saturation
    erasing: Erasing = Erasing()
    repeats: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.colour_jitter <= 1, f"colour_jitter {self.colour_jitter} is outside [0, 1]")
        require(1 <= self.repeats <= 64, f"repeats {self.repeats} is outside 1..64")
        require(0 < self.smallest_area <= 1, f"smallest_area {self.smallest_area} is outside (0, 1]")
        require(1 <= self.enlarged <= 8, f"enlarged {self.enlarged} is outside [1, 8]")
        require(self.antialias or self.interpolation != "bicubic", "bicubic interpolation needs antialias")


AUTHORS = Preprocessing()  # resized to a square, values from -1 to 1


def _triple(values: tuple[float, float, float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "/".join(f"{v:g}" for v in values)
