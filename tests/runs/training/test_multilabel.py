"""From a table of several labels per image to a model that answers with a probability of each class."""

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import vitlab
from vitlab.cli import main
from vitlab.data.sources.catalogue import open_source
from vitlab.models.build import build_from_spec
from vitlab.report.ledger import read
from vitlab.run_dir import RunDir
from vitlab.runs.measure.evaluate import evaluate
from vitlab.runs.progress import describe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import measure_of

CHANNELS = ("blue", "green", "red")  # the classes, sorted
pytestmark = pytest.mark.usefixtures("charts")  # a report of several labels draws them


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """48 pictures of every mixture of three colours, a table of their labels, and a small model without a head."""
    path = tmp_path_factory.mktemp("several")
    rng, rows, single = np.random.default_rng(0), [], []
    for number in range(48):
        labels = [name for bit, name in enumerate(CHANNELS) if number >> bit & 1]
        colour = np.array([220 if name in labels else 30 for name in reversed(CHANNELS)])
        pixels = np.clip(colour + rng.normal(0, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path / f"{number:02d}.png")
        rows.append(f"{number:02d}.png,{';'.join(labels)}")
        single += [f"{number:02d}.png,{labels[0]}"] if len(labels) == 1 else []
    (path / "several.csv").write_text("\n".join(["path,label", *rows]))
    (path / "single.csv").write_text("\n".join(["path,label", *single]))
    spec = ViTSpec(patch=8, layers=1, width=32, mlp=64, heads=2, image=(16, 16), classes=5)
    vitlab.save_model(build_from_spec(spec), path / "base")
    return path


def command(folder, table, out, *more):
    words = ["finetune", str(folder / "base"), "--data", f"csv:{folder}/{table}?separator=;", "--out", str(out)]
    size = ["--image", "16", "--batch", "12", "--schedule.total", "40", "--schedule.warmup", "4", "--workers", "0"]
    return [*words, *size, "--schedule.peak", "0.3", *more]


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    held = ["--held-out", "0.25", "--validate-every", "10", "--patience", "9"]
    assert main(command(folder, "several.csv", out, "--loss", "sigmoid", *held)) == 0
    return out


def test_several_labels_and_the_softmax_loss_are_refused_before_there_is_a_folder(folder, tmp_path, capsys):
    assert main(command(folder, "several.csv", tmp_path / "run")) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'00.png' of" in said
    assert "has 0 labels; the softmax loss needs exactly one: give --loss sigmoid" in said
    assert not (tmp_path / "run").exists()


def test_a_run_on_several_labels_is_judged_by_mean_average_precision(run):
    result = json.loads((run / "result.json").read_text())["validation"]
    assert {"map", "f1_micro", "f1_macro", "threshold"} <= set(result)
    assert "top1" not in result
    history = RunDir.open(run).history("validation", "map")
    assert len(history) == 4
    best = json.loads((run / "result.json").read_text())["step"]
    assert history[best] == max(history.values()) == result["map"] > 0.9


def test_the_model_answers_with_a_probability_of_each_class(folder, run):
    model = vitlab.load_model(run / "model")
    assert model.task == "multi-label"
    (answer,) = vitlab.predict(model, folder / "07.png")
    images = vitlab.preprocess(model, folder / "07.png")
    with torch.inference_mode():
        expected = model(images).sigmoid()[0].tolist()
    assert {guess.index: guess.probability for guess in answer.guesses} == pytest.approx(dict(enumerate(expected)))


def test_evaluate_gives_average_precision_by_class_and_f1_at_the_threshold(folder, run, tmp_path, capsys):
    metrics = pytest.importorskip("sklearn.metrics")
    data, out = f"csv:{folder}/several.csv?separator=;", tmp_path / "out"
    words = ["evaluate", str(run / "model"), "--data", data, "--out", str(out), "--workers", "0", "--threshold", "0.3"]
    assert main([*words, "--ledger", str(tmp_path / "ledger.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "mAP %" in said
    assert "top-1" not in said
    model, source = vitlab.load_model(run / "model"), open_source(data)
    with torch.inference_mode():
        logits = model(vitlab.preprocess(model, [folder / source.id(n) for n in range(48)]))
    truth = np.array([[k in source.label(n) for k in range(3)] for n in range(48)])
    with (out / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    wanted = 100 * metrics.average_precision_score(truth, logits.numpy(), average=None)
    assert float(row["mAP %"]) == pytest.approx(wanted.mean())
    predicted = (logits.sigmoid() >= 0.3).numpy()
    assert float(row["F1 micro %"]) == pytest.approx(100 * metrics.f1_score(truth, predicted, average="micro"))
    assert (row["count"], row["threshold"]) == ("48", "0.3")
    with (out / "01-classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [line["name"] for line in rows] == list(CHANNELS)
    assert [float(line["AP %"]) for line in rows] == pytest.approx(wanted.tolist())
    assert not (out / "01-confusion.csv").exists()
    (entry,), _ = read(tmp_path / "ledger.jsonl")
    assert (entry.metric, entry.got) == ("mAP %", pytest.approx(wanted.mean()))


def test_the_report_has_the_average_precision_of_each_class(run):
    pytest.importorskip("matplotlib")
    said = (run / "report.html").read_text()
    assert "Mean average precision of the validation images" in said
    assert "average precision" in said
    assert "Worst mistakes" not in said


def test_a_model_that_is_made_again_knows_its_task(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert vitlab.load_model(tmp_path / "run" / "model").task == "multi-label"


def test_a_table_of_models_of_both_tasks_has_the_columns_of_both(folder, run, tmp_path):
    model = vitlab.load_model(run / "model")
    model.task = "single-label"
    vitlab.save_model(model, tmp_path / "single")
    console, data = Console(file=StringIO(), width=300), f"csv:{folder}/single.csv"
    found = evaluate([run / "model", tmp_path / "single"], data, tmp_path / "out", batch=8, console=console)
    rows = found.rows
    with (tmp_path / "out" / "results.csv").open() as file:
        multi, single = csv.DictReader(file)
    assert (multi["top-1 %"], single["mAP %"]) == ("", "")
    assert float(single["top-1 %"]) == 100 * rows[1].numbers["top1"]
    assert float(multi["mAP %"]) == 100 * rows[0].scores.numbers()["map"]
    (tmp_path / "map.json").write_text("{}")
    with pytest.raises(ValueError, match="this one is multi-label"):
        evaluate(run / "model", data, tmp_path / "other", label_map=tmp_path / "map.json", quiet=True)


def test_the_sigmoid_loss_on_one_label_per_image_is_still_judged_by_accuracy(folder, tmp_path):
    assert main(command(folder, "single.csv", tmp_path / "run", "--loss", "sigmoid", "--held-out", "0.25")) == 0
    assert vitlab.load_model(tmp_path / "run" / "model").task == "single-label"
    result = json.loads((tmp_path / "run" / "result.json").read_text())["validation"]
    assert "top1" in result
    assert "map" not in result


@pytest.mark.slow
def test_a_sweep_over_several_labels_picks_by_mean_average_precision(folder, tmp_path, capsys):
    data = f"csv:{folder}/several.csv?separator=;"
    words = ["sweep", str(folder / "base"), "--data", data, "--test", data, "--rates", "0.3,0.0001", "--seeds", "1"]
    size = ["--image", "16", "--batch", "12", "--schedule.total", "30", "--schedule.warmup", "3", "--loss", "sigmoid"]
    assert main([*words, *size, "--held-out", "0.25", "--out", str(tmp_path / "sweep")]) == 0
    choice = json.loads((tmp_path / "sweep" / "choice.json").read_text())
    assert choice["rule"].startswith("highest mean average precision")
    assert "mAP" in choice["why"]
    assert "mAP %" in capsys.readouterr().out


def test_the_first_measure_that_a_validation_gives_decides():
    assert measure_of({"map": 0.5, "top1": 0.6}) == "map"
    assert measure_of({"top1": 0.6, "loss": 1.0}) == "top1"


def test_numbers_of_several_labels_are_told_in_a_few_words():
    numbers = {"map": 0.5, "f1_micro": 0.25, "threshold": 0.5, "loss": 1.0, "count": 4, "not_evaluated": 1}
    assert describe(numbers) == (
        "mAP 50.00%, F1 25.0% micro, nan% macro at 0.5, 4 images, loss 1.0000; 1 of 5 not evaluated"
    )


def test_arrays_of_zeros_and_ones_have_several_labels_where_a_row_has(tmp_path):
    images = np.zeros((3, 4, 4), np.uint8)
    for name, labels, first in (("a", [[1, 0], [0, 1], [1, 1]], 2), ("b", [[1, 0], [0, 1], [0, 1]], None)):
        np.savez(Path(tmp_path / name), images=images, labels=np.array(labels))
        assert open_source(f"npz:{tmp_path}/{name}.npz").first_not_single == first
