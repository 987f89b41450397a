"""The newcomer's minute: it learns, saves a model that loads, and never writes over an earlier run."""

import io

import pytest
from rich.console import Console

from vitlab import load_model
from vitlab.runs import demo

pytest.importorskip("sklearn", reason="the demo's digits need scikit-learn")


HELD_OUT = 355  # of 1,797: every fifth of each class


@pytest.mark.slow
def test_the_demo_learns_saves_and_predicts(tmp_path):
    console = Console(record=True, width=200, file=io.StringIO())
    demo.run_demo(tmp_path / "out", console)
    text = console.export_text()
    right = int(text.split(f" of {HELD_OUT} digits")[0].split()[-1])
    assert right > 0.94 * HELD_OUT
    assert f"vitlab predict {tmp_path / 'out' / 'model'}" in text
    assert text.count("right") >= demo.SHOWN
    model = load_model(tmp_path / "out" / "model")
    assert model.class_names == tuple("0123456789")
    assert len(list((tmp_path / "out").glob("digit-*.png"))) == demo.SHOWN


def test_a_second_run_gets_a_folder_of_its_own(tmp_path):
    assert [demo._free(tmp_path / "out").name for _ in range(3)] == ["out", "out-2", "out-3"]


def test_the_digits_are_those_of_the_source():
    pixels, labels = demo.load_digits("test")
    assert pixels.shape == (HELD_OUT, 3, 8, 8)
    assert int(pixels.max()) == 255
    assert labels.bincount().min() >= 33
