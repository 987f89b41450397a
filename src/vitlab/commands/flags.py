"""The flags of a command: which words it takes, how help shows them, and which of them are fields of a recipe."""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from vitlab.commands.recipe_fields import MEANINGS
from vitlab.commands.terminal import console, flag, numbers, shown_default, size_of
from vitlab.errors import InvalidValue
from vitlab.recipe import Execution, Recipe
from vitlab.strict_json import EXPECTED

RECIPE_FIELDS = frozenset(field.name for field in dataclasses.fields(Recipe)) - {"name", "source", "image"} | {"model"}
EXECUTION_SWITCHES = frozenset(field.name for field in dataclasses.fields(Execution) if field.type is bool)
OF_A_RECIPE = ("pretrain", "finetune", "sweep", "transfer")  # commands that take the fields of a recipe as flags
ALSO_CALLED = {  # what other trainers call a flag
    "--lr": "--schedule.peak",
    "--learning-rate": "--schedule.peak",
    "--steps": "--schedule.total",
    "--epochs": "--schedule.total",
}
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]  # off by default
Command = Callable[..., Any]


# -- Fields of a recipe or an execution as flags -----------------------------------------------------


def with_field_flags(arguments: list[str]) -> list[str]:
    """Rewrite flags that are fields of a recipe, such as `--schedule.peak 3e-4`, as the command's `--set`."""
    if arguments[:1] == ["resume"]:
        return _with_values(arguments)
    fields = RECIPE_FIELDS if arguments and arguments[0] in OF_A_RECIPE else frozenset()
    rewritten: list[str] = []
    waiting = iter(arguments)
    for word in waiting:
        name, equals, value = word.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or field.partition(".")[0] not in fields:
            rewritten.append(word)
            continue
        if not equals:
            value = next(waiting, None)
            if value is None:
                raise ValueError(f"{word} needs a value")
        rewritten += ["--set", f"{field}={value}"]
    return rewritten


def _with_values(arguments: list[str]) -> list[str]:
    """`--recompute` as `--recompute true` and `--no-recompute` as `--recompute false`: resume may change either way."""
    rewritten: list[str] = []
    for word, after in zip(arguments, [*arguments[1:], "--"], strict=True):
        field = word.removeprefix("--").replace("-", "_")
        if word.startswith("--no-") and field.removeprefix("no_") in EXECUTION_SWITCHES:
            rewritten += [f"--{word.removeprefix('--no-')}", "false"]
        else:
            is_switch = word.startswith("--") and field in EXECUTION_SWITCHES
            rewritten += [word, "true"] if is_switch and after not in ("true", "false") else [word]
    return rewritten


def _as_text(kind: type) -> Any:
    """A dataclass with the fields of another as text, empty if not given: what `resume` may change."""
    hints = typing.get_type_hints(kind)
    meanings = dict(re.findall(r"^ +(\w+): (.+)$", kind.__doc__ or "", re.MULTILINE))
    fields = []
    for field in dataclasses.fields(kind):
        about = tyro.conf.arg(metavar=_metavar(hints[field.name]), help=meanings[field.name], help_behavior_hint="")
        fields.append((field.name, Annotated[str, about], dataclasses.field(default="")))
    return dataclasses.make_dataclass(f"Changed{kind.__name__}", fields, frozen=True)


def _metavar(hint: object) -> str:
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    return "true|false" if hint is bool else getattr(hint, "__name__", "value").upper()


CHANGED_EXECUTION = _as_text(Execution)
UNCHANGED = CHANGED_EXECUTION()
Changes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE", name="set")]
ChangedExecution = Annotated[Any, tyro.conf.arg(name="", constructor=CHANGED_EXECUTION)]


def changed_fields(execution: Any) -> tuple[tuple[str, str], ...]:
    """(field, value) of every flag of the execution that was given."""
    return tuple((name, text) for name, text in dataclasses.asdict(execution).items() if text)


def pairs(changes: tuple[str, ...]) -> dict[str, str]:
    """The value of every --set, by field."""
    found = {}
    for change in changes:
        field, _, value = change.partition("=")
        if not field or not value:
            raise ValueError(f"--set is {change!r}; expected FIELD=VALUE, such as schedule.peak=3e-4")
        found[field] = value
    return found


