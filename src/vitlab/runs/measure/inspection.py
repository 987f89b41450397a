"""See what a model attends to: `vitlab.inspect`, `vitlab inspect`, with every figure of the paper's section 4.5."""

from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitlab.data.images.pictures import Pictures, named_pictures
from vitlab.data.images.refusals import BadImage
from vitlab.data.transforms.evaluation import normalised
from vitlab.drawing.canvas import Drawn, coloured, require_matplotlib
from vitlab.drawing.page import Card, Section, page
from vitlab.files.store import Writer, json_writer, refuse_existing, refuse_unwritable, write_folder
from vitlab.inspection import captions, figures
from vitlab.inspection.attention import batch_size, even_distance
from vitlab.inspection.merged import merged_picture
from vitlab.inspection.rollout import look, rendered
from vitlab.inspection.weights import as_pictures, likeness, neighbour_agreement, position_similarity, principal_filters
from vitlab.inspection.windows import check_place, each_window, window_picture
from vitlab.models.classifier import evaluating
from vitlab.models.swin import Swin
from vitlab.models.vit import ViT
from vitlab.paper.models import name_of
from vitlab.require import check_arguments, require
from vitlab.runs.measure.inputs import ImageSize, ModelLike, ModelOptions, class_names, label_of, open_model
from vitlab.runs.measure.prediction import Prepared, named, prepared
from vitlab.runs.progress import Images, default_console
from vitlab.spec import AttentionLike, ConventionName, SwinSpec, ViTSpec
from vitlab.world.device import products_in

REPORT = "report.html"
FILTERS_NAME, POSITIONS_NAME = "principal components of the embedding filters", "similarity of position embeddings"
MERGED_NAME = "pictures beside their patches, coloured by merged token"
SHOWN_BAD = 5  # unreadable pictures that an error names
SHOWN = 128  # pictures that are drawn, as in figure 14; all count for the attention distance
HALF_PAGE = 6  # layers whose head maps fit half the width of the page
THUMBNAIL = 112  # pixels of a picture in a large sheet
WINDOW = 224  # largest side of a tile that shows a window, in pixels


@dataclass
class Findings:
    """Results over the pictures: `cards`, `numbers` and `maps` of the first ones, the attention distance over all."""

    cards: list[Card] = field(default_factory=list)
    numbers: list[dict[str, object]] = field(default_factory=list)  # of each card
    maps: list[np.ndarray] = field(default_factory=list)  # of heads; of a Swin, tiles of windows
    merged: list[np.ndarray] = field(default_factory=list)  # the picture of each card, if the model merges tokens
    distance: np.ndarray | None = None  # (L, h), summed over `images`
    images: int = 0
    bad: list[str] = field(default_factory=list)


class Place(NamedTuple):
    """The pixel of a Swin whose windows are drawn, in all layers, or for each head of the layer that is given."""

    at: tuple[int, int]
    layer: int | None


