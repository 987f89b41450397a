"""Classify pictures: class names and probabilities, or the reason why a picture cannot be read."""

import itertools
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitlab.artefacts.artefact import Artefact
from vitlab.data.images.pictures import KINDS, Named, Pictures, image_files, named_pictures, number_of, read_picture
from vitlab.data.images.refusals import LARGEST_FILE, BadImage
from vitlab.data.loading.accounting import Excluded
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.data.transforms.resizing import to_tensor
from vitlab.engines.agreement import Agreement, agreement
from vitlab.engines.engine import Engine, EngineName, Pending
from vitlab.engines.opening import open_engine
from vitlab.engines.runtimes import is_inexact
from vitlab.errors import printable
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.report.tables import Cell, Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.measure.inputs import (
    ImageSize,
    ModelLike,
    ModelOptions,
    class_names,
    label_of,
    open_any,
    opened,
    own_engine,
)
from vitlab.runs.progress import Images, default_console, say
from vitlab.spec import AttentionLike, ConventionName
from vitlab.world.device import products_in

BATCH = 16
COLUMNS = ("picture", "class", "probability %")
STANDARD_INPUT = "-"
NONE_GIVEN = f"no picture was given; give {KINDS}"
MEANING = {  # of the probabilities, by the model's task
    "single-label": "a softmax over the classes: they sum to 1",
    "multi-label": "a sigmoid of each class: an image may have several classes or none, and they do not sum to 1",
}


