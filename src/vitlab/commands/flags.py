"""Flags that several commands take, each with its help, and flags as arguments of the functions that commands call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from rich.console import Console

from vitlab.commands.command_line import Flag
from vitlab.errors import InvalidValue
from vitlab.spec import ConventionName, EngineName, parse_size
from vitlab.spec.recipe import Execution

Text = Annotated[str, Flag("STR")]
Whole = Annotated[int | None, Flag("INT")]
Number = Annotated[float | None, Flag("FLOAT")]
MaybePath = Annotated[Path | None, Flag("PATH")]
Spec = Annotated[str, Flag("SPEC")]
Specs = Annotated[tuple[str, ...], Flag("SPEC ...")]
_SIZE = "SIDE|HEIGHTxWIDTH"
Size = Annotated[str, Flag(_SIZE)]
Sizes = Annotated[tuple[str, ...], Flag(f"{_SIZE} ...")]

# -- Models and weights
_WEIGHTS = "Weights in any supported format: a run, a file, a folder, or a name that `vitlab download` lists."
Model = Annotated[Path, Flag("MODEL", _WEIGHTS, is_positional=True)]
Models = Annotated[tuple[Path, ...], Flag("MODEL ...", _WEIGHTS, is_positional=True)]
_CONVENTIONS = "Whose GELU, epsilon and preprocessing to use (default: the file's own)."
Conventions = Annotated[ConventionName | None, Flag("{" + ",".join(get_args(ConventionName)) + "}", _CONVENTIONS)]
Heads = Annotated[int | None, Flag("INT", "Number of attention heads, for files that do not state it.")]
_PARTIAL = "Load the tensors that fit, even if others are missing, unexpected or mis-shaped."
AllowPartial = Annotated[bool, Flag(help=_PARTIAL)]
_MERGE = "Tokens to merge in every layer, at most half: faster, less accurate (default: the model's own, usually 0)."
Merge = Annotated[int | None, Flag("INT", _MERGE)]
_ATTENTION = "Which patches attend to which, such as window:7 or bigbird (default: the model's own, usually full)."
Attention = Annotated[str | None, Flag("PATTERN", _ATTENTION)]
AllowNonfinite = Annotated[bool, Flag(help="Load weights that contain NaN or infinity.")]

# -- Training
_DATA = "Training images, such as folder:photos with one folder per class; `vitlab data kinds` lists all kinds."
TrainingData = Annotated[str, Flag("SPEC", _DATA)]
TrainingSize = Annotated[str, Flag(_SIZE, "Resolution to train at (default: the recipe's).")]
Epochs = Annotated[int | None, Flag("INT", "Passes over the training images (default: the recipe's length).")]
_TEACHER = "A model of the same classes to distill from (--distillation.kind hard or soft)."
Teacher = Annotated[Path | None, Flag("PATH", _TEACHER)]
_SET = "Another way to set a field of the recipe: --set schedule.peak=3e-4."
RecipeChanges = Annotated[tuple[str, ...], Flag("FIELD=VALUE", _SET, "set", is_repeated=True, has_recipe=True)]
Changes = Annotated[tuple[str, ...], Flag("FIELD=VALUE", name="set", is_repeated=True)]
ChangedExecution = Annotated[Mapping[str, object], Execution]  # the fields that are given
Jobs = Annotated[int | None, Flag("INT", "Runs at a time, each in its own process (default: one, in this process).")]
_RAY = "Run on Ray: local, with --jobs workers here, or the address of a cluster that sees the same folders."
Ray = Annotated[str, Flag("local|ADDRESS", _RAY)]
Yes = Annotated[bool, Flag(help="Start even if it takes more than a day on this CPU.")]

# -- Measuring
_TASKS = "Tasks of VTAB-1k or groups of them, such as dsprites_location natural (default: all)."
Tasks = Annotated[tuple[str, ...], Flag("TASK ...", _TASKS)]
RunningSize = Annotated[str, Flag(_SIZE, "Resolution to run at (default: the model's).")]
MaxPixels = Annotated[int | None, Flag("INT", "Largest number of pixels of an image (default: a limit per format).")]
_DECODE = "Decode training JPEGs exactly, or fast: at a reduced size where they are larger than needed."
Decode = Annotated[Literal["exact", "fast"], Flag("{exact,fast}", _DECODE)]
MaxBad = Annotated[float, Flag("FLOAT", "Largest share of unreadable images; the result says how many there were.")]
Batch = Annotated[int, Flag("INT", "Images per batch.")]
Workers = Annotated[int, Flag("INT", "Processes that decode images.")]
Device = Annotated[str, Flag("STR", "cpu, cuda, cuda:1 or mps; auto is a GPU if there is one.")]
_ENGINE = "What computes: torch, plain (the module as it is), another runtime, or auto: the fastest installed one."
_ENGINES = "{" + ",".join(get_args(EngineName)) + "}"
Engine = Annotated[EngineName, Flag(_ENGINES, _ENGINE)]
InferenceEngine = Annotated[EngineName | None, Flag(_ENGINES, "What computes inference (default: torch).")]
Ledger = Annotated[Path | None, Flag("PATH", "Append the results to this ledger.")]
Json = Annotated[bool, Flag(help="Print JSON instead of tables.")]


GROUPS = {"loading", "bounds"}


def arguments(given: dict[str, Any], console: Console | None = None) -> dict[str, Any]:
    """The flags of a command as arguments of the function it calls, which prints to the console.

    Sizes, rates and --set become values, and the groups of flags in GROUPS their fields.
    """
    for group in GROUPS & set(given):
        given = given | vars(given[group])
    read = {
        "image": sizes_of if isinstance(given.get("image"), tuple) else size_of,
        "rates": numbers,
        "changes": pairs,
        "sizes": sizes_of,
    }
    values = {name: read[name](value) if name in read else value for name, value in given.items() if name not in GROUPS}
    return values if console is None else values | {"console": console}


def size_of(text: str) -> tuple[int, int] | None:
    """The value of --image, or None if it is not given."""
    return parse_size(text) if text else None


def sizes_of(texts: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """The values of an --image that takes several sizes."""
    return tuple(map(parse_size, texts))


def numbers(text: str) -> tuple[float, ...]:
    """The numbers of --rates, separated by commas."""
    try:
        return tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise InvalidValue(f"is {text!r}; expected numbers and commas, such as 0.001,0.003", field="rates") from None


def pairs(changes: tuple[str, ...]) -> dict[str, str]:
    """The value of every --set, by field."""
    found = {}
    for change in changes:
        field, _, value = change.partition("=")
        if not field or not value:
            raise InvalidValue(f"is {change!r}; expected FIELD=VALUE, such as schedule.peak=3e-4", field="set")
        found[field] = value
    return found
