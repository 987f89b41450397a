"""What a study is made of: trainings, measurements, the cells of a grid, and the study itself.

    Training      a model, a recipe and data; from fresh weights, or from those of another training
    Measurement   what is read off a trained model: Accuracy, ReaL, FewShot, Inside, or Speed, which needs no training
    Cell          one combination of levels, such as model=ViT-B/16, task=CIFAR-10: a training and its measurement
    Study         the cells at every scale, how they are shown, and what the paper claims about them

Trainings are values. Two cells with equal trainings share one run, within a study and between studies.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from vitlab.counting import count_spec, training_exaflops
from vitlab.files.strict_json import to_json
from vitlab.require import require
from vitlab.spec import ModelSpec
from vitlab.spec.recipe import Recipe
from vitlab.studies.claims import Claim, GridCell

if TYPE_CHECKING:
    from vitlab.studies.scale import Scale

PLACE = re.compile(r"\{([\w-]+)\}")  # in a data spec: where the user's files are
HASH = 8  # hexadecimal digits in the name of a training
TOP_1, FEW_SHOT, SPEED, LARGEST = "top-1 %", "few-shot %", "images/s", "largest batch"  # names of measured values
DISTANCE_GAIN = "distance gain"  # of attention, from the first layer to the last
COMPUTE = "exaFLOPs"  # the x axis of a figure that is no factor
BYTES = 4  # of a number in float32
STATES = {"adamw": 3, "sgd": 2}  # numbers in a checkpoint for each parameter


@dataclass(frozen=True)
class Training:
    """One training. `{name}` in a data spec stands for a place that the user gives, such as a folder of CIFAR-10.

    With `rivals`, the recipe and its rivals are first trained without the share `development` of the images, and the
    best on that share trains the run itself, as the paper chooses learning rates.
    """

    model: ModelSpec
    recipe: Recipe
    data: str
    test: str = ""
    held_out: float = 0.0
    start: "Training | None" = None
    rivals: tuple[Recipe, ...] = ()
    development: float = 0.0

    def __post_init__(self) -> None:
        require(not self.rivals or 0 < self.development < 1, "rivals are compared on a share of the images; set it")

    @property
    def name(self) -> str:
        """A name for its folder: readable, and different for every other training."""
        values = json.dumps(to_json(self), sort_keys=True, allow_nan=False)
        said = " ".join(one.recipe.name for one in self.chain)
        plain = re.sub(r"[^\w.]+", "-", said).strip("-.")[:60]
        return f"{plain}-{hashlib.sha256(values.encode()).hexdigest()[:HASH]}"

    @property
    def images(self) -> int:
        """Images seen in training, repeats included, without what it starts from and without rivals."""
        return self.recipe.batch * self.recipe.schedule.total

    @property
    def exaflops(self) -> float:
        """The cost of the training itself."""
        return training_exaflops(self.model, self.images)

    @property
    def picking_exaflops(self) -> float:
        """The cost of comparing it with its rivals."""
        tried = (self.recipe, *self.rivals) if self.rivals else ()
        return sum(training_exaflops(sized(self.model, one), one.batch * one.schedule.total) for one in tried)

    @property
    def disk(self) -> int:
        """Bytes of the finished run, about: the model and one checkpoint."""
        states = STATES[self.recipe.optimizer.kind] + (self.recipe.average is not None)
        return BYTES * count_spec(self.model).parameters * (1 + states)

    @property
    def chain(self) -> tuple["Training", ...]:
        """The training and what it starts from, the first one first."""
        return (*(self.start.chain if self.start else ()), self)

    @property
    def places(self) -> set[str]:
        """The places that its data needs."""
        return {name for one in self.chain for spec in (one.data, one.test) for name in PLACE.findall(spec)}


def sized(model: ModelSpec, recipe: Recipe) -> ModelSpec:
    """The model at the resolution of a recipe."""
    return replace(model, image=recipe.image)


# -- Measurements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """Top-1 accuracy in percent on the test images of the training."""

    kind: Literal["accuracy"] = "accuracy"
    value: str = TOP_1
    more: ClassVar = ()  # how the names of further values begin


@dataclass(frozen=True)
class Real:
    """Top-1 accuracy in percent by the ReaL labels of ImageNet's validation images."""

    data: str
    labels: str  # the place of real.json
    kind: Literal["real"] = "real"
    value: str = "ReaL %"
    more: ClassVar = ()


