"""Attention in which a patch attends to some of the patches: the patterns of `vitlab.spec.patterns` in a plain ViT.

Each pattern has a mask on full attention, `allowed`, which the explain path uses, and a fast path, `attended`, which
never holds N x N numbers. Both are the softmax over the keys that the pattern allows. A layer has the same parameters
as one with full attention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.models.transformer import Attention, is_traced
from vitlab.spec.patterns import BigBird, Fixed, Full, Grid, Neighbourhood, Pattern, Strided, Window

GATHERED = 2**21  # numbers of keys and values gathered at once, so that they stay in the cache


@dataclass(frozen=True)
class Layout:
    """A pattern in one layer: on a grid of patches after `prefix` tokens; `table` has the blocks of `BigBird.table`."""

    pattern: Pattern
    grid: Grid
    prefix: int
    table: tuple[tuple[int, ...], ...] = ()

    @property
    def patches(self) -> int:
        """N."""
        return math.prod(self.grid)


def layout_of(pattern: Pattern, layer: int, grid: Grid, prefix: int) -> Layout | None:
    """Return the layout of a layer, numbered from 0; None if its attention is full."""
    own = pattern.at_layer(layer)
    if isinstance(own, Full):
        return None
    return Layout(own, grid, prefix, own.table(grid, layer) if isinstance(own, BigBird) else ())


class SparseAttention(Attention):
    """Attention in a layout; it has the parameters of `Attention`."""

    layout: Layout

    def forward(self, u: Tensor, read: int | None = None) -> Tensor:
        """(B, n, D) -> (B, n, D), or (B, read, D) of tokens before the patches, which attend to all."""
        if read is not None:
            assert read <= self.layout.prefix, "patches cannot be read alone"
            return super().forward(u, read)
        return self.out(attended(self.qkv(u), self.layout, self.heads))

    def explain(self, u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> the same result, and the probabilities (B, h, n, n), which are 0 outside the pattern."""
        own = as_bias(allowed(self.layout, u.device), u.dtype)
        return super().explain(u, own if mask is None else own + mask)


def set_layout(attention: Attention, layout: Layout | None) -> None:
    """Give an attention a layout, or full attention; its parameters stay."""
    vars(attention).pop("layout", None)
    attention.__class__ = Attention if layout is None else SparseAttention  # of the same parameters
    if layout is not None:
        cast(SparseAttention, attention).layout = layout


# -- Masks on full attention -----------------------------------------------------------------------


