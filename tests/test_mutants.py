"""What `make mutants` changes in a source, and what it leaves alone."""

import json

import pytest

from mutants import mutants_of
from run_mutants import MODULES, REASONS, ROOT, function_at, noted, sampled


def changes(source):
    return {(mutant.old, mutant.new) for mutant in mutants_of(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = rng.random() < 0.5", {("<", "<="), ("0.5", "0.4")}),
        ("x = (a + b) * c", {("+", "-"), ("*", "/")}),
        ("x = -y", {("-", "")}),
        ("x = 3", {("3", "4"), ("3", "2")}),
        ("x = f(flag=True)", {("True", "False")}),
        ("x = f(a, b)", {("a, b", "b, a")}),
        ("x = a.sum(dim=d)", {("sum", "mean")}),
        ("x = max(a)", {("max", "min")}),
        ("x = a and not b", {("and", "or"), ("not ", "")}),
        ("x = y if z else w", {("z", "not (z)")}),
        ("x = a is not None", {("is not", "is")}),
        ("x = 'é' + y * 2", {("+", "-"), ("*", "/"), ("2", "3"), ("2", "1")}),
    ],
)
def test_small_changes_of_every_kind(source, expected):
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "x: Literal[3]",
        "raise E(1 + 2)",
        "x = f'{a + 1}'",
        "assert a < 3",
        "def f(x: A | B) -> C: ...",
        "'1'",
    ],
)
def test_types_messages_and_imports_stay(source):
    assert changes(source) == set()


def test_a_change_is_made_in_its_place_and_shown_by_its_line():
    source = "a = 1\nb = 0.5  # half, 0.5\n"
    (half,) = [mutant for mutant in mutants_of(source) if mutant.line == 2]
    assert half.applied(source) == "a = 1\nb = 0.4  # half, 0.5\n"
    assert half.lines(source) == ("b = 0.5  # half, 0.5", "b = 0.4  # half, 0.5")


def test_a_line_belongs_to_the_innermost_function():
    source = "A = 1\ndef f():\n    def g():\n        return 1\n    return 2\n"
    assert [function_at(source, line) for line in (1, 2, 4, 5)] == [None, None, 3, 2]


def test_functions_tell_that_they_were_called(monkeypatch):
    import builtins

    calls = set()
    space = {}
    exec(noted("def f():\n    return 1\nclass A:\n    def g(self): return 2\n", "m.py"), space)
    assert space["f"]() == 1
    monkeypatch.setattr(builtins, "NOTE", calls.add, raising=False)
    assert space["A"]().g() == 2
    assert calls == {("m.py", 4)}


def test_the_sample_is_a_function_of_the_seed_and_every_module_has_its_share():
    modules = ["train/objectives.py", "data/loading/order.py"]
    one, again, other = ([t.mutant for t in sampled(modules, 20, seed)] for seed in (0, 0, 1))
    assert one == again != other
    assert [trial.module for trial in sampled(modules, 4, 0)] == modules * 2
    assert len(sampled(modules, 0, 0)) > 100


def test_every_reason_is_of_a_mutant_that_there_is():
    for module, reasons in json.loads(REASONS.read_text()).items():
        assert module in MODULES
        source = (ROOT / "src" / "vitlab" / module).read_text()
        lines = {mutant.lines(source)[1] for mutant in mutants_of(source)}
        assert set(reasons) <= lines, set(reasons) - lines
