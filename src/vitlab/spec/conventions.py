"""Where implementations of one model differ, as frozen values, and the choices of each library by name."""

from dataclasses import dataclass
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec.pixels import AUTHORS, IMAGENET_MEAN, IMAGENET_STD, Preprocessing

Gelu = Literal["tanh", "exact"]
ConventionName = Literal["paper", "timm", "hf", "torchvision", "deit"]
PositionResize = ConventionName


@dataclass(frozen=True)
class Convolutions:
    """Where implementations of one ResNet differ: two epsilons, and the padding of the first max-pooling.

    `epsilon` keeps weight standardisation finite; it is added to the variance or to the standard deviation.
    """

    epsilon: float = 1e-10
    epsilon_joins: Literal["variance", "deviation"] = "variance"
    norm_eps: float = 1e-5
    pool_padding: Literal["zero", "infinite"] = "zero"

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("epsilon", "norm_eps"):
            require(0 < getattr(self, name) <= 0.1, f"{name} {getattr(self, name)} is outside (0, 0.1]")


BIT, HYBRID = Convolutions(), Convolutions(1e-5, "deviation", 1e-6)  # the authors' ResNets
TIMM_RESNET = Convolutions(1e-8)


@dataclass(frozen=True)
class Conventions:
    """Choices that differ between implementations and are in no weight file; `bit` and `hybrid` are of ResNets.

    `position_resize` is the library whose way to other image sizes is taken: how positions are resized, and for a Swin,
    how a map is cut that is not a whole number of windows (`SwinSpec.order`).
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
        "exact", 1e-6, "timm", Preprocessing("shorter", 0.9, "bicubic", True), bit=TIMM_RESNET, hybrid=TIMM_RESNET
    ),
    "hf": Conventions("exact", 1e-12, "hf", Preprocessing("square", 1.0, "bilinear", True)),
    "torchvision": Conventions(
        "exact", 1e-6, "torchvision", Preprocessing("shorter", 0.875, "bilinear", True, IMAGENET_MEAN, IMAGENET_STD)
    ),
    "deit": Conventions(
        "exact", 1e-6, "deit", Preprocessing("shorter", 0.875, "bicubic", True, IMAGENET_MEAN, IMAGENET_STD)
    ),
}


def named_conventions(conventions: ConventionName | Conventions) -> Conventions:
    """Return conventions by the name of their source; conventions are returned as they are."""
    if isinstance(conventions, Conventions):
        return conventions
    require(conventions in CONVENTIONS, f"no conventions are named {conventions!r}; known are {', '.join(CONVENTIONS)}")
    return CONVENTIONS[conventions]
