"""Vision Transformers, hybrids among them, as frozen values that are validated on creation."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec.conventions import CONVENTIONS, Conventions
from vitlab.spec.patterns import Pattern, parse_pattern
from vitlab.spec.resnet import Backbone, check_maps
from vitlab.spec.sizes import LARGEST_MERGE, LIMITS, check_classes, check_image

HeadKind = Literal["mlp", "linear"]
Pool = Literal["class", "mean"]
PositionKind = Literal["none", "1d", "2d", "relative"]
PositionPlace = Literal["stem", "every-layer", "shared"]
AttentionLike = str | Pattern  # a pattern of attention, or its string form


@dataclass(frozen=True)
class ViTSpec:
    """The complete specification of a Vision Transformer.

    With a `backbone` the model is a hybrid, and `patch` counts cells of its feature map instead of pixels. `attention`
    is the string form of a pattern, see `vitlab.spec.patterns`; a model with axial attention has no class token. A
    `distilled` model has a second token with its own head. `merge` tokens are merged into others in every layer, but at
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
    conventions: Conventions = CONVENTIONS["paper"]
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
        check_classes(self.classes)
        require(self.width % self.heads == 0, f"width {self.width} is not a multiple of {self.heads} heads")
        for name in ("dropout", "stochastic_depth"):
            require(0 <= getattr(self, name) < 1, f"{name} {getattr(self, name)} is outside [0, 1)")
        check_image(self.image, self.stride)
        if self.backbone is not None:
            check_maps(self.backbone.stages, self.backbone.root, self.image)
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
        require(
            0 <= self.merge <= most,
            f"merge is {self.merge}; give the number of tokens to merge in every layer, from 0 (none) to {most:,}",
        )
        if self.merge:
            off = "merge must be 0"
            require(self.attention == "full", f"{self.attention} attention needs the whole grid of patches; {off}")
            require(self.positions != "relative", f"relative positions need every token at its place; {off}")
            at_stem = self.positions_at == "stem"
            require(at_stem, f"positions at {self.positions_at!r} are added again to tokens that were merged; {off}")

    @property
    def excess_merge(self) -> str:
        """What to say of a `merge` that some layer cannot reach; empty if all can."""
        full = sum(before - after == self.merge for before, after in pairwise(self.layer_tokens))
        if full == self.layers:
            return ""
        most = (
            f"{full} of {self.layers} layers can merge {self.merge} tokens, and the others half of those of the patches"
        )
        return f"{most}: {self.tokens} tokens become {self.layer_tokens[-1]}"

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
