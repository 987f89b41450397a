"""What a user changes in a recipe, an execution or a model: fields by their dotted names, read from text."""

import difflib
import json
import re
from collections.abc import Iterable
from typing import TypeVar, cast

from vitlab.recipe import SGD, AdamW
from vitlab.require import require
from vitlab.spec import parse_size
from vitlab.strict_json import from_json, to_json

OPTIMIZERS = {"adamw": AdamW(), "sgd": SGD()}
EXPECTED = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a word"}
Spec = TypeVar("Spec")


def with_fields(spec: Spec, changes: Iterable[tuple[str, str]], under: str = "") -> Spec:
    """The spec with fields, dotted where they lie deeper, read from text: (`schedule.peak`, `3e-4`).

    All are set before any is judged, so their order does not matter. As strict as code: an unknown name or a value of
    the wrong type is an error that says what exists, by the flag, which begins with `under`.
    """
    values = to_json(spec)
    for field, text in changes:
        *path, last = field.split(".")
        inner = values
        for name in path:
            inner = cast(dict[str, object], _entry(inner, name, under + field, spec))
        inner[last] = _value(under + field, last, text, _entry(inner, last, under + field, spec))
    try:
        return from_json(type(spec), values)
    except ValueError as error:
        raise ValueError(_by_flag(str(error), type(spec).__name__, under)) from None


def _entry(values: object, name: str, field: str, spec: object) -> object:
    known = values if isinstance(values, dict) else {}
    listed = ", ".join(known) or "no parts"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {_flag(field.rpartition('.')[0], near[0])}?" if near and field.endswith(name) else ""
    require(name in known, f"--{field}: a {type(spec).__name__} has no {name!r} there; it has {listed}{hint}")
    return known[name]


def _flag(*parts: str) -> str:
    return "--" + ".".join(filter(None, parts)).replace("_", "-")


def _by_flag(complaint: str, kind: str, under: str) -> str:
    """What is wrong with `Recipe.schedule.peak`, said of the flag that set it."""
    if not (match := re.match(rf"{kind}\.([\w.]+)", complaint)):
        return complaint
    flag, rest = _flag(under.rstrip("."), match[1]), complaint[match.end() :]
    typed = re.fullmatch(r" must be (\w+), not (.+)", rest)
    return f"{flag} {typed[2]}: {EXPECTED[typed[1]]} is expected" if typed and typed[1] in EXPECTED else flag + rest


def _value(field: str, last: str, text: str, old: object) -> object:
    """`text` as what stands there now: a list by commas, a size, an optimizer by its name, or a plain JSON value."""
    if last == "image":
        return list(parse_size(text))
    if last == "optimizer":
        require(text in OPTIMIZERS, f"--{field} {text!r}; known are {', '.join(OPTIMIZERS)}")
        return to_json(OPTIMIZERS[text])
    if isinstance(old, dict):
        raise ValueError(f"--{field} has parts; set one of them, such as --{field}.{next(iter(old))}")
    if isinstance(old, str):
        return text
    if isinstance(old, tuple | list):
        if text.lower() == "none":
            return []
        return [_plain(part) for part in text.split(",") if part]
    return _plain(text)


def _plain(text: str) -> object:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