# -- What a command takes ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A flag or a positional argument of a command; `notes` are what its annotation says to the parser."""

    name: str
    kind: Any
    notes: tuple[Any, ...]
    default: object  # `inspect.Parameter.empty` for one that is required

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty and not (self.is_positional and self.is_list)

    @property
    def is_positional(self) -> bool:
        """Whether it is given without a flag."""
        return tyro.conf.Positional in self.notes

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return typing.get_args(self.kind)[-1:] == (Ellipsis,)

    @property
    def count(self) -> int:
        """How many values follow the flag: 0 for a switch; at least as many for a list."""
        pair = next((one for one in _choices(self.kind) if typing.get_origin(one) is tuple), None)
        return 0 if self.kind is bool else len(typing.get_args(pair)) if pair and not self.is_list else 1

    @property
    def shown(self) -> str:
        """How it is typed: `MODEL`, or `--data SPEC`."""
        metavar = next((note.metavar for note in self.notes if getattr(note, "metavar", None)), "VALUE")
        return metavar if self.is_positional else f"{flag(self.name)} {metavar}"

    def check(self, text: str) -> None:
        """Raise unless the text can be read as the parameter's type."""
        kinds = _choices(typing.get_args(self.kind)[0] if self.is_list else self.kind)
        kinds = [typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind for kind in kinds]
        if not any(_fits(kind, text) for kind in kinds):
            raise InvalidValue(f"is {text!r:.60}; expected {' or '.join(map(_expected, kinds))}", field=self.name)


def parameters_of(command: Command) -> list[Parameter]:
    """The flags and positional arguments of a command, those of its option dataclasses among them."""
    found: list[Parameter] = []
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *notes = _annotated(hints[name])
        options = parameter.default
        if dataclasses.is_dataclass(options):
            inner = typing.get_type_hints(type(options), include_extras=True)
            for field in dataclasses.fields(options):
                kind, *notes = _annotated(inner[field.name])
                found.append(Parameter(field.name, kind, tuple(notes), getattr(options, field.name)))
        else:
            spelled = next((note.name for note in notes if getattr(note, "name", None)), name)
            found.append(Parameter(spelled, kind, tuple(notes), options))
    return found


def check_words(program: str, command: Command, words: list[str], *, has_recipe: bool) -> None:
    """Raise for words that a command cannot take: unknown flags, values of the wrong type, too many words or too few.

    `program` is how the command is called, such as `vitlab finetune`; one that `has_recipe` takes its fields as flags.
    """
    parameters = parameters_of(command)
    flags = {flag(one.name): one for one in parameters if not one.is_positional}
    switches = {flag(f"no_{one.name}"): one for one in parameters if one.kind is bool}
    plain: list[str] = []
    given: set[str] = set()
    waiting = list(words)
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        if not _is_flag(name):
            plain.append(name + equals + value)
            continue
        spelled = name.replace("_", "-")
        one = flags.get(spelled) or switches.get(spelled)
        if one is None:
            raise _unknown(program, spelled, [*flags, *switches], has_recipe)
        given.add(one.name)
        values = [value] if equals else _taken(one, waiting)
        if len(values) < one.count or (equals and one.count != 1):
            wanted = f"needs a value: {one.shown}" if one.count else "is a switch and takes no value"
            raise InvalidValue(wanted, field=one.name)
        for text in values:
            one.check(text)
    places = [one for one in parameters if one.is_positional]
    missing = [one.shown for one in places[len(plain) :] if one.is_required]
    missing += [one.shown for one in flags.values() if one.is_required and one.name not in given]
    if missing:
        raise ValueError(f"{program} needs {' and '.join(missing)}; see {program} --help")
    if len(plain) > len(places) and not any(one.is_list for one in places):
        takes = ", ".join(one.shown for one in places) or "flags only"
        raise ValueError(f"{program} does not take {plain[len(places)]!r:.60}; it takes {takes}")
    for one, text in zip(places, plain, strict=False):
        one.check(text)


def _is_flag(word: str) -> bool:
    return re.match(r"--?[a-zA-Z]", word) is not None


def _taken(one: Parameter, waiting: list[str]) -> list[str]:
    """Take the values of a flag from the words that follow it."""
    taken: list[str] = []
    is_open = one.is_list and tyro.conf.UseAppendAction not in one.notes
    while waiting and not _is_flag(waiting[0]) and (is_open or len(taken) < one.count):
        taken.append(waiting.pop(0))
    return taken


