"""The Vision Transformer of section 3.1."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import WeightsWarning
from vitlab.models.axial import AXES, AxialAttention
from vitlab.models.classifier import Classifier, make_head
from vitlab.models.embedding import TABLES, PatchEmbedding, Positions, Positions2D
from vitlab.models.merging import MergingBlock, Tokens, merging_layers, unmerged
from vitlab.models.resnet import ResNetV1
from vitlab.models.sparse import layout_of, set_layout
from vitlab.models.transformer import MLP, Attention, Block, RelativeAttention
from vitlab.require import require
from vitlab.spec import AttentionLike, Backbone, Convolutions, Image, ViTSpec, image_size, with_attention


class ViT(Classifier[ViTSpec]):
    """A Vision Transformer; depending on its spec also a hybrid, an Axial-ViT or a DeiT."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__(spec)
        how = spec.conventions
        self.patches = (
            PatchEmbedding(spec.patch, spec.width)
            if spec.backbone is None
            else HybridEmbedding(spec.backbone, spec.patch, spec.width, how.hybrid)
        )
        self.class_token = nn.Parameter(torch.empty(1, 1, spec.width)) if spec.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.empty(1, 1, spec.width)) if spec.distilled else None
        tables = {"stem": 1, "shared": 1, "every-layer": spec.layers}[spec.positions_at]
        kind = TABLES.get(spec.positions)
        made = [kind(spec.grid, spec.width, prefix=spec.prefix) for _ in range(tables)] if kind else []
        self.positions = made[0] if made else None
        self.later_positions = nn.ModuleList(made[1:])
        # Stochastic depth grows linearly from 0 in the first layer to its full rate in the last.
        rates = [spec.stochastic_depth * layer / max(spec.layers - 1, 1) for layer in range(spec.layers)]
        layer = MergingBlock if spec.merge else Block
        self.blocks = nn.ModuleList(
            layer(attention, spec.mlp, gelu=how.gelu, norm_eps=how.norm_eps, dropout=spec.dropout, drop=rate)
            for rate in rates
            for attention in _attentions(spec)
        )
        self._set_layouts(spec)
        self.norm = nn.LayerNorm(spec.width, eps=how.norm_eps)
        self.is_lean = False  # set by `make_lean`
        self.head = make_head(spec)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K)."""
        return self.head(self.pooled(images))  # (B, K)

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D), the image representation y; (B, 2, D) of a distilled model."""
        z = self.tokens(images)  # (B, n, D)  Eq. 1
        z = self.encoded(z, read=self._read())  # (B, n, D)  Eq. 2, 3
        return self.pool_tokens(z)  # (B, D)  Eq. 4

    def pool_tokens(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, D): y of Eq. 4 from the output of the last layer; (B, 2, D) of a distilled model."""
        if self.spec.distilled:
            return self.norm(z[:, :2])  # (B, 2, D)
        if self.spec.pool == "class":
            return self.norm(z[:, 0])  # (B, D)  Eq. 4
        return self.norm(z).mean(dim=1)  # (B, D)

    def tokens(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, n, D): the input of the first layer, z_0."""
        self.check(images)
        return self.sequence(self.patches(images))  # Eq. 1

    def sequence(self, z: Tensor) -> Tensor:
        """(B, N, D) -> (B, n, D): put the class and distillation tokens before the patches, add positions, drop out."""
        first = [t.expand_as(z[:, :1]) for t in (self.class_token, self.distillation_token) if t is not None]
        z = torch.cat([*first, z], dim=1)  # (B, n, D)
        z = z if self.positions is None else self.positions(z)
        return F.dropout(z, self.spec.dropout, self.training)

    def encoded(self, z: Tensor, *, read: int | None = None) -> Tensor:
        """(B, n, D) -> (B, n, D): from z_0 to z_L, before the final norm; patches that are merged get the same.

        With `read`, the last layer computes only its first tokens: (B, read, D).
        """
        if self.spec.merge:
            return self.merged(z).spread()
        for output, _ in self.each_layer(z, read=read):
            z = output
        return z

    def _read(self) -> int | None:
        """The tokens that the head reads, in a training step of a lean model where the others need no last layer."""
        is_step = self.is_lean and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        is_random = self.training and (self.spec.dropout > 0 or self.spec.stochastic_depth > 0)
        is_plain = self.spec.attention == "full" and self.spec.positions != "relative" and not self.spec.merge
        return self.spec.prefix if is_step and is_plain and self.spec.pool == "class" and not is_random else None

    def merged(self, z: Tensor) -> Tokens:
        """(B, n, D) -> the tokens after the last layer of a model that merges some."""
        tokens = unmerged(z)
        for output, _ in merging_layers(self.layers, tokens, self.spec):
            tokens = output
        return tokens

    def groups(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, rows, columns): the number of the token that each patch is part of in the end."""
        require(self.spec.merge > 0, "this model merges no tokens; model.set_merge(8) merges 8 in every layer")
        groups = self.merged(self.tokens(images)).groups  # (B, n)
        return groups[:, self.spec.prefix :].unflatten(1, self.spec.grid)

    def each_layer(
        self, z: Tensor, *, explain: bool = False, read: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the output (B, n, D) of each layer, with `explain` also its attention probabilities (B, h, n, n).

        With `read`, the last output is (B, read, D).
        """
        if self.spec.merge:
            for tokens, attention in merging_layers(self.layers, unmerged(z), self.spec, explain=explain):
                yield tokens.spread(), attention
                del attention
            return
        for number, block in enumerate(self.layers):
            z = self.with_positions(number, z)
            own = () if read is None or number < len(self.blocks) - 1 else (read,)
            z, attention = block.explain(z) if explain else (block(z, *own), None)  # Eq. 2, 3
            yield z, attention
            del attention  # free it before the next layer allocates its own

    def with_positions(self, block: int, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D): add the positions of this layer; `sequence` has added those of the first."""
        layer, inside = divmod(block, self.spec.blocks // self.spec.layers)
        if layer == 0 or inside or self.positions is None or self.spec.positions_at == "stem":
            return z
        return self.positions(z) if self.spec.positions_at == "shared" else self.later_positions[layer - 1](z)

    def layer_features(self, images: Tensor) -> Iterator[Tensor]:
        """Yield (B, n, D) after each layer, and once more after the final norm: L+1 tensors, one at a time."""
        z = self.tokens(images)
        for output, _ in self.each_layer(z):
            z = output
            yield z
        yield self.norm(z)

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the attention (B, h, n, n) of each layer, two for an Axial-ViT, with one layer in memory at a time."""
        # `map` holds no layer while it asks for the next; a loop variable would.
        return map(itemgetter(1), self.each_layer(self.tokens(images), explain=True))

    @property
    def layers(self) -> Iterable[Block]:
        """The L encoder layers in order; a layer of an Axial-ViT is two of these."""
        return cast(Iterable[Block], self.blocks)

    @property
    def _tables(self) -> list[Positions | Positions2D]:
        """Every position table; none if positions are relative or absent."""
        return [] if self.positions is None else [self.positions, *cast(Iterable[Positions], self.later_positions)]

    def resize(self, image: Image) -> None:
        """Change the image size; positions are interpolated according to the model's conventions."""
        spec = replace(self.spec, image=image_size(image))
        if spec.positions == "relative" and spec.grid != self.spec.grid:
            keep = "keep the image at {}x{}, or build with 1d or 2d positions".format(*self.spec.image)
            raise ValueError(f"relative positions cannot be resized to another grid; {keep}")
        for table in self._tables:
            table.resize(spec.grid, spec.conventions.position_resize)
        self._set_layouts(spec)
        self.spec = spec

    def _set_layouts(self, spec: ViTSpec) -> None:
        """Tell the attention of every layer which patches attend to which on the grid of `spec`."""
        for layer, block in enumerate(self.layers):
            if isinstance(block.attention, AxialAttention):
                block.attention.grid = spec.grid
            elif not isinstance(block.attention, RelativeAttention):
                set_layout(block.attention, layout_of(spec.pattern, layer, spec.grid, spec.prefix))

    def set_attention(self, attention: AttentionLike) -> None:
        """Attend in another pattern from now on, such as "window:7"; "full" is the paper's. The weights stay."""
        spec = with_attention(self.spec, attention)
        self._set_layouts(spec)
        self.spec = spec

    def set_merge(self, merge: int) -> None:
        """Merge this many tokens in every layer from now on; 0 merges none. The weights stay as they are.

        A number that some layer cannot reach is a WeightsWarning with the tokens that are left.
        """
        self.spec = replace(self.spec, merge=merge)
        if excess := self.spec.excess_merge:
            warnings.warn(excess, WeightsWarning, stacklevel=2)
        for block in self.layers:
            block.__class__ = MergingBlock if merge else Block  # which differ in what they do, not in what they hold

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw every parameter as in the authors' code."""
        self.patches.initialise(generator)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        if self.distillation_token is not None:
            nn.init.trunc_normal_(self.distillation_token, std=0.02, generator=generator)  # DeiT's, not the paper's
        for table in self._tables:
            table.initialise(generator)
        for block in self.layers:
            block.initialise(generator)
        self.norm.reset_parameters()
        self.head.initialise(generator, head_bias)


