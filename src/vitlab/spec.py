"""Models as frozen values, checked when they are made. Standard library only."""

import math
import operator
import re
from dataclasses import dataclass
from typing import Literal

from vitlab.pixels import AUTHORS, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.require import require
from vitlab.strict_json import check_fields

Gelu = Literal["tanh", "exact"]
HeadKind = Literal["mlp", "linear"]
Pool = Literal["class", "mean"]
PositionKind = Literal["none", "1d", "2d", "relative"]
PositionPlace = Literal["stem", "every-layer", "shared"]
UnsavedPositions = Literal["sincos2d", "none"]  # of a file without a position table
AttentionKind = Literal["full", "axial"]
ConventionName = Literal["paper", "timm", "hf", "torchvision", "deit"]
PositionResize = ConventionName
SaveFormat = Literal["vitlab", "google-npz", "timm", "hf"]
Task = Literal["single-label", "multi-label"]  # of a model: one class per image, or any number of them
Image = int | tuple[int, int]


@dataclass(frozen=True)
class Convolutions:
    """What implementations of one ResNet differ in: two epsilons, and what lies around the root's max-pooling.

    `epsilon` keeps the standardisation of weights finite: it joins their variance under the root, or their deviation.
    """

    epsilon: float = 1e-10
    epsilon_joins: Literal["variance", "deviation"] = "variance"
    norm_eps: float = 1e-5
    pool_padding: Literal["zero", "infinite"] = "zero"

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("epsilon", "norm_eps"):
            require(0 < getattr(self, name) <= 0.1, f"{name} {getattr(self, name)} is outside (0, 0.1]")


BIT, HYBRID = Convolutions(), Convolutions(1e-5, "deviation", 1e-6)  # the authors' two ResNets


@dataclass(frozen=True)
class Conventions:
    """The choices that differ between implementations and that no weight file writes down.

    `bit` holds for the ResNets of BiT, `hybrid` for the ResNet before a hybrid's Transformer.
    """

    gelu: Gelu = "tanh"
    norm_eps: float = 1e-6
    position_resize: PositionResize = "paper"
    preprocessing: Preprocessing = AUTHORS
    bit: Convolutions = BIT
    hybrid: Convolutions = HYBRID

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.norm_eps <= 0.1, f"norm_eps {self.norm_eps} is outside (0, 0.1]")


CONVENTIONS: dict[ConventionName, Conventions] = {
    "paper": Conventions(),
    "timm": Conventions(
        "exact",
        1e-6,
        "timm",
        Preprocessing("shorter", 0.9, "bicubic", True),
        bit=Convolutions(1e-8),
        hybrid=Convolutions(1e-8),
    ),
    "hf": Conventions("exact", 1e-12, "hf", Preprocessing("square", 1.0, "bilinear", True)),
    "torchvision": Conventions(
        "exact",
        1e-6,
        "torchvision",
        Preprocessing("shorter", 0.875, "bilinear", True, IMAGENET_MEAN, IMAGENET_STD),
    ),
    "deit": Conventions(
        "exact",
        1e-6,
        "deit",
        Preprocessing("shorter", 0.875, "bicubic", True, IMAGENET_MEAN, IMAGENET_STD),
    ),
}


def named_conventions(conventions: ConventionName | Conventions) -> Conventions:
    """The conventions themselves, or those of a source by its name."""
    if isinstance(conventions, Conventions):
        return conventions
    require(conventions in CONVENTIONS, f"no conventions are named {conventions!r}; known are {', '.join(CONVENTIONS)}")
    return CONVENTIONS[conventions]


@dataclass(frozen=True)
class ResNetSpec:
    """A ResNet-v2 of BiT: bottleneck units in each stage, and the channels of the root, 64 times its width factor."""

    stages: tuple[int, ...]
    root: int = 64
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    conventions: Conventions = Conventions()
    kind: Literal["bit"] = "bit"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=1)
        _check_classes(self.classes)
        check_image(self.image, 1)
        _check_maps(self.stages, self.root, self.image)

    @property
    def width(self) -> int:
        """Channels of the last stage: the length of a feature vector."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Image sides must be multiples of this: any will do."""
        return 1


