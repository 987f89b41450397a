"""What a scale is: the pieces that grids are made of.

A grid names models, data and epochs as the paper does. At the scale `paper` these are the paper's own. At a smaller
scale a model of the same family stands in for each, with about the paper's proportions of compute, and the number of
images seen is the paper's times one constant share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar

from vitlab.paper.finetuning import IMAGE_SETS, TABLE_2_IMAGENET_IMAGE, finetuning_row, hyper_rule
from vitlab.paper.models import model_spec
from vitlab.paper.names import MODELS
from vitlab.paper.pretraining import DATA, DataName
from vitlab.paper.recipes.finetuning import BIT_SIZES, TRANSFER_SLUGS, finetuning_recipe
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import MASKED, SGD_MARK, pretraining_model, pretraining_recipe, rows_by_name
from vitlab.require import require
from vitlab.spec import ModelSpec, ResNetSpec, ViTSpec
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import Recipe
from vitlab.studies.study import FewShot, Inside, Training

Value = TypeVar("Value")
ScaleName = Literal["paper", "small", "tiny", "test"]
JFT: Final = "JFT-300M"
SEEN: Final = 7 * DATA[JFT].images  # images of the paper's usual pre-training
FROM: Final[dict[str, str]] = {  # rows of table 3 for models that have none
    "ViT-b/32": "ViT-B/32",
    "Axial-ViT-B/16": "ViT-B/16",
    "Axial-ViT-B/32": "ViT-B/32",
    "AxialResNet-50": "R50x1",
    "R152x4": "R152x2",
}


@dataclass(frozen=True)
class Upstream:
    """A pre-training set: its spec, the number of its images, and its classes."""

    data: str
    images: int
    classes: int


@dataclass(frozen=True)
class Task:
    """A set to fine-tune on. `row` is its row of table 4; `flips` whether mirrored images keep their class."""

    data: str
    test: str
    classes: int
    row: str
    flips: bool = True


@dataclass(frozen=True)
class Shrinking:
    """How recipes are made small: images seen and batch of the paper's 7 epochs on JFT-300M, and learning rates.

    `adam` and `sgd` multiply the paper's peak rates. Fine-tuning has `steps` of `tuning_batch` images.
    """

    seen: int
    batch: int
    adam: float
    sgd: float
    steps: int
    tuning_batch: int
    tuning_rate: float


@dataclass(frozen=True)
class Scale:
    """What a scale has in place of the paper's models, data and recipes. Grids are made with its methods."""

    name: ScaleName
    image: int  # pixels of pre-training
    tuned_image: int  # pixels of fine-tuning
    upstream: Mapping[DataName, Upstream]
    tasks: Mapping[str, Task]
    transfer: tuple[str, ...]  # the tasks of tables 2, 5 and 6
    shots: tuple[str, str, int, int]  # of few-shot: training and test images, shots, draws
    models: Mapping[str, ModelSpec] = field(default_factory=dict)  # stand-ins, by the paper's name
    shrinking: Shrinking | None = None
    places: Mapping[str, str] = field(default_factory=dict)  # what a user must have, in words
    drawn: Mapping[str, str] = field(default_factory=dict)  # data that is drawn once and packed, by place
    is_thin: bool = False  # grids have fewer models and sizes, to fit two cores

    @property
    def is_paper(self) -> bool:
        """Whether this is the exact grid."""
        return self.shrinking is None

    def has(self, model: str, epochs: int = 7) -> bool:
        """Whether the scale has a stand-in for a model; smaller scales have no runs of twice the usual length."""
        return model in MODELS if self.is_paper else model in self.models and epochs <= 7

    def model(self, name: str, classes: int, **options: Any) -> ModelSpec:
        """The model of a name with fresh weights, for pre-training; `options` are fields of its spec."""
        if self.is_paper:
            return _with(model_spec(name, image=self.image, classes=classes), options)
        return _with(replace(_known(self.models, name, "model"), classes=classes), options)

    # -- Trainings ---------------------------------------------------------------------------------

    def pretrained(
        self,
        model: str,
        data: DataName = JFT,
        epochs: int | None = None,
        *,
        sgd: bool = False,
        subset: float = 1.0,
        early_stop: bool = False,
        recipe: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Training:
        """Pre-train a model with its row of table 3; smaller scales have no runs of 14 epochs, but of 7.

        `epochs` is a length that the paper has, by default the shortest.
        `subset` is the share of the data that is used, in as many steps; with `early_stop` the best weights on
        held-out images are kept. `recipe` changes fields of schedule and optimizer, `options` those of the model.
        """
        upstream = _known(self.upstream, data, "pre-training data")
        rows = _rows(model, data)
        epochs = 7 if epochs == 14 and 7 in rows and not self.is_paper else epochs
        how = self._shrunk(pretraining_recipe(_row(rows, model, data, epochs, sgd=sgd)))
        how = _changed(how, dict(recipe or {}), 1.0 if self.shrinking is None else self.shrinking.adam)
        if early_stop:
            how = replace(how, validate_every=max(how.schedule.total // 8, 1), patience=8)
        spec = upstream.data if subset == 1 else _sub(upstream.data, round(upstream.images * subset))
        made = self.model(model, upstream.classes, **options)
        held_out = (0.01 if self.is_paper else 0.1) if early_stop else 0.0
        return Training(_rated(made, how), how, spec, held_out=held_out)

    def masked(self, **masking: Any) -> Training:
        """Pre-train ViT-B/16 without labels; `masking` changes what is corrupted and predicted."""
        how = self._shrunk(pretraining_recipe(MASKED))
        assert how.masking is not None
        how = replace(how, masking=replace(how.masking, **masking))
        made = _with(self.model("ViT-B/16", 0), {"head": "linear"})
        return Training(_rated(made, how), how, self.upstream[JFT].data)

    def tuned(
        self, start: Training, task: str, model: str, *, image: int | None = None, best: bool = False
    ) -> Training:
        """Fine-tune trained weights on a task; at the paper's scale the learning rate is chosen as in table 4.

        `best` has the larger images and the averaged weights of table 2's ImageNet results.
        """
        how = _known(self.tasks, task, "task")
        if self.shrinking is not None:
            recipe = _short(finetuning_recipe(how.row), self.shrinking, how, image or self.tuned_image)
            return self._adapted(start, how, recipe)
        side = TABLE_2_IMAGENET_IMAGE.get(model) if best and task == "ImageNet" else None
        recipe = finetuning_recipe(f"{how.row}-{side}" if side else how.row)
        recipe = recipe if image is None else replace(recipe, image=(image, image))
        rates = finetuning_row(TRANSFER_SLUGS[how.row]).learning_rates
        rivals = [replace(recipe, schedule=replace(recipe.schedule, peak=rate)) for rate in rates]
        if isinstance(start.model, ResNetSpec) and task in IMAGE_SETS:  # ResNets: the better of both (B.1.1)
            size = BIT_SIZES[[rule.below for rule in _RULES].index(hyper_rule(IMAGE_SETS[task].train).below)]
            pictures = (32, 32) if task.startswith("CIFAR") else (384, 384)
            rivals.append(finetuning_recipe(size, pictures=pictures, model=model))
        first, *others = rivals
        development = finetuning_row(TRANSFER_SLUGS[how.row]).dev_fraction if others else 0.0
        return self._adapted(start, how, first, tuple(others), development)

    def scratch(self, model: str, task: str) -> Training:
        """Train fresh weights on the images of a task alone."""
        how = _known(self.tasks, task, "task")
        if self.shrinking is None:
            start = self.pretrained(model, "ImageNet")
            return self.tuned(start, task, model)
        recipe = _short(pretraining_recipe("ViT-B/16@imagenet"), self.shrinking, how, self.tuned_image)
        made = replace(self.model(model, how.classes), image=recipe.image)
        return Training(_rated(made, recipe), recipe, how.data, how.test)

    def _adapted(
        self,
        start: Training,
        task: Task,
        recipe: Recipe,
        rivals: tuple[Recipe, ...] = (),
        development: float = 0.0,
    ) -> Training:
        recipe, *others = (_fitting(one, start.model.stride) for one in (recipe, *rivals))
        made = replace(start.model, image=recipe.image, classes=task.classes, head="linear")
        rated = _rated(made, recipe)
        return Training(rated, recipe, task.data, task.test, 0.0, start, tuple(others), development)

    # -- Measurements ------------------------------------------------------------------------------

    def few_shot(self) -> FewShot:
        """The few-shot accuracy of figures 4, 8, 9 and 13 and table 8."""
        return FewShot(*self.shots, preprocessing="few-shot" if self.is_paper else "own")

    def inside(self) -> Inside:
        """Attention distance and positions, on images that few-shot is tested on."""
        return Inside(self.shots[1], 128)

    # -- Small recipes -----------------------------------------------------------------------------

    def _shrunk(self, recipe: Recipe) -> Recipe:
        """A recipe of pre-training at this scale."""
        small = self.shrinking
        if small is None:
            return recipe
        images = recipe.batch * recipe.schedule.total * small.seen / SEEN
        total = max(round(images / small.batch), 2)
        own = pretraining_recipe(recipe.name, Length(batch=small.batch, total=total, warmup=total // 10))
        sgd = recipe.optimizer.kind == "sgd"
        peak = own.schedule.peak * small.sgd if sgd else recipe.schedule.peak * small.adam
        return replace(
            own,
            image=(self.image, self.image),
            schedule=replace(own.schedule, peak=three_digits(peak)),
            # Differs from the paper: studies at small scales learn single labels by the softmax loss, from images that
            # are mirrored but not cropped, without label smoothing and dropout; they see too few images for more.
            loss="softmax",
            label_smoothing=0.0,
            dropout=0.0,
            augmentation=Augmentation(crop="none", flip=True),
        )


_RULES = tuple(map(hyper_rule, (1, 100_000, 10**9)))


def _rows(model: str, data: DataName) -> dict[int, str]:
    """The recipes of a model on data by their epochs, the shortest first; those of a similar model if it has none."""
    rows = [(pretraining_model(name), epochs, name) for name, (row, epochs, _) in rows_by_name().items()
            if row.data == data]  # fmt: skip
    known = {like for like, _, _ in rows}
    alike = [name for name, like in FROM.items() if like in known]
    like = FROM.get(model, model)
    allowed = ", ".join(sorted({*known, *alike}))
    require(like in known, f"the paper has no recipe for {model!s:.60} on {data}; it has some for {allowed}")
    return {epochs: name for of, epochs, name in sorted(rows, key=lambda row: row[1]) if of == like}


def _row(rows: Mapping[int, str], model: str, data: DataName, epochs: int | None, *, sgd: bool) -> str:
    """The recipe of a length; of several the shortest, unless `epochs` says which."""
    chosen = next(iter(rows)) if epochs is None else epochs
    lengths = " or ".join(map(str, rows))
    other = 'another length is recipe={"times": 2}, which multiplies it'
    require(chosen in rows, f"the paper trains {model} on {data} for {lengths} epochs, not for {chosen}; {other}")
    return f"{rows[chosen]}{SGD_MARK}" if sgd else rows[chosen]


def _changed(recipe: Recipe, changes: dict[str, Any], rate: float) -> Recipe:
    """The recipe with another peak rate (the paper's, times `rate`), weight decay or length."""
    peak, decay, times = (changes.pop(name, None) for name in ("peak", "weight_decay", "times"))
    allowed = "it can change peak, weight_decay and times, which multiplies its length"
    require(not changes, f"a study cannot change {', '.join(changes)} of a recipe; {allowed}")
    schedule, optimizer = recipe.schedule, recipe.optimizer
    if peak is not None:
        schedule = replace(schedule, peak=three_digits(peak * rate), end=min(schedule.end, peak * rate))
    if times is not None:
        schedule = replace(schedule, total=round(schedule.total * times))
    if decay is not None:
        optimizer = replace(optimizer, weight_decay=decay)
    return replace(recipe, schedule=schedule, optimizer=optimizer)


def _short(recipe: Recipe, small: Shrinking, task: Task, image: int) -> Recipe:
    """A recipe of training on a task at a small scale."""
    # Differs from the paper: studies at small scales fine-tune with Adam and at one learning rate, so that fresh and
    # trained weights take the same steps.
    adam = pretraining_recipe("ViT-B/16@imagenet")
    return replace(
        adam,
        name=recipe.name,
        source=f"{recipe.source}, made small",
        batch=small.tuning_batch,
        image=(image, image),
        schedule=replace(adam.schedule, peak=small.tuning_rate, total=small.steps, warmup=small.steps // 10, end=0.0),
        optimizer=replace(adam.optimizer, weight_decay=0.1),
        loss="softmax",
        label_smoothing=0.0,
        dropout=0.0,
        augmentation=Augmentation(crop="none", flip=task.flips),
    )


def _fitting(recipe: Recipe, stride: int) -> Recipe:
    """The recipe at a resolution that patches divide: 378 for 384 and patches of 14."""
    side = max(recipe.image[0] // stride, 1) * stride
    return replace(recipe, image=(side, side))


def _rated(model: ModelSpec, recipe: Recipe) -> ModelSpec:
    """The model with the recipe's dropout; ResNets have none."""
    return replace(model, dropout=recipe.dropout) if isinstance(model, ViTSpec) else model


def _with(model: ModelSpec, options: Mapping[str, Any]) -> ModelSpec:
    known = [one.name for one in fields(model)]
    for name in options:
        require(name in known, f"a model of kind {model.kind!r} has no {name}; it has {', '.join(known)}")
    return replace(model, **options)


def _known(named: Mapping[Any, Value], name: str, what: str) -> Value:
    """The value of a name; a ValueError for unknown ones."""
    require(name in named, f"no {what} is named {name!r:.60} at this scale; known are {', '.join(named)}")
    return named[name]


def _sub(data: str, images: int) -> str:
    """A part of a set; a `?` after the first is read as `&`, since a place may have options of its own."""
    return f"{data}{'&' if '?' in data else '?'}subset={images}"


def three_digits(number: float) -> float:
    """The number rounded to three significant digits."""
    return float(f"{number:.3g}")
