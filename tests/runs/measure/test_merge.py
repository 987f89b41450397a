"""`merge` in every command that loads a model, and the figure of merged patches."""

import json

import numpy as np
import pytest
import torch

import vitlab
from vitlab.cli import main
from vitlab.errors import WeightsWarning
from vitlab.inspection.merged import merged_picture


def test_every_command_that_measures_a_model_merges(weights, photos, tmp_path, capsys):
    data = f"folder:{photos}"
    model = vitlab.load_model(weights, merge=5)
    expected = vitlab.features(model, data, quiet=True).vectors.x
    plain = vitlab.features(str(weights), data, quiet=True).vectors.x
    assert not np.allclose(plain, expected)
    assert np.array_equal(vitlab.features(weights, data, merge=5, quiet=True).vectors.x, expected)
    assert np.array_equal(vitlab.features(weights, data, merge=0, quiet=True).vectors.x, plain)

    answers = vitlab.predict(weights, photos, merge=5, quiet=True)
    assert answers.model == f"{weights}, merge 5"
    assert [list(a.guesses) for a in answers] == [list(a.guesses) for a in vitlab.predict(model, photos, quiet=True)]

    scores = vitlab.evaluate([weights, model], data, merge=None, quiet=True)
    merged = vitlab.evaluate(weights, data, merge=5, quiet=True)
    assert merged.rows[0].model == f"{weights}, merge 5"
    assert merged.rows[0].scores.loss == scores.rows[1].scores.loss != scores.rows[0].scores.loss

    flags = ["--merge", "5"]
    assert main(["evaluate", str(weights), "--data", data, "--out", str(tmp_path / "e"), "--workers", "0", *flags]) == 0
    assert "merge 5" in capsys.readouterr().out
    main(["features", str(weights), "--data", data, "--out", str(tmp_path / "f"), "--workers", "0", *flags])
    shards = sorted((tmp_path / "f").glob("*.npz"))
    assert np.array_equal(np.load(shards[0])["features"], expected)
    sets = ["--train", data, "--test", data, "--shots", "1", "--workers", "0"]
    main(["fewshot", "--model", str(weights), *sets, "--out", str(tmp_path / "s"), "--preprocessing", "own", *flags])
    assert main(["predict", str(weights), str(photos), "--json", *flags]) == 0
    assert f"{weights}, merge 5" in capsys.readouterr().out


def test_more_than_a_layer_can_merge_is_a_warning_with_what_is_left(weights, photos):
    for merge, full in ((98, 0), (8, 1)):
        told = f"{full} of 2 layers can merge {merge} tokens, and the others half of .*: 17 tokens become 5"
        with pytest.warns(WeightsWarning, match=told):
            vitlab.predict(weights, photos, merge=merge, quiet=True)
        with pytest.warns(WeightsWarning, match=told):
            vitlab.load_model(weights).set_merge(merge)
    vitlab.predict(weights, photos, merge=5, quiet=True)
    with pytest.raises(ValueError, match="merge is -1; give the number of tokens to merge in every layer, from 0"):
        vitlab.predict(weights, photos, merge=-1, quiet=True)


def test_a_module_is_used_as_it_is(weights, photos):
    with pytest.raises(ValueError, match="conventions, image, merge, attention and heads apply to weights"):
        vitlab.predict(vitlab.load_model(weights), photos, merge=5)


class TestInspect:
    def test_draws_the_merged_patches_of_a_model_that_merges(self, weights, photos, tmp_path):
        pytest.importorskip("matplotlib", reason="figures need matplotlib")
        found = vitlab.inspect(weights, photos / "ape" / "0.png", tmp_path / "inside", merge=5, maps=0, quiet=True)
        assert set(found.figures) == {"rollout", "merged", "distance", "filters", "positions"}
        assert "16 patches leave the last layer as 6 tokens" in found.page
        assert "merging 5 tokens per layer" in found.about
        assert {"merged.svg", "merged.png"} <= {path.name for path in (tmp_path / "inside").iterdir()}
        numbers = json.loads((tmp_path / "inside" / "inspection.json").read_text())
        assert np.shape(numbers["attention_distance"]) == (2, 3)

    def test_fills_the_patches_of_a_token_with_their_mean_colour(self):
        groups = np.array([[4, 9], [9, 9]])
        picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        merged = merged_picture(picture, groups)
        assert np.array_equal(merged[0, 0], np.rint(picture[:4, :4].mean(axis=(0, 1))).astype(np.uint8))
        others = np.concatenate([picture[:4, 4:].reshape(-1, 3), picture[4:].reshape(-1, 3)])
        assert np.array_equal(merged[7, 7], np.rint(others.mean(axis=0)).astype(np.uint8))
        assert np.array_equal(merged[7, 7], merged[0, 7])
        is_edge = (merged != merged[0, 0]).any(axis=-1) & (merged != merged[7, 7]).any(axis=-1)
        assert [tuple(place) for place in np.argwhere(is_edge)] == [
            *((row, 4) for row in range(4)),
            *((4, column) for column in range(4)),
        ]


def test_a_model_is_fine_tuned_while_it_merges_and_keeps_merging(weights, photos, tmp_path):
    short = {"schedule": {"total": 2, "warmup": 1}, "batch": 4, "device": "cpu", "report": False, "quiet": True}
    data = f"folder:{photos}"
    run = vitlab.finetune(weights, data, tmp_path / "run", merge=5, held_out=0.0, **short)
    assert run.spec.model.merge == run.model.spec.merge == 5
    assert vitlab.load_model(tmp_path / "run").spec.merge == 5
    same = vitlab.finetune(vitlab.load_model(weights, merge=5), data, tmp_path / "same", held_out=0.0, **short)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), same.model.parameters(), strict=True))
