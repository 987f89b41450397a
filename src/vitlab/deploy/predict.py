"""Pictures in, class names and probabilities out; a picture that cannot be read gets a reason instead."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from vitlab.data.images.pictures import KINDS, Named, Pictures, named_pictures, read_picture
from vitlab.data.images.refusals import BadImage
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.report.tables import Cell, Results

BATCH = 16
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
class Answer:
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
        return f"Answer({self.image!r}: {said or f'{self.reason}, {self.detail}'})"


class Answers(list[Answer]):
    """A list of answers, with what their probabilities mean; a notebook displays it as a table."""

    def __init__(self, found: Iterable[Answer], model: Model, label: str) -> None:
        super().__init__(found)
        self.model, self.task, self.meaning = label, model.task, MEANING[model.task]
        self.preprocessing = str(model.spec.conventions.preprocessing)
        self.names_from = class_names(model)[1]

    @property
    def failed(self) -> int:
        """How many pictures could not be read."""
        return sum(bool(answer.reason) for answer in self)

    @property
    def table(self) -> Results:
        """A row for each picture and guess."""
        rows: list[tuple[Cell, ...]] = []
        for answer in self:
            rows += [(answer.image, guess.name, 100 * guess.probability) for guess in answer.guesses]
            rows += [(answer.image, f"{answer.reason}: {answer.detail}", None)] if answer.reason else []
        return Results(("picture", "class", "probability %"), tuple(rows))

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        about = {"model": self.model, "task": self.task, "probabilities": self.meaning}
        listed = [asdict(answer) for answer in self]
        return {**about, "preprocessing": self.preprocessing, "class_names": self.names_from, "answers": listed}

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def answers(model: Model, images: Pictures, top: int = 5, *, max_pixels: int | None = None) -> Iterator[Answer]:
    """Yield an answer for each picture, a batch at a time; see `vitlab.predict`."""
    check_model(model)
    if not model.spec.classes:
        raise ValueError("this model has no classes, only features; load it with classes=... and train a head")
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


def preprocess(model: Model, images: Pictures, *, max_pixels: int | None = None) -> Tensor:
    """Prepare one or several pictures, as `predict` takes them, as a (B, 3, H, W) batch for the model.

    Raises BadImage for the first picture that cannot be read.
    """
    check_model(model)
    how = model.spec.conventions.preprocessing
    read = (read_picture(picture, name, max_pixels).image for name, picture in named_pictures(images))
    pixels = [evaluation_pixels(image, model.spec.image, how) for image in read]
    if not pixels:
        raise ValueError(f"no picture was given; give {KINDS}")
    return normalised(torch.stack(pixels), how)


def class_names(model: Model) -> tuple[tuple[str, ...], str]:
    """The names of the model's classes, and where they come from."""
    if model.class_names is not None:
        return model.class_names, "the model"
    if model.spec.classes == 1000:
        return tuple(
            name for _, name in imagenet_classes()
        ), "assumed ImageNet-1k: the model has 1000 classes without names"
    return tuple(f"class {i}" for i in range(model.spec.classes)), "numbers: the model has no class names"


def _checked_batch(images: Tensor) -> Tensor:
    if images.ndim != 4:
        raise ValueError(
            f"a float tensor must be a preprocessed batch (B, 3, H, W), not {tuple(images.shape)}; "
            "one picture is (3, H, W) of uint8"
        )
    if bad := int((~images.isfinite()).flatten(1).any(dim=1).sum()):
        raise ValueError(f"{bad} of {len(images)} images contain NaN or infinity; give finite pixels")
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
    """(B, 3, H, W), preprocessed -> the `top` guesses for each picture."""
    weight = next(model.parameters())
    logits = model(images.to(weight.device, weight.dtype)).float()
    if bad := len(logits) - int(logits.isfinite().all(dim=-1).sum()):
        count = f"{bad} of {len(logits)} pictures" if len(logits) > 1 else "the picture"
        raise ValueError(
            f"the model returned NaN or infinity for {count}: it diverged in training, or its file is damaged"
        )
    best = model.probabilities(logits).topk(top)  # (B, top)
    return [
        tuple(Guess(index, names[index], probability) for index, probability in zip(indices, values, strict=True))
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
