"""See what a model looks at: `vitlab inspect` draws every figure of the paper's section 4.5 for a model of yours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitlab.data.images.pictures import Named, Pictures, named_pictures, read_picture
from vitlab.data.images.refusals import BadImage
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.deploy.predict import class_names
from vitlab.drawing.canvas import Drawn, coloured, require_matplotlib
from vitlab.drawing.page import Card, Section, page
from vitlab.inspection.attention import at_rest, batch_size
from vitlab.inspection.captions import (
    ROLLOUT,
    distance_caption,
    filters_caption,
    heads_caption,
    positions_caption,
    rollout_range,
)
from vitlab.inspection.distance import even_distance
from vitlab.inspection.figures import (
    draw_distance,
    draw_filters,
    draw_heads,
    draw_positions,
    draw_rollouts,
    draw_scale,
)
from vitlab.inspection.filters import as_pictures, neighbour_agreement, principal_filters
from vitlab.inspection.look import look
from vitlab.inspection.rollout import rendered
from vitlab.inspection.similarity import likeness, position_similarity
from vitlab.models.build import Model
from vitlab.models.vit import ViT
from vitlab.paper.models import name_of
from vitlab.require import require
from vitlab.runs.progress import Images
from vitlab.spec import ViTSpec
from vitlab.store import Writer, json_writer, refuse_existing, write_folder

REPORT = "report.html"
FILTERS_NAME, POSITIONS_NAME = "principal components of the embedding filters", "similarity of position embeddings"
SHOWN = 128  # pictures that are drawn, as many as figure 14 has; all count for the attention distance
HALF_PAGE = 6  # layers whose head maps fit into half the width of the page
THUMBNAIL = 112  # pixels of a picture in a large sheet


@dataclass
class Findings:
    """What was seen in the pictures: `cards` and `maps` of the first ones, distances over all."""

    cards: list[Card] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # height and width of the cards' files
    ranges: list[tuple[float, float]] = field(default_factory=list)  # of the cards' rollouts, times their mean
    maps: list[np.ndarray] = field(default_factory=list)
    distance: np.ndarray | None = None  # (L, h), summed over `images`
    images: int = 0
    bad: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Inspection:
    """What was written: the folder's files, if any, and how many pictures went in and could not be read."""

    files: tuple[str, ...]
    images: int
    bad: tuple[str, ...]


def inspect(
    model: Model,
    pictures: Pictures,
    out: Path,
    *,
    maps: int,
    console: Console,
    name: str = "",
    max_pixels: int | None = None,
) -> Inspection:
    """Look at the model and at `pictures` with it; write figures, numbers and one report into the new folder `out`.

    Head maps are drawn for the first `maps` pictures. A picture that cannot be read is named, the others are used;
    where there is no other, nothing is written and `out` stays free for the next try. `name` of the model stands in
    the title, its kind if left out. Pictures and `max_pixels` are those of `vitlab.predict`.
    """
    if not isinstance(model, ViT):
        raise ValueError("this model has no attention between patches to look at; a ViT or a hybrid has")
    require(maps >= 0, f"maps {maps} must be at least 0")
    require_matplotlib()
    refuse_existing(out)
    found, listed = Findings(), list(named_pictures(pictures))
    if listed:
        with at_rest(model), Images(console, "looked at") as shown:
            shown.show(0, len(listed))
            for done in examine(model, listed, found, maps, max_pixels):
                shown.show(done, len(listed))
        if not found.images:
            return Inspection((), 0, tuple(found.bad))
    figures, sections, numbers = _found(model, found)
    files = _files(figures)
    text = page(f"Inside {name or name_of(model.spec)}", _about(model, found), sections, found.bad)
    files[REPORT] = lambda path: path.write_text(text, encoding="utf-8")
    files["inspection.json"] = json_writer(_numbers(found) | numbers)
    write_folder(out, files)
    return Inspection(tuple(files), found.images, tuple(found.bad))


def sections_of(model: ViT, pictures: Pictures, maps: int = 1) -> list[Section]:
    """What `inspect` shows, for a page of one's own; nothing is written."""
    found = Findings()
    with at_rest(model):
        for _ in examine(model, pictures, found, maps):
            pass
    return _found(model, found)[1]


