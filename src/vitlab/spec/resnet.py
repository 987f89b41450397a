"""BiT's ResNets, the ResNet of a hybrid, and the ResNet with axial attention, as frozen values."""

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec.conventions import CONVENTIONS, Conventions
from vitlab.spec.sizes import LIMITS, check_classes, check_image

GROUPS = 32  # in the authors' GroupNorms


@dataclass(frozen=True)
class ResNetSpec:
    """A BiT ResNet-v2: bottleneck units per stage, and channels of the root (64 times the width factor)."""

    stages: tuple[int, ...]
    root: int = 64
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    conventions: Conventions = CONVENTIONS["paper"]
    kind: Literal["bit"] = "bit"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=1)
        check_classes(self.classes)
        check_image(self.image, 1)
        check_maps(self.stages, self.root, self.image)

    @property
    def width(self) -> int:
        """Channels of the last stage, which are the length of a feature vector."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Image sides must be multiples of this; any side will do."""
        return 1


@dataclass(frozen=True)
class AxialResNetSpec:
    """A ResNet with attention along columns and rows instead of 3x3 convolutions (appendix D.6)."""

    stages: tuple[int, ...]
    root: int = 64
    heads: int = 8
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    conventions: Conventions = CONVENTIONS["paper"]
    kind: Literal["axial-resnet"] = "axial-resnet"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=1)
        check_classes(self.classes)
        require(1 <= self.heads <= LIMITS["heads"], f"heads {self.heads} is outside 1..{LIMITS['heads']}")
        require(self.root % (2 * self.heads) == 0, f"root {self.root} is not a multiple of 2 x {self.heads} heads")
        check_image(self.image, self.stride)
        check_maps(self.stages, self.root, self.image)

    @property
    def width(self) -> int:
        """Channels of the last stage, which are the length of a feature vector."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Pixels per side of one cell of the last feature map."""
        return 2 ** (1 + len(self.stages))


@dataclass(frozen=True)
class Backbone:
    """The ResNet-v1 in front of a hybrid's Transformer; without stages it is only the root."""

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
        """Pixels per side of one cell of the feature map."""
        return 2 ** (1 + max(len(self.stages), 1))


def last_channels(stages: tuple[int, ...], root: int) -> int:
    """Return the channels after the last stage of a bottleneck ResNet, or after the root if there is no stage."""
    return root * 4 * 2 ** (len(stages) - 1) if stages else root


def _check_stages(stages: tuple[int, ...], root: int, *, fewest: int) -> None:
    require(fewest <= len(stages) <= 5, f"{len(stages)} stages are outside {fewest}..5")
    most = LIMITS["layers"]
    require(all(1 <= units <= most for units in stages), f"stages {stages} are outside 1..{most} units each")
    require(1 <= root <= 1024, f"root {root} is outside 1..1,024 channels")
    require(root > 1 or not stages, "root 1 gives kernels of one weight, which standardisation makes 0; give 2 or more")


def check_maps(stages: tuple[int, ...], root: int, image: tuple[int, int]) -> None:
    """Raise if a norm would have groups of a single number, which it always turns into 0."""
    for stage in range(len(stages)):
        channels = root * 2**stage
        cells = math.prod(math.ceil(side / 2 ** (stage + 2)) for side in image)  # root, pooling and each stage halve
        size, advice = f"{image[0]}x{image[1]}", f"use images of more than {2 ** (stage + 2)} pixels, or a wider root"
        enough = cells * channels > norm_groups(channels)
        require(enough, f"image {size} leaves one number per group of the norms in stage {stage + 1}; {advice}")


def norm_groups(channels: int) -> int:
    """Return the groups of a ResNet's GroupNorm: 32, or fewer where 32 does not divide the channels."""
    return math.gcd(GROUPS, channels)
