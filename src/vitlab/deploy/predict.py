"""Pictures in, class names and probabilities out; a bad picture gets its reason and the others their answers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitlab.data.gate import read_image
from vitlab.data.refusals import BadImage
from vitlab.data.transforms import evaluation_pixels, normalised
from vitlab.models.build import Model
from vitlab.models.inputs import check_model
from vitlab.paper.imagenet import imagenet_classes

BATCH = 16
Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class Guess:
    """One class a picture may belong to."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True, repr=False)
class Answer:
    """What the model says of one picture: guesses, best first, or the reason why there are none."""

    image: str
    guesses: tuple[Guess, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""

    def __repr__(self) -> str:
        said = ", ".join(f"{guess.name!r} {guess.probability:.1%}" for guess in self.guesses)
        return f"Answer({self.image!r}: {said or f'{self.reason}, {self.detail}'})"


def predict(model: Model, images: Paths, top: int = 5) -> list[Answer]:
    """What the model says of one picture file or of several: an `Answer` for each, in their order.

    `answer.guesses` are the `top` classes, best first, each with its `name`, `index` and `probability`: of a softmax
    over the classes, or of each class by itself if `model.task` is multi-label. `answer.image` is the path as it was
    given. A picture that cannot be read has no guesses but a `reason` and a `detail`, and the
    others are answered all the same. `answer.notes` says what is odd about one that can.
    """
    return list(answers(model, images, top))


def answers(model: Model, images: Paths, top: int = 5) -> Iterator[Answer]:
    """As `predict`, a batch at a time as they are asked for; memory does not grow with their number."""
    check_model(model)
    if not model.spec.classes:
        raise ValueError("this model has no classes, it only makes features; load it with classes=... and train a head")
    if top < 1:
        raise ValueError(f"top {top} must be at least 1")
    names, _ = class_names(model)
    paths = _paths(images)
    while batch := list(itertools.islice(paths, BATCH)):
        yield from _answer_batch(model, batch, names, min(top, model.spec.classes))


def meaning(model: Model) -> str:
    """What the probabilities of a model's answers are."""
    if model.task == "multi-label":
        return "a sigmoid of each class: an image may have several classes or none, and they do not sum to 1"
    return "a softmax over the classes: they sum to 1"


def preprocess(model: Model, images: Paths) -> Tensor:
    """One picture file or several -> (B, 3, H, W) ready for the model; raises BadImage for the first that is bad."""
    check_model(model)
    how = model.spec.conventions.preprocessing
    pixels = [evaluation_pixels(read_image(image).image, model.spec.image, how) for image in _paths(images)]
    if not pixels:
        raise ValueError("no picture was given; name at least one image file")
    return normalised(torch.stack(pixels), how)


def class_names(model: Model) -> tuple[tuple[str, ...], str]:
    """A name for every class, and where the names come from."""
    if model.class_names is not None:
        return model.class_names, "the model"
    if model.spec.classes == 1000:
        return tuple(
            name for _, name in imagenet_classes()
        ), "assumed ImageNet-1k: the model has 1000 classes and names none"
    return tuple(f"class {i}" for i in range(model.spec.classes)), "numbers: the model names none"


def _paths(images: Paths) -> Iterator[str | Path]:
    """Paths, of which one may be given alone; raises a ValueError for what is none."""
    alone = isinstance(images, str | bytes | Path) or not isinstance(images, Iterable)
    for image in (images,) if alone else images:
        if not isinstance(image, str | Path):
            kind = type(image).__name__
            raise ValueError(f"images must be paths of picture files, not {kind}; tensors are for model(images)")
        yield image


def _answer_batch(model: Model, images: Sequence[str | Path], names: tuple[str, ...], top: int) -> Iterator[Answer]:
    pixels: list[Tensor] = []
    answers: list[Answer] = []
    for image in images:
        try:
            decoded = read_image(image)
            pixels.append(evaluation_pixels(decoded.image, model.spec.image, model.spec.conventions.preprocessing))
            answers.append(Answer(str(image), notes=tuple(map(str, decoded.notes))))
        except BadImage as bad:
            answers.append(Answer(str(image), reason=str(bad.reason), detail=bad.detail))
    guesses = iter(_guesses(model, torch.stack(pixels), names, top) if pixels else ())
    for answer in answers:
        yield answer if answer.reason else Answer(answer.image, next(guesses), answer.notes)


@torch.inference_mode()
def _guesses(model: Model, pixels: Tensor, names: tuple[str, ...], top: int) -> list[tuple[Guess, ...]]:
    """(B, 3, H, W) of uint8 -> the `top` guesses of each picture."""
    weight = next(model.parameters())
    images = normalised(pixels.to(weight.device), model.spec.conventions.preprocessing).to(weight.dtype)
    best = model.probabilities(model(images).float()).topk(top)  # (B, top)
    return [
        tuple(Guess(index, names[index], probability) for index, probability in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