def _found(model: ViT, found: Findings) -> tuple[dict[str, Drawn], list[Section], dict[str, object]]:
    """Figures by name, sections of the page, and numbers: what the pictures show, then what the weights do."""
    figures, sections, numbers = _weights(model)
    if found.cards:
        seen_figures, seen_sections = _pictures(model.spec, found)
        figures, sections = seen_figures | figures, [*seen_sections, *sections]
    return figures, sections, numbers


def examine(model: ViT, pictures: Pictures, found: Findings, maps: int, max_pixels: int | None = None) -> Iterator[int]:
    """Look at every picture and fill in `found`; yields how many are done. Memory does not grow with their number."""
    names = class_names(model)[0] if model.spec.classes else ()
    batch, listed = batch_size(model), list(named_pictures(pictures))
    for start in range(0, len(listed), batch):
        chosen = listed[start : start + batch]
        good = _read(model, chosen, found, max_pixels)
        if good:
            _see(model, good, names, found, maps)
        yield start + len(chosen)


@dataclass(frozen=True)
class Read:
    """A picture's path, the (height, width) of its file, and (3, H, W) of uint8 for the model."""

    path: str
    size: tuple[int, int]
    pixels: Tensor


def _read(model: ViT, pictures: Sequence[Named], found: Findings, max_pixels: int | None) -> list[Read]:
    good: list[Read] = []
    for name, picture in pictures:
        try:
            image = read_picture(picture, name, max_pixels).image
            pixels = evaluation_pixels(image, model.spec.image, model.spec.conventions.preprocessing)
            good.append(Read(name, (image.height, image.width), pixels))
        except BadImage as bad:
            found.bad.append(f"{name}: {bad.reason}: {bad.detail}")
    return good


@torch.no_grad()
def _see(model: ViT, good: list[Read], names: tuple[str, ...], found: Findings, maps: int) -> None:
    """One small batch."""
    weight, pixels = model.norm.weight, torch.stack([read.pixels for read in good])
    images = normalised(pixels.to(weight.device), model.spec.conventions.preprocessing).to(weight.dtype)
    saw = look(model, images)
    distance = saw.distance.double().sum(dim=0).cpu().numpy()
    found.distance = distance if found.distance is None else found.distance + distance
    for number in range(len(good)):
        if len(found.cards) >= SHOWN:
            break
        if len(found.maps) < maps:
            found.maps.append(saw.maps[number].float().cpu().numpy())
        mask = rendered(saw.rollout[number], model.spec).float().cpu().numpy()  # (H, W)
        picture = pixels[number].permute(1, 2, 0).numpy()
        answer = _answer(model, images[number : number + 1], names) if names else ""
        # The mask is the authors' alpha over a dark background, here black.
        seen = np.rint(picture * mask[..., None]).astype(np.uint8)
        rolled = saw.rollout[number].float() / saw.rollout[number].float().mean()
        found.sizes.append(good[number].size)
        found.ranges.append((rolled.min().item(), rolled.max().item()))
        notes = (_resizing(good[number].size, model.spec), rollout_range(*found.ranges[-1]))
        found.cards.append(Card(Path(good[number].path).name, picture, coloured(mask), seen, answer, notes))
    found.images += len(good)


def _resizing(size: tuple[int, int], spec: ViTSpec) -> str:
    """What was done to a file of (height, width) before the model saw it: shapes may have changed."""
    (height, width), how = spec.image, spec.conventions.preprocessing
    if how.resize == "shorter":
        done = "resized with its shape kept, then its centre taken:"
    elif size[0] * width == size[1] * height:
        done = "resized to"
    else:
        done = "stretched, which changes its shape, to"
    cut = (
        f", of which the outer {1 - how.fraction:.0%} were cut off"
        if how.resize == "square" and how.fraction < 1
        else ""
    )
    return f"{size[0]}x{size[1]} pixels (height x width), {done} {height}x{width}{cut}"


def _answer(model: ViT, image: Tensor, names: tuple[str, ...]) -> str:
    probability, index = model.probabilities(model(image).float())[0].max(dim=-1)
    return f"{names[int(index)]}, {probability.item():.1%}"