@dataclass(frozen=True)
class AxialResNetSpec:
    """A ResNet whose 3x3 convolutions are attention along columns, then along rows (appendix D.6)."""

    stages: tuple[int, ...]
    root: int = 64
    heads: int = 8
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    conventions: Conventions = Conventions()
    kind: Literal["axial-resnet"] = "axial-resnet"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=1)
        _check_classes(self.classes)
        require(1 <= self.heads <= LIMITS["heads"], f"heads {self.heads} is outside 1..{LIMITS['heads']}")
        require(self.root % (2 * self.heads) == 0, f"root {self.root} does not divide into 2 x {self.heads} heads")
        check_image(self.image, self.stride)
        _check_maps(self.stages, self.root, self.image)

    @property
    def width(self) -> int:
        """Channels of the last stage: the length of a feature vector."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Pixels along a side of one cell of the last feature map."""
        return 2 ** (1 + len(self.stages))


@dataclass(frozen=True)
class Backbone:
    """The ResNet-v1 before a hybrid's Transformer; without stages it is the root alone."""

    stages: tuple[int, ...]
    root: int = 64

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=0)

    @property
    def channels(self) -> int:
        """Channels of the feature map."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Pixels along a side of one cell of the feature map."""
        return 2 ** (1 + max(len(self.stages), 1))