def _unknown(program: str, given: str, own: list[str], has_recipe: bool) -> ValueError:
    """An unknown flag, with those that may have been meant."""
    known = list(dict.fromkeys([*own, *map(flag, MEANINGS if has_recipe else ())]))
    near = [other for other in known if other.rpartition(".")[2] == given.removeprefix("--")]
    if not near and ALSO_CALLED.get(given) in known:
        near = [ALSO_CALLED[given]]
    near = near or difflib.get_close_matches(given, known, n=2, cutoff=0.7)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    more = ", vitlab recipes NAME those of a recipe" if has_recipe else ""
    return ValueError(f"{program} has no flag {given}; {hint}{program} --help lists the flags{more}")


def check_values(words: list[str]) -> None:
    """Raise for a flag with an empty value, such as that of a shell variable that is not set."""
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("--") and (after == "" if not equals else value == ""):
            raise ValueError(f"{name} '' is empty; give it a value, or leave {name} out")


def _annotated(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)


def _choices(kind: Any) -> list[Any]:
    """The types of a union without None, or the one type."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return [one for one in typing.get_args(kind) if one is not type(None)] if is_union else [kind]


def _fits(kind: Any, text: str) -> bool:
    if typing.get_origin(kind) is Literal:
        return text in typing.get_args(kind)
    if kind in (int, float):
        try:
            kind(text)
        except ValueError:
            return False
    return True


def _expected(kind: Any) -> str:
    return " or ".join(typing.get_args(kind)) if typing.get_origin(kind) is Literal else EXPECTED.get(kind, "text")


# -- How help shows them -------------------------------------------------------------------------------


def call(
    command: Command, before: Callable[[], None] | None, *, program: str, words: list[str], is_printing: bool
) -> Any:
    """Read a command's flags from words, call `before`, and call the command; returns what it returns."""
    return tyro.cli(as_shown(command, before), prog=program, args=words, console_outputs=is_printing)


def as_shown(command: Command, before: Callable[[], None] | None = None) -> Command:
    """The command with every switch that is off by default as one flag, `--yes` without `--no-yes`.

    `before` is called before the command, once its flags are read.
    """

    def run(**given: Any) -> Any:
        if before is not None:
            before()
        return command(**given)

    hints = typing.get_type_hints(command, include_extras=True)
    defaults = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
    for name, default in defaults.items():
        kind = _annotated(hints[name])[0]
        if dataclasses.is_dataclass(kind):
            hints[name] = Annotated[kind, tyro.conf.arg(name="", constructor=_maker(type(default), default))]
    return _with_parameters(run, command, hints, defaults)


def _maker(kind: type, default: object) -> Command:
    """How an option dataclass is made from flags; fields that are not given are those of `default`."""

    def make(**fields: Any) -> object:
        return kind(**fields)

    about = tyro.conf.arg(help_behavior_hint=shown_default)
    hints = typing.get_type_hints(kind, include_extras=True)
    defaults = {name: getattr(default, name) for name in hints}
    for name, hint in hints.items():
        if typing.get_origin(hint) is not Annotated and defaults[name] is not False:
            hints[name] = Annotated[hint, about]
    return _with_parameters(make, kind, hints, defaults)


def _with_parameters(function: Any, like: Any, hints: dict[str, Any], defaults: dict[str, Any]) -> Command:
    """The function with the name and documentation of another, and parameters for the parser."""
    function.__name__, function.__doc__ = like.__name__, like.__doc__
    parameters = []
    for name, default in defaults.items():
        hint = Switch if hints[name] is bool and default is False else hints[name]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__signature__ = inspect.Signature(parameters)
    return function


def without_negations(command: Command, words: list[str]) -> list[str]:
    """Drop `--no-x` of switches that are off by default, and the `--x` before it: they stay off."""
    off = {flag(f"no_{one.name}"): flag(one.name) for one in parameters_of(command) if one.default is False}
    kept: list[str] = []
    for word in words:
        spelled = word.replace("_", "-")
        kept = [one for one in kept if one != off[spelled]] if spelled in off else [*kept, word]
    return kept


def arguments(given: dict[str, Any], *, is_error: bool = False) -> dict[str, Any]:
    """The flags of a command as arguments of the function it calls, which prints to standard output or error.

    Sizes, rates and --set become values, and a group of flags called `loading` its fields.
    """
    given = given | vars(given["loading"]) if "loading" in given else given
    read = {"image": size_of, "rates": numbers, "changes": pairs}
    values = {name: read[name](value) if name in read else value for name, value in given.items() if name != "loading"}
    return values | {"console": console(is_error=is_error)}
