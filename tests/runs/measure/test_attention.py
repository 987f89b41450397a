"""`attention` in every command that loads a model, and `vitlab cost` with patterns."""

import json

import numpy as np
import pytest

import vitlab
from vitlab.cli import main
from vitlab.costing.measuring import Timing
from vitlab.paper.models import model_spec
from vitlab.runs.measure.cost_table import Cost, Costs
from vitlab.spec.patterns import EXAMPLES, Window


def test_every_command_that_measures_a_model_takes_a_pattern(weights, photos, tmp_path, capsys):
    data = f"folder:{photos}"
    model = vitlab.load_model(weights, attention=Window(2))
    expected = vitlab.features(model, data, quiet=True).vectors.x
    plain = vitlab.features(str(weights), data, quiet=True).vectors.x
    assert not np.allclose(plain, expected)
    assert np.array_equal(vitlab.features(weights, data, attention="window:2", quiet=True).vectors.x, expected)
    assert np.array_equal(vitlab.features(weights, data, attention="full", quiet=True).vectors.x, plain)

    answers = vitlab.predict(weights, photos, attention="window:2", quiet=True)
    assert answers.model == f"{weights}, window:2"
    assert [list(a.guesses) for a in answers] == [list(a.guesses) for a in vitlab.predict(model, photos, quiet=True)]

    scores = vitlab.evaluate([weights, model], data, quiet=True)
    sparse = vitlab.evaluate(weights, data, attention="window:2", quiet=True)
    assert sparse.rows[0].model == f"{weights}, window:2"
    assert sparse.rows[0].scores.loss == scores.rows[1].scores.loss != scores.rows[0].scores.loss

    flags = ["--attention", "window:2"]
    assert main(["evaluate", str(weights), "--data", data, "--out", str(tmp_path / "e"), "--workers", "0", *flags]) == 0
    assert "window:2" in capsys.readouterr().out
    main(["features", str(weights), "--data", data, "--out", str(tmp_path / "f"), "--workers", "0", *flags])
    shards = sorted((tmp_path / "f").glob("*.npz"))
    assert np.array_equal(np.load(shards[0])["features"], expected)
    sets = ["--train", data, "--test", data, "--shots", "1", "--workers", "0"]
    main(["fewshot", "--model", str(weights), *sets, "--out", str(tmp_path / "s"), "--preprocessing", "own", *flags])
    assert main(["predict", str(weights), str(photos), "--json", *flags]) == 0
    assert f"{weights}, window:2" in capsys.readouterr().out
    assert main(["predict", str(weights), str(photos), "--attention", "windows"]) == 2
    assert "attention 'windows' is unknown; allowed are full, axial, window:7" in capsys.readouterr().err


