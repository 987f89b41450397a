"""Pictures in, class names and probabilities out; a bad picture gets its reason and the others their answers."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.data.images.pictures import Named, Pictures, named_pictures, read_picture
from vitlab.data.images.refusals import BadImage
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.paper.imagenet import imagenet_classes

BATCH = 16


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


def predict(model: Model, images: Pictures, top: int = 5, *, max_pixels: int | None = None) -> list[Answer]:
    """What the model says of one picture or of several: an `Answer` for each, in their order.

    A picture is a path (also of a folder, or a pattern such as "photos/*.jpg"), the bytes of an image file, a PIL
    image, an (H, W, 3) array or a (3, H, W) tensor of uint8. A (B, 3, H, W) tensor of floats is taken as preprocessed
    already. Images of more than `max_pixels` are refused; by default each format has its own limit.

    `answer.guesses` are the `top` classes, best first, each with its `name`, `index` and `probability`: of a softmax
    over the classes, or of each class by itself if `model.task` is multi-label. `answer.image` is the path, or
    "picture 1" and so on for what has none. A picture that cannot be read has no guesses but a `reason` and a `detail`,
    and the others are answered all the same. `answer.notes` says what is odd about one that can.
    """
    return list(answers(model, images, top, max_pixels=max_pixels))


def answers(model: Model, images: Pictures, top: int = 5, *, max_pixels: int | None = None) -> Iterator[Answer]:
    """As `predict`, a batch at a time as they are asked for; memory does not grow with their number."""
    check_model(model)
    if not model.spec.classes:
        raise ValueError("this model has no classes, it only makes features; load it with classes=... and train a head")
    if top < 1:
        raise ValueError(f"top {top} must be at least 1")
    names, top = class_names(model)[0], min(top, model.spec.classes)
    if isinstance(images, Tensor) and images.is_floating_point():
        for start in range(0, len(_checked_batch(images)), BATCH):
            said = _guesses(model, images[start : start + BATCH], names, top)
            yield from (Answer(f"picture {start + place}", guesses) for place, guesses in enumerate(said, 1))
        return
    pictures = named_pictures(images)
    while batch := list(itertools.islice(pictures, BATCH)):
        yield from _answer_batch(model, batch, names, top, max_pixels)


def meaning(model: Model) -> str:
    """What the probabilities of a model's answers are."""
    if model.task == "multi-label":
        return "a sigmoid of each class: an image may have several classes or none, and they do not sum to 1"
    return "a softmax over the classes: they sum to 1"


def preprocess(model: Model, images: Pictures, *, max_pixels: int | None = None) -> Tensor:
    """One picture or several, as `predict` takes them -> (B, 3, H, W) ready for the model; the first that is bad raises
    BadImage."""
    check_model(model)
    how = model.spec.conventions.preprocessing
    read = (read_picture(picture, name, max_pixels).image for name, picture in named_pictures(images))
    pixels = [evaluation_pixels(image, model.spec.image, how) for image in read]
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


def _checked_batch(images: Tensor) -> Tensor:
    if images.ndim != 4:
        raise ValueError(
            f"a tensor of floats must be a batch (B, 3, H, W) that is preprocessed already, not {tuple(images.shape)}; "
            "one picture is (3, H, W) of uint8"
        )
    return images


def _answer_batch(
    model: Model, images: Sequence[Named], names: tuple[str, ...], top: int, max_pixels: int | None
) -> Iterator[Answer]:
    how = model.spec.conventions.preprocessing
    pixels: list[Tensor] = []
    answers: list[Answer] = []
    for name, picture in images:
        try:
            decoded = read_picture(picture, name, max_pixels)
            pixels.append(evaluation_pixels(decoded.image, model.spec.image, how))
            answers.append(Answer(name, notes=tuple(map(str, decoded.notes))))
        except BadImage as bad:
            answers.append(Answer(name, reason=str(bad.reason), detail=bad.detail))
    device = next(model.parameters()).device
    made = _guesses(model, normalised(torch.stack(pixels).to(device), how), names, top) if pixels else ()
    guesses = iter(made)
    for answer in answers:
        yield answer if answer.reason else Answer(answer.image, next(guesses), answer.notes)


@torch.inference_mode()
def _guesses(model: Model, images: Tensor, names: tuple[str, ...], top: int) -> list[tuple[Guess, ...]]:
    """(B, 3, H, W), preprocessed -> the `top` guesses of each picture."""
    weight = next(model.parameters())
    logits = model(images.to(weight.device, weight.dtype)).float()
    if bad := len(logits) - int(logits.isfinite().all(dim=-1).sum()):
        count = f"{bad} of {len(logits)} pictures" if len(logits) > 1 else "the picture"
        raise ValueError(f"the model gave NaN or infinity for {count}: it diverged in training, or its file is damaged")
    best = model.probabilities(logits).topk(top)  # (B, top)
    return [
        tuple(Guess(index, names[index], probability) for index, probability in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
