"""`vitlab cost`: its table and figure, sizes that a model cannot take, mistakes, and rows that are kept."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import vitlab
from vitlab.cli import main
from vitlab.costing.measuring import Timing
from vitlab.costing.memory import resident
from vitlab.files.store import write_json
from vitlab.runs.measure.cost import MEASUREMENTS, REVISION, Kept, Plan
from vitlab.runs.measure.cost_table import COLUMNS, Cost, Costs
from vitlab.world.device import environment

MIB = 2**20
ROW = Cost(
    "ViT-Ti/16",
    (64, 64),
    "inference",
    macs=10**9,
    timings=(
        Timing(1, 0.5, 300 * MIB, "torch"),
        Timing(2, 0.25, 400 * MIB, "openvino"),
        Timing(4, 1.0, 500 * MIB, "torch"),
    ),
    largest=90,
    limit=10**9,
    matmul=64e9,
)


def test_a_row_shows_the_best_batch_its_memory_and_its_speed():
    row = dict(zip(COLUMNS, ROW.cells(), strict=True))
    assert (row["images/s"], row["batch"], row["peak MB"]) == (8, 2, 419)
    assert (row["largest batch"], row["limit MB"], row["GMACs"]) == (90, 1000, 1)
    assert (row["GFLOP/s"], row["of matmul %"]) == (16, 25)
    assert row["engine"] == "openvino"


def test_a_training_step_counts_three_forward_passes():
    trained = Cost("ViT-Ti/16", (64, 64), "training", 10**9, ROW.timings, matmul=64e9)
    assert trained.flops == 3 * ROW.flops


def test_a_row_without_measurements_has_a_note_and_empty_cells():
    row = dict(zip(COLUMNS, Cost("ViT-B/16", (64, 96), "inference", note="why").cells(), strict=True))
    assert (row["model"], row["image"], row["mode"], row["note"]) == ("ViT-B/16", "64x96", "inference", "why")
    assert {row[name] for name in COLUMNS[3:-1]} == {None}


@pytest.mark.parametrize(
    ("speeds", "largest", "is_settled"),
    [
        ({1: 500, 2: 800, 4: 900, 8: 850}, None, True),
        ({1: 500, 2: 800, 4: 900, 8: 950}, None, False),  # the next one may be faster
        ({1: 500, 2: 800, 4: 900, 8: 950}, 15, True),  # there is no memory for the next one
        ({1: 500, 2: 800, 4: 900, 8: 950}, 16, False),
        ({1: 500, 2: 400}, None, False),  # two batches say little
        ({1: 500, 2: 400}, 3, True),
        ({}, None, False),
        ({}, 0, True),  # no image fits into memory
    ],
)
def test_the_best_batch_is_settled_once_a_larger_one_was_slower_or_did_not_fit(speeds, largest, is_settled):
    timings = tuple(Timing(batch, batch / speed, None) for batch, speed in speeds.items())
    assert replace(ROW, timings=timings, largest=largest).is_settled == is_settled


def test_the_table_prints_displays_and_saves(tmp_path):
    found = Costs((ROW,))
    assert "ViT-Ti/16" in str(found)
    assert "<table" in found._repr_html_()
    found.save(tmp_path)
    (row,) = json.loads((tmp_path / "cost.json").read_text())
    assert (row["images/s"], row["engine"]) == (8, "openvino")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cost.csv", "cost.json", "cost.md"]


def test_the_figure_has_a_curve_for_each_model_and_mode():
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    larger = Cost("ViT-Ti/16", (128, 128), "inference", 10**9, ROW.timings, 40, 10**9)
    trained = Cost("ViT-Ti/16", (64, 64), "training", 10**9, ROW.timings, None, 10**9)
    found = Costs((ROW, larger, trained))
    assert found._curves("images per second") == {
        "ViT-Ti/16, inference": {64: 8, 128: 8},
        "ViT-Ti/16, training": {64: 8},
    }
    assert found._curves("largest batch") == {"ViT-Ti/16, inference": {64: 90, 128: 40}, "ViT-Ti/16, training": {}}
    assert found.figure == found.figure
    assert found.figure.svg != Costs((ROW, larger)).figure.svg


def test_a_size_that_a_model_cannot_take_is_a_row_with_the_reason(tmp_path):
    found = vitlab.cost(["ViT-B/16", "AxialResNet-50"], image=[100], out=tmp_path / "out", quiet=True)
    assert [row.model for row in found.rows] == ["ViT-B/16", "AxialResNet-50"]
    assert "image 100x100 is not a whole number of 16x16 patches; the nearest sizes are" in found.rows[0].note
    assert "32x32 patches" in found.rows[1].note
    assert "16x16 patches" in (tmp_path / "out" / "cost.csv").read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "ViT-Q/16"}, "no model is named 'ViT-Q/16'"),
        ({"model": []}, "give at least one model and one image size; figure 12 of the paper shows R50x1"),
        ({"image": [0]}, "image has the size 0x0; sides are positive"),
        ({"image": []}, "give at least one model and one image size"),
        ({"image": ["big"]}, "image 'big' is not a size"),
        ({"memory": -1}, "memory is -1; expected a positive size such as 8GiB"),
        ({"memory": "900TiB"}, "memory is 989560.5 GB, more than the"),
        ({"memory": "lots"}, "memory is 'lots'; expected a positive size such as 8GiB"),
        ({"batch": [0]}, "batch is 0; expected positive whole numbers"),
        ({"batch": [1.5]}, "batch is 1.5; expected positive whole numbers"),
        ({"seconds": 0}, "seconds is 0; expected a positive number"),
        ({"seconds": "5"}, "seconds is '5'; expected a number"),
        ({"mode": "all"}, "mode is 'all'; expected 'inference', 'training' or 'both'"),
        ({"device": "tpu"}, "no device is named 'tpu'"),
        (
            {"mode": "training", "engine": "torch"},
            "engine is 'torch'; engines compute inference, and mode is 'training'",
        ),
    ],
)
def test_a_mistake_is_found_before_anything_is_measured(given, told):
    with pytest.raises(ValueError) as raised:
        vitlab.cost(**{"model": "ViT-Ti/16", "image": [64], "quiet": True} | given)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ViT-Q/16",), "no model is named 'ViT-Q/16'"),
        ((), "give at least one model"),
        (("ViT-Ti/16", "--image", "0"), "--image '0' is not a size"),
        (("ViT-Ti/16", "--memory", "-1GiB"), "--memory is '-1GiB'; expected a positive size such as 8GiB"),
        (("nofile.npz",), "nofile.npz does not exist; give weights, or a name such as ViT-B/16"),
        (("ViT-Ti/16", "--merge", "-1"), "--merge is -1; give the number of tokens to merge in every layer"),
        (("ViT-Ti/16", "--batch", "0"), "--batch is 0; expected positive whole numbers"),
        (("ViT-Ti/16", "--mode", "all"), "--mode is 'all'; expected inference, training or both"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, told, capsys):
    assert main(["cost", *words]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.count("\n") == 1


def test_a_command_that_measures_nothing_fails(capsys):
    assert main(["cost", "ViT-Ti/16", "--image", "30"]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_rows_that_were_measured_in_another_way_are_not_replaced(tmp_path):
    plan = Plan("cpu", 30.0, (1,), None, environment(torch.device("cpu")), "torch", REVISION)
    write_json(tmp_path / MEASUREMENTS, asdict(Kept(plan, (ROW,))))
    before = (tmp_path / MEASUREMENTS).read_bytes()
    with pytest.raises(FileExistsError, match=r"has 1 row measured in another way \(batch\); choose another folder"):
        vitlab.cost("ViT-Ti/16", image=[100], out=tmp_path, quiet=True)
    assert (tmp_path / MEASUREMENTS).read_bytes() == before


def test_rows_of_other_models_stay_in_the_folder(tmp_path):
    plan = Plan("cpu", 30.0, (), None, environment(torch.device("cpu")), "torch", REVISION)
    write_json(tmp_path / MEASUREMENTS, asdict(Kept(plan, (ROW,))))
    found = vitlab.cost("ViT-B/16", image=[100], out=tmp_path, quiet=True)
    assert [row.model for row in found.rows] == ["ViT-B/16"]
    kept = json.loads((tmp_path / MEASUREMENTS).read_text())["rows"]
    assert [row["model"] for row in kept] == ["ViT-Ti/16", "ViT-B/16"]
    table = (tmp_path / "cost.csv").read_text()
    assert "ViT-Ti/16,64," in table
    assert "ViT-B/16,100," in table


def test_an_engine_that_is_not_installed_is_found_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"engine 'openvino' needs .*pip install 'vitlab\[openvino\]'"):
        vitlab.cost("ViT-Ti/16", image=[64], engine="openvino", out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_named_twice_is_one_row():
    found = vitlab.cost(["ViT-Ti/16", "ViT-Ti/16"], image=[100, 100], quiet=True)
    assert [row.model for row in found.rows] == ["ViT-Ti/16"]


def test_a_folder_with_other_files_is_not_written_to(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(FileExistsError, match="contains other files"):
        vitlab.cost("ViT-Ti/16", image=[100], out=tmp_path, quiet=True)


@pytest.mark.slow
def test_memory_that_is_too_small_for_anything_says_what_torch_takes(capsys):
    assert main(["cost", "ViT-Ti/16", "--image", "64", "--memory", "10MB"]) == 2
    assert "--memory is 10 MB; a process with PyTorch alone takes" in capsys.readouterr().err


@pytest.mark.slow
def test_measured_rows_are_kept_and_not_measured_again(tiny, tmp_path, capsys):
    how = {"image": [16, 17], "mode": "both", "batch": [1, 2], "memory": "900MB", "seconds": 4, "out": tmp_path / "out"}
    first = vitlab.cost(tiny, **how)
    assert [(row.mode, row.image, bool(row.timings)) for row in first.rows] == [
        ("inference", (16, 16), True),
        ("inference", (17, 17), False),
        ("training", (16, 16), True),
        ("training", (17, 17), False),
    ]
    for row in (first.rows[0], first.rows[2]):
        assert row.limit == 900_000_000
        assert row.utilisation > 0
        assert 100 * MIB < row.best.held < row.limit
    assert (tmp_path / "out" / "cost.md").exists()
    assert "2 rows, up to 4 s each, and" in capsys.readouterr().err
    again = vitlab.cost(tiny, **how)
    assert again.rows == first.rows
    assert "4 of 4 rows need no measurement" in capsys.readouterr().err
    kept = json.loads((tmp_path / "out" / MEASUREMENTS).read_text())
    kept["rows"][0] |= {"timings": [], "note": "its process ended with exit code 1"}
    (tmp_path / "out" / MEASUREMENTS).write_text(json.dumps(kept))
    repaired = vitlab.cost(tiny, **how, quiet=True)
    assert [bool(row.timings) for row in repaired.rows] == [True, False, True, False]
    assert repaired.rows[2] == first.rows[2]
    with pytest.raises(FileExistsError, match=r"has 2 rows measured in another way \(batch\); choose another folder"):
        vitlab.cost(tiny, **how | {"batch": [1], "mode": "inference", "image": [16]}, quiet=True)
    merged = vitlab.cost(tiny, **how | {"mode": "inference", "image": [16]}, merge=2)
    assert [row.model for row in merged.rows] == [f"{first.rows[0].model}, merge 2"]
    assert merged.rows[0].macs < first.rows[0].macs
    assert "1 row, up to 4 s, and" in capsys.readouterr().err
    kept = json.loads((tmp_path / "out" / MEASUREMENTS).read_text())["rows"]
    assert [row["model"] for row in kept if row["timings"]] == [first.rows[0].model] * 2 + [merged.rows[0].model]
    table = (tmp_path / "out" / "cost.csv").read_text()
    assert table.count(first.rows[0].model) == 3


@pytest.mark.slow
def test_an_interrupt_keeps_the_rows_that_are_done(tmp_path):
    out = tmp_path / "out"
    words = ["cost", "ViT-Ti/16", "--image", "100", "32", "--seconds", "300", "--memory", "1GB", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "vitlab", *words], stderr=subprocess.PIPE, text=True) as command:
        for line in command.stderr:
            if "not a whole number" in line:
                break
        while not children(command.pid):
            time.sleep(0.01)
        (child,) = children(command.pid)
        command.send_signal(signal.SIGINT)
        said = command.stderr.read()
    assert command.returncode == 130
    assert f"stopped; 1 of 2 rows are in {out}, and the same command continues" in said
    assert "Traceback" not in said
    assert ends(child)
    assert len(json.loads((out / MEASUREMENTS).read_text())["rows"]) == 1


def ends(pid: int) -> bool:
    """Whether a process ends within a minute: one that is interrupted while it starts finishes its imports first."""
    for _ in range(600):
        if not resident(pid):  # a zombie holds nothing
            return True
        time.sleep(0.1)
    return False


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