def test_inspect_says_the_pattern_and_draws_its_attention(weights, photos, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    found = vitlab.inspect(weights, photos / "ape" / "0.png", tmp_path / "in", attention="fixed", maps=0, quiet=True)
    assert "attention fixed." in found.about
    numbers = json.loads((tmp_path / "in" / "inspection.json").read_text())
    assert np.shape(numbers["attention_distance"]) == (2, 3)


def test_a_pattern_travels_with_a_saved_model(weights, tmp_path):
    model = vitlab.load_model(weights, attention="bigbird:block=2,seed=9")
    vitlab.save_model(model, tmp_path / "sparse")
    assert (
        json.loads((tmp_path / "sparse" / "vitlab.json").read_text())["model"]["attention"] == "bigbird:block=2,seed=9"
    )
    again = vitlab.load_model(tmp_path / "sparse")
    assert again.spec == model.spec
    assert [block.attention.layout for block in again.layers] == [block.attention.layout for block in model.layers]
    assert vitlab.load_model(tmp_path / "sparse", attention="full", merge=2).spec.merge == 2
    with pytest.raises(ValueError, match=r"bigbird:block=2,seed=9 attention needs the whole grid .* merge must be 0"):
        vitlab.load_model(tmp_path / "sparse", merge=2)
    with pytest.raises(ValueError, match=r"its attention is bigbird.*model.set_attention\('full'\)"):
        vitlab.save_model(model, tmp_path / "hf", "hf")


@pytest.mark.slow
def test_fine_tuning_from_dense_to_sparse(weights, photos, tmp_path):
    run = vitlab.finetune(
        weights,
        f"folder:{photos}",
        tmp_path / "run",
        attention="window:2+global:2",
        schedule={"total": 2, "warmup": 0},
        batch=4,
        held_out=0.0,
        quiet=True,
    )
    assert run.model.spec.attention == "window:2+global:2"
    with pytest.raises(ValueError, match="axial attention does not fit weights for full attention"):
        vitlab.finetune(
            weights, f"folder:{photos}", tmp_path / "other", architecture={"attention": "axial"}, quiet=True
        )


# -- vitlab cost -----------------------------------------------------------------------------------


def row(attention, side, speed, macs=10**9):
    timings = (Timing(1, 1 / speed, 300 * 2**20, "torch"),)
    return Cost(f"ViT-Ti/16, {attention}", (side, side), "inference", macs, timings, 8, attention=attention)


def test_a_pattern_pays_from_the_size_after_which_it_stays_faster():
    full = [row("full", side, speed) for side, speed in ((64, 100), (128, 40), (256, 10))]
    late = [row("window:8", side, speed) for side, speed in ((64, 120), (128, 30), (256, 35))]
    never = [row("strided", side, speed) for side, speed in ((64, 90), (128, 30), (256, 9))]
    found = Costs((*full, *late, *never)).where_patterns_pay
    assert found.rows == (
        ("ViT-Ti/16", "inference", "window:8", "256", 3.5),
        ("ViT-Ti/16", "inference", "strided", None, 0.9),
    )
    assert Costs(tuple(late)).where_patterns_pay.rows == ()


def test_the_figure_of_patterns_has_macs_and_memory_too():
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    found = Costs((row("full", 64, 100), row("window:8", 64, 120, 5 * 10**8)))
    assert found._curves("GMACs of one image") == {"ViT-Ti/16, full": {64: 1}, "ViT-Ti/16, window:8": {64: 0.5}}
    assert found._curves("peak MB of the smallest batch")["ViT-Ti/16, full"] == {64: pytest.approx(314.57, abs=0.01)}
    assert found.figure.svg != Costs((Cost("ViT-Ti/16", (64, 64), "inference", 1, found.rows[0].timings),)).figure.svg


def test_all_is_one_pattern_of_each_kind(tmp_path):
    found = vitlab.cost("ViT-Ti/16", image=[100], attention="all", out=tmp_path / "out", quiet=True)
    assert [row.attention for row in found.rows] == list(EXAMPLES)
    assert [row.model for row in found.rows] == [f"ViT-Ti/16, {attention}" for attention in EXAMPLES]
    other = vitlab.cost(["R50x1"], image=[64], attention=["window:7"], quiet=True)
    why = "this model has no attention between patches"
    assert other.rows[0].note == f"attention 'window:7' is for Vision Transformers and hybrids; {why}"
    with pytest.raises(ValueError, match="attention 'wide' is unknown"):
        vitlab.cost("ViT-Ti/16", attention=["wide"], quiet=True)


def test_beside_vits_a_swin_is_measured_once(tmp_path):
    found = vitlab.cost(["ViT-Ti/16", "Swin-T"], image=[100], attention=["full", "window:7"], quiet=True)
    assert [row.model for row in found.rows][:2] == ["ViT-Ti/16, full", "ViT-Ti/16, window:7"]
    assert [row.model for row in found.rows][2:] == ["Swin-T"]
    assert model_spec("Swin-T", attention="full") == model_spec("Swin-T")
    with pytest.raises(ValueError, match="a Swin always attends within its own windows"):
        model_spec("Swin-T", attention="window:7")


@pytest.mark.slow
def test_patterns_are_measured_beside_full_attention(tmp_path, capsys):
    words = ["cost", "ViT-Ti/16", "--image", "64", "--attention", "full", "window:2", "axial", "--batch", "1"]
    assert main([*words, "--seconds", "2", "--out", str(tmp_path / "out")]) == 0
    assert "pays from" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "cost.json").read_text())
    assert [row["model"] for row in rows] == ["ViT-Ti/16, full", "ViT-Ti/16, window:2", "ViT-Ti/16, axial"]
    assert rows[1]["GMACs"] < rows[0]["GMACs"] < rows[2]["GMACs"]
    assert all(row["images/s"] > 0 for row in rows)
