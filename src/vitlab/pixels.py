"""How pictures become pixels, in evaluation and in training, as frozen values. Standard library only."""

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.require import require
from vitlab.strict_json import check_fields

Interpolation = Literal["bilinear", "bicubic", "area"]
CropKind = Literal["inception", "uniform-area", "square-crop", "shorter-crop", "none"]
RandAugmentFlavour = Literal["tf", "timm"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How a photograph becomes the pixels a model was trained to see.

    `square` stretches the picture to size / `fraction`, `shorter` brings it there with its own shape; then the
    centre is cropped.
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
        require(self.antialias or self.interpolation != "bicubic", "bicubic resizing is antialiased")
        require(all(map(math.isfinite, self.mean)), f"mean {self.mean} is not finite")
        require(all(0 < s < math.inf for s in self.std), f"std {self.std} must be positive and finite")

    def __str__(self) -> str:
        how = "stretch" if self.resize == "square" else "shorter side"
        how += f", crop {self.fraction:g}" if self.fraction < 1 else ""
        smooth = "antialiased" if self.antialias else "not antialiased"
        return f"{how}, {self.interpolation} {smooth}, mean {_triple(self.mean)}, std {_triple(self.std)}"


@dataclass(frozen=True)
class RandAugment:
    """`layers` operations drawn from all of a flavour, each done with a `probability`; 0 layers are none.

    `tf` are TensorFlow's 16, which AugReg used: magnitude 10 is full strength and more is allowed, but some are
    strongest at 0. `timm` are the 15 that grow with the magnitude, up to 10, which DeiT used. No magnitude suits
    both, so that one has to be given with layers.
    """

    layers: int = 0
    magnitude: float | None = None
    flavour: RandAugmentFlavour = "tf"
    probability: float = 1.0
    deviation: float = 0.0  # of the magnitude, normal
    fill: tuple[int, int, int] = (128, 128, 128)  # colour of what comes from outside the picture

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.layers <= 16, f"layers {self.layers} is outside 0..16")
        most = 10 if self.flavour == "timm" else 30
        require(
            self.magnitude is not None or not self.layers,
            f"{self.layers} layers of RandAugment need a magnitude (--augmentation.randaugment.magnitude): AugReg's "
            "are 10 to 20 with the flavour tf, DeiT's is 9 with timm",
        )
        require(0 <= (self.magnitude or 0) <= most, f"magnitude {self.magnitude} is outside [0, {most}]")
        require(0 <= self.probability <= 1, f"probability {self.probability} is outside [0, 1]")
        require(0 <= self.deviation <= 10, f"deviation {self.deviation} is outside [0, 10]")
        require(all(0 <= part <= 255 for part in self.fill), f"fill {self.fill} is no colour of 0..255")


@dataclass(frozen=True)
class Erasing:
    """With a `probability`, a box of noise over the picture: normal, around `mean`, with `std`, as shares of white."""

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
    """What training does to a picture at random; the default is the authors' crop and flip.

    `smallest_area` is for the crops that draw a box; `enlarged` for those that resize to a larger picture first. Then
    come flip, RandAugment, colour jitter and erasing, in this order. `repeats` is how often a sample comes in a row,
    drawn anew each time.
    """

    crop: CropKind = "inception"
    smallest_area: float = 0.05
    enlarged: float = 448 / 384
    flip: bool = True
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    randaugment: RandAugment = RandAugment()
    colour_jitter: float = 0.0  # brightness, contrast and saturation change by up to this share
    erasing: Erasing = Erasing()
    repeats: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.colour_jitter <= 1, f"colour_jitter {self.colour_jitter} is outside [0, 1]")
        require(1 <= self.repeats <= 64, f"repeats {self.repeats} is outside 1..64")
        require(0 < self.smallest_area <= 1, f"smallest_area {self.smallest_area} is outside (0, 1]")
        require(1 <= self.enlarged <= 8, f"enlarged {self.enlarged} is outside [1, 8]")
        require(self.antialias or self.interpolation != "bicubic", "bicubic resizing is antialiased")


AUTHORS = Preprocessing()  # pictures stretched to a square, values from -1 to 1


def _triple(values: tuple[float, float, float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "/".join(f"{v:g}" for v in values)