def allowed(layout: Layout, device: torch.device | str = "cpu") -> Tensor:
    """(n, n) of bool: whether the token of the row attends to the token of the column."""
    places = torch.arange(-layout.prefix, layout.patches, device=device)  # of patches; the tokens before are negative
    is_first, patches = places < 0, places.clamp(min=0)
    return is_first[:, None] | is_first | _between(layout, patches[:, None], patches[None, :])


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The same mask to add to logits: 0 and minus infinity."""
    return torch.zeros((), dtype=dtype, device=mask.device).where(mask, -torch.inf)


def _between(layout: Layout, i: Tensor, j: Tensor) -> Tensor:
    """(n, 1) and (1, n) -> (n, n): whether patch i attends to patch j."""
    pattern, (rows, columns) = layout.pattern, layout.grid
    if isinstance(pattern, Window):
        size = pattern.size
        return (i // columns // size == j // columns // size) & (i % columns // size == j % columns // size)
    if isinstance(pattern, Neighbourhood):
        height, width = pattern.sides(layout.grid)
        down = j // columns - _inward(i // columns, height, rows)
        across = j % columns - _inward(i % columns, width, columns)
        return (down >= 0) & (down < height) & (across >= 0) & (across < width)
    if isinstance(pattern, Strided):
        step = pattern.step(layout.grid)
        return ((i - j).abs() < step) | ((i - j) % step == 0)
    if isinstance(pattern, Fixed):
        block, summary = pattern.sizes(layout.grid)
        return (i // block == j // block) | (j % block >= block - summary)
    assert isinstance(pattern, BigBird)
    return _blocks_seen(pattern, layout, i.device)[i // pattern.block, j // pattern.block]


def _blocks_seen(pattern: BigBird, layout: Layout, device: torch.device) -> Tensor:
    """(blocks, blocks) of bool."""
    blocks, first, last = pattern.blocks(layout.grid)
    every = torch.ones(blocks, blocks, dtype=torch.bool, device=device)
    if not layout.table:
        return every
    inner = (torch.tensor(layout.table, device=device)[..., None] == torch.arange(blocks, device=device)).any(dim=1)
    return torch.cat([every[:first], inner, every[blocks - last :]])


def _inward(places: Tensor, size: int, side: int) -> Tensor:
    """The first of the `size` places around each place, shifted so that all are inside a side."""
    return (places - size // 2).clamp(0, side - size)


# -- Fast paths ------------------------------------------------------------------------------------


def attended(qkv: Tensor, layout: Layout, heads: int) -> Tensor:
    """Queries, keys and values (B, n, 3D) -> (B, n, D), the heads side by side."""
    prefix, width = layout.prefix, qkv.shape[-1] // 3
    q, kv = qkv.split([width, 2 * width], dim=-1)  # (B, n, D), (B, n, 2D)
    z = FAST[type(layout.pattern)](q[:, prefix:], kv, layout, heads)  # (B, N, D)
    return torch.cat([_to_all(q[:, :prefix], kv, heads), z], dim=1) if prefix else z


def _in_windows(q: Tensor, kv: Tensor, layout: Layout, heads: int) -> Tensor:
    """Queries (B, N, D) of the patches, and keys and values (B, n, 2D) of all tokens -> (B, N, D)."""
    grid, (height, width) = layout.grid, cast(Window, layout.pattern).sides(layout.grid)
    first, kv = kv[:, : layout.prefix], kv[:, layout.prefix :].unflatten(1, grid)
    q = q.unflatten(1, grid)  # (B, rows, columns, D)
    bands = [
        _joined([_windowed(q[:, r, c], kv[:, r, c], first, heads, h, w) for c, w in _parts(grid[1], width)], 2)
        for r, h in _parts(grid[0], height)
    ]
    return _joined(bands, 1).flatten(1, 2)  # (B, N, D)


def _parts(side: int, size: int) -> list[tuple[slice, int]]:
    """One axis: the places in whole windows, then those in the smaller last one, each with the size of its windows."""
    whole = side - side % size
    return [part for part in ((slice(0, whole), size), (slice(whole, side), side % size)) if part[0].start < side]


def _windowed(q: Tensor, kv: Tensor, first: Tensor, heads: int, height: int, width: int) -> Tensor:
    """(B, rows, columns, D), (B, rows, columns, 2D) and (B, prefix, 2D) -> (B, rows, columns, D), in whole windows."""
    down = q.shape[1] // height
    q, kv = _cut(q, height, width), _cut(kv, height, width)  # (B, windows, m, D), (B, windows, m, 2D)
    a = _grouped(q, _with_first(kv, first), heads)  # (B, windows, m, D)
    a = a.unflatten(2, (height, width)).unflatten(1, (down, -1)).transpose(2, 3)  # (B, down, height, across, width, D)
    return a.flatten(3, 4).flatten(1, 2)


def _cut(z: Tensor, height: int, width: int) -> Tensor:
    """(B, rows, columns, D) -> (B, windows, height x width, D)."""
    z = z.unflatten(2, (-1, width)).unflatten(1, (-1, height)).transpose(2, 3)  # (B, down, across, height, width, D)
    return z.flatten(3, 4).flatten(1, 2)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """The parts one after the other; one part is not copied."""
    return torch.cat(parts, dim=dim) if len(parts) > 1 else parts[0]


def _in_tiles(q: Tensor, kv: Tensor, layout: Layout, heads: int) -> Tensor:
    """As `_in_windows`: tiles of queries, each with the region that holds the neighbourhoods of its patches."""
    grid, pattern = layout.grid, cast(Neighbourhood, layout.pattern)
    (rows, row_keys, row_mask), (columns, column_keys, column_mask) = (
        _tiles(*sizes, q.device) for sizes in zip(grid, pattern.sides(grid), pattern.regions(grid), strict=True)
    )
    queries = _places(rows, columns, grid[1])  # (tiles, m)
    keys = _places(row_keys, column_keys, grid[1])  # (tiles, s)
    mask = row_mask[:, None, :, None, :, None] & column_mask[None, :, None, :, None, :]
    mask = mask.flatten(4, 5).flatten(2, 3).flatten(0, 1)  # (tiles, m, s)
    a = _gathered(_taken(q, queries), kv, keys, mask, layout.prefix, heads)  # (B, tiles, m, D)
    height, width = pattern.sides(grid)
    a = a.unflatten(2, (height, width)).unflatten(1, (rows.shape[0], -1)).transpose(2, 3)
    return a.flatten(3, 4).flatten(1, 2)[:, : grid[0], : grid[1]].flatten(1, 2)  # (B, N, D)


def _tiles(side: int, size: int, region: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """One axis: places (tiles, size) of queries, (tiles, region) of keys, and the mask (tiles, size, region)."""
    tiles = -(-side // size)
    queries = torch.arange(tiles * size, device=device).clamp(max=side - 1).unflatten(0, (tiles, size))
    starts = _inward(queries, size, side)  # of the neighbourhood of each query
    keys = starts[:, :1].clamp(max=side - region) + torch.arange(region, device=device)  # (tiles, region)
    offsets = keys[:, None] - starts[..., None]  # (tiles, size, region)
    return queries, keys, (offsets >= 0) & (offsets < size)


def _places(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """(down, a) and (across, b) -> (down x across, a x b): numbers of patches in a grid of this width."""
    return (rows[:, None, :, None] * width + columns[None, :, None, :]).flatten(2, 3).flatten(0, 1)


def _taken(z: Tensor, places: Tensor) -> Tensor:
    """(B, N, D) and (groups, m) -> (B, groups, m, D)."""
    return z.index_select(1, places.flatten()).unflatten(1, places.shape)


def _in_blocks(q: Tensor, kv: Tensor, layout: Layout, heads: int) -> Tensor:
    """As `_in_windows`: own block but for its summary, then all summaries, so that no key is there twice."""
    block, summary = cast(Fixed, layout.pattern).sizes(layout.grid)
    patches, own = layout.patches, block - summary
    first, kv = kv[:, : layout.prefix], _blocked(kv[:, layout.prefix :], block)  # (B, blocks, block, 2D)
    q = _blocked(q, block)  # (B, blocks, block, D)
    blocks = q.shape[1]
    everywhere = kv[:, :, own:].flatten(1, 2)[:, None].expand(-1, blocks, -1, -1)  # (B, blocks, blocks x summary, 2D)
    kv = torch.cat([everywhere, kv[:, :, :own]], dim=2)
    mask = None
    if patches % block:
        inside = (torch.arange(blocks * block, device=q.device) < patches).unflatten(0, (blocks, block))
        mask = torch.cat([inside[:, own:].flatten().expand(blocks, -1), inside[:, :own]], dim=1)[:, None]
    a = _grouped(q, _with_first(kv, first), heads, _with_ones(mask, layout.prefix))
    return a.flatten(1, 2)[:, :patches]


def _in_gathered(q: Tensor, kv: Tensor, layout: Layout, heads: int) -> Tensor:
    """As `_in_windows`: blocks that attend to the blocks of a table, between blocks that attend to all."""
    pattern, patches = cast(BigBird, layout.pattern), layout.patches
    block, (blocks, before, after) = pattern.block, pattern.blocks(layout.grid)
    if not layout.table:
        return _to_all(q, kv, heads)
    start, end = before * block, min((blocks - after) * block, patches)
    table = torch.tensor(layout.table, device=q.device)  # (inner blocks, slots)
    keys = table.clamp(min=0)[..., None] * block + torch.arange(block, device=q.device)  # (inner, slots, block)
    mask = ((table >= 0)[..., None] & (keys < patches)).flatten(1)[:, None]  # (inner, 1, s)
    keys = keys.flatten(1).clamp(max=patches - 1)  # (inner, s)
    inner = _gathered(_blocked(q[:, start:end], block), kv, keys, mask, layout.prefix, heads)
    inner = inner.flatten(1, 2)[:, : end - start]
    if not before:  # nor after
        return inner
    ends = _to_all(torch.cat([q[:, :start], q[:, end:]], dim=1), kv, heads)  # (B, first and last patches, D)
    return torch.cat([ends[:, :start], inner, ends[:, start:]], dim=1)  # (B, N, D)


def _strided(q: Tensor, kv: Tensor, layout: Layout, heads: int) -> Tensor:
    """As `_in_windows`: one softmax over the keys nearby with those of the tokens before, and the others of the column.

    In rows of `step` patches, keys nearby are in the own row and the two beside it; keys a multiple of the step away
    are in the own column. The query's own key is in the first group alone.
    """
    step, prefix, patches = cast(Strided, layout.pattern).step(layout.grid), layout.prefix, layout.patches
    q = _blocked(q, step).unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4)  # (B, h, rows, step, Dh)
    k, v = _blocked(kv[:, prefix:], step).unflatten(-1, (2, heads, -1)).permute(3, 0, 4, 1, 2, 5).unbind(0)
    k_first, v_first = kv[:, :prefix].unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    rows = q.shape[2]
    k_near, v_near = _with_neighbours(k, k_first), _with_neighbours(v, v_first)  # (B, h, rows, prefix + 3 step, Dh)
    near, column = _strided_masks(rows, step, prefix, patches, q.device)

    q = q / math.sqrt(q.shape[-1])
    to_near = (q @ k_near.mT).masked_fill(near.logical_not(), -torch.inf)  # (B, h, rows, step, prefix + 3 step)
    to_column = (q.transpose(2, 3) @ k.transpose(2, 3).mT).transpose(2, 3)  # (B, h, rows, step, rows)
    logits = torch.cat([to_near, to_column.masked_fill(column.logical_not(), -torch.inf)], dim=-1)
    of_near, of_column = logits.softmax(dim=-1).split([prefix + 3 * step, rows], dim=-1)
    a = of_near @ v_near + (of_column.transpose(2, 3) @ v.transpose(2, 3)).transpose(2, 3)
    return a.permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)[:, :patches]  # (B, N, D)


def _with_neighbours(z: Tensor, first: Tensor) -> Tensor:
    """(B, h, rows, step, Dh), (B, h, prefix, Dh) -> (B, h, rows, prefix + 3 step, Dh): also the next rows."""
    padded = F.pad(z, (0, 0, 0, 0, 1, 1))
    parts = [padded[:, :, :-2], z, padded[:, :, 2:]]
    if first.shape[2]:
        parts = [first[:, :, None].expand(-1, -1, z.shape[2], -1, -1), *parts]
    return torch.cat(parts, dim=3)


def _strided_masks(rows: int, step: int, prefix: int, patches: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rows, step, prefix + 3 step) and (rows, step, rows) of bool: keys nearby, and the others in the own column."""
    row, place = torch.arange(rows, device=device), torch.arange(step, device=device)
    offset = torch.arange(3 * step, device=device) - step - place[:, None]  # (step, 3 step): key minus query
    key = (row * step)[:, None, None] + place[:, None] + offset  # (rows, step, 3 step)
    near = (offset.abs() < step) & (key >= 0) & (key < patches)
    near = torch.cat([near.new_ones(rows, step, prefix), near], dim=-1)
    other = row[:, None, None] != row  # (rows, 1, rows)
    return near, other & (row * step + place[:, None] < patches)


