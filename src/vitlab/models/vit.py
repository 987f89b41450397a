"""The Vision Transformer of section 3.1."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.patches import PatchEmbedding, lecun_normal_
from vitlab.models.positions import Positions
from vitlab.models.transformer import Block, Linear
from vitlab.spec import HeadKind, Image, ViTSpec, image_size


class LinearHead(nn.Module):
    """One dense layer: the head of fine-tuning. `classes` may be 0 for a model that only makes features."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.logits = Linear(width, classes)

    def features(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return y

    def forward(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        return self.logits(y)

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        nn.init.zeros_(self.logits.weight)
        nn.init.constant_(self.logits.bias, bias)


class MLPHead(LinearHead):
    """A dense layer of the same width, tanh, then the logits: the head of pre-training."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.pre_logits = Linear(width, width)

    def features(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, D), before the tanh."""
        return self.pre_logits(y)

    def forward(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        return self.logits(self.features(y).tanh())

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        super().initialise(generator, bias)
        lecun_normal_(self.pre_logits.weight, generator)
        nn.init.zeros_(self.pre_logits.bias)


HEADS = {"mlp": MLPHead, "linear": LinearHead}


class ViT(nn.Module):
    """A Vision Transformer as its spec says; `build_model` makes one with fresh weights.

    `class_names` and `provenance` travel with the model when it is saved and loaded.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.class_names: tuple[str, ...] | None = None
        self.provenance: dict[str, str] = {}
        self.patches = PatchEmbedding(spec.patch, spec.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, spec.width)) if spec.pool == "class" else None
        self.positions = Positions(spec.grid, spec.width, class_row=spec.pool == "class")
        # Stochastic depth grows from 0 in the first layer to its full rate in the last.
        rates = [spec.stochastic_depth * layer / max(spec.layers - 1, 1) for layer in range(spec.layers)]
        conventions = spec.conventions
        self.blocks = nn.ModuleList(
            Block(
                spec.width,
                spec.mlp,
                spec.heads,
                gelu=conventions.gelu,
                norm_eps=conventions.norm_eps,
                dropout=spec.dropout,
                drop=rate,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(spec.width, eps=conventions.norm_eps)
        self.head = HEADS[spec.head](spec.width, spec.classes)

    @property
    def layers(self) -> Iterable[Block]:
        """The L encoder layers in order."""
        return cast(Iterable[Block], self.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K)."""
        return self.head(self.pooled(images))

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the pre-logits before their tanh where the head has them, else the pooled vector."""
        return self.head.features(self.pooled(images))

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the class token, or the mean token, after the final norm."""
        z = self.tokens(images)  # (B, n, D)  Eq. 1
        for block in self.layers:
            z = block(z)  # (B, n, D)  Eq. 2, 3
        if self.spec.pool == "class":
            return self.norm(z[:, 0])  # (B, D)  Eq. 4
        return self.norm(z).mean(dim=1)  # (B, D)

    def tokens(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, n, D): what enters the first layer."""
        self._check(images)
        z = self.patches(images)  # (B, N, D)
        if self.class_token is not None:
            z = torch.cat([self.class_token.expand(len(z), -1, -1), z], dim=1)  # (B, 1+N, D)
        return F.dropout(self.positions(z), self.spec.dropout, self.training)  # Eq. 1

    def layer_features(self, images: Tensor) -> Iterator[Tensor]:
        """Yield (B, n, D) after each layer, then once more after the final norm: L+1 tensors, one at a time."""
        return self._layer_features(self.tokens(images))

    def _layer_features(self, z: Tensor) -> Iterator[Tensor]:
        for block in self.layers:
            z = block(z)
            yield z
        yield self.norm(z)

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the attention probabilities (B, h, n, n) of each layer, one layer in memory at a time."""
        return self._layer_attention(self.tokens(images))

    def _layer_attention(self, z: Tensor) -> Iterator[Tensor]:
        for block in self.layers:
            z, probabilities = block.explain(z)
            yield probabilities
            del probabilities  # else it would live on while the next layer makes its own

    def resize(self, image: Image) -> None:
        """Accept another image size from now on: positions are stretched as the model's conventions say."""
        spec = replace(self.spec, image=image_size(image))
        self.positions.resize(spec.grid, spec.conventions.position_resize)
        self.spec = spec

    def reset_head(self, classes: int, head: HeadKind = "linear") -> None:
        """Put a fresh zero head for `classes` classes in place of the old one, as fine-tuning does."""
        self.spec = replace(self.spec, classes=classes, head=head)
        old = self.norm.weight
        with torch.device("meta" if old.is_meta else "cpu"):
            fresh = HEADS[head](self.spec.width, classes)
        if not old.is_meta:
            fresh.initialise(torch.Generator().manual_seed(0), bias=0.0)
        self.head = fresh.to(device=old.device, dtype=old.dtype)
        self.class_names = None

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw every parameter as the authors' code does."""
        self.patches.initialise(generator)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        self.positions.initialise(generator)
        for block in self.layers:
            block.initialise(generator)
        self.norm.reset_parameters()
        self.head.initialise(generator, head_bias)

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be (B, 3, H, W), not {tuple(images.shape)}")
        if images.shape[2:] != self.spec.image:
            given, own = ("x".join(map(str, size)) for size in (images.shape[2:], self.spec.image))
            raise ValueError(f"images are {given}, this model expects {own}; resize them, or the model by model.resize")