class HybridEmbedding(PatchEmbedding):
    """A ResNet followed by the embedding of patches of its feature map."""

    def __init__(self, backbone: Backbone, patch: int, width: int, how: Convolutions) -> None:
        super().__init__(patch, width, backbone.channels)
        self.backbone = ResNetV1(backbone, how)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, D)."""
        return super().forward(self.backbone(images))  # by way of (B, C, H/stride, W/stride)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the ResNet, then the embedding."""
        self.backbone.initialise(generator)
        super().initialise(generator)


def make_lean(module: nn.Module, *, is_lean: bool = True) -> None:
    """Let the ViTs and MLPs of a module compute and keep less in a training step.

    The last layer computes only the tokens that the head reads. An MLP keeps the input of its GELU for the backward
    pass, but not its result; on one thread this takes no more time, since a few rows at a time stay in the cache.
    Gradients differ from those without it by rounding. Where it does not apply, nothing changes: on other devices, in
    lower precision, with dropout, with frozen weights, in compiled and traced models.
    """
    for part in module.modules():
        if isinstance(part, MLP | ViT):
            part.is_lean = is_lean


def _attentions(spec: ViTSpec) -> Iterator[Attention]:
    """Yield the attention of each block of one layer."""
    if spec.attention == "axial":
        yield from (AxialAttention(spec.width, spec.heads, spec.grid, axis) for axis in AXES)
    elif spec.positions == "relative":
        yield RelativeAttention(spec.width, spec.heads, spec.tokens)
    else:
        yield Attention(spec.width, spec.heads)
