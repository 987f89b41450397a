"""The figures of an inspection.

Untrusted text never enters a figure: pictures are numbered here, and the report gives their names.
"""

from typing import TYPE_CHECKING

import numpy as np

from vitlab.drawing.canvas import ATTENTION, Drawn, add_scale, coloured, drawn, figure_of, mosaic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 7  # filters in a row, as in figure 7
TILE = 0.75  # largest size of a head's map in inches
IN_A_ROW = 6  # windows


def draw_distance(distances: np.ndarray, images: int, even: float) -> Drawn:
    """(L, h) in pixels -> figure 7, right: a dot for each head by depth; the line marks uniform attention."""
    layers, heads = distances.shape
    with figure_of(5.6, 3.8) as (figure, axes):
        depth = np.arange(layers)
        for head in range(heads):
            shade = (0.15 + 0.7 * head / max(heads - 1, 1),) * 2
            axes.plot(depth, distances[:, head], "o", ms=4, color=(0.12, *shade), label=f"head {head + 1}")
        axes.axhline(even, color="0.45", linestyle="--", linewidth=0.9, label="uniform", zorder=0)
        axes.set(xlabel="network depth (layer)", ylabel="mean attention distance (pixels)")
        axes.set_title(f"Attention distance by head and depth, {images:,} image{'s' * (images != 1)}")
        axes.set_ylim(0, 1.08 * max(float(distances.max()), even) or 1)
        axes.set_xticks(depth[:: -(-layers // 16)], [str(layer + 1) for layer in depth[:: -(-layers // 16)]])
        axes.grid(alpha=0.25)
        columns = -(-(heads + 1) // 17)
        axes.legend(fontsize=7, ncols=columns, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        return drawn(figure)


def draw_filters(pictures: np.ndarray, share: float) -> Drawn:
    """(k, P, P, 3) of 0..1 -> figure 7, left; the title states the `share` of the variance."""
    number, patch = pictures.shape[:2]
    across = min(ACROSS, number)
    down = -(-number // across)
    tiles = np.ones((down * across, patch, patch, 3))
    tiles[:number] = pictures
    with figure_of(5.2, 0.9 + 4.2 * down / across) as (figure, axes):
        sheet, x, y = mosaic(tiles.reshape(down, across, patch, patch, 3), gap=max(1, patch // 8), fill=1.0)
        axes.imshow(sheet, interpolation="none")
        axes.set_xticks(x, [str(1 + column) for column in range(across)])
        axes.set_yticks(y, [f"{1 + row * across}–{min((row + 1) * across, number)}" for row in range(down)])
        axes.set(xlabel="position in the row", ylabel="principal components")
        axes.set_title(f"RGB embedding filters: first {number} components, {share:.0%} of the variance")
        _bare(axes)
        return drawn(figure)


def draw_positions(similarity: np.ndarray) -> Drawn:
    """(rows, columns, rows, columns) of -1..1 -> figure 7, centre: one tile for each patch."""
    rows, columns = similarity.shape[:2]
    with figure_of(1.6 + 4.4 * min(1, columns / rows), 0.9 + 4.4 * min(1, rows / columns)) as (figure, axes):
        sheet, x, y = mosaic(similarity, gap=max(1, max(rows, columns) // 8), fill=np.nan)
        image = axes.imshow(sheet, vmin=-1, vmax=1, cmap="viridis", interpolation="none")
        axes.set_xticks(*_thinned(x))
        axes.set_yticks(*_thinned(y))
        axes.set(xlabel="patch column", ylabel="patch row", title="Position embedding similarity")
        figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.85)
        _bare(axes)
        return drawn(figure)


def draw_heads(maps: np.ndarray, number: int, picture: np.ndarray) -> Drawn:
    """(L, h, rows, columns) and (H, W, 3) of uint8 -> the picture, then a map for each head.

    Layers run from left to right; each map is scaled to its own maximum.
    """
    layers, heads, rows, columns = maps.shape
    tiles = (maps / np.maximum(maps.max(axis=(2, 3), keepdims=True), 1e-30)).swapaxes(0, 1)
    tall, wide = heads * rows, layers * columns
    scale = min(8.0 / wide, 9.0 / tall, TILE / max(rows, columns))
    with figure_of(max(1.0 + scale * wide, 3.4), 1.0 + scale * tall) as (figure, axes):
        sheet, x, y = mosaic(tiles, gap=max(1, max(rows, columns) // 10), fill=np.nan)
        axes.imshow(sheet, vmin=0, vmax=1, cmap=ATTENTION, interpolation="none")
        axes.set_xticks(*_thinned(x))
        axes.set_yticks(*_thinned(y))
        axes.set(xlabel="layer", ylabel="head", title=f"Picture {number}: attention of each head")
        _bare(axes)
        add_scale(figure, axes, "relative to the maximum of the map")
        _beside(figure, axes, picture)
        return drawn(figure)


def draw_rollouts(pictures: np.ndarray, maps: np.ndarray, seen: np.ndarray) -> Drawn:
    """(n, H, W, 3) of uint8: pictures, their rollouts in colour, and the product of the two, as in figures 6 and 14."""
    number, height, width = pictures.shape[:3]
    across = min(number, 2 if number <= 6 else 3 if number <= 30 else 6)
    down = -(-number // across)
    tiles = np.full((down * across, 3, height, width, 3), 255, np.uint8)
    tiles[:number] = np.stack((pictures, maps, seen), axis=1)
    inches = min(10.0, 5.4 * across)
    with figure_of(inches, 0.7 + inches * down * height / (3 * across * width)) as (figure, axes):
        gap = max(2, width // 16)
        sheet, x, y = mosaic(tiles.reshape(down, across * 3, height, width, 3), gap=gap, fill=255)
        axes.imshow(sheet, interpolation="none")
        axes.set_xticks(x, ["input", "rollout", "input × rollout"] * across)
        axes.set_yticks(y, _numbered(number, across))
        axes.set(ylabel="picture", title="Attention rollout")
        axes.tick_params(axis="x", labelsize=8 if across <= 3 else 5)
        _bare(axes)
        add_scale(figure, axes, "rollout, minimum to maximum of each picture")
        return drawn(figure)


def draw_merged(pictures: np.ndarray, merged: np.ndarray) -> Drawn:
    """(n, H, W, 3) of uint8: pictures, each beside its merged patches as `merged_picture` draws them."""
    number, height, width = pictures.shape[:3]
    across = min(number, 2 if number <= 8 else 4)
    down = -(-number // across)
    tiles = np.full((down * across, 2, height, width, 3), 255, np.uint8)
    tiles[:number] = np.stack((pictures, merged), axis=1)
    inches = min(10.0, 4.4 * across)
    with figure_of(inches, 0.7 + inches * down * height / (2 * across * width)) as (figure, axes):
        gap = max(2, width // 16)
        sheet, x, y = mosaic(tiles.reshape(down, across * 2, height, width, 3), gap=gap, fill=255)
        axes.imshow(sheet, interpolation="none")
        axes.set_xticks(x, ["input", "merged patches"] * across)
        axes.set_yticks(y, _numbered(number, across))
        axes.set(ylabel="picture", title="Patches by the token they are merged into")
        axes.tick_params(axis="x", labelsize=8 if across <= 2 else 6)
        _bare(axes)
        return drawn(figure)


def draw_windows(tiles: np.ndarray, what: str, number: int, picture: np.ndarray) -> Drawn:
    """(n, H, W, 3) and (H, W, 3) of uint8: the picture, then a tile of `window_picture` for each layer or head."""
    count, height, width = tiles.shape[:3]
    across = min(IN_A_ROW, count)
    down = -(-count // across)
    sheet = np.full((down * across, height, width, 3), 255, np.uint8)
    sheet[:count] = tiles
    scale = min(8.0 / (across * width), 9.0 / (down * height))
    with figure_of(max(1.0 + scale * across * width, 3.4), 1.0 + scale * down * height) as (figure, axes):
        gap = max(2, width // 16)
        whole, _, y = mosaic(sheet.reshape(down, across, height, width, 3), gap=gap, fill=255)
        axes.imshow(whole, interpolation="none")
        axes.set_xticks([])
        axes.set_yticks(y, _numbered(count, across))
        axes.set_title(f"Picture {number}: where one pixel looks, by {what}")
        _bare(axes)
        add_scale(figure, axes, "relative to the maximum of the window")
        _beside(figure, axes, picture)
        return drawn(figure)


def draw_scale() -> Drawn:
    """The colour scale of a rollout."""
    with figure_of(3.0, 0.22) as (figure, axes):
        axes.imshow(coloured(np.linspace(0, 1, 256)[None]), aspect="auto", extent=(0, 1, 0, 1))
        axes.set_xticks([0, 1], ["minimum", "maximum of the picture"])
        axes.set_yticks([])
        axes.set_title("attention rollout", fontsize=9)
        _bare(axes)
        return drawn(figure)


def _beside(figure: "Figure", axes: "Axes", picture: np.ndarray) -> None:
    """Draw a picture to the left of `axes`, aligned at the top."""
    axes.apply_aspect()  # otherwise its position is that from before the tiles became square
    height, width = picture.shape[:2]
    across, down = (side * part for side, part in zip(figure.get_size_inches(), axes.get_position().size, strict=True))
    inches = 1.2 / max(height, width)
    wide, tall = inches * width / across, inches * height / down
    beside = axes.inset_axes((-wide - 0.5 / across, 1 - tall, wide, tall))
    beside.imshow(picture, interpolation="none")
    beside.set_xticks([])
    beside.set_yticks([])
    beside.set_title("input", fontsize=9)
    _bare(beside)


def _numbered(number: int, across: int) -> list[str]:
    """The numbers of the pictures in each row of a sheet, counted from 1."""
    rows = [(start + 1, min(start + across, number)) for start in range(0, number, across)]
    return [f"{first}" if first == last else f"{first}–{last}" for first, last in rows]


def _thinned(places: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """At most 16 ticks, counted from 1."""
    step = -(-len(places) // 16)
    return places[::step], [str(1 + number) for number in range(0, len(places), step)]


def _bare(axes: "Axes") -> None:
    """Remove frame and tick marks; the labels stay."""
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