@dataclass(frozen=True)
class FewShot:
    """Accuracy in percent of ridge regression on frozen features of a few images per class, over several draws.

    Without `draws` the shots are the first images of each class.
    """

    train: str
    test: str
    shots: int
    draws: int = 0
    preprocessing: Literal["few-shot", "own"] = "own"
    kind: Literal["few-shot"] = "few-shot"
    value: str = FEW_SHOT
    more: ClassVar = ()


@dataclass(frozen=True)
class Inside:
    """What the trained model looks like inside, on some images: attention distance by layer, positions.

    The distances are in percent of the image's side; `positions` is the mean cosine of adjacent patches' positions
    minus that of patches in other rows and columns.
    """

    data: str
    images: int
    kind: Literal["inside"] = "inside"
    value: str = "positions"
    more: ClassVar = (DISTANCE_GAIN, "distance, layer ")


@dataclass(frozen=True)
class Speed:
    """Images per second of inference and the largest batch, measured in child processes; needs no training."""

    model: ModelSpec
    seconds: float
    memory: str = ""  # per process, such as "2GiB"; empty: what is free
    kind: Literal["speed"] = "speed"
    value: str = SPEED
    more: ClassVar = (LARGEST,)


Measurement = Accuracy | Real | FewShot | Inside | Speed


# -- Cells and studies -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One combination of levels: what to train, what to measure, and the number that the paper prints for it."""

    levels: Mapping[str, str]
    measurement: Measurement
    training: Training | None = None
    published: float | None = None

    def __post_init__(self) -> None:
        for factor, level in self.levels.items():
            are_texts = isinstance(factor, str) and isinstance(level, str)
            require(are_texts, f"a cell has the level {factor!r:.40}: {level!r:.40}; give both as text")
        is_whole = (self.training is None) == isinstance(self.measurement, Speed)
        require(is_whole, "every measurement but Speed needs a training, and Speed has none")
        has_test = not isinstance(self.measurement, Accuracy) or (self.training is not None and self.training.test)
        require(bool(has_test), "Accuracy needs a training with test images: a fine-tuned one, or one from scratch")

    @property
    def name(self) -> str:
        """The levels as the name of a file."""
        return cell_name(self.levels)

    @property
    def places(self) -> set[str]:
        """The places that its data needs."""
        how = self.measurement
        specs = [getattr(how, part, "") for part in ("data", "labels", "train", "test")]
        own = {name for spec in specs for name in PLACE.findall(spec)}
        return own | (self.training.places if self.training else set())


def cell_name(levels: Mapping[str, str]) -> str:
    """Levels as the name of a file or folder."""
    text = ",".join(f"{factor}={level}" for factor, level in levels.items())
    text = text.replace("ViT-b/", "ViT-halfbase/")  # ViT-B where case is not kept
    return re.sub(r"[^\w.=,+-]+", "-", text).strip(".")[:180]


@dataclass(frozen=True)
class Figure:
    """How a study is drawn: the factor along the x axis, and the factors whose levels are separate curves.

    With `x` "exaFLOPs" the axis is the compute of pre-training, logarithmic; `compute` gives what the paper prints for
    a cell's levels. Values of other factors are averaged. The height is what the study measures; with `y`, it is the
    numbered values of that name instead: with x="layer" and y="distance", `distance, layer 1` and so on, against the
    number. Lines join the points of levels that are numbers, or that have an `order`.
    """

    x: str | tuple[str, ...]
    curves: tuple[str, ...] = ()
    y: str = ""
    label: str = ""  # of the y axis, where the name of the value does not say enough
    order: tuple[str, ...] = ()  # levels from left to right
    compute: "Callable[[Mapping[str, str]], float] | None" = None

    @property
    def along(self) -> tuple[str, ...]:
        """The factors along the x axis."""
        return (self.x,) if isinstance(self.x, str) else self.x


