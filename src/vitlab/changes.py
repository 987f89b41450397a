"""What a user changes in a recipe, an execution or a model: fields by their dotted names, read from text."""

import json
from collections.abc import Iterable
from typing import TypeVar, cast

from vitlab.recipe import SGD, AdamW
from vitlab.spec import parse_size
from vitlab.strict_json import from_json, require, to_json

OPTIMIZERS = {"adamw": AdamW(), "sgd": SGD()}
Spec = TypeVar("Spec")


def with_fields(spec: Spec, changes: Iterable[tuple[str, str]]) -> Spec:
    """The spec with fields, dotted where they lie deeper, read from text: (`schedule.peak`, `3e-4`).

    All are set before any is judged, so their order does not matter. As strict as code: an unknown name or a value of
    the wrong type is an error that says what exists.
    """
    values = to_json(spec)
    for field, text in changes:
        *path, last = field.split(".")
        inner = values
        for name in path:
            inner = cast(dict[str, object], _entry(inner, name, field, spec))
        inner[last] = _value(field, last, text, _entry(inner, last, field, spec))
    return from_json(type(spec), values)


def _entry(values: object, name: str, field: str, spec: object) -> object:
    known = values if isinstance(values, dict) else {}
    listed = ", ".join(known) or "no parts"
    require(name in known, f"--{field}: a {type(spec).__name__} has no {name!r} there; it has {listed}")
    return known[name]


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