@dataclass(frozen=True)
class Guess:
    """A class with its probability."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True, repr=False)
class Answer(Tabular):
    """The guesses for one picture, most probable first, or the reason why it could not be read.

    `image` is the path, or "picture 1" and so on. `notes` say what is unusual about the file.
    """

    image: str
    guesses: tuple[Guess, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""

    def __repr__(self) -> str:
        said = ", ".join(f"{guess.name!r} {guess.probability:.1%}" for guess in self.guesses)
        return f"Answer({self.image!r}: {said or self.detail})"

    @property
    def table(self) -> Results:
        """A row for each guess, or one that says why there is none."""
        rows: list[tuple[Cell, ...]] = [(self.image, one.name, 100 * one.probability) for one in self.guesses]
        return Results(COLUMNS, tuple(rows or [(self.image, self.detail, None)]))


class Answers(list[Answer], Tabular):
    """A list of answers, with what their probabilities mean; a notebook displays it as a table."""

    def __init__(self, found: Iterable[Answer], model: Model | Artefact, label: str, engine: EngineName) -> None:
        super().__init__(found)
        self.model, self.task, self.meaning, self.engine = label, model.task, MEANING[model.task], engine
        self.preprocessing = str(model.spec.conventions.preprocessing)
        self.names_from = class_names(model)[1]
        self.agreement: Agreement | None = None  # of an engine that does not give the plain model's logits

    @property
    def failed(self) -> int:
        """How many pictures could not be read."""
        return sum(bool(answer.reason) for answer in self)

    @property
    def table(self) -> Results:
        """A row for each picture and guess."""
        return Results(COLUMNS, tuple(row for answer in self for row in answer.table.rows))

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        about: dict[str, object] = {
            "model": self.model,
            "task": self.task,
            "probabilities": self.meaning,
            "engine": self.engine,
        }
        about |= {"agreement": None if self.agreement is None else asdict(self.agreement)}
        listed = [asdict(answer) for answer in self]
        return {**about, "preprocessing": self.preprocessing, "class_names": self.names_from, "answers": listed}


def predict(
    model: ModelLike,
    images: Pictures,
    top: int = 5,
    *,
    max_pixels: int | None = None,
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    device: str = "auto",
    engine: EngineName = "torch",
    console: Console | None = None,
    quiet: bool = False,
) -> Answers:
    """Classify one or several pictures; returns an `Answer` for each, in order.

    `model` is a name of released weights, a path, also of what `vitlab.export` wrote, or a module. A picture is a path
    (also of a folder, or a pattern such as "photos/*.jpg"), the bytes of an image file, a PIL image, an (H, W, 3) array
    or a (3, H, W) tensor of uint8. A (B, 3, H, W) float tensor is taken as already preprocessed. Images of more than
    `max_pixels` are rejected; by default each format has its own limit. See `ModelOptions` for how weights are loaded,
    and `vitlab.open_engine` for the `engine` that computes.

    `answer.guesses` are the `top` classes, most probable first, each with `name`, `index` and `probability`: of a
    softmax over the classes, or of each class by itself for a multi-label model. A picture that cannot be read has no
    guesses but a `reason` and a `detail`; the others are answered all the same. `quiet` prints no progress.
    """
    check_arguments(predict, locals())
    screen = default_console(console, quiet=quiet)
    pictures = named(images, screen)
    options = ModelOptions(conventions, image, "own", device, heads, allow_partial, allow_nonfinite, merge, attention)
    loaded = open_any(model, options, screen)
    number, batch = number_of(pictures), batch_of(pictures)
    wanted: EngineName = engine if _are_any_there(pictures) else "plain"  # preparing another takes long, for nothing
    computing = None if isinstance(loaded, Artefact) else opened(loaded, wanted, batch, screen, number)
    used = own_engine(loaded, engine) if isinstance(loaded, Artefact) else cast(Engine, computing).name
    found = Answers((), loaded, label_of(model, loaded), used)
    place = torch.device("cpu") if computing is None else computing.device
    with products_in("fp32", place), Images(screen, "classified") as display:
        for one in answers(loaded, pictures, top, max_pixels=max_pixels, engine=computing):
            if isinstance(one, Agreement):
                found.agreement = one
                say(screen, f"{used}: {one}", "yellow")
                continue
            found.append(one)
            display.show(len(found), len(pictures) if isinstance(pictures, list) else 0)
    require(bool(found), NONE_GIVEN)
    return found


def _are_any_there(pictures: Pictures) -> bool:
    """Whether a picture may be read: false if all are paths of files that do not exist."""
    if not isinstance(pictures, list):
        return True
    given = (one.picture if isinstance(one, Named) else one for one in pictures)
    return any(not isinstance(one, str | Path) or os.path.lexists(one) for one in given)


def batch_of(pictures: Pictures) -> int:
    """The batch to choose an engine for: fewer pictures than a batch count as the next power of two, so that an
    automatic choice is measured for a few batches only.
    """
    number = number_of(pictures)
    return BATCH if number is None else min(BATCH, 1 << max(number - 1, 0).bit_length())


def answers(
    model: Model | Artefact,
    images: Pictures,
    top: int = 5,
    *,
    max_pixels: int | None = None,
    engine: Engine | None = None,
) -> Iterator[Answer | Agreement]:
    """Yield an answer for each picture, a batch at a time; the next batch is read while one is computed.

    See `vitlab.predict`. How far an inexact engine agrees with the plain model on the first batch is yielded once.
    """
    if not isinstance(model, Artefact):
        check_model(model)
    require(model.spec.classes > 0, "this model has no classes, only features; fine-tune it on labelled images")
    require(top >= 1, f"top {top} must be at least 1")
    names, top = class_names(model)[0], min(top, model.spec.classes)
    if isinstance(model, Artefact):
        yield from _artefact_answers(model, images, names, top, max_pixels)
        return
    engine = engine or open_engine(model, "plain")
    is_compared = not is_inexact(engine.name)
    if isinstance(images, Tensor) and images.is_floating_point():
        if not is_compared and len(images):
            yield agreement(engine, model, _checked_batch(images)[:BATCH])
        for start in range(0, len(_checked_batch(images)), BATCH):
            said = guesses_of(model, engine(images[start : start + BATCH]), names, top)
            yield from (Answer(f"picture {start + place}", guesses) for place, guesses in enumerate(said, 1))
        return
    pictures = named_pictures(images)
    pending: deque[tuple[list[Prepared | BadImage], Pending | None]] = deque()
    while batch := list(itertools.islice(pictures, BATCH)):
        read = list(prepared(model, batch, max_pixels))
        pixels = [one.pixels for one in read if isinstance(one, Prepared)]
        pending.append((read, begun(model, engine, torch.stack(pixels)) if pixels else None))
        if not is_compared and pixels:
            yield agreement(engine, model, normalised(torch.stack(pixels), model.spec.conventions.preprocessing))
            is_compared = True
        if len(pending) > int(engine.is_concurrent):
            yield from _answers(model, *pending.popleft(), names, top)
    while pending:
        yield from _answers(model, *pending.popleft(), names, top)


def _artefact_answers(
    artefact: Artefact, images: Pictures, names: tuple[str, ...], top: int, max_pixels: int | None
) -> Iterator[Answer]:
    """Yield the answers of an artefact, which takes decoded pictures and resizes them itself."""
    is_prepared = isinstance(images, Tensor) and images.is_floating_point()
    require(not is_prepared, "an artefact takes pictures, not preprocessed tensors; give files or uint8 pixels")
    pictures = named_pictures(images)
    while batch := list(itertools.islice(pictures, BATCH)):
        read = [decoded(one, max_pixels) for one in batch]
        pixels = [one.pixels for one in read if isinstance(one, Prepared)]
        yield from _answers(artefact, read, artefact.submit(pixels) if pixels else None, names, top)


def decoded(named: Named, max_pixels: int | None) -> "Prepared | BadImage":
    """A picture as it is, (H, W, 3) of uint8, or the reason why it cannot be read."""
    try:
        read = read_picture(named.picture, named.name, max_pixels)
    except BadImage as bad:
        return BadImage(bad.reason, bad.detail, named.name)
    notes, size = tuple(map(str, read.notes)), (read.image.height, read.image.width)
    return Prepared(named.name, size, notes, to_tensor(read.image).permute(1, 2, 0))


def preprocess(model: Model, images: Pictures, *, max_pixels: int | None = None) -> Tensor:
    """Prepare one or several pictures, as `predict` takes them, as a (B, 3, H, W) batch for the model.

    Raises BadImage for the first picture that cannot be read.
    """
    check_model(model)
    pixels = []
    for one in prepared(model, named_pictures(images), max_pixels):
        if isinstance(one, BadImage):
            raise one
        pixels.append(one.pixels)
    require(bool(pixels), NONE_GIVEN)
    return normalised(torch.stack(pixels), model.spec.conventions.preprocessing)


class Prepared(NamedTuple):
    """A picture's name, the (height, width) and notes of its file, and its pixels (3, H, W) of uint8 for the model."""

    name: str
    size: tuple[int, int]
    notes: tuple[str, ...]
    pixels: Tensor


