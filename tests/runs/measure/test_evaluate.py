"""`vitlab evaluate` from end to end: the table, what is refused, and real photographs against timm."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from agreement import randomised
from pictures import jpeg
from vitlab import load_model, predict, save_model
from vitlab.cli import main
from vitlab.data.source import Sample, Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.folders import FolderSource
from vitlab.engines.making import missing_packages
from vitlab.errors import TooManyBadImages
from vitlab.files.store import Locked
from vitlab.files.strict_json import from_json, read_json
from vitlab.metrics.scores import Scores
from vitlab.metrics.targets import read_real
from vitlab.models.build import build_from_spec
from vitlab.paper.finetuning import IMAGE_SETS, REAL_EMPTY
from vitlab.paper.imagenet import imagenet_classes
from vitlab.report.answers import MistakeList, mistakes_file
from vitlab.report.ledger import read
from vitlab.runs import progress as display
from vitlab.runs.measure.evaluate import Labels, evaluate, match_classes, truth_of
from vitlab.runs.measure.inputs import preprocessing_of
from vitlab.runs.measure.scoring import Reading, outputs
from vitlab.spec import CONVENTIONS, ViTSpec

CLASSES = ("ape", "bee", "cat")


@pytest.fixture
def photos(tmp_path):
    """Three classes, 4 + 3 + 2 pictures."""
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for picture in range(4 - number):
            noise = np.random.default_rng(10 * number + picture).integers(0, 256, (20, 24, 3), dtype=np.uint8)
            (tmp_path / "photos" / name / f"{picture}.jpg").write_bytes(jpeg(Image.fromarray(noise)))
    return tmp_path / "photos"


def saved_model(folder, classes=CLASSES, seed=0):
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=len(classes), head="linear")
    model = randomised(build_from_spec(spec), seed)
    model.class_names = classes
    save_model(model, folder)
    return folder


def run(models, specs, out, **options):
    console = Console(record=True, width=300, file=io.StringIO())
    found = evaluate(models, specs, out, console=console, **options)
    console.print(found.table.terminal())
    return list(found.rows), console.export_text()


def test_one_table_for_many_models_and_sets_in_four_forms(photos, tmp_path):
    models = [saved_model(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    specs = [f"folder:{photos}", f"folder:{photos}?split="]
    rows, text = run(models, specs, tmp_path / "out", batch=2)
    assert [(row.model, row.data) for row in rows] == [(str(m), s) for m in models for s in specs]
    for row, model in zip(rows[::2], models, strict=True):
        files = sorted(photos.rglob("*.jpg"))
        answers = list(predict(load_model(model), files, top=1))
        right = sum(answer.guesses[0].name == file.parent.name for answer, file in zip(answers, files, strict=True))
        assert (row.scores.top1, row.scores.count) == (right, 9)
    assert text.count("preprocessing: stretch, bilinear not antialiased, mean 0.5, std 0.5") == 2
    with (tmp_path / "out" / "results.csv").open() as file:
        listed = list(csv.DictReader(file))
    assert [float(line["top-1 %"]) for line in listed] == [100 * row.numbers["top1"] for row in rows]
    assert [line["count"] for line in listed] == ["9"] * 4
    assert [line["engine"] for line in listed] == ["torch"] * 4
    details = json.loads((tmp_path / "out" / "results.json").read_text())
    assert details[0]["numbers"]["top1"] == rows[0].numbers["top1"]
    assert details[0]["account"]["found"] == 9
    assert (details[0]["engine"], details[0]["agreement"]) == ("torch", None)
    assert "| engine |" in (tmp_path / "out" / "results.md").read_text()
    assert (tmp_path / "out" / "results.md").read_text().count("\n") == 6
    with (tmp_path / "out" / "01-confusion.csv").open() as file:
        assert sum(int(line["count"]) for line in csv.DictReader(file)) == 9
    with (tmp_path / "out" / "01-classes.csv").open() as file:
        assert [(line["name"], line["count"]) for line in csv.DictReader(file)] == [
            ("ape", "4"),
            ("bee", "3"),
            ("cat", "2"),
        ]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages("onnxruntime")), reason="onnxruntime is not installed")
def test_the_agreement_of_int8_is_in_the_results(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "engines"))
    model = saved_model(tmp_path / "m")
    (row,), text = run([model], [f"folder:{photos}"], tmp_path / "out", engine="onnxruntime-int8")
    assert row.agreement.images == 9
    assert f"onnxruntime-int8: {row.agreement}" in text
    (written,) = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["agreement"] == asdict(row.agreement)
    assert written["engine"] == "onnxruntime-int8"


def test_the_worst_mistakes_are_kept_with_their_samples_and_class_names(photos, tmp_path):
    (row,), _ = run([saved_model(tmp_path / "m")], [f"folder:{photos}"], tmp_path / "out")
    kept = from_json(MistakeList, read_json(tmp_path / "out" / mistakes_file(1)))
    wrong = {id for id, answer in _answers(photos, tmp_path / "m").items() if answer != id.split("/")[0]}
    assert wrong
    assert kept.data == f"folder:{photos}"
    assert {one.id for one in kept.mistakes} == wrong
    assert all(one.label == one.id.split("/")[0] != one.answer for one in kept.mistakes)
    assert [one.loss for one in kept.mistakes] == sorted((one.loss for one in row.mistakes), reverse=True)
    (tmp_path / "out" / mistakes_file(2)).write_text("of a longer table")
    run([tmp_path / "m"], [f"folder:{photos}"], tmp_path / "out")
    assert not (tmp_path / "out" / mistakes_file(2)).exists()


def _answers(photos, model):
    """The predicted class of every image, by id."""
    files = sorted(photos.rglob("*.jpg"))
    found = zip(files, predict(load_model(model), files, top=1), strict=True)
    return {file.relative_to(photos).as_posix(): answer.guesses[0].name for file, answer in found}


def test_a_long_evaluation_tells_how_far_it_is(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "QUIET", -1.0)
    _, said = run([saved_model(tmp_path / "m")], [f"folder:{photos}"], tmp_path / "out")
    assert re.search(r"^scored 9 of 9  [\d.,]+ images/s  0 s left$", said, re.MULTILINE)


def test_a_bad_image_stops_unless_allowed_and_is_then_named(photos, tmp_path):
    model = saved_model(tmp_path / "m")
    (photos / "ape" / "0.jpg").write_bytes(b"\xff\xd8\xff broken")
    with pytest.raises(TooManyBadImages, match=r"'ape/0\.jpg'"):
        run([model], [f"folder:{photos}"], tmp_path / "out")
    rows, text = run([model], [f"folder:{photos}"], tmp_path / "out", max_bad=0.2)
    assert "1 of 9 not evaluated" in text
    assert rows[0].scores.count == 8
    (named,) = json.loads((tmp_path / "out" / "quarantine.json").read_text())
    assert named["id"] == "ape/0.jpg"
    assert len(named["sha256"]) == 64


def test_a_second_call_continues_and_other_weights_do_not(photos, tmp_path, monkeypatch):
    model, spec = saved_model(tmp_path / "m"), f"folder:{photos}"
    first, _ = run([model], [spec], tmp_path / "out")
    monkeypatch.setattr("vitlab.models.vit.ViT.sequence", None)  # whoever computes again fails
    again, _ = run([model], [spec], tmp_path / "out")
    assert again[0].scores == first[0].scores
    with pytest.raises(TypeError):
        run([saved_model(tmp_path / "n", seed=1)], [spec], tmp_path / "out")
    with pytest.raises(TypeError):
        run([model], [spec], tmp_path / "out", preprocessing="timm")


def test_an_interrupted_evaluation_of_files_continues_to_the_same_table(photos, tmp_path, monkeypatch):
    model, spec, read = saved_model(tmp_path / "m"), f"folder:{photos}", []
    whole, _ = run([model], [spec], tmp_path / "whole", batch=1)

    def item(self, index, stop=8, whole_item=FolderSource.item):
        read.append(index)
        if index == stop:
            raise KeyboardInterrupt
        return whole_item(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(FolderSource, "item", item)
        with pytest.raises(KeyboardInterrupt):
            run([model], [spec], tmp_path / "out", batch=1, save_every=0.0)
        patch.setattr(FolderSource, "item", partialmethod(item, stop=None))
        read.clear()
        rows, _ = run([model], [spec], tmp_path / "out", batch=1)
    assert read == [8]  # what was saved is not scored again
    assert rows[0].scores == whole[0].scores
    for name in ("results.csv", "results.json", "01-classes.csv", "01-confusion.csv", "01-mistakes.json"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_pictures_overwritten_under_their_names_are_scored_again_and_it_is_said(photos, tmp_path):
    model, spec = saved_model(tmp_path / "m"), f"folder:{photos}"
    (photos / "ape" / "0.jpg").write_bytes(b"\xff\xd8\xff broken")
    first, _ = run([model], [spec], tmp_path / "out", max_bad=0.2)
    _, text = run([model], [spec], tmp_path / "out", max_bad=0.2)
    assert "changed" not in text
    mended = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    (photos / "ape" / "0.jpg").write_bytes(jpeg(Image.fromarray(mended)))
    again, text = run([model], [spec], tmp_path / "out")
    assert f"{spec}: files have changed since they were scored; all are scored again" in text
    assert (first[0].scores.count, again[0].scores.count) == (8, 9)
    assert again[0].account.quarantined == {}
    fresh, _ = run([model], [spec], tmp_path / "other")
    assert again[0].scores == fresh[0].scores
    assert len(list((tmp_path / "out" / "progress").iterdir())) == 1


def test_details_of_an_earlier_longer_evaluation_do_not_stay(photos, tmp_path):
    models = [saved_model(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    run(models, [f"folder:{photos}"], tmp_path / "out")
    (tmp_path / "out" / "2-classes.csv").write_text("of the user")
    assert (tmp_path / "out" / "02-confusion.csv").is_file()
    run(models[:1], [f"folder:{photos}"], tmp_path / "out")
    tables = sorted(file.name for file in (tmp_path / "out").glob("*-*.csv"))
    assert tables == ["01-classes.csv", "01-confusion.csv", "2-classes.csv"]


def test_a_folder_of_something_else_is_left_alone(photos, tmp_path):
    model = saved_model(tmp_path / "m")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "results.csv").write_text("years of work")
    with pytest.raises(FileExistsError, match="thesis contains other files; choose an"):
        run([model], [f"folder:{photos}"], tmp_path / "thesis")
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["results.csv"]
    with pytest.raises(ValueError, match="no such file or folder"):
        run([tmp_path / "nowhere"], [f"folder:{photos}"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert run([model], [f"folder:{photos}"], tmp_path / "empty")[0][0].scores.count == 9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--expected", "50", "--expected-from", "a card"], "--expected is for the ledger; add --ledger FILE"),
        (["--expected", "50", "--ledger", "{}/l.jsonl"], "--expected-from"),
        (["--expected", "nan", "--expected-from", "a card", "--ledger", "{}/l.jsonl"], "nan"),
        (["--expected-from", "a card", "--ledger", "{}/l.jsonl"], "--expected-from goes with --expected"),
        (["--expected", "50", "--expected-from", "x", "--ledger", "{}/l.jsonl", "--real", "real.json"], "2 rows"),
        (["--ledger", "{}"], "is a folder"),
    ],
)
def test_an_expected_number_that_cannot_be_kept_is_refused_at_once(photos, tmp_path, capsys, more, message):
    command = ["evaluate", str(saved_model(tmp_path / "m")), "--data", f"folder:{photos}", "--workers", "0"]
    assert main([*command, "--out", str(tmp_path / "out"), *(word.format(tmp_path) for word in more)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_evaluations_do_not_share_a_folder_at_once(photos, tmp_path):
    model = saved_model(tmp_path / "m")
    code = (
        "import sys; from pathlib import Path; from vitlab.files.store import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(Locked):
        run([model], [f"folder:{photos}"], tmp_path / "out")
    other.communicate()
    assert run([model], [f"folder:{photos}"], tmp_path / "out")[0][0].scores.count == 9


def test_drawn_pictures_of_another_seed_are_another_set(tmp_path):
    names = tuple(open_source("shapes?classes=3&images=12&size=16").class_names)
    model = saved_model(tmp_path / "m", names)
    specs = [f"shapes?classes=3&images=12&size=16&seed={seed}" for seed in (0, 1)]
    rows, _ = run([model], specs, tmp_path / "out")
    assert rows[0].scores.loss != rows[1].scores.loss


def test_other_classes_are_refused_with_what_to_do(photos, tmp_path):
    spec = f"folder:{photos}"
    for classes in (("ape", "bee"), ("ape", "bee", "dog"), ("ape", "bee", "dog", "emu")):
        model = saved_model(tmp_path / "-".join(classes), classes)
        with pytest.raises(ValueError, match=r"label_map=FILE.*by_number=True"):
            run([model], [spec], tmp_path / "out")
    rows, text = run([model], [spec], tmp_path / "out", by_number=True)
    assert rows[0].scores.count == 9
    assert "without comparing names" in text
    with pytest.raises(ValueError, match="cannot be the model's"):
        run([saved_model(tmp_path / "two", ("ape", "bee"))], [spec], tmp_path / "out", by_number=True)


def test_classes_in_another_order_or_fewer_are_matched_by_name(photos, tmp_path):
    spec = f"folder:{photos}"
    whole, _ = run([saved_model(tmp_path / "m")], [spec], tmp_path / "out")
    for number, classes in enumerate([("cat", "ape", "bee"), ("bee", "cat", "dog", "ape")]):
        model = load_model(saved_model(tmp_path / f"{number}", classes))
        answers = predict(model, sorted(photos.rglob("*.jpg")), top=1)
        right = sum(answer.guesses[0].name == Path(answer.image).parent.name for answer in answers)
        rows, text = run([tmp_path / f"{number}"], [spec], tmp_path / f"out-{number}")
        assert (rows[0].scores.top1, rows[0].scores.count) == (right, 9)
        assert "matched by name" in text
    assert whole[0].scores.count == 9


def test_the_same_weights_with_other_class_names_are_scored_anew(photos, tmp_path):
    spec, found = f"folder:{photos}", []
    for classes in (("ape", "bee", "cat"), ("bee", "cat", "ape")):
        rows, _ = run([saved_model(tmp_path / "-".join(classes), classes)], [spec], tmp_path / "out")
        found.append(rows[0].scores.loss)
    assert found[0] != found[1]


@pytest.mark.parametrize("form", ["{}", "{:03d}"])
def test_by_number_a_folder_called_10_is_class_10(tmp_path, form):
    for number in (*range(12), 14):
        folder = tmp_path / "data" / form.format(number)
        folder.mkdir(parents=True)
        noise = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        (folder / "a.jpg").write_bytes(jpeg(Image.fromarray(noise)))
    model = load_model(saved_model(tmp_path / "m", tuple(f"name {n}" for n in range(15))))
    files = {int(file.parent.name): file for file in (tmp_path / "data").rglob("*.jpg")}
    right = sum(predict(model, file, top=1)[0].guesses[0].index == number for number, file in files.items())
    rows, _ = run([tmp_path / "m"], [f"folder:{tmp_path}/data"], tmp_path / "out", by_number=True)
    assert sorted(rows[0].scores.count_by_class) == [*range(12), 14]
    assert rows[0].scores.top1 == right
    with pytest.raises(ValueError, match="no class number 14"):
        run([saved_model(tmp_path / "few", tuple("abcdefghijklm"))], [f"folder:{tmp_path}/data"], tmp_path / "o2",
            by_number=True)  # fmt: skip


def test_by_number_a_model_of_some_numbers_answers_with_those():
    model = build_from_spec(ViTSpec(4, 1, 24, 40, 3, (16, 16), 3, head="linear"))
    model.class_names = ("0", "2", "10")
    assert match_classes(model, ("2", "010"), by_number=True)[0] == (1, 2)
    assert match_classes(model, ("2", "010"), by_number=False)[0] == (1, 2)
    assert match_classes(model, ("red", "blue"), by_number=True)[0] == (0, 1)
    with pytest.raises(ValueError, match="no class number 1 "):
        match_classes(model, ("0", "1"), by_number=True)


def test_a_label_map_decides_what_is_right_and_may_restrict(photos, tmp_path):
    model = saved_model(tmp_path / "m", ("wasp", "lion", "gorilla", "puma", "car"))
    (tmp_path / "map.json").write_text(json.dumps({"ape": "gorilla", "bee": [], "cat": ["lion", "puma"]}))
    wide, _ = run([model], [f"folder:{photos}"], tmp_path / "out", label_map=tmp_path / "map.json")
    few, text = run([model], [f"folder:{photos}"], tmp_path / "out", label_map=tmp_path / "map.json", restrict=True)
    loaded, right = load_model(model), {"wide": 0, "few": 0}
    for file in sorted(photos.rglob("*.jpg")):
        allowed = {"ape": {"gorilla"}, "bee": set(), "cat": {"lion", "puma"}}[file.parent.name]
        (answer,) = predict(loaded, [file], top=5)
        names = [guess.name for guess in answer.guesses]
        right["wide"] += names[0] in allowed
        right["few"] += next(name for name in names if name in {"lion", "gorilla", "puma"}) in allowed
    assert [(row.scores.top1, row.scores.count, row.scores.skipped) for row in (wide[0], few[0])] == [
        (right["wide"], 6, 3),
        (right["few"], 6, 3),
    ]
    assert few[0].names == ("lion", "gorilla", "puma")
    assert "3 compete" in text


def test_wordnet_ids_are_imagenet_s_classes_and_a_model_without_classes_is_refused(tiny_spec):
    model = build_from_spec(replace(tiny_spec, classes=1000))
    ids = tuple(wordnet_id for wordnet_id, _ in imagenet_classes())
    numbers, note = match_classes(model, ids, by_number=False)
    assert numbers == tuple(range(1000))
    assert "WordNet" in note
    assert match_classes(model, ids[::-1], by_number=False)[0] == tuple(range(999, -1, -1))
    assert match_classes(model, (ids[7], ids[3]), by_number=False)[0] == (7, 3)
    with pytest.raises(ValueError, match="no classification head"):
        match_classes(build_from_spec(replace(tiny_spec, classes=0)), (), by_number=True)


def test_the_few_shot_preprocessing_stretches_to_256_and_crops_224(tiny):
    how = preprocessing_of(tiny, "few-shot")
    assert (how.resize, round(224 / how.fraction), how.mean) == ("square", 256, (0.5, 0.5, 0.5))
    assert preprocessing_of(tiny, "deit") == CONVENTIONS["deit"].preprocessing


def test_the_command_prints_the_table_and_adds_to_the_ledger(photos, tmp_path, capsys):
    model = saved_model(tmp_path / "m")
    command = ["evaluate", str(model), "--data", f"folder:{photos}", "--out", str(tmp_path / "out"), "--workers", "0"]
    ledger = tmp_path / "ledger.jsonl"
    more = ["--ledger", str(ledger), "--expected", "33.3", "--expected-from", "chance"]
    assert main([*command, *more]) == 0
    told = capsys.readouterr().out
    assert "top-1 %" in told
    assert re.search(r"own +torch ", told)
    assert told.splitlines()[-1].startswith(f"{tmp_path / 'out'}: the table as results.csv")
    (entry,), _ = read(ledger)
    assert f" {entry.got:.2f} " in told
    assert (entry.n, entry.expected, entry.expected_from, entry.engine) == (9, 33.3, "chance", "torch")
    assert main(["report", "--ledger", str(ledger), "--out", str(tmp_path / "report")]) == 0
    assert "33.3" in capsys.readouterr().out
    assert main([*command, "--device", "nowhere"]) == 2
    assert "no device is named 'nowhere'" in capsys.readouterr().err
    assert main(["evaluate", "--data", "digits"]) == 2
    assert "no model was given" in capsys.readouterr().err
    assert main([*command, "--max-bad", "2"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err


# -- Real photographs and real labels --------------------------------------------------------------


class Photographs(Source):
    """The 200 validation images of the reference folder, with ImageNet's class numbers."""

    def __init__(self, folder: Path):
        self.class_names = tuple(name for _, name in imagenet_classes())
        with (folder / "labels.csv").open() as file:
            self.rows = [(row["file"], int(row["class_index"])) for row in csv.DictReader(file)]
        self.folder = folder

    def __len__(self):
        return len(self.rows)

    def id(self, index):
        return self.rows[index][0]

    def label(self, index):
        return (self.rows[index][1],)

    def item(self, index):
        return Sample((self.folder / self.id(index)).read_bytes(), self.label(index), self.id(index))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "conventions", "name"),
    [
        ("ViT-Ti_16-augreg-in1k-224.npz", "timm", "vit_tiny_patch16_224"),
        ("DeiT-Ti_16-224.timm.safetensors", "deit", "deit_tiny_patch16_224"),
    ],
)
def test_every_photograph_is_predicted_as_by_timm_and_scored_by_both_kinds_of_labels(
    reference, weights, conventions, name
):
    import peers

    source = Photographs(reference / "imagenet_val_200")
    model = load_model(reference / "weights" / weights, conventions=conventions)
    how = model.spec.conventions.preprocessing
    truth = truth_of(model, source, Labels(real=reference / "real.json"))
    seen, scores = {}, {kind: Scores(1000) for kind in truth.targets}
    for batch, logits in outputs(model, source, how, Reading(batch=25)):
        for kind, target in truth.targets.items():
            labels = [target.of(*sample) for sample in zip(batch.labels, batch.ids, strict=True)]
            seen |= dict(zip(batch.ids, scores[kind].add(logits, labels), strict=True))
    theirs = peers.timm.create_model(name, checkpoint_path=str(reference / "weights" / weights)).eval()
    config = peers.timm.data.resolve_data_config({"crop_pct": how.fraction}, model=theirs)
    transform = peers.timm.data.create_transform(**config, is_training=False)
    lists = json.loads((reference / "real.json").read_text())
    right = labelled = right_by_real = 0
    for index in range(len(source)):
        file = source.id(index)
        with torch.inference_mode():
            predicted = int(theirs(transform(Image.open(source.folder / file).convert("RGB"))[None]).argmax())
        assert seen[file] == predicted, file
        real = lists[int(file[15:23]) - 1]
        right, labelled = right + (predicted == source.label(index)[0]), labelled + bool(real)
        right_by_real += predicted in real
    assert (scores["own"].count, scores["own"].top1) == (200, right)
    assert (scores["ReaL"].count, scores["ReaL"].skipped) == (labelled, 200 - labelled)
    assert scores["ReaL"].top1 == right_by_real


def test_real_labels_have_the_counts_of_the_specification(reference):
    real = read_real(reference / "real.json")
    sizes = np.bincount([len(labels) for labels in real.lists])
    assert sizes.tolist() == [3_163, 39_394, 5_408, 1_319, 411, 161, 88, 41, 13, 2]
    assert len(real.lists) - sizes[0] == 46_837
    assert IMAGE_SETS["ImageNet"].test == len(real.lists)
    assert sizes[0] == REAL_EMPTY
