"""Specifications of models as frozen values that are validated on creation. Standard library only."""

import math
import operator
import re
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.patterns import Pattern, parse_pattern
from vitlab.pixels import AUTHORS, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.require import require
from vitlab.strict_json import check_fields

Gelu = Literal["tanh", "exact"]
HeadKind = Literal["mlp", "linear"]
Pool = Literal["class", "mean"]
PositionKind = Literal["none", "1d", "2d", "relative"]
PositionPlace = Literal["stem", "every-layer", "shared"]
UnsavedPositions = Literal["sincos2d", "none"]  # for files without a position table
ConventionName = Literal["paper", "timm", "hf", "torchvision", "deit"]
PositionResize = ConventionName
WindowOrder = Literal["pad-roll", "roll-pad"]
SaveFormat = Literal["vitlab", "google-npz", "timm", "hf", "microsoft"]
Task = Literal["single-label", "multi-label"]  # one class per image, or any number
EngineName = Literal["torch", "plain", "compiled", "onnxruntime", "onnxruntime-int8", "openvino", "auto"]
ExportTarget = Literal["onnx", "openvino", "torch"]
ExportTo = Literal["onnx", "openvino", "torch", "web"]
ExportOutput = Literal["logits", "features", "attention", "tokens"]
Image = int | tuple[int, int]
AttentionLike = str | Pattern  # a pattern of attention, or its string form


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


@dataclass(frozen=True)
class ResNetSpec:
    """A BiT ResNet-v2: bottleneck units per stage, and channels of the root (64 times the width factor)."""

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
    conventions: Conventions = Conventions()
    kind: Literal["axial-resnet"] = "axial-resnet"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_stages(self.stages, self.root, fewest=1)
        _check_classes(self.classes)
        require(1 <= self.heads <= LIMITS["heads"], f"heads {self.heads} is outside 1..{LIMITS['heads']}")
        require(self.root % (2 * self.heads) == 0, f"root {self.root} is not a multiple of 2 x {self.heads} heads")
        check_image(self.image, self.stride)
        _check_maps(self.stages, self.root, self.image)

    @property
    def width(self) -> int:
        """Channels of the last stage, which are the length of a feature vector."""
        return last_channels(self.stages, self.root)

    @property
    def stride(self) -> int:
        """Pixels per side of one cell of the last feature map."""
        return 2 ** (1 + len(self.stages))


@dataclass(frozen=True)
class Windows:
    """How one stage of a Swin cuts its `map` into windows: their sides, and how far every second layer shifts them.

    All are (rows, columns), in cells of the map.
    """

    map: tuple[int, int]
    sides: tuple[int, int]
    shift: tuple[int, int]

    @property
    def number(self) -> tuple[int, int]:
        """Rows and columns of windows; the last ones may reach over the edge of the map."""
        rows, columns = (math.ceil(cells / side) for cells, side in zip(self.map, self.sides, strict=True))
        return rows, columns

    @property
    def padding(self) -> tuple[int, int]:
        """The cells to add to the map at its lower and its right edge."""
        rows, columns = (n * side for n, side in zip(self.number, self.sides, strict=True))
        return rows - self.map[0], columns - self.map[1]

    @property
    def offsets(self) -> int:
        """The number of different offsets between two cells of a window."""
        return (2 * self.sides[0] - 1) * (2 * self.sides[1] - 1)