def _blocked(z: Tensor, block: int) -> Tensor:
    """(B, N, D) -> (B, blocks, block, D), padded with zeros."""
    more = -z.shape[1] % block
    return (F.pad(z, (0, 0, 0, more)) if more else z).unflatten(1, (-1, block))


def _with_first(kv: Tensor, first: Tensor) -> Tensor:
    """(B, groups, s, 2D) and (B, prefix, 2D) -> (B, groups, prefix + s, 2D)."""
    return torch.cat([first[:, None].expand(-1, kv.shape[1], -1, -1), kv], dim=2) if first.shape[1] else kv


def _with_ones(mask: Tensor | None, prefix: int) -> Tensor | None:
    """(groups, m or 1, s) of bool -> (groups, m or 1, prefix + s)."""
    return mask if mask is None else torch.cat([mask.new_ones(*mask.shape[:2], prefix), mask], dim=-1)


def _gathered(q: Tensor, kv: Tensor, places: Tensor, mask: Tensor, prefix: int, heads: int) -> Tensor:
    """Queries (B, groups, m, D), and (B, n, 2D), of which a group attends to the patches (groups, s) -> as queries.

    All attend to the `prefix` tokens before the patches. `mask` is (groups, m or 1, s) of bool: True takes part.
    """
    first = torch.arange(prefix, device=places.device).expand(places.shape[0], -1)
    places = torch.cat([first, places + prefix], dim=1)  # (groups, prefix + s)
    mask = cast(Tensor, _with_ones(mask, prefix))
    groups = places.shape[0] if is_traced() else max(1, GATHERED // (q.shape[0] * places.shape[1] * kv.shape[2]))
    parts = zip(q.split(groups, dim=1), places.split(groups), mask.split(groups), strict=True)
    return _joined([_grouped(one, _taken(kv, where), heads, how) for one, where, how in parts], 1)


def _grouped(q: Tensor, kv: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention in groups: (B, groups, m, D) and (B, groups, s, 2D) -> (B, groups, m, D).

    `mask` is (groups, m or 1, s) of bool: True takes part.
    """
    groups = q.shape[1]
    if mask is not None:
        mask = mask[:, None].expand(q.shape[0], -1, -1, -1, -1).flatten(0, 1)  # (B x groups, 1, m or 1, s)
    return _to_all(q.flatten(0, 1), kv.flatten(0, 1), heads, mask).unflatten(0, (-1, groups))


def _to_all(q: Tensor, kv: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """(B, m, D) and (B, s, 2D) -> (B, m, D)."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, h, m, Dh)
    k, v = kv.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, s, Dh)
    a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return a.transpose(1, 2).flatten(2)  # (B, m, D)


FAST: dict[type[Pattern], Callable[[Tensor, Tensor, Layout, int], Tensor]] = {
    Window: _in_windows,
    Neighbourhood: _in_tiles,
    Strided: _strided,
    Fixed: _in_blocks,
    BigBird: _in_gathered,
}

torch.fx.wrap("attended")  # symbolic tracing has no sizes to count to
torch.fx.wrap("allowed")
