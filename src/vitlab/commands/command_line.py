"""The words of a command line as arguments of a command, and the command's help."""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from vitlab.commands.recipe_fields import MEANINGS
from vitlab.errors import InvalidValue, did_you_mean, either, flag
from vitlab.files.strict_json import EXPECTED
from vitlab.spec.changes import DESCRIPTIVE_FIELDS, SYNONYMS
from vitlab.spec.recipe import Recipe

RECIPE_FIELDS = {"model", *(field.name for field in dataclasses.fields(Recipe))} - {*DESCRIPTIVE_FIELDS, "image"}
ARGUMENT = re.compile(r"^ +(\w+): (.+)$", re.MULTILINE)  # and its meaning, in a docstring
UNCHANGED = "unchanged"  # default of a field whose value only changes if it is given
Command = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Flag:
    """How a parameter of a command is typed. Its help is here if several commands share it, else in the docstring."""

    metavar: str = ""
    help: str = ""
    name: str = ""  # if other than that of the parameter
    is_positional: bool = False
    is_repeated: bool = False  # one value each time
    has_recipe: bool = False  # fields of a recipe are flags too, such as --schedule.peak


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A flag or a positional argument of a command; `group` is the argument that it is a field of."""

    name: str
    kind: Any
    how: Flag
    default: object  # `inspect.Parameter.empty` if it must be given
    group: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return typing.get_args(self.kind)[-1:] == (Ellipsis,)

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty and not (self.how.is_positional and self.is_list)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of a value; None stands for a flag that is not given and is left out."""
        is_union = typing.get_origin(self.kind) in (types.UnionType, typing.Union)
        kinds = typing.get_args(self.kind) if is_union else (self.kind,)
        return tuple(kind for kind in kinds if kind is not types.NoneType)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The types of a tuple's values; empty if it takes one value."""
        return typing.get_args(self.kinds[0]) if typing.get_origin(self.kinds[0]) is tuple else ()

    @property
    def spelled(self) -> str:
        """Its name on the command line, without dashes."""
        return self.how.name or self.name

    @property
    def shown(self) -> str:
        """How it is typed: `MODEL`, or `--data SPEC`."""
        return self.how.metavar if self.how.is_positional else f"{flag(self.spelled)} {self.how.metavar or 'VALUE'}"

    def read(self, texts: list[str]) -> Any:
        """Return the value of some words; an InvalidValue if they are too few or of another type."""
        if len(texts) < (1 if self.is_list else len(self.parts) or 1):
            raise InvalidValue(f"needs a value: {self.shown}", field=self.spelled)
        values = tuple(self._read(text) for text in texts)
        return values if self.parts else values[0]

    def _read(self, text: str) -> Any:
        kinds = self.parts[:1] or self.kinds
        for kind in kinds:
            if text in typing.get_args(kind):
                return text
            if typing.get_origin(kind) is not Literal:
                try:
                    return kind(text)
                except ValueError:
                    continue
        expected = [word for kind in kinds for word in typing.get_args(kind) or (EXPECTED.get(kind, "text"),)]
        raise InvalidValue(f"is {text!r:.60}; expected {either(expected)}", field=self.spelled)


Given = dict[Parameter, Any]  # values by parameter


def parameters_of(command: Command) -> list[Parameter]:
    """The flags and positional arguments of a command, the fields of its option dataclasses among them."""
    found: list[Parameter] = []
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, how, options = _annotated(hints[name])
        if options is None:
            found.append(Parameter(name, kind, how, parameter.default))
            continue
        inner, meanings = typing.get_type_hints(options, include_extras=True), dict(ARGUMENT.findall(options.__doc__))
        for field, hint in inner.items():
            kind, how, _ = _annotated(hint)
            how = dataclasses.replace(how, help=how.help or meanings[field])
            found.append(Parameter(field, kind, how, getattr(parameter.default, field, UNCHANGED), name))
    return found


def arguments_of(command: Command) -> frozenset[str]:
    """The arguments that are flags of a command, fields of the recipe among them."""
    found = [one for one in parameters_of(command) if not one.how.is_positional]
    fields = RECIPE_FIELDS if any(one.how.has_recipe for one in found) else set()
    return frozenset(fields | {one.name for one in found})


def _annotated(hint: Any) -> tuple[Any, Flag, Any]:
    """The type, the flag, and the dataclass whose fields are flags, if there is one."""
    kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    how = next((note for note in notes if isinstance(note, Flag)), Flag())
    return kind, how, next((one for one in (kind, *notes) if one is not how and dataclasses.is_dataclass(one)), None)


# -- From words to arguments -------------------------------------------------------------------------


def read_words(program: str, command: Command, words: list[str]) -> dict[str, Any]:
    """The arguments of a command, from the words after its name.

    Raises for unknown flags, values that are missing, empty or of the wrong type, and for words too many or too few.
    `program` is how the command is called, such as `vitlab finetune`.
    """
    parameters = parameters_of(command)
    flags = {flag(one.spelled): one for one in parameters if not one.how.is_positional}
    negations = {flag(f"no_{one.spelled}"): one for one in parameters if one.kind is bool}
    recipe = next((one for one in parameters if one.how.has_recipe), None)
    plain: list[str] = []
    given: Given = {}
    end = words.index("--") if "--" in words else len(words)  # the rest is positional
    waiting = words[:end]
    while waiting:
        word = waiting.pop(0)
        if not _is_flag(word):
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
        spelled, field = name.replace("_", "-"), name.removeprefix("--").replace("-", "_")
        is_field = field.partition(".")[0] in RECIPE_FIELDS
        one = recipe if recipe and is_field else flags.get(spelled) or negations.get(spelled)
        if one is None:
            raise _unknown(program, spelled, [*flags, *negations], has_recipe=recipe is not None)
        texts = [value] if equals else _taken(one, waiting)
        if "" in texts:
            raise ValueError(f"{name} '' is empty; give it a value, or leave {name} out")
        if one.kind is bool:
            if not {"true", "false"}.issuperset(texts):
                raise InvalidValue(f"is {texts[0]!r:.60}; expected true, false or no value", field=name[2:])
            is_true = texts != ["false"]
            given[one] = not is_true if spelled in negations else is_true
        elif one is recipe and is_field:
            if not texts:
                raise InvalidValue("needs a value", field=field)
            given[one] = (*given.get(one, ()), f"{field}={texts[0]}")
        else:
            given[one] = (*given.get(one, ()), *one.read(texts)) if one.how.is_repeated else one.read(texts)
    given |= _placed(program, parameters, plain + words[end + 1 :], given)
    return _grouped(given, inspect.signature(command).parameters)


