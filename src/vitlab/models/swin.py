"""The Swin Transformer (Liu et al., 2021): attention within windows, which every second layer shifts.

The map of a stage stays a sequence of its cells in raster order, (B, N, C); `Windows` says how it is cut.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.classifier import Classifier, make_head
from vitlab.models.embedding import PatchEmbedding, resize_grid
from vitlab.models.transformer import Attention, Block, dense
from vitlab.require import require
from vitlab.spec import AttentionLike, Image, SwinSpec, WindowOrder, Windows, image_size
from vitlab.spec.patterns import OF_SWIN, no_pattern, parse_pattern

NORM_EPS = 1e-5  # of every norm
APART = -100.0  # added to the logits of two cells that only the roll has brought together
MLP_RATIO = 4


class WindowAttention(Attention):
    """Self-attention within each window, with a learned bias per head for every offset between two cells."""

    def __init__(self, width: int, heads: int, windows: Windows, order: WindowOrder) -> None:
        super().__init__(width, heads)
        self.windows = windows
        self.order = order
        self.table = nn.Parameter(torch.empty(windows.offsets, heads))

    def forward(self, u: Tensor, read: int | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        assert read is None, "there is no class token to read"
        return put_together(super().forward(cut(u, self.windows, self.order)), self.windows, self.order)

    def explain(self, u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, N, C) -> the same result, and the probabilities (B, windows, h, M, M) among the M cells of each window.

        Windows and their cells are in raster order on the map as it is cut: rolled and padded.
        """
        require(mask is None, "attention within windows takes no mask; use a model with full attention")
        a, probabilities = super().explain(cut(u, self.windows, self.order))
        rows, columns = self.windows.number
        return put_together(a, self.windows, self.order), probabilities.unflatten(0, (-1, rows * columns))

    def _bias(self, q: Tensor) -> Tensor:
        """(B windows, h, M, Dh) -> (1, h, M, M), or (B windows, h, M, M) for shifted windows, which differ."""
        bias = by_offset(self.table, self.windows.sides).to(q.dtype)  # (1, h, M, M)
        if not any(self.windows.shift):
            return bias
        mask = roll_mask(q, self.windows.number, self.windows.sides, self.windows.shift)  # (windows, 1, M, M)
        rows, columns = self.windows.number
        return (bias + mask).repeat(q.shape[0] // (rows * columns), 1, 1, 1)

    def _join_heads(self, heads: Tensor) -> Tensor:
        """(B windows, h, M, Dh) -> (B windows, M, C)."""
        # Copied, because ONNX decomposes attention with a mask and returns its result in another memory order.
        return super()._join_heads(heads.clone(memory_format=torch.contiguous_format))

    def set_windows(self, windows: Windows) -> None:
        """Cut the map otherwise from now on; the table of biases is resized to the sides of the new windows."""
        self.table = nn.Parameter(resized_offsets(self.table, self.windows.sides, windows.sides))
        self.windows = windows

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights and biases of offsets of deviation 0.02; the other biases are zero."""
        for layer in (self.qkv, self.out):
            initialise_dense(layer, generator)
        nn.init.trunc_normal_(self.table, std=0.02, generator=generator)


def cut(u: Tensor, windows: Windows, order: WindowOrder) -> Tensor:
    """(B, N, C) -> (B windows, M, C): the cells of each window of the map, padded and rolled."""
    (rows, columns), (height, width) = windows.number, windows.sides
    x = arranged(u.unflatten(1, windows.map), windows, order)  # (B, rows*height, columns*width, C)
    x = x.unflatten(2, (columns, width)).unflatten(1, (rows, height))  # (B, rows, height, columns, width, C)
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def put_together(x: Tensor, windows: Windows, order: WindowOrder) -> Tensor:
    """(B windows, M, C) -> (B, N, C): undo `cut`."""
    x = x.unflatten(1, windows.sides).unflatten(0, (-1, *windows.number))  # (B, rows, columns, height, width, C)
    x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, rows*height, columns*width, C)
    return rearranged(x, windows, order).flatten(1, 2)


def arranged(x: Tensor, windows: Windows, order: WindowOrder) -> Tensor:
    """(B, H, W, C) -> the map padded to whole windows and rolled by the shift, so that windows are cut at its edges."""
    if order == "roll-pad":
        return _padded(_rolled(x, windows, -1), windows)
    return _rolled(_padded(x, windows), windows, -1)


def rearranged(x: Tensor, windows: Windows, order: WindowOrder) -> Tensor:
    """Undo `arranged`: roll back and cut the padding off."""
    height, width = windows.map
    if order == "roll-pad":
        return _rolled(x[:, :height, :width], windows, 1)
    return _rolled(x, windows, 1)[:, :height, :width]


def _padded(x: Tensor, windows: Windows) -> Tensor:
    below, right = windows.padding
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x


def _rolled(x: Tensor, windows: Windows, sign: int) -> Tensor:
    rows, columns = windows.shift
    return x.roll((sign * rows, sign * columns), dims=(1, 2)) if rows or columns else x


def by_offset(table: Tensor, sides: tuple[int, int]) -> Tensor:
    """(offsets, h) -> (1, h, M, M): the bias of the offset from key j to query i, for cells in raster order."""
    height, width = sides
    rows = torch.arange(height, device=table.device)
    columns = torch.arange(width, device=table.device)
    down = (rows[:, None] - rows + height - 1) * (2 * width - 1)  # (height, height)
    right = columns[:, None] - columns + width - 1  # (width, width)
    index = down[:, None, :, None] + right[None, :, None, :]  # (height, width, height, width)
    found = table.index_select(0, index.flatten())  # (M M, h)
    return found.mT.unflatten(1, (height * width, height * width))[None]


def roll_mask(like: Tensor, number: tuple[int, int], sides: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """A mask (windows, 1, M, M) of the type of `like`: APART for two cells that are not neighbours without the roll."""
    axes = []
    for windows, side, by in zip(number, sides, shift, strict=True):
        places = torch.arange(windows * side, device=like.device)
        is_rolled = places >= windows * side - by  # from the other edge
        axes.append(is_rolled.unflatten(0, (windows, side)))
    down, right = (axis[:, :, None] != axis[:, None, :] for axis in axes)  # (windows, side, side)
    either = down[:, None, :, None, :, None] | right[None, :, None, :, None, :]
    mask = torch.zeros(either.shape, dtype=like.dtype, device=like.device).masked_fill(either, APART)
    return mask.flatten(4, 5).flatten(2, 3).flatten(0, 1)[:, None]


# Symbolic tracing has no device to make numbers on.
torch.fx.wrap("by_offset")
torch.fx.wrap("roll_mask")


def resized_offsets(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """(offsets, h) of windows with sides `old` -> (offsets', h) of `new` ones, interpolated as the authors do."""
    before, after = ((2 * height - 1, 2 * width - 1) for height, width in (old, new))
    return resize_grid(table.detach()[None], before, after, "deit")[0].contiguous()  # bicubic


class PatchMerging(nn.Module):
    """Join each 2x2 cells of a map, normalise, and halve the channels of the result."""

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.norm = nn.LayerNorm(4 * width, eps=NORM_EPS)
        self.dense = dense(4 * width, 2 * width, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """(B, N, C) -> (B, N/4, 2C), where an odd map gets a last row or column of zeros."""
        return self.dense(self.norm(joined(z, self.grid)))

    def initialise(self, generator: torch.Generator) -> None:
        self.norm.reset_parameters()
        initialise_dense(self.dense, generator)


def joined(z: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, C) -> (B, N/4, 4C): each 2x2 cells in the order upper left, lower left, upper right, lower right."""
    x = z.unflatten(1, grid)  # (B, H, W, C)
    height, width = grid
    if height % 2 or width % 2:
        x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
    x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # (B, H/2, 2, W/2, 2, C)
    return x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)


class Stage(nn.Module):
    """Layers on one map; all stages but the first begin by merging patches."""

    def __init__(self, merging: PatchMerging | None, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.merging = merging
        self.blocks = nn.ModuleList(blocks)

    def forward(self, z: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C), or (B, N/4, 2C)."""
        z = z if self.merging is None else self.merging(z)
        for block in self.layers:
            z = block(z)
        return z

    @property
    def layers(self) -> Iterable[Block]:
        """The layers in order."""
        return cast(Iterable[Block], self.blocks)


class Swin(Classifier[SwinSpec]):
    """A Swin Transformer: four maps of growing patches, the mean of the last one classified."""

    def __init__(self, spec: SwinSpec) -> None:
        super().__init__(spec)
        self.patches = PatchEmbedding(spec.patch, spec.root)
        self.patch_norm = nn.LayerNorm(spec.root, eps=NORM_EPS)
        last = max(sum(spec.stages) - 1, 1)
        rates = iter([spec.stochastic_depth * layer / last for layer in range(sum(spec.stages))])
        self.stages = nn.ModuleList()
        for stage, (number, width) in enumerate(zip(spec.stages, spec.widths, strict=True)):
            merging = PatchMerging(width // 2, spec.maps[stage - 1]) if stage else None
            attentions = [
                WindowAttention(width, spec.heads * 2**stage, windows_of(spec, stage, layer), spec.order)
                for layer in range(number)
            ]
            self.stages.append(Stage(merging, [_block(attention, next(rates)) for attention in attentions]))
        self.norm = nn.LayerNorm(spec.width, eps=NORM_EPS)
        self.head = make_head(spec)

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the mean of the last map, after the final norm."""
        z = self.cells(images)  # (B, N, C)
        for stage in self.stages:
            z = stage(z)  # (B, N/4, 2C)
        return self.pool_cells(z)

    def pool_cells(self, z: Tensor) -> Tensor:
        """(B, N, D) -> (B, D): the mean of the last map, after the final norm."""
        return self.norm(z).mean(dim=1)

    def cells(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, C): the embedded patches. Images are padded to whole patches with zeros."""
        return self.patch_norm(self.patches(self.padded(images)))

    def padded(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> the same with sides of whole patches."""
        self.check(images)
        below, right = (-side % self.spec.patch for side in self.spec.image)
        return F.pad(images, (0, right, 0, below)) if below or right else images

    def feature_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> the map (B, C, rows, columns) after each stage, from fine to coarse, without the final norm.

        Their strides are 4, 8, 16 and 32 pixels: what detection and segmentation build on.
        """
        z, found = self.cells(images), []
        for stage, grid in zip(self.stages, self.spec.maps, strict=True):
            z = stage(z)
            found.append(z.mT.unflatten(2, grid))
        return tuple(found)

    def layer_features(self, images: Tensor) -> Iterator[Tensor]:
        """Yield (B, N, C) after each layer, one at a time."""
        for z, _ in self.each_layer(images):
            yield z

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the attention (B, windows, h, M, M) of each layer within its windows, one layer in memory at a time."""
        # `map` holds no layer while it asks for the next; a loop variable would.
        return map(itemgetter(1), self.each_layer(images, explain=True))

    def each_layer(self, images: Tensor, *, explain: bool = False) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the output (B, N, C) of each layer, with `explain` also its attention (B, windows, h, M, M)."""
        z = self.cells(images)
        for stage in self.parts:
            z = z if stage.merging is None else stage.merging(z)
            for block in stage.layers:
                z, attention = block.explain(z) if explain else (block(z), None)
                yield z, attention
                del attention  # free it before the next layer allocates its own

    @property
    def parts(self) -> Iterable[Stage]:
        """The stages in order."""
        return cast(Iterable[Stage], self.stages)

    @property
    def blocks(self) -> list[Block]:
        """The layers of all stages in order."""
        return [block for stage in self.parts for block in stage.layers]

    def resize(self, image: Image) -> None:
        """Change the image size. Windows shrink to smaller maps, and their tables of biases are interpolated."""
        self._adapt(replace(self.spec, image=image_size(image)))

    def set_window(self, window: int) -> None:
        """Change the side of the windows, in cells; the tables of biases are interpolated as the authors do."""
        self._adapt(replace(self.spec, window=window))

    def set_attention(self, attention: AttentionLike) -> None:
        """Raise a ValueError: a Swin has no patterns of attention. "full" stands for its own, as in other families."""
        wanted = str(parse_pattern(attention))
        require(wanted == "full", no_pattern(wanted, OF_SWIN))

    def _adapt(self, spec: SwinSpec) -> None:
        for stage, part in enumerate(self.parts):
            if part.merging is not None:
                part.merging.grid = spec.maps[stage - 1]
            for layer, block in enumerate(part.layers):
                cast(WindowAttention, block.attention).set_windows(windows_of(spec, stage, layer))
        self.spec = spec

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw the weights as in the authors' code: normal with deviation 0.02; the head is zero, as of all families.

        The patch embedding has torch's initial values for a convolution: uniform up to 1 / sqrt(inputs).
        """
        bound = self.patches.weight[0].numel() ** -0.5
        for tensor in (self.patches.weight, self.patches.bias):
            nn.init.uniform_(tensor, -bound, bound, generator=generator)
        self.patch_norm.reset_parameters()
        for stage in self.parts:
            if stage.merging is not None:
                stage.merging.initialise(generator)
            for block in stage.layers:
                block.initialise(generator)
        self.norm.reset_parameters()
        self.head.initialise(generator, head_bias)


class SwinBlock(Block):
    """One layer: attention within windows, then an MLP, each with a norm before it and a residual around it."""

    def initialise(self, generator: torch.Generator) -> None:
        for norm in (self.norm1, self.norm2):
            norm.reset_parameters()
        self.attention.initialise(generator)
        for layer in (self.mlp.dense1, self.mlp.dense2):
            initialise_dense(layer, generator)


def _block(attention: WindowAttention, drop: float) -> SwinBlock:
    hidden = MLP_RATIO * attention.out.out_features
    return SwinBlock(attention, hidden, gelu="exact", norm_eps=NORM_EPS, dropout=0.0, drop=drop)


def windows_of(spec: SwinSpec, stage: int, layer: int) -> Windows:
    """The windows of a layer; only every second one shifts them."""
    windows = spec.windows[stage]
    return windows if layer % 2 else replace(windows, shift=(0, 0))


def initialise_dense(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw a dense layer as the authors do."""
    nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
