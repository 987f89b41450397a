"""The transfer table is the mean and deviation of runs that are not repeated once they are done."""

import json

import numpy as np
import pytest

from agreement import randomised
from vitlab import save_model
from vitlab.cli import main
from vitlab.models.build import build_from_spec
from vitlab.report.ledger import read
from vitlab.runs.sweep.transfer import transfer
from vitlab.spec import ViTSpec

SHAPES = "shapes?classes=3&images={}&size=16&seed={}"
SHORT = ["--schedule.total", "3", "--schedule.warmup", "1", "--batch", "8", "--image", "16"]


@pytest.fixture
def model(tmp_path):
    spec = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(16, 16), classes=0, head="linear")
    save_model(randomised(build_from_spec(spec)), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_the_table_is_mean_and_deviation_of_runs_that_are_kept(model, tmp_path, capsys):
    sets = [
        "--cifar10",
        SHAPES.format(24, 0),
        SHAPES.format(30, 1),
        "--pets",
        SHAPES.format(24, 2),
        SHAPES.format(30, 3),
    ]
    out, ledger = tmp_path / "out", tmp_path / "ledger.jsonl"
    command = ["transfer", str(model), *sets, "--out", str(out), "--runs", "2", *SHORT]
    assert main([*command, "--ledger", str(ledger)]) == 0
    assert "not picked on a development split" in capsys.readouterr().out
    rows = json.loads((out / "transfer.json").read_text())
    assert [row["data"] for row in rows] == ["CIFAR-10", "Oxford-IIIT Pets"]
    for row, name in zip(rows, ("cifar10", "pets"), strict=True):
        results = [
            json.loads((out / name / "final" / f"seed-{seed}" / "result.json").read_text())["test"] for seed in (0, 1)
        ]
        accuracies = [100 * result["top1"] for result in results]
        assert row["top-1 %"] == pytest.approx(np.mean(accuracies))
        assert row["std"] == pytest.approx(np.std(accuracies, ddof=1))
        assert (row["runs"], row["count"], row["learning rate"]) == (2, 30, 0.01 * 8 / 512)
    entries, _ = read(ledger)
    assert [(entry.task, entry.runs, entry.n) for entry in entries] == [
        ("CIFAR-10", 2, 30),
        ("Oxford-IIIT Pets", 2, 30),
    ]
    events = sorted(out.rglob("events.jsonl"))
    assert len(events) == 4
    before = [file.read_bytes() for file in events]
    assert main(command) == 0
    assert [file.read_bytes() for file in events] == before
    assert main([*command[:-1], "32"]) == 2
    assert "image was 16, 16 and is 32, 32" in capsys.readouterr().err


@pytest.mark.slow
def test_the_learning_rate_is_picked_where_that_is_asked_for(model, tmp_path):
    out = tmp_path / "out"
    data = ["--pets", SHAPES.format(24, 0), SHAPES.format(30, 1)]
    assert main(["transfer", str(model), *data, "--out", str(out), "--runs", "1", "--sweep", "yes", *SHORT]) == 0
    tried = [point["learning rate"] for point in json.loads((out / "pets" / "choice.json").read_text())["points"]]
    assert tried == pytest.approx([rate * 8 / 512 for rate in (0.001, 0.003, 0.01, 0.03)], rel=5e-3)  # table 4
    (row,) = json.loads((out / "transfer.json").read_text())
    assert row["picked of"] == 4
    assert row["learning rate"] in tried


def test_nothing_to_do_is_an_error(model, tmp_path):
    with pytest.raises(ValueError, match="no data was given"):
        transfer(model, {}, tmp_path / "out")
    with pytest.raises(ValueError, match="at least 1"):
        transfer(model, {"pets": ("a", "b")}, tmp_path / "out", runs=0)
