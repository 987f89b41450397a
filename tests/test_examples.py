"""Every example runs as it is, in an empty folder, without a network."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    names = runpy.run_path(str(example), run_name="__main__")
    assert len(names["__doc__"].splitlines()) > 1
    assert capsys.readouterr().out.strip()


def test_the_readme_names_every_example():
    readme = (EXAMPLES[0].parent.parent / "README.md").read_text()
    assert all(f"(examples/{path.name})" in readme for path in EXAMPLES)
