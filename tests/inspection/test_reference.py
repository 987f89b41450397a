"""The figures under docs/figures are what the real checkpoint makes of the drawings."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vitlab import load_model
from vitlab.runs.measure.inspection import inspect

FIGURES = Path(__file__).parent.parent.parent / "docs" / "figures"


@pytest.mark.slow
def test_the_committed_figures_come_from_the_real_checkpoint(reference, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    subprocess.run([sys.executable, str(FIGURES / "draw_pictures.py"), str(tmp_path / "pictures")], check=True)
    model = load_model(reference / "weights" / "ViT-Ti_16-augreg-in1k-224.npz")
    pictures = sorted((tmp_path / "pictures").iterdir())
    inspect(model, pictures, tmp_path / "out", maps=1, console=Console(file=io.StringIO()))
    made, kept = (
        json.loads(path.read_text()) for path in (tmp_path / "out/inspection.json", FIGURES / "ti-inspection.json")
    )
    for numbers in ("attention_distance", "filters_share_of_variance"):
        np.testing.assert_allclose(made[numbers], kept[numbers], rtol=1e-3)
    ranges = [[picture["rollout_range"] for picture in found["pictures"]] for found in (made, kept)]
    np.testing.assert_allclose(*ranges, rtol=1e-3)
    answers = [[picture["answer"].partition(",")[0] for picture in found["pictures"]] for found in (made, kept)]
    assert answers[0] == answers[1]
    assert answers[0][:3] == ["wall clock", "traffic light", "balloon"]


def test_committed_figures_are_few_and_small():
    files = [path for path in FIGURES.iterdir() if path.suffix in {".png", ".svg", ".json"}]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) < 250_000
    assert sum(sizes) < 2e6  # a figure for each study, and those of the tutorial and the how-to pages
