"""JSON checked as strictly as code: bounded, typed, no unknown keys. Standard library only."""

import dataclasses
import functools
import json
import math
import types
import typing
from pathlib import Path
from typing import Literal, TypeVar

from vitlab.errors import InvalidValue
from vitlab.files.user_files import read_regular
from vitlab.require import require

T = TypeVar("T")
hints_of = functools.cache(typing.get_type_hints)  # of a dataclass; slow, and asked for each of its values
EXPECTED = {float: "a number", int: "a whole number", bool: "true or false", str: "a string"}
LARGEST_JSON = 16 * 2**20  # bytes; a 21,843-class label map is under 1 MiB


def read_json(path: Path) -> object:
    """Read an untrusted JSON file: bounded in size and depth, no NaN, no duplicate keys."""
    return parse_json(read_regular(path, LARGEST_JSON), path.name)


def parse_json(text: bytes, name: str) -> object:
    """Parse untrusted JSON as `read_json` does; error messages call it `name`."""

    def refuse(constant: str) -> typing.NoReturn:
        raise ValueError(f"{constant} is not JSON")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        require(len(found) == len(pairs), "an object has the same key twice")
        return found

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except ValueError as error:  # also JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"{name} is not readable JSON: {error}") from None


def to_json(value: object) -> dict[str, object]:
    """Convert a dataclass to plain JSON values."""
    return dataclasses.asdict(typing.cast(typing.Any, value))


def from_json(kind: type[T], value: object, of: str = "") -> T:
    """Build the dataclass `kind` from decoded JSON. Unknown keys, missing keys and wrong types raise an InvalidValue
    whose field is the dotted path; `of` names the file or class in its message.
    """
    try:
        return _build(kind, value, "")
    except InvalidValue as error:
        raise InvalidValue(error.problem, field=error.field, of=of or kind.__name__) from None


def check_fields(spec: object) -> None:
    """Raise unless every field of a dataclass holds a value of its annotated type; whole numbers pass as floats."""
    for name, hint in hints_of(type(spec)).items():
        value = getattr(spec, name)
        if not (isinstance(hint, type) and isinstance(value, hint) and not isinstance(value, bool)):
            try:
                _decode(hint, value, name)
            except InvalidValue as error:
                raise InvalidValue(error.problem, field=error.field, of=type(spec).__name__) from None


def _build(kind: type[T], value: object, path: str) -> T:
    _demand(isinstance(value, dict), path, f"is {value!r:.60}; expected an object")
    given = typing.cast(dict[str, object], value)
    hints = hints_of(kind)
    known = {f.name: f for f in dataclasses.fields(typing.cast(typing.Any, kind))}
    unknown = sorted(set(given) - set(known))
    _demand(not unknown, path, f"has unknown keys {unknown!r:.200}; known are {sorted(known)}")
    required = [
        n for n, f in known.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [n for n in required if n not in given]
    _demand(not missing, path, f"lacks {missing}")
    return kind(**{n: _decode(hints[n], v, f"{path}.{n}".lstrip(".")) for n, v in given.items()})


def _decode(hint: typing.Any, value: object, path: str) -> object:
    """`value` as the annotated type `hint`, or an InvalidValue that names the field."""
    if type(value) is hint and hint is not float:  # most values; a float may be infinite
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return value
    if origin is Literal:
        _demand(value in arguments, path, f"is {value!r:.60}; allowed are {', '.join(map(repr, arguments))}")
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            _demand(type(None) in arguments, path, "must not be null")
            return None
        return _decode(_chosen([a for a in arguments if a is not type(None)], value, path), value, path)
    if origin is tuple:
        _demand(isinstance(value, list | tuple), path, f"is {value!r:.60}; expected a list")
        items = typing.cast(list[object], value)
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
        _demand(len(items) == len(kinds), path, f"has {len(items)} values; expected {len(kinds)}")
        return tuple(_decode(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, items, strict=True)))
    if origin is dict:
        _demand(isinstance(value, dict), path, f"is {value!r:.60}; expected an object")
        return {
            key: _decode(arguments[1], item, f"{path}[{key!r:.40}]") for key, item in typing.cast(dict, value).items()
        }
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else _build(typing.cast(type, hint), value, path)
    if hint is float and type(value) in (int, float):
        try:
            number = float(typing.cast(float, value))
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        _demand(math.isfinite(number), path, f"is {value!r:.60}; expected a finite number")  # 1e999 is valid JSON
        return number
    _demand(type(value) is hint, path, f"is {value!r:.60}; expected {EXPECTED.get(hint, hint.__name__)}")
    return value


def _chosen(kinds: list[typing.Any], value: object, path: str) -> typing.Any:
    """The one type, or of several dataclasses the one whose `kind` the value has."""
    if len(kinds) == 1:
        return kinds[0]
    by_kind = {typing.get_args(hints_of(kind)["kind"])[0]: kind for kind in kinds}
    given = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if given is None and "vit" in by_kind:  # models saved before there were other families do not say
        given = "vit"
    _demand(given in by_kind, path, f"is of kind {given!r:.60}; allowed are {', '.join(map(repr, by_kind))}")
    return by_kind[given]


def _demand(holds: bool, path: str, problem: str) -> None:
    if not holds:
        raise InvalidValue(problem, field=path)