def prepared(model: Model, pictures: Iterable[Named], max_pixels: int | None) -> Iterator[Prepared | BadImage]:
    """Yield each picture ready for the model's normalisation, or the reason why it cannot be read."""
    for name, picture in pictures:
        try:
            read = read_picture(picture, name, max_pixels)
            pixels = evaluation_pixels(read.image, model.spec.image, model.spec.conventions.preprocessing)
            yield Prepared(name, (read.image.height, read.image.width), tuple(map(str, read.notes)), pixels)
        except BadImage as bad:
            yield BadImage(bad.reason, bad.detail, name)


def named(images: Pictures, console: Console) -> Pictures:
    """Expand paths, folders and patterns to image files, and "-" to standard input; reports the files left out."""
    if isinstance(images, Sized) and not isinstance(images, bytes | np.ndarray | Tensor):
        require(len(images) > 0, NONE_GIVEN)
    words = images if isinstance(images, list | tuple) else [images]
    if not all(isinstance(word, str | Path) for word in words):
        return images
    found, excluded = [], Excluded()
    require(words.count(STANDARD_INPUT) < 2, "standard input holds one image; give - once")
    for word in words:
        if word == STANDARD_INPUT:
            found.append(Named(STANDARD_INPUT, _standard_input()))
        else:
            found += [Named(str(path), path) for path in image_files((cast(str, word),), excluded)]
    if excluded:
        say(console, printable(excluded.described()))
    return found


def _standard_input() -> bytes:
    is_pipe = sys.stdin is not None and not sys.stdin.isatty()
    require(is_pipe, "- reads an image from standard input, which is a terminal; pipe one: cat cat.jpg | vitlab ...")
    return sys.stdin.buffer.read(LARGEST_FILE + 1)


def _checked_batch(images: Tensor) -> Tensor:
    given = tuple(images.shape)
    form = f"a float tensor must be a preprocessed batch (B, 3, H, W), not {given}; one picture is (3, H, W) of uint8"
    require(images.ndim == 4, form)
    bad = int((~images.isfinite()).flatten(1).any(dim=1).sum())
    require(not bad, f"{bad} of {len(images)} images contain NaN or infinity; give finite pixels")
    return images


def begun(model: Model, engine: Engine, pixels: Tensor) -> Pending:
    """Begin to compute the logits of a batch (B, 3, H, W) of uint8, as `prepared` makes them."""
    return engine.submit(pixels, prepare=partial(normalised, how=model.spec.conventions.preprocessing))


def _answers(
    model: Model | Artefact, read: list[Prepared | BadImage], logits: Pending | None, names: tuple[str, ...], top: int
) -> Iterator[Answer]:
    """Yield the answers of a batch; waits for its logits."""
    guesses = iter(()) if logits is None else iter(guesses_of(model, logits.result(), names, top))
    for one in read:
        if isinstance(one, BadImage):
            yield Answer(one.name, reason=str(one.reason), detail=one.detail)
        else:
            yield Answer(one.name, next(guesses), one.notes)


def guesses_of(model: Model | Artefact, logits: Tensor, names: tuple[str, ...], top: int) -> list[tuple[Guess, ...]]:
    """(B, K) -> the `top` guesses for each picture."""
    logits = logits.float()
    bad = len(logits) - int(logits.isfinite().all(dim=-1).sum())
    count = f"{bad} of {len(logits)} pictures" if len(logits) > 1 else "the picture"
    require(not bad, f"the model returned NaN or infinity for {count}: it diverged in training, or its file is damaged")
    best = model.probabilities(logits).topk(top)  # (B, top)
    return [
        tuple(Guess(index, names[index], probability) for index, probability in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