@dataclass(frozen=True)
class SwinSpec:
    """A Swin Transformer: layers per stage, and channels and heads of its first stage; both double in each stage.

    Images of any size are padded to whole patches, and maps to whole windows.
    """

    stages: tuple[int, ...]
    root: int = 96
    heads: int = 3
    window: int = 7
    patch: int = 4
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    stochastic_depth: float = 0.0
    conventions: Conventions = Conventions()
    kind: Literal["swin"] = "swin"

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= len(self.stages) <= 5, f"{len(self.stages)} stages are outside 1..5")
        most = LIMITS["layers"]
        require(all(1 <= n <= most for n in self.stages), f"stages {self.stages} are outside 1..{most} layers each")
        require(1 <= self.root <= 1024, f"root {self.root} is outside 1..1,024 channels")
        require(1 <= self.heads <= LIMITS["heads"], f"heads {self.heads} is outside 1..{LIMITS['heads']}")
        require(self.root % self.heads == 0, f"root {self.root} is not a multiple of {self.heads} heads")
        require(1 <= self.window <= LARGEST_WINDOW, f"window {self.window} is outside 1..{LARGEST_WINDOW} cells")
        require(1 <= self.patch <= LIMITS["patch"], f"patch {self.patch} is outside 1..{LIMITS['patch']:,}")
        require(0 <= self.stochastic_depth < 1, f"stochastic_depth {self.stochastic_depth} is outside [0, 1)")
        _check_classes(self.classes)
        check_image(self.image, self.stride)

    @property
    def width(self) -> int:
        """Channels of the last stage, which are the length of a feature vector."""
        return self.widths[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.root * 2**stage for stage in range(len(self.stages)))

    @property
    def stride(self) -> int:
        """Image sides must be multiples of this; any side will do."""
        return 1

    @property
    def maps(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the feature map of each stage; odd maps are padded before they are halved."""
        height, width = self.image
        scales = (self.patch * 2**stage for stage in range(len(self.stages)))
        return tuple((math.ceil(height / scale), math.ceil(width / scale)) for scale in scales)

    @property
    def order(self) -> WindowOrder:
        """What comes first where a map is padded to whole windows and rolled by their shift.

        The authors' code for detection and transformers pad first, timm rolls first.
        """
        return "roll-pad" if self.conventions.position_resize == "timm" else "pad-roll"

    @property
    def windows(self) -> tuple[Windows, ...]:
        """The windows of each stage.

        By the authors' rule, a map with a side no larger than the window is cut into squares of its smaller side, and
        nothing is shifted. timm looks at each side by itself, and rounds the sides of odd maps down to do so.
        """
        return tuple(self._windows(stage, grid) for stage, grid in enumerate(self.maps))

    def _windows(self, stage: int, grid: tuple[int, int]) -> Windows:
        window, shift = self.window, self.window // 2
        if self.order == "pad-roll":
            smaller = min(grid)
            if smaller > window:
                return Windows(grid, (window, window), (shift, shift))
            return Windows(grid, (smaller, smaller), (0, 0))
        rows, columns = (max(side // 2**stage, 1) for side in self.maps[0])
        sides = min(rows, window), min(columns, window)
        return Windows(grid, sides, (shift if rows > window else 0, shift if columns > window else 0))


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


@dataclass(frozen=True)
class ViTSpec:
    """The complete specification of a Vision Transformer.

    With a `backbone` the model is a hybrid, and `patch` counts cells of its feature map instead of pixels. `attention`
    is the string form of a pattern, see `vitlab.patterns`; a model with axial attention has no class token. A
    `distilled` model has a second token with its own head. `merge` pairs of tokens are merged in every layer, but at
    most half of the patches' tokens.
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
    attention: str = "full"
    distilled: bool = False
    kind: Literal["vit"] = "vit"
    merge: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", str(parse_pattern(self.attention)))  # 'fixed:block=7' is 'fixed:7'
        check_fields(self)
        for name, largest in LIMITS.items():
            value = getattr(self, name)
            require(1 <= value <= largest, f"{name} {value} is outside 1..{largest:,}")
        _check_classes(self.classes)
        require(self.width % self.heads == 0, f"width {self.width} is not a multiple of {self.heads} heads")
        for name in ("dropout", "stochastic_depth"):
            require(0 <= getattr(self, name) < 1, f"{name} {getattr(self, name)} is outside [0, 1)")
        check_image(self.image, self.stride)
        if self.backbone is not None:
            _check_maps(self.backbone.stages, self.backbone.root, self.image)
        self._check_variant()

    def _check_variant(self) -> None:
        """Raise for options that exclude each other."""
        added = self.positions in ("1d", "2d") or self.positions_at == "stem"
        require(added, f"positions_at {self.positions_at!r} needs positions '1d' or '2d', not {self.positions!r}")
        require(self.positions != "2d" or self.width % 2 == 0, f"2d positions need an even width, not {self.width}")
        if self.attention == "axial":
            without = "axial attention has no class token"
            require(not self.distilled, f"{without}, which a distilled model needs; give a model without distillation")
            require(self.pool == "mean", f"{without}; pool must be 'mean'")
        self.pattern.check(self.grid, self.layers)
        if self.attention != "full":
            is_plain = self.positions != "relative"
            require(is_plain, f"{self.attention} attention has no relative positions; give 2d, 1d or none")
        if self.distilled:
            require(self.pool == "class", "a distilled model classifies from its class tokens; pool must be 'class'")
            require(self.head == "linear", "a distilled model has two linear heads; head must be 'linear'")
        self._check_merge()

    def _check_merge(self) -> None:
        """Raise if tokens cannot be merged: what depends on the place of a token needs all of them."""
        most = LARGEST_MERGE
        require(0 <= self.merge <= most, f"merge {self.merge} is outside 0..{most:,} tokens per layer")
        if self.merge:
            off = "merge must be 0"
            require(self.attention == "full", f"{self.attention} attention needs the whole grid of patches; {off}")
            require(self.positions != "relative", f"relative positions need every token at its place; {off}")
            at_stem = self.positions_at == "stem"
            require(at_stem, f"positions at {self.positions_at!r} are added again to tokens that were merged; {off}")

    @property
    def pattern(self) -> Pattern:
        """The pattern of the attention as a value."""
        return parse_pattern(self.attention)

    @property
    def blocks(self) -> int:
        """Encoder blocks: one per layer, two with axial attention."""
        return self.layers * (2 if self.attention == "axial" else 1)

    @property
    def stride(self) -> int:
        """Pixels per side of the area that one token covers: the number after the slash in a name."""
        return self.patch * (self.backbone.stride if self.backbone else 1)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.stride, self.image[1] // self.stride

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches: the class token and the distillation token."""
        return (self.pool == "class") + self.distilled

    @property
    def tokens(self) -> int:
        """Length of the encoder's sequence: N patches and the tokens before them."""
        return self.grid[0] * self.grid[1] + self.prefix

    @property
    def layer_tokens(self) -> tuple[int, ...]:
        """The L+1 lengths of the sequence: before the first layer, and after each; all are equal without merging."""
        lengths = [self.tokens]
        for _ in range(self.layers):
            lengths.append(lengths[-1] - min(self.merge, (lengths[-1] - self.prefix) // 2))
        return tuple(lengths)


# Upper bounds, checked before anything is allocated, because specs may come from untrusted files.
LIMITS = {"patch": 1024, "layers": 200, "width": 16_384, "mlp": 131_072, "heads": 256}
LARGEST_IMAGE = 32_768
LARGEST_MERGE = 1_000_000
LARGEST_WINDOW = 128
GROUPS = 32  # in the authors' GroupNorms


def with_attention(spec: ViTSpec, attention: AttentionLike) -> ViTSpec:
    """Return the spec with another pattern of attention; a ValueError if the weights do not fit it."""
    check_same_weights(spec, attention)
    return replace(spec, attention=str(parse_pattern(attention)))


def check_same_weights(spec: ViTSpec, attention: AttentionLike) -> None:
    """Raise a ValueError if the weights of a model do not fit another pattern of attention."""
    wanted = str(parse_pattern(attention))
    fits = wanted == spec.attention or "axial" not in (wanted, spec.attention)
    why = "axial attention has two blocks per layer, so build a new model for it"
    require(fits, f"{wanted} attention does not fit weights for {spec.attention} attention; {why}")


def image_size(image: Image) -> tuple[int, int]:
    """Return (H, W): 224 becomes (224, 224)."""
    sides = image if isinstance(image, tuple | list) else (image, image)
    try:
        height, width = (operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise ValueError(f"image {image!r} is not a size; give one side, 384, or both, (384, 512)") from None
    return height, width


def parse_size(text: str) -> tuple[int, int]:
    """Parse a size that a user typed: one side, `384`, or height and width, `384x512`."""
    if not (match := re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text, re.ASCII)):
        raise ValueError(f"--image {text!r} is not a size; give one side (384), or height and width (384x512)")
    return int(match[1]), int(match[2] or match[1])


def check_image(image: tuple[int, int], patch: int) -> None:
    """Raise a ValueError with the nearest sizes unless (H, W) is a whole number of patches."""
    height, width = image
    require(min(image) > 0 and max(image) <= LARGEST_IMAGE, f"image {height}x{width} is outside 1..{LARGEST_IMAGE}")
    if height % patch == 0 and width % patch == 0:
        return
    below = [max(side // patch, 1) * patch for side in image]
    above = [math.ceil(side / patch) * patch for side in image]
    near = " or ".join(dict.fromkeys(f"{h}x{w}" for h, w in (below, above)))
    given = f"image {height}x{width} is not a whole number of {patch}x{patch} patches"
    raise ValueError(f"{given}; the nearest sizes are {near}")


def last_channels(stages: tuple[int, ...], root: int) -> int:
    """Return the channels after the last stage of a bottleneck ResNet, or after the root if there is no stage."""
    return root * 4 * 2 ** (len(stages) - 1) if stages else root


def _check_stages(stages: tuple[int, ...], root: int, *, fewest: int) -> None:
    require(fewest <= len(stages) <= 5, f"{len(stages)} stages are outside {fewest}..5")
    most = LIMITS["layers"]
    require(all(1 <= units <= most for units in stages), f"stages {stages} are outside 1..{most} units each")
    require(1 <= root <= 1024, f"root {root} is outside 1..1,024 channels")
    require(root > 1 or not stages, "root 1 gives kernels of one weight, which standardisation makes 0; give 2 or more")


def _check_maps(stages: tuple[int, ...], root: int, image: tuple[int, int]) -> None:
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


def _check_classes(classes: int) -> None:
    require(0 <= classes <= 1_000_000, f"classes {classes} is outside 0..1,000,000")


ModelSpec = ViTSpec | ResNetSpec | AxialResNetSpec | SwinSpec
