"""Every example runs as it is, in an empty folder, without a network."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    names = runpy.run_path(str(example), run_name="__main__")
    assert len(names["__doc__"].splitlines()) > 1
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter and its event loop
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_shows_its_results(notebook, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="the extra test installs nbclient")
    nbclient = pytest.importorskip("nbclient", reason="the extra test installs nbclient")
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    book = nbformat.read(notebook, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "commit the notebook without outputs"
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not any(output.output_type == "error" for output in shown)
    assert sum("text/html" in output.get("data", {}) for output in shown) >= 4  # run, history, evaluation, figures


def test_the_readme_names_every_example():
    readme = (FOLDER.parent / "README.md").read_text()
    assert all(f"(examples/{path.name})" in readme for path in [*EXAMPLES, *NOTEBOOKS])
