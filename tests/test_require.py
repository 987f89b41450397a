"""Wrong types are refused by the name of the argument, before anything is opened or written."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import vitlab
from vitlab.errors import InvalidValue
from vitlab.require import check_arguments

PATH = "expected a string, a path or None"
NUMBER = "expected a whole number"
REFUSED = [
    ("finetune", ("m", "d"), {"seed": "a"}, f"seed is 'a'; {NUMBER}"),
    ("finetune", ("m", "d"), {"seed": 1.5}, f"seed is 1.5; {NUMBER}"),
    ("finetune", ("m", "d"), {"seed": True}, f"seed is True; {NUMBER}"),
    ("finetune", (5, "d"), {}, "model is 5; expected a string, a path or a Module"),
    ("finetune", ("m", "d"), {"out": 5}, f"out is 5; {PATH}"),
    ("finetune", ("m", "d"), {"held_out": "x"}, "held_out is 'x'; expected a number or None"),
    ("finetune", ("m", "d"), {"quiet": "yes"}, "quiet is 'yes'; expected True or False"),
    ("finetune", ("m", "d"), {"teacher": 5}, f"teacher is 5; {PATH}"),
    ("pretrain", (None, "d"), {}, "recipe is None; expected a string"),
    ("pretrain", ("ViT-Ti/16", "d"), {"objective": "mask"}, "objective is 'mask'; expected 'labels' or"),
    ("sweep", ("m", "d", "t"), {"seeds": "x"}, "seeds is 'x'"),
    ("sweep", ("m", "d", "t"), {"search": "optune"}, "search is 'optune'; expected 'grid' or 'optuna'"),
    ("evaluate", ("m", "d"), {"max_bad": "x"}, "max_bad is 'x'; expected a number"),
    ("evaluate", ("m", "d"), {"label_map": 5}, f"label_map is 5; {PATH}"),
    ("features", ("m", "d"), {"out": 5}, f"out is 5; {PATH}"),
    ("predict", ("m", "d"), {"top": "x"}, f"top is 'x'; {NUMBER}"),
    ("inspect", ("m", "d"), {"maps": "x"}, f"maps is 'x'; {NUMBER}"),
    ("check_data", ("d",), {"out": 5}, "out is 5; expected"),
    ("index_shards", (5,), {}, "folder is 5; expected a path or a string"),
    ("read_report", (5,), {}, "ledger is 5; expected a string or a path"),
    ("find_recipe", (5,), {}, "name is 5; expected a string"),
    ("download", (5,), {}, "name is 5; expected a string"),
    ("convert", (3, "x"), {}, "source is 3; expected a string or a path"),
    ("load_model", (3,), {}, "path is 3; expected a string or a path"),
    ("open_run", (5,), {}, "path is 5; expected a string or a path"),
    ("reproduce", (5,), {}, "path is 5; expected a string or a path"),
]


@pytest.mark.parametrize(("name", "given", "keywords", "said"), REFUSED, ids=[f"{r[0]} {r[3][:20]}" for r in REFUSED])
def test_a_wrong_type_is_named_before_anything_is_opened(name, given, keywords, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match=re.escape(said)):
        getattr(vitlab, name)(*given, **keywords)
    assert list(tmp_path.iterdir()) == []


def fit(a: int, b: float = 0.5, c: str | Path = "", d: Literal["x", "y"] | None = None, e: list[int] | int = 3) -> None:
    check_arguments(fit, locals())


@pytest.mark.parametrize(
    "given",
    [
        {"a": np.int64(3)},
        {"a": 1, "b": 2},
        {"a": 1, "b": np.float32(2)},
        {"a": 1, "c": Path("x")},
        {"a": 1, "d": "y"},
        {"a": 1, "e": "containers are left to the function"},
    ],
)
def test_what_the_annotations_allow_passes(given):
    fit(**given)


@pytest.mark.parametrize("given", [{"a": "1"}, {"a": 1, "b": "2"}, {"a": 1, "b": True}, {"a": 1, "d": "z"}])
def test_what_they_exclude_does_not(given):
    with pytest.raises(InvalidValue):
        fit(**given)
