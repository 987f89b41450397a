"""Change fields of a recipe, an execution or a model by their dotted names, from Python values or from text."""

import dataclasses
import difflib
import json
import numbers
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar, cast

from vitlab.errors import InvalidValue
from vitlab.files.strict_json import from_json, to_json
from vitlab.spec import parse_size
from vitlab.spec.recipe import SGD, AdamW, Recipe

OPTIMIZERS = {"adamw": AdamW(), "sgd": SGD()}
NO_CHANGES: Mapping[str, object] = MappingProxyType({})
DESCRIPTIVE_FIELDS = ("name", "source")  # of a recipe; they change nothing
SYNONYMS = {  # names in other libraries
    "batch_size": "batch",
    "epochs": "schedule.total",
    "learning_rate": "schedule.peak",
    "lr": "schedule.peak",
    "num_workers": "workers",
    "steps": "schedule.total",
    "warmup": "schedule.warmup",
    "weight_decay": "optimizer.weight_decay",
}
Spec = TypeVar("Spec")


def flattened(changes: Mapping[str, object], under: str = "") -> tuple[tuple[str, object], ...]:
    """Nested mappings as (dotted field, value): {"schedule": {"peak": 3e-3}} becomes (("schedule.peak", 3e-3),)."""
    found: list[tuple[str, object]] = []
    for name, value in changes.items():
        field = f"{under}{name}"
        found += flattened(value, f"{field}.") if isinstance(value, Mapping) else [(field, value)]
    return tuple(found)


def check_names(given: Iterable[str], known: Iterable[str], suggested: Iterable[str] = ()) -> None:
    """Raise an InvalidValue, with what may have been meant, for a field that no recipe and no model has.

    `known` are other names that may be set; `suggested` ones are arguments.
    """
    fields = {field.name for field in dataclasses.fields(Recipe)} | {"model", *known}
    for field in given:
        name = field.partition(".")[0]
        if name not in fields:
            near = difflib.get_close_matches(name, sorted({*fields, *suggested} - {*DESCRIPTIVE_FIELDS}), n=1)
            meant = SYNONYMS.get(name, "".join(near))
            raise InvalidValue("does not exist; `vitlab recipes NAME` lists what can be set", field=field, meant=meant)


def with_fields(spec: Spec, changes: Iterable[tuple[str, object]], under: str = "") -> Spec:
    """A copy of the spec with some fields changed, by dotted names: ("schedule.peak", 3e-4).

    A value is a Python value, or text as typed on a command line: "3e-4", "none", "a,b" for a list, "sgd" for an
    optimizer. All fields are set before any is checked, so their order does not matter. An unknown name or a wrong type
    raises an InvalidValue with the field, which begins with `under`.
    """
    values = to_json(spec)
    for field, value in changes:
        *path, last = field.split(".")
        inner, place = values, type(spec).__name__
        for name in path:
            inner, place = cast(dict[str, object], _entry(inner, name, place, under + field)), name
        inner[last] = _read(value, _entry(inner, last, place, under + field), last, under + field)
    try:
        return from_json(type(spec), values)
    except InvalidValue as error:
        raise InvalidValue(error.problem, field=f"{under}{error.field}".rstrip(".")) from None


def _entry(values: object, name: str, place: str, field: str) -> object:
    """The value of `name` among those of `place`; InvalidValue if there is none."""
    known = values if isinstance(values, dict) else {}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    meant = ".".join(filter(None, (field.rpartition(".")[0], near[0]))) if near and field.endswith(name) else ""
    fields = f"the fields {', '.join(known)}" if known else "no fields"
    raise InvalidValue(f"does not exist; {place} has {fields}", field=field, meant=meant)


def _read(value: object, old: object, last: str, field: str) -> object:
    """`value` as plain JSON values that can stand where `old` does."""
    if isinstance(value, str):
        return _read_text(value, old, last, field)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):  # also those of numpy
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        return [number, number] if last == "image" else number
    return to_json(value) if dataclasses.is_dataclass(value) else value


def _read_text(text: str, old: object, last: str, field: str) -> object:
    """Text as what stands there now: a list by commas, a size, an optimizer by its name, or a plain JSON value."""
    if last == "image":
        return list(parse_size(text))
    if last == "optimizer":
        if text not in OPTIMIZERS:
            raise InvalidValue(f"is {text!r}; known are {', '.join(OPTIMIZERS)}", field=field)
        return to_json(OPTIMIZERS[text])
    if isinstance(old, dict):
        raise InvalidValue(f"is a group of fields; set one of them, such as {field}.{next(iter(old))}", field=field)
    if isinstance(old, str):
        return text
    if isinstance(old, tuple | list):
        return [] if text.lower() == "none" else [_plain(part) for part in text.split(",") if part]
    return _plain(text)


def _plain(text: str) -> object:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