def _placed(program: str, parameters: list[Parameter], plain: list[str], given: Given) -> Given:
    """The positional arguments; raises for words too many, and for all that must be given and is not."""
    places = [one for one in parameters if one.how.is_positional]
    missing = [one.shown for one in places[len(plain) :] if one.is_required]
    missing += [one.shown for one in parameters if one.is_required and one not in (*places, *given)]
    if missing:
        raise ValueError(f"{program} needs {' and '.join(missing)}; see {program} --help")
    if len(plain) > len(places) and not any(one.is_list for one in places):
        takes = ", ".join(one.shown for one in places) or "flags only"
        raise ValueError(f"{program} does not take {plain[len(places)]!r:.60}; it takes {takes}")
    own = [plain[number:] if one.is_list else plain[number : number + 1] for number, one in enumerate(places)]
    found = {one: one.read(texts) for one, texts in zip(places, own, strict=True) if texts}
    return {one: () for one in places if one.default is inspect.Parameter.empty} | found


def _grouped(given: Given, arguments: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Values by argument; fields become an option dataclass, or a dictionary if the argument has no such default."""
    found = {one.name: value for one, value in given.items() if not one.group}
    for group in {one.group for one in given if one.group}:
        fields = {one.name: value for one, value in given.items() if one.group == group}
        default: Any = arguments[group].default
        found[group] = dataclasses.replace(default, **fields) if dataclasses.is_dataclass(default) else fields
    return found


def _is_flag(word: str) -> bool:
    return re.match(r"--?[a-zA-Z]", word) is not None


def _taken(one: Parameter, waiting: list[str]) -> list[str]:
    """Take the values of a flag from the words that follow it; those of a switch may be true or false."""
    if one.kind is bool:
        most = int(waiting[:1] in (["true"], ["false"]))
    elif one.is_list:
        most = 1 if one.how.is_repeated else len(waiting)
    else:
        most = len(one.parts) or 1
    taken: list[str] = []
    while len(taken) < most and waiting and not _is_flag(waiting[0]):
        taken.append(waiting.pop(0))
    return taken


def _unknown(program: str, given: str, own: list[str], *, has_recipe: bool) -> ValueError:
    """An unknown flag, with those that may have been meant."""
    known = list(dict.fromkeys([*own, *map(flag, MEANINGS if has_recipe else ())]))
    near = [other for other in known if other.rpartition(".")[2] == given.removeprefix("--")]
    meant = flag(SYNONYMS.get(given.removeprefix("--").replace("-", "_"), ""))
    near = near or [meant] * (meant in known) or difflib.get_close_matches(given, known, n=2, cutoff=0.7)
    more = ", vitlab recipes NAME those of a recipe" if has_recipe else ""
    return ValueError(f"{program} has no flag {given}; {did_you_mean(near)}{program} --help lists the flags{more}")


# -- Help ----------------------------------------------------------------------------------------------


def as_shown(command: Command) -> Command:
    """A function with the flags and the documentation of a command, from which tyro prints its help.

    A switch that is off by default is one flag, `--yes` without `--no-yes`.
    """
    import tyro  # here, because only help needs it, and it takes as long as all other imports of a command together

    def shown(**_: Any) -> None:
        """Do nothing."""

    explained = {name for name, _ in ARGUMENT.findall(command.__doc__ or "")}
    parameters: list[inspect.Parameter] = []
    for one in parameters_of(command):
        kind, default, metavar, marks = one.kind, one.default, one.how.metavar, []
        hint = None if one.is_required or one.how.is_repeated else _shown_default
        if default is UNCHANGED:
            choices = "{" + ",".join(typing.get_args(kind)) + "}" if typing.get_args(kind) else ""
            kind, default, metavar = str, "", "true|false" if kind is bool else choices or kind.__name__.upper()
        elif default is False:
            marks, hint = [tyro.conf.FlagCreatePairsOff], ""
        marks += [tyro.conf.Positional] * one.how.is_positional + [tyro.conf.UseAppendAction] * one.how.is_repeated
        about = None if one.name in explained else one.how.help
        note = tyro.conf.arg(name=one.how.name or None, metavar=metavar or None, help=about, help_behavior_hint=hint)
        hinted = Annotated.__class_getitem__((kind, *marks, note))  # pyrefly: ignore - marks are values
        parameters += [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hinted)]
    shown.__name__, shown.__doc__ = command.__name__, command.__doc__
    shown.__annotations__ = {one.name: one.annotation for one in parameters}
    shown.__signature__ = inspect.Signature(parameters)  # pyrefly: ignore - functions may have one
    return shown


def _shown_default(formatted: str) -> str:
    """The note that help adds for a default; none for an empty one."""
    return "" if formatted in ("", "''", "None") else f"(default: {formatted})"