def _weights(model: ViT) -> tuple[dict[str, Drawn], list[Section], dict[str, object]]:
    """What can be seen without any picture; what a model has not, its section says."""
    figures: dict[str, Drawn] = {}
    numbers: dict[str, object] = {}
    try:
        components = principal_filters(model)
        share = components.share.tolist()
        numbers["filters_share_of_variance"] = share
        figures["filters"] = draw_filters(as_pictures(components.directions).numpy(), sum(share))
        filters_text = filters_caption(share, components.number, neighbour_agreement(components.directions))
    except ValueError as error:
        filters_text = f"Not here: {error}."
    try:
        similarity = position_similarity(model)
        figures["positions"] = draw_positions(similarity.numpy())
        positions_text = positions_caption(likeness(similarity))
    except ValueError as error:
        positions_text = f"Not here: {error}."
    sections = [
        Section("What a patch is turned into", filters_text, _plots(figures, "filters", FILTERS_NAME)),
        Section("What it knows about the plane", positions_text, _plots(figures, "positions", POSITIONS_NAME)),
    ]
    return figures, sections, numbers


def _plots(figures: dict[str, Drawn], key: str, name: str) -> list[tuple[str, bytes]]:
    return [(name, figures[key].svg)] if key in figures else []


def _pictures(spec: ViTSpec, found: Findings) -> tuple[dict[str, Drawn], list[Section]]:
    shrink = THUMBNAIL / max(found.cards[0].pixels.shape[:2]) if len(found.cards) > 8 else 1.0
    views = [(card.pixels, card.attention, card.seen) for card in found.cards]
    shrunk = [np.stack([_shrunk(view, shrink) for view in same]) for same in zip(*views, strict=True)]
    figures = {"rollout": draw_rollouts(*shrunk)}
    heads = {
        f"heads-{number:03}": draw_heads(maps, number, card.pixels)
        for number, (maps, card) in enumerate(zip(found.maps, found.cards, strict=False), 1)
    }
    assert found.distance is not None
    distance, even = found.distance / found.images, even_distance(spec)
    figures["distance"] = draw_distance(distance, found.images, even)
    scale = [("colours of the rollout, from least to most", draw_scale().svg)]
    sections = [Section("What it looks at", ROLLOUT, scale, cards=found.cards, wide=True)]
    if heads:
        is_wide = len(heads) > 1 or spec.layers > HALF_PAGE
        shown = [(f"attention of each head, picture {n}", drawn.svg) for n, drawn in enumerate(heads.values(), 1)]
        sections.append(Section("What each head looks at", heads_caption(spec.pool), shown, wide=is_wide))
    far = [("attention distance by head and depth", figures["distance"].svg)]
    sections.append(Section("How far each head looks", distance_caption(distance, even), far))
    return figures | heads, sections


def _shrunk(pixels: np.ndarray, scale: float) -> np.ndarray:
    """(H, W, 3) for a large sheet."""
    if scale >= 1:
        return pixels
    size = [max(1, round(side * scale)) for side in pixels.shape[:2]]
    small = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), size=size, mode="bilinear", antialias=True
    )
    return small[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()


def _files(figures: dict[str, Drawn]) -> dict[str, Writer]:
    def writer(content: bytes) -> Writer:
        return lambda path: path.write_bytes(content)

    return {
        f"{name}.{kind}": writer(content)
        for name, drawn in figures.items()
        for kind, content in zip(("svg", "png"), drawn, strict=True)
    }


def _about(model: ViT, found: Findings) -> str:
    spec = model.spec
    (height, width), (rows, columns) = spec.image, spec.grid
    what = f"{name_of(spec)}: {spec.layers} layers of {spec.heads} heads; {height}x{width} pixels as "
    what += f"{rows}x{columns} patches of {spec.patch}x{spec.patch}; read from "
    what += "the class token." if spec.pool == "class" else "the mean of all patches."
    if found.images > len(found.cards):
        what += f" {found.images:,} pictures were looked at; the first {len(found.cards)} are shown."
    source = model.provenance.get("source", "")
    return f"{what} Weights: {source}." if source else what


def _numbers(found: Findings) -> dict[str, object]:
    """What the figures show, for a plot of one's own."""
    distance = [] if found.distance is None else (found.distance / found.images).tolist()
    shown = zip(found.cards, found.sizes, found.ranges, strict=True)
    pictures = [
        {"number": n, "image": card.name, "answer": card.answer, "size": list(size), "rollout_range": list(extremes)}
        for n, (card, size, extremes) in enumerate(shown, 1)
    ]
    return {"images": found.images, "attention_distance": distance, "pictures": pictures, "bad": found.bad}