# Differs from the paper: every seed of a study pre-trains a model of its own; the paper's deviations are those of three
# fine-tunings of the same weights.
@dataclass(frozen=True)
class Study:
    """A table or figure of the paper as a grid of runs.

    `cells` makes the grid at a scale, from the pieces that the scale offers (`scale.Scale`). Claims about levels that
    differ between scales are made by a function, too. The `name` is that of a folder.
    """

    name: str
    remakes: str  # what of the paper
    question: str
    cells: "Callable[..., Iterable[Cell]]"
    figure: Figure
    claims: "tuple[Claim, ...] | Callable[[Scale], tuple[Claim, ...]]" = ()
    says: str = ""  # the paper's finding in words, where it prints no numbers
    printed: str = ""  # of what the paper's numbers are, at scales that have other tasks
    aliases: tuple[str, ...] = field(default=())

    def claims_at(self, scale: "Scale") -> tuple[Claim, ...]:
        """The claims about the cells of a scale."""
        return tuple(self.claims(scale) if callable(self.claims) else self.claims)


def grid_of(cells: Iterable[Cell]) -> tuple[GridCell, ...]:
    """What claims, tables and the run browser need to know of cells."""
    return tuple(GridCell(dict(cell.levels), cell.measurement.value, cell.published) for cell in cells)


def check_figure(figure: Figure, cells: Sequence[Cell]) -> None:
    """Raise a ValueError if a figure names factors that the cells of a grid do not have."""
    factors = list(cells[0].levels)
    used = [*figure.curves, *(() if figure.y or figure.x == COMPUTE else figure.along)]
    strange = [name for name in used if name not in factors]
    said = f"the figure uses {', '.join(strange)}, but the cells have {', '.join(factors)}"
    require(not strange, f"{said}; give these, or x={COMPUTE!r}")


def check_claims(claims: Sequence[Claim], cells: Sequence[Cell]) -> list[str]:
    """Raise a ValueError for claims about factors and values that the cells of a grid do not have.

    Returns a line for every comparison that this grid cannot decide, which may be meant: scales have different cells.
    """
    grid, factors, lines = grid_of(cells), list(cells[0].levels), []
    measured = {cell.measurement for cell in cells}
    values = dict.fromkeys(name for one in measured for name in (one.value, *one.more))
    for claim in claims:
        require(isinstance(claim, Claim), f"a study has the claim {claim!r:.80}; give values of Claim")
        for compared in (*claim.comparisons, *claim.beside):
            known = any(compared.value.startswith(name) for name in values)
            of = f"the claim {claim.name!r:.80}"
            require(known, f"{of} compares {compared.value!r:.40}; these cells have {', '.join(values)}")
            used = dict.fromkeys(factor for term in compared.terms for factor, _ in term.levels)
            strange = [factor for factor in used if factor not in factors]
            require(not strange, f"{of} names {', '.join(strange)}; the factors of the cells are {', '.join(factors)}")
            why = compared.obstacle(grid)
            lines += [f"cannot be decided here: {claim.name}, because {why}"] if why else []
    return lines


def check_grid(name: str, cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells of a grid; raises for an empty one, for factors that differ between cells, and for repeated cells."""
    found = tuple(cells)
    require(bool(found), f"the study {name} has no cells at this scale; choose another scale=")
    factors = list(found[0].levels)
    for cell in found:
        same = list(cell.levels) == factors
        require(same, f"the cells of {name} must have the same factors: {list(cell.levels)} is not {factors}")
    before: dict[str, Cell] = {}
    for cell in found:
        place = cell.name.lower()  # some file systems ignore case
        if place in before:
            same, other = dict(cell.levels), dict(before[place].levels)
            how = "give every combination of levels once" if other == same else f"{other} and {same}: rename a level"
            raise ValueError(f"the study {name} has two cells {cell.name}; {how}")
        before[place] = cell
    return found