@dataclass(frozen=True, repr=False)
class Inspection:
    """The figures of `inspect` by name, their `numbers`, and the report; a notebook displays figures and report.

    `images` pictures were used; `bad` names those that could not be read.
    """

    title: str
    about: str
    figures: dict[str, Drawn]
    sections: list[Section]
    numbers: dict[str, object]
    images: int
    bad: tuple[str, ...]

    @property
    def page(self) -> str:
        """The report as one HTML file."""
        return page(self.title, self.about, self.sections, self.bad)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that `save` writes."""
        return tuple(self._files())

    def save(self, out: str | Path) -> None:
        """Write figures, numbers and report to a new folder."""
        write_folder(Path(out), self._files())

    def __repr__(self) -> str:
        return f"Inspection({self.title!r}, {self.images:,} pictures, figures: {', '.join(self.figures)})"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.page)}" width="100%" height="800" style="border: 0"></iframe>'

    def _files(self) -> dict[str, Writer]:
        contents = {REPORT: self.page.encode()}
        for name, drawn in self.figures.items():
            contents |= {f"{name}.svg": drawn.svg, f"{name}.png": drawn.png}
        files: dict[str, Writer] = {name: partial(Path.write_bytes, data=content) for name, content in contents.items()}
        return files | {"inspection.json": json_writer(self.numbers)}


def inspect(
    model: ModelLike,
    images: Pictures = (),
    out: str | Path | None = None,
    *,
    maps: int = 4,
    at: tuple[int, int] | None = None,
    layer: int | None = None,
    name: str = "",
    max_pixels: int | None = None,
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    device: str = "auto",
    console: Console | None = None,
    quiet: bool = False,
) -> Inspection:
    """Draw what a model attends to in pictures, and what its weights show: every figure of the paper's section 4.5.

    `model` is a name of released weights, a path or a module; `images` are those of `vitlab.predict`, and without any
    only the weights are drawn. Attention maps of all heads are drawn for the first `maps` pictures. A Swin has no
    rollout; for those pictures, the windows of the pixel `at` (row and column, by default the middle) are drawn in
    every layer, or with `layer`, counted from 1, for each head of one. A picture that cannot be read is named in `bad`,
    and the others are used; it is an error if none can be read. With `out`, figures, numbers and report are written to
    that new folder. `name` is the model's name in the title. See `ModelOptions` for how weights are loaded. `quiet`
    prints no progress.
    """
    check_arguments(inspect, locals())
    screen = default_console(console, quiet=quiet)
    require(maps >= 0, f"maps {maps} must be at least 0")
    require_matplotlib()
    if out is not None:
        refuse_existing(Path(out))
        refuse_unwritable(Path(out))
    is_empty = isinstance(images, list | tuple) and not images
    pictures = [] if is_empty else list(named_pictures(named(images, screen)))
    options = ModelOptions(conventions, image, "own", device, heads, allow_partial, allow_nonfinite, merge, attention)
    loaded = open_model(model, options, screen)
    if not isinstance(loaded, ViT | Swin):
        raise ValueError("this model has no attention between patches; inspect a ViT, a hybrid or a Swin")
    place = _place(loaded, at, layer, has_pictures=bool(pictures))
    with products_in("fp32", next(loaded.parameters()).device), Images(screen, "inspected") as display:
        found = examine(loaded, pictures, maps, max_pixels, display, place)
    problem = f"none of {len(pictures):,} pictures could be read: {'; '.join(found.bad[:SHOWN_BAD])}"
    require(bool(found.images) or not pictures, problem)
    made, sections, numbers = _found(loaded, found, place)
    title = f"Inside {name or label_of(model, loaded)}"
    about, numbers = _about(loaded, found), _numbers(found, place) | numbers
    result = Inspection(title, about, made, sections, numbers, found.images, tuple(found.bad))
    if out is not None:
        result.save(out)
    return result


def sections_of(model: ViT, pictures: Pictures, maps: int = 1) -> list[Section]:
    """The sections of the report of `inspect`, for a page of your own."""
    return _found(model, examine(model, pictures, maps))[1]


def _place(model: ViT | Swin, at: tuple[int, int] | None, layer: int | None, *, has_pictures: bool) -> Place | None:
    """What is drawn of a Swin, None for others; a ValueError if it is not there or nothing would be drawn."""
    is_given = at is not None or layer is not None
    if not isinstance(model, Swin):
        require(not is_given, "at and layer choose windows of a Swin, and have no effect on this model; leave them out")
        return None
    require(has_pictures or not is_given, "at and layer choose windows on pictures; give at least one picture")
    height, width = model.spec.image
    place = Place((height // 2, width // 2) if at is None else at, layer)
    check_place(model.spec, place.layer, place.at)
    return place


def _found(
    model: ViT | Swin, found: Findings, place: Place | None = None
) -> tuple[dict[str, Drawn], list[Section], dict[str, object]]:
    """Figures by name, sections of the page, and numbers: first of the pictures, then of the weights."""
    made, sections, numbers = _weights(model)
    if found.cards:
        seen, seen_sections = _pictures(model.spec, found) if isinstance(model, ViT) else _windows(found, place)
        made, sections = seen | made, [*seen_sections, *sections]
    return made, sections, numbers


def examine(
    model: ViT | Swin,
    pictures: Pictures,
    maps: int,
    max_pixels: int | None = None,
    display: Images | None = None,
    place: Place | None = None,
) -> Findings:
    """Process every picture, a few at a time; memory does not grow with their number."""
    found, listed = Findings(), list(named_pictures(pictures))
    batch = batch_size(model) if isinstance(model, ViT) else 1
    with evaluating(model):
        for start in range(0, len(listed), batch):
            if display is not None:
                display.show(start, len(listed))
            read = list(prepared(model, listed[start : start + batch], max_pixels))
            found.bad += [f"{one.name} {one.detail}" for one in read if isinstance(one, BadImage)]
            if good := [one for one in read if isinstance(one, Prepared)]:
                if isinstance(model, ViT):
                    _see(model, good, found, maps)
                else:
                    _see_windows(model, good, found, maps, place)
    if display is not None and listed:
        display.show(len(listed), len(listed))
    return found


@torch.no_grad()
def _see(model: ViT, good: list[Prepared], found: Findings, maps: int) -> None:
    """Process one small batch."""
    pixels, images = _batch(model, good)
    saw = look(model, images)
    groups = model.groups(images).cpu().numpy() if model.spec.merge else None
    distance = saw.distance.double().sum(dim=0).cpu().numpy()
    found.distance = distance if found.distance is None else found.distance + distance
    for number, (path, size, *_) in enumerate(good[: SHOWN - len(found.cards)]):
        if len(found.maps) < maps:
            found.maps.append(saw.maps[number].float().cpu().numpy())
        mask = rendered(saw.rollout[number], model.spec).float().cpu().numpy()  # (H, W)
        picture = pixels[number].permute(1, 2, 0).numpy()
        answer = _answer(model, images[number : number + 1])
        if groups is not None:
            found.merged.append(merged_picture(picture, groups[number]))
        # As the authors draw it: the mask is an alpha over a dark background, here black.
        seen = np.rint(picture * mask[..., None]).astype(np.uint8)
        rolled = saw.rollout[number].float() / saw.rollout[number].float().mean()
        extremes = rolled.min().item(), rolled.max().item()
        notes = (_resizing(size, model.spec), captions.rollout_range(*extremes))
        found.cards.append(Card(Path(path).name, picture, answer, notes, coloured(mask), seen))
        about = {"number": len(found.cards), "image": Path(path).name, "answer": answer}
        found.numbers.append({**about, "size": list(size), "rollout_range": list(extremes)})
    found.images += len(good)


@torch.no_grad()
def _see_windows(model: Swin, good: list[Prepared], found: Findings, maps: int, place: Place | None) -> None:
    """Process one small batch of a Swin."""
    assert place is not None, "made for every Swin"
    pixels, images = _batch(model, good)
    for number, (path, size, *_) in enumerate(good[: SHOWN - len(found.cards)]):
        picture, image = pixels[number].permute(1, 2, 0).numpy(), images[number : number + 1]
        if len(found.maps) < maps:
            seen = each_window(model, image, place.at)
            chosen = (
                [one[0].mean(dim=0) for one in seen]
                if place.layer is None
                else [*next(islice(seen, place.layer - 1, None))[0]]
            )
            tiles = [window_picture(picture, one.float().cpu().numpy(), place.at) for one in chosen]
            found.maps.append(np.stack([_shrunk(tile, WINDOW / max(tile.shape[:2])) for tile in tiles]))
        answer, name = _answer(model, image), Path(path).name
        found.cards.append(Card(name, picture, answer, (_resizing(size, model.spec),)))
        found.numbers.append({"number": len(found.cards), "image": name, "answer": answer, "size": list(size)})
    found.images += len(good)


def _batch(model: ViT | Swin, good: list[Prepared]) -> tuple[Tensor, Tensor]:
    """The pixels (B, 3, H, W) of uint8, and the images as the model takes them."""
    weight, pixels = model.norm.weight, torch.stack([read.pixels for read in good])
    return pixels, normalised(pixels.to(weight.device), model.spec.conventions.preprocessing).to(weight.dtype)


def _resizing(size: tuple[int, int], spec: ViTSpec | SwinSpec) -> str:
    """How a file of (height, width) was resized for the model."""
    (height, width), how = spec.image, spec.conventions.preprocessing
    if how.resize == "shorter":
        done = "resized without distortion, then centre-cropped to"
    elif size[0] * width == size[1] * height:
        done = "resized to"
    else:
        done = "stretched (aspect ratio changed) to"
    cut = f", with the outer {1 - how.fraction:.0%} cropped" if how.resize == "square" and how.fraction < 1 else ""
    return f"{size[0]}x{size[1]} pixels (height x width), {done} {height}x{width}{cut}"


def _answer(model: ViT | Swin, image: Tensor) -> str:
    if not model.spec.classes:
        return ""
    probability, index = model.probabilities(model(image).float())[0].max(dim=-1)
    return f"{class_names(model)[0][int(index)]}, {probability.item():.1%}"


def _weights(model: ViT | Swin) -> tuple[dict[str, Drawn], list[Section], dict[str, object]]:
    """The figures of the weights; a section says why a figure is missing."""
    made: dict[str, Drawn] = {}
    numbers: dict[str, object] = {}
    try:
        components = principal_filters(model)
        share = components.share.tolist()
        numbers["filters_share_of_variance"] = share
        made["filters"] = figures.draw_filters(as_pictures(components.directions).numpy(), sum(share))
        filters_text = captions.filters_caption(share, components.number, neighbour_agreement(components.directions))
    except ValueError as error:
        filters_text = f"Not available: {error}."
    try:
        similarity = position_similarity(model)
        made["positions"] = figures.draw_positions(similarity.numpy())
        positions_text = captions.positions_caption(likeness(similarity))
    except ValueError as error:
        positions_text = f"Not available: {error}."
    sections = [
        Section("Embedding filters", filters_text, _plots(made, "filters", FILTERS_NAME)),
        Section("Position embeddings", positions_text, _plots(made, "positions", POSITIONS_NAME)),
    ]
    return made, sections, numbers


def _plots(made: dict[str, Drawn], key: str, name: str) -> list[tuple[str, bytes]]:
    return [(name, made[key].svg)] if key in made else []


def _pictures(spec: ViTSpec, found: Findings) -> tuple[dict[str, Drawn], list[Section]]:
    shrink = THUMBNAIL / max(found.cards[0].pixels.shape[:2]) if len(found.cards) > 8 else 1.0
    views = [(card.pixels, card.attention, card.seen) for card in found.cards]
    shrunk = [np.stack([_shrunk(view, shrink) for view in same]) for same in zip(*views, strict=True)]
    made = {"rollout": figures.draw_rollouts(*shrunk)}
    heads = {
        f"heads-{number:03}": figures.draw_heads(maps, number, card.pixels)
        for number, (maps, card) in enumerate(zip(found.maps, found.cards, strict=False), 1)
    }
    assert found.distance is not None
    distance, even = found.distance / found.images, even_distance(spec)
    made["distance"] = figures.draw_distance(distance, found.images, even)
    scale = [("colours of the rollout, from least to most attention", figures.draw_scale().svg)]
    sections = [Section("Attention rollout", captions.ROLLOUT, scale, cards=found.cards, wide=True)]
    if heads:
        is_wide = len(heads) > 1 or spec.layers > HALF_PAGE
        shown = [(f"attention of each head, picture {n}", drawn.svg) for n, drawn in enumerate(heads.values(), 1)]
        sections.append(Section("Attention maps of all heads", captions.heads_caption(spec.pool), shown, wide=is_wide))
    far = [("attention distance by head and depth", made["distance"].svg)]
    sections.append(Section("Attention distance", captions.distance_caption(distance, even), far))
    if found.merged:
        made["merged"] = figures.draw_merged(shrunk[0], np.stack([_shrunk(one, shrink) for one in found.merged]))
        text = captions.merged_caption(spec.layer_tokens, spec.prefix, spec.merge)
        sections.insert(1, Section("Merged patches", text, [(MERGED_NAME, made["merged"].svg)], wide=True))
    return made | heads, sections


def _windows(found: Findings, place: Place | None) -> tuple[dict[str, Drawn], list[Section]]:
    """The windows of the first pictures of a Swin, one figure each."""
    assert place is not None, "made for every Swin"
    what = "head" if place.layer else "layer"
    made = {
        f"windows-{number:03}": figures.draw_windows(tiles, what, number, card.pixels)
        for number, (tiles, card) in enumerate(zip(found.maps, found.cards, strict=False), 1)
    }
    shown = [(f"attention of one pixel in each {what}, picture {n}", one.svg) for n, one in enumerate(made.values(), 1)]
    text = captions.windows_caption(place.at, place.layer) if made else "The pictures that were read."
    return made, [Section("Attention within windows", text, shown, cards=found.cards, wide=True)]


def _shrunk(pixels: np.ndarray, scale: float) -> np.ndarray:
    """(H, W, 3) scaled down for a large sheet."""
    if scale >= 1:
        return pixels
    size = [max(1, round(side * scale)) for side in pixels.shape[:2]]
    small = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), size=size, mode="bilinear", antialias=True
    )
    return small[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()


def _about(model: ViT | Swin, found: Findings) -> str:
    what = _about_vit(model.spec) if isinstance(model, ViT) else _about_swin(model.spec)
    if found.images > len(found.cards):
        what += f" {found.images:,} pictures were used; the first {len(found.cards)} are shown."
    source = model.provenance.get("source", "")
    return f"{what} Weights: {source}." if source else what


def _about_vit(spec: ViTSpec) -> str:
    (height, width), (rows, columns) = spec.image, spec.grid
    what = f"{name_of(spec)}: {spec.layers} layers of {spec.heads} heads; {height}x{width} pixels as "
    what += f"{rows}x{columns} patches of {spec.patch}x{spec.patch}; read from "
    what += "the class token" if spec.pool == "class" else "the mean over patches"
    what += f"; merging {spec.merge} tokens per layer" if spec.merge else ""
    return what + (f"; attention {spec.attention}." if spec.attention != "full" else ".")


def _about_swin(spec: SwinSpec) -> str:
    (height, width), layers = spec.image, ", ".join(map(str, spec.stages))
    maps, sides = (
        ", ".join("{}x{}".format(*one) for one in each)
        for each in (spec.maps, [windows.sides for windows in spec.windows])
    )
    what = f"{name_of(spec)}: stages of {layers} layers; {height}x{width} pixels as maps of {maps} cells, cut into "
    return f"{what}windows of {sides}; read from the mean over the last map."


def _numbers(found: Findings, place: Place | None = None) -> dict[str, object]:
    """The numbers behind the figures, for plots of your own."""
    if place is not None:
        about = {"at": list(place.at), "layer": place.layer}
        return {"images": found.images, **about, "pictures": found.numbers, "bad": found.bad}
    distance = [] if found.distance is None else (found.distance / found.images).tolist()
    return {"images": found.images, "attention_distance": distance, "pictures": found.numbers, "bad": found.bad}
