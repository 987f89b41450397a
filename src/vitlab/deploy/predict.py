"""Pictures in, class names and probabilities out; a bad picture gets its reason and the others their answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitlab.data.gate import read_image
from vitlab.data.refusals import BadImage
from vitlab.data.transforms import evaluation_pixels, normalised
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes

BATCH = 16


@dataclass(frozen=True)
class Guess:
    """One class a picture may belong to."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """What the model says of one picture: guesses, best first, or the reason why there are none."""

    image: str
    guesses: tuple[Guess, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""


def predict(model: Model, images: Sequence[str | Path], top: int = 5) -> Iterator[Answer]:
    """Answers in the order of `images`, a batch at a time; memory does not grow with their number."""
    if not model.spec.classes:
        raise ValueError("this model has no classes, it only makes features; load it with classes=... and train a head")
    if top < 1:
        raise ValueError(f"top {top} must be at least 1")
    names, _ = class_names(model)
    for start in range(0, len(images), BATCH):
        yield from _answer_batch(model, images[start : start + BATCH], names, min(top, model.spec.classes))


def preprocess(model: Model, images: Sequence[str | Path]) -> Tensor:
    """Picture files -> (B, 3, H, W) ready for the model; raises BadImage for the first that cannot be read."""
    how = model.spec.conventions.preprocessing
    pixels = [evaluation_pixels(read_image(image).image, model.spec.image, how) for image in images]
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
    best = model(images).float().softmax(dim=-1).topk(top)  # (B, top)
    return [
        tuple(Guess(index, names[index], probability) for index, probability in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
