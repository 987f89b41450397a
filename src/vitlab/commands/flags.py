"""Flags that are fields of what a command runs, and flags that nobody knows."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from vitlab.commands.recipe_fields import MEANINGS
from vitlab.commands.terminal import flag
from vitlab.recipe import Execution, Recipe

RECIPE_FIELDS = frozenset(field.name for field in dataclasses.fields(Recipe)) - {"name", "source", "image"} | {"model"}
SWITCHES = frozenset(field.name for field in dataclasses.fields(Execution) if field.type is bool)
OF_A_RECIPE = ("pretrain", "finetune", "sweep", "transfer")  # commands whose recipe's fields are flags
# What other trainers call it.
ALSO_CALLED = {
    "--lr": "--schedule.peak",
    "--learning-rate": "--schedule.peak",
    "--steps": "--schedule.total",
    "--epochs": "--schedule.total",
}


def with_field_flags(arguments: list[str]) -> list[str]:
    """Flags that are fields of what a command runs, such as `--schedule.peak 3e-4`, as `--set` of the command."""
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
        if word.startswith("--no-") and field.removeprefix("no_") in SWITCHES:
            rewritten += [f"--{word.removeprefix('--no-')}", "false"]
        else:
            is_switch = word.startswith("--") and field in SWITCHES
            rewritten += [word, "true"] if is_switch and after not in ("true", "false") else [word]
    return rewritten


def check_values(words: list[str]) -> None:
    """Raise for a flag with an empty value, such as that of a variable that is not set: nothing is guessed."""
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("--") and (after == "" if not equals else value == ""):
            raise ValueError(f"{name} '' is empty; give it a value, or leave {name} out")


def check_flags(name: str, command: Callable[..., object], words: list[str]) -> None:
    """Raise for a flag that a command with a recipe does not have, with those that may have been meant.

    The fields of the recipe are flags, which the parser of the command's own does not know.
    """
    if name not in OF_A_RECIPE:
        return
    own = _flags_of(command)
    known = list(dict.fromkeys([*own, *map(flag, MEANINGS)]))
    for word in words:
        given = word.partition("=")[0].replace("_", "-")
        if not given.startswith("--") or given in (*own, "--", "--help"):
            continue
        near = [other for other in known if other.rpartition(".")[2] == given.removeprefix("--")]
        if not near and given in ALSO_CALLED:
            near = [ALSO_CALLED[given]]
        near = near or difflib.get_close_matches(given, known, n=2, cutoff=0.7)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"vitlab {name} has no flag {given}; {hint}vitlab {name} --help lists the flags, vitlab recipes NAME those "
            "of a recipe"
        )


def _flags_of(command: Callable[..., object]) -> list[str]:
    """The flags of a command's own parameters, as its parser spells them."""
    found = []
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else [hint]
        if name == "return" or tyro.conf.Positional in notes:
            continue
        if dataclasses.is_dataclass(kind):
            found += [(field.name, field.type is bool) for field in dataclasses.fields(kind)]
        else:
            found.append((next((note.name for note in notes if getattr(note, "name", None)), name), kind is bool))
    flags = [flag(name) for name, _ in found]
    return flags + [flag(f"no_{name}") for name, is_switch in found if is_switch]


def _meanings(kind: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each field."""
    return dict(re.findall(r"^ +(\w+): (.+)$", kind.__doc__ or "", re.MULTILINE))


def _metavar(hint: object) -> str:
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(typing.get_args(hint)) + "}"
    return "true|false" if hint is bool else getattr(hint, "__name__", "value").upper()


def _as_text(kind: type) -> Any:
    """A dataclass with the fields of another as text, empty where nothing is said: what `resume` may change."""
    hints, meanings = typing.get_type_hints(kind), _meanings(kind)
    fields = []
    for field in dataclasses.fields(kind):
        about = tyro.conf.arg(metavar=_metavar(hints[field.name]), help=meanings[field.name], help_behavior_hint="")
        fields.append((field.name, Annotated[str, about], dataclasses.field(default="")))
    return dataclasses.make_dataclass(f"Changed{kind.__name__}", fields, frozen=True)


CHANGED_EXECUTION = _as_text(Execution)
UNCHANGED = CHANGED_EXECUTION()
ChangedExecution = Annotated[Any, tyro.conf.arg(name="", constructor=CHANGED_EXECUTION)]


def changed_fields(execution: Any) -> tuple[tuple[str, str], ...]:
    """(field, value) of every flag of the execution that was given."""
    return tuple((name, text) for name, text in dataclasses.asdict(execution).items() if text)
