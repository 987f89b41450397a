"""Checks of what a user gives: one condition, or all arguments of a public function against its annotations."""

import os
import types
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal, SupportsIndex, Union, get_args, get_origin, get_type_hints

from vitlab.errors import InvalidValue, either

PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Path: "a path"}


def require(holds: bool, message: str) -> None:
    """Raise a ValueError with `message` unless `holds` is true."""
    if not holds:
        raise ValueError(message)


def check_arguments(function: Callable[..., object], given: Mapping[str, object]) -> None:
    """Raise an InvalidValue that names the first argument whose type the annotations of `function` do not allow.

    Checked are the annotations made of numbers, strings, paths, True and False, literals, classes and None; whole
    numbers pass as numbers. Call it first in a function, with `locals()`.
    """
    for name, kinds in _checked(function).items():
        if not any(_fits(given[name], kind) for kind in kinds):
            words = list(dict.fromkeys(word for kind in kinds for word in _words(kind)))
            raise InvalidValue(f"is {given[name]!r:.60}; expected {either(words)}", field=name)


@cache
def _checked(function: Callable[..., object]) -> dict[str, tuple[Any, ...]]:
    """The types that each argument may have, of the arguments that can be checked."""
    found = {}
    for name, hint in get_type_hints(function).items():
        kinds = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
        if name != "return" and all(isinstance(kind, type) or get_origin(kind) is Literal for kind in kinds):
            found[name] = kinds
    return found


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float):
        number = SupportsIndex if kind is int else Real  # NumPy's numbers are both
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, os.PathLike if kind is Path else kind)


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    return [PLAIN.get(kind, "None" if kind is types.NoneType else f"{article} {kind.__name__}")]