@dataclass(frozen=True)
class ViTSpec:
    """A Vision Transformer, complete: build it twice and you get the same function.

    Behind a `backbone` the model is a hybrid, and `patch` counts cells of its feature map instead of pixels.
    `attention` along the axes has no class token; a `distilled` model has a second one, with a head of its own.
    """

    patch: int
    layers: int
    width: int
    mlp: int
    heads: int
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: HeadKind = "mlp"
    pool: Pool = "class"
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    conventions: Conventions = Conventions()
    positions: PositionKind = "1d"
    positions_at: PositionPlace = "stem"
    backbone: Backbone | None = None
    attention: AttentionKind = "full"
    distilled: bool = False
    kind: Literal["vit"] = "vit"

    def __post_init__(self) -> None:
        check_fields(self)
        for name, largest in LIMITS.items():
            value = getattr(self, name)
            require(1 <= value <= largest, f"{name} {value} is outside 1..{largest:,}")
        _check_classes(self.classes)
        require(self.width % self.heads == 0, f"width {self.width} does not divide into {self.heads} heads")
        for name in ("dropout", "stochastic_depth"):
            require(0 <= getattr(self, name) < 1, f"{name} {getattr(self, name)} is outside [0, 1)")
        check_image(self.image, self.stride)
        if self.backbone is not None:
            _check_maps(self.backbone.stages, self.backbone.root, self.image)
        self._check_variant()

    def _check_variant(self) -> None:
        """Options that exclude each other."""
        table = self.positions in ("1d", "2d")
        require(
            table or self.positions_at == "stem",
            f"positions {self.positions!r} are no table that could be added {self.positions_at!r}; leave positions_at",
        )
        require(
            self.positions != "2d" or self.width % 2 == 0, f"2d positions need an even width, {self.width} is not one"
        )
        if self.attention == "axial":
            require(self.pool == "mean", "axial attention has no class token; pool must be 'mean'")
            require(
                self.positions != "relative", "axial attention has no relative positions; give '2d', '1d' or 'none'"
            )
        if self.distilled:
            require(self.pool == "class", "a distilled model reads its two class tokens; pool must be 'class'")
            require(self.head == "linear", "a distilled model has two linear heads; head must be 'linear'")

    @property
    def stride(self) -> int:
        """Pixels along a side of what one token stands for: the number after the slash in a name."""
        return self.patch * (self.backbone.stride if self.backbone else 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.image[0] // self.stride, self.image[1] // self.stride

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, and that of distillation."""
        return (self.pool == "class") + self.distilled

    @property
    def tokens(self) -> int:
        """Length of the encoder's sequence: N, plus the tokens before the patches."""
        return self.grid[0] * self.grid[1] + self.prefix


# Bounds that hold before anything is allocated, for specs that come out of strangers' files.
LIMITS = {"patch": 1024, "layers": 200, "width": 16_384, "mlp": 131_072, "heads": 256}
LARGEST_IMAGE = 32_768
GROUPS = 32  # of the authors' GroupNorms


def image_size(image: Image) -> tuple[int, int]:
    """224 -> (224, 224); (H, W) stays."""
    sides = image if isinstance(image, tuple | list) else (image, image)
    try:
        height, width = (operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise ValueError(
            f"image {image!r} is no size; give one side as 384, or height and width as (384, 512)"
        ) from None
    return height, width


def parse_size(text: str) -> tuple[int, int]:
    """What a user writes: one side as `384`, or height and width as `384x512`."""
    if not (match := re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text, re.ASCII)):
        raise ValueError(f"--image {text!r} is no size; write one side as 384, or height and width as 384x512")
    return int(match[1]), int(match[2] or match[1])


def check_image(image: tuple[int, int], patch: int) -> None:
    """Raise unless (H, W) is a whole number of patches; the message names the nearest sizes."""
    height, width = image
    require(min(image) > 0 and max(image) <= LARGEST_IMAGE, f"image {height}x{width} is outside 1..{LARGEST_IMAGE}")
    if height % patch == 0 and width % patch == 0:
        return
    below = [max(side // patch, 1) * patch for side in image]
    above = [math.ceil(side / patch) * patch for side in image]
    near = " or ".join(dict.fromkeys(f"{h}x{w}" for h, w in (below, above)))
    raise ValueError(
        f"image {height}x{width} is not a whole number of {patch}x{patch} patches; the nearest sizes are {near}"
    )


def last_channels(stages: tuple[int, ...], root: int) -> int:
    """Channels behind the last stage of a bottleneck ResNet, or behind the root where there is no stage."""
    return root * 4 * 2 ** (len(stages) - 1) if stages else root


def _check_stages(stages: tuple[int, ...], root: int, *, fewest: int) -> None:
    require(fewest <= len(stages) <= 5, f"{len(stages)} stages are outside {fewest}..5")
    require(all(1 <= units <= LIMITS["layers"] for units in stages), f"stages {stages} are outside 1..200 units each")
    require(1 <= root <= 1024, f"root {root} is outside 1..1,024 channels")
    require(
        root > 1 or not stages,
        "root 1 gives the first unit a 1x1 kernel of one weight, of which standardisation leaves 0; take 2 or more",
    )


def _check_maps(stages: tuple[int, ...], root: int, image: tuple[int, int]) -> None:
    """Raise where a group of a stage's norms would be one number, which a norm turns into 0 whatever it was."""
    for stage in range(len(stages)):
        channels = root * 2**stage
        cells = math.prod(math.ceil(side / 2 ** (stage + 2)) for side in image)  # root, pooling and each stage halve
        require(
            cells * channels > norm_groups(channels),
            f"image {image[0]}x{image[1]} shrinks to 1x1 in stage {stage + 1}, where norms of {channels} channels "
            f"would see one number at a time; take pictures of more than {2 ** (stage + 2)} pixels, or a wider root",
        )


def norm_groups(channels: int) -> int:
    """Groups of a ResNet's GroupNorm: 32, or as many as divide the channels, so that small ResNets exist."""
    return math.gcd(GROUPS, channels)


def _check_classes(classes: int) -> None:
    require(0 <= classes <= 1_000_000, f"classes {classes} is outside 0..1,000,000")


ModelSpec = ViTSpec | ResNetSpec | AxialResNetSpec
