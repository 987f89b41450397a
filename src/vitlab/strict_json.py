"""JSON as strict as code: bounded, typed, no unknown keys. Standard library only."""

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Literal, TypeVar

from vitlab.require import require
from vitlab.user_files import read_regular

T = TypeVar("T")
LARGEST_JSON = 16 * 2**20  # bytes; a 21,843-class label map is under 1 MiB


def read_json(path: Path) -> object:
    """The value in a JSON file of a stranger: bounded in size and depth, no NaN, no duplicate keys."""
    return parse_json(read_regular(path, LARGEST_JSON), path.name)


def parse_json(text: bytes, name: str) -> object:
    """See `read_json`; `name` stands in the messages."""

    def refuse(constant: str) -> typing.NoReturn:
        raise ValueError(f"{constant} is not JSON")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        require(len(found) == len(pairs), "a key stands twice in one object")
        return found

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except ValueError as error:  # also JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"{name} is not readable JSON: {error}") from None


def to_json(value: object) -> dict[str, object]:
    """A frozen spec as plain JSON values."""
    return dataclasses.asdict(typing.cast(typing.Any, value))


def from_json(kind: type[T], value: object, where: str = "") -> T:
    """Build the dataclass `kind` from decoded JSON; unknown or missing keys and wrong types are errors."""
    where = where or kind.__name__
    require(isinstance(value, dict), f"{where} must be an object, not {value!r:.60}")
    given = typing.cast(dict[str, object], value)
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(typing.cast(typing.Any, kind))}
    unknown = sorted(set(given) - set(known))
    require(not unknown, f"{where} has unknown keys {unknown!r:.200}; known are {sorted(known)}")
    required = [
        n for n, f in known.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [n for n in required if n not in given]
    require(not missing, f"{where} lacks {missing}")
    return kind(**{n: _decode(hints[n], v, f"{where}.{n}") for n, v in given.items()})


def _decode(hint: typing.Any, value: object, where: str) -> object:
    """`value` as the annotated type `hint`, or a ValueError that names the field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return value
    if origin is Literal:
        require(value in arguments, f"{where} is {value!r:.60}; allowed are {', '.join(map(repr, arguments))}")
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            require(type(None) in arguments, f"{where} may not be null")
            return None
        return _decode(_chosen([a for a in arguments if a is not type(None)], value, where), value, where)
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{where} must be a list, not {value!r:.60}")
        items = typing.cast(list[object], value)
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
        require(len(items) == len(kinds), f"{where} must have {len(kinds)} values, not {len(items)}")
        return tuple(_decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, items, strict=True)))
    if origin is dict:
        require(isinstance(value, dict), f"{where} must be an object, not {value!r:.60}")
        return {
            key: _decode(arguments[1], item, f"{where}[{key!r:.40}]") for key, item in typing.cast(dict, value).items()
        }
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        return from_json(typing.cast(type, hint), value, where)
    if hint is float and type(value) in (int, float):
        try:
            number = float(typing.cast(float, value))
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        require(math.isfinite(number), f"{where} must be finite")  # 1e999 is valid JSON
        return number
    require(type(value) is hint, f"{where} must be {hint.__name__}, not {value!r:.60}")
    return value


def _chosen(kinds: list[typing.Any], value: object, where: str) -> typing.Any:
    """The one type, or of several dataclasses the one whose `kind` the value has."""
    if len(kinds) == 1:
        return kinds[0]
    by_kind = {typing.get_args(typing.get_type_hints(kind)["kind"])[0]: kind for kind in kinds}
    given = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if given is None and "vit" in by_kind:  # models saved before there were other families do not say
        given = "vit"
    require(given in by_kind, f"{where} is of kind {given!r:.60}; allowed are {', '.join(map(repr, by_kind))}")
    return by_kind[given]


def check_fields(spec: object) -> None:
    """Raise unless every field of a dataclass holds a value of its annotated type; whole numbers pass as floats."""
    for name, hint in typing.get_type_hints(type(spec)).items():
        value = getattr(spec, name)
        if not (isinstance(hint, type) and isinstance(value, hint) and not isinstance(value, bool)):
            _decode(hint, value, f"{type(spec).__name__}.{name}")
