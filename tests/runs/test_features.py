"""Features in shards and few-shot over them: every sample once, resumed without loss, the same as by hand."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

import vitlab
from agreement import randomised
from vitlab import save_model
from vitlab.cli import main
from vitlab.data.accounting import TooManyBadImages
from vitlab.data.catalogue import open_source
from vitlab.data.loading import evaluation_batches
from vitlab.data.source import Sample
from vitlab.data.transforms import normalised
from vitlab.data.vectors import FeatureFolder, open_vectors, read_folder
from vitlab.evaluate.features import features_and_labels, fewshot_hook
from vitlab.models.build import build_from_spec
from vitlab.runs.features import write_features
from vitlab.runs.fewshot import FewShotOptions, fewshot
from vitlab.runs.preparing import ModelOptions
from vitlab.spec import Preprocessing, ViTSpec

HOW = Preprocessing()
SHAPES = "shapes?classes=4&images={}&size=16&seed={}"


def quiet():
    return Console(record=True, width=300, file=io.StringIO())


class Noise:
    """Pictures of noise; `bad` ones cannot be decoded and `stop` interrupts."""

    class_names = ("a", "b\udcff", "c")

    def __init__(self, samples, bad=(), stop=None):
        self.samples, self.bad, self.stop = samples, bad, stop

    def __len__(self):
        return self.samples

    def id(self, index):
        return f"dir/{index}\udcff.png"

    def label(self, index):
        return (index % 3,)

    def item(self, index):
        if index == self.stop:
            raise KeyboardInterrupt
        if index in self.bad:
            return Sample(b"no image", self.label(index), self.id(index))
        pixels = np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        return Sample(pixels, self.label(index), self.id(index))


def by_hand(model, source):
    """Picture by picture, without the loader."""
    rows = []
    for index in range(len(source)):
        pixels = torch.from_numpy(source.item(index).data.copy()).permute(2, 0, 1)[None]
        with torch.inference_mode():
            rows.append(model.features(normalised(pixels, HOW))[0].numpy())
    return np.stack(rows)


def test_shards_hold_every_sample_with_its_id(tiny, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 23, 10)
    write_features(tiny, HOW, Noise(23), folder, spec="noise", batch=4)
    assert [file.name for file in sorted((tmp_path / "f").glob("*.npz"))] == [f"shard-{n:05d}.npz" for n in range(3)]
    found = read_folder(tmp_path / "f")
    assert found.ids == tuple(Noise(23).id(index) for index in range(23))
    assert found.y.tolist() == [index % 3 for index in range(23)]
    assert np.abs(found.x - by_hand(tiny, Noise(23))).max() < 1e-5
    assert found.class_names == Noise.class_names
    with np.load(tmp_path / "f" / "shard-00001.npz", allow_pickle=False) as shard:  # as a stranger would open it
        assert shard["numbers"].tolist() == list(range(10, 20))


def test_an_interrupted_extraction_continues_to_the_same_bytes(tiny, tmp_path):
    whole, torn = FeatureFolder(tmp_path / "a", 23, 5), FeatureFolder(tmp_path / "b", 23, 5)
    write_features(tiny, HOW, Noise(23), whole, spec="noise", batch=2)
    with pytest.raises(KeyboardInterrupt):
        write_features(tiny, HOW, Noise(23, stop=12), torn, spec="noise", batch=2)
    assert torn.missing() == [2, 3, 4]
    with pytest.raises(ValueError, match="lacks 3 of 5 shards"):
        read_folder(tmp_path / "b")
    for rank in (1, 0):
        write_features(tiny, HOW, Noise(23), torn, spec="noise", batch=2, rank=rank, ranks=2)
    for number in range(5):
        with np.load(whole.file(number)) as a, np.load(torn.file(number)) as b:
            assert all(np.array_equal(a[name], b[name]) for name in a.files)


def test_a_folder_of_other_features_is_refused(tiny, tiny_spec, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 6, 5)
    write_features(tiny, HOW, Noise(6), folder, spec="noise")
    other = randomised(build_from_spec(tiny_spec), seed=1)
    for model, how, source in (
        (other, HOW, Noise(6)),
        (tiny, Preprocessing(fraction=0.5), Noise(6)),
        (tiny, HOW, open_source(SHAPES.format(6, 0))),
    ):
        with pytest.raises(ValueError, match="other features"):
            write_features(model, how, source, folder, spec="noise")


def test_bad_images_stop_or_are_named_also_after_an_interruption(tiny, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 20, 5)
    with pytest.raises(TooManyBadImages, match="dir/3"):
        write_features(tiny, HOW, Noise(20, bad={3}), folder, spec="noise")
    assert folder.missing() == [0, 1, 2, 3]
    write_features(tiny, HOW, Noise(20, bad={3, 12}), folder, spec="noise", max_bad=0.1)
    assert [sample.id for sample in folder.bad()] == [Noise(20).id(3), Noise(20).id(12)]
    assert len(read_folder(tmp_path / "f").x) == 18
    folder.file(3).unlink()
    with pytest.raises(TooManyBadImages, match="dir/3"):
        write_features(tiny, HOW, Noise(20, bad={3, 12}), folder, spec="noise", max_bad=0.05)


# -- Few-shot over data specs ------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=0, head="linear")
    save_model(randomised(build_from_spec(spec)), tmp_path / "model")
    return tmp_path / "model"


def test_few_shot_on_images_is_few_shot_on_their_features(model, tmp_path):
    train, test = SHAPES.format(60, 0), SHAPES.format(40, 1)
    options = FewShotOptions(shots=(1, 3), seeds=(0, 1), l2=1.0)
    table = fewshot(model, [train], [test], tmp_path / "out", options, quiet())
    loaded = vitlab.load_model(model)
    how = Preprocessing(fraction=224 / 256)
    arrays = []
    for spec in (train, test):
        batches = evaluation_batches(open_source(spec), batch=16, size=(16, 16), preprocessing=how)
        arrays += features_and_labels(loaded, batches, lambda pixels: normalised(pixels, how))
    for row in table.rows:
        shots, seed = int(row[1][0]), row[2]
        expected = vitlab.fewshot(*arrays, shots=shots, seed=seed, l2=1.0)
        assert (row[3], row[4], row[6], row[7]) == (100 * expected.accuracy, 1.0, 4 * shots, 40)
    assert [(row[1], row[2]) for row in table.rows] == [("1-shot", 0), ("1-shot", 1), ("3-shot", 0), ("3-shot", 1)]
    made = [json.loads(card.read_text())["samples"] for card in (tmp_path / "out").rglob("features.json")]
    assert sorted(made)[1] == 40
    assert min(made) <= 24  # two seeds, three shots, four classes: no other training image was looked at


def test_neighbours_and_probe_use_all_samples_and_many_sets_share_their_l2(model, tmp_path, capsys):
    command = ["fewshot", "--model", str(model), "--out", str(tmp_path / "out"), "--workers", "0", "--shots", "5"]
    data = ["--train", SHAPES.format(60, 0), SHAPES.format(60, 2), "--test", SHAPES.format(40, 1), SHAPES.format(40, 3)]
    assert main([*command, *data, "--neighbours", "3", "--probe", "20"]) == 0
    assert "mean rank of the test accuracy over 2 sets" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "fewshot.json").read_text())
    assert [row["method"] for row in rows] == ["5-shot"] * 2 + ["3 nearest neighbours", "linear probe"] * 2
    assert rows[0]["l2 or rate"] == rows[1]["l2 or rate"]
    assert rows[2]["train"] == 60
    assert (tmp_path / "out" / "fewshot.csv").read_text().count("\n") == 7
    twice = ["--train", SHAPES.format(60, 0), SHAPES.format(60, 0), *data[3:]]
    assert main([*command, *twice]) == 0
    rows = json.loads((tmp_path / "out" / "fewshot.json").read_text())
    assert [row["data"] for row in rows] == [f"{SHAPES.format(60, 0)}, {SHAPES.format(40, seed)}" for seed in (1, 3)]


def test_features_written_once_serve_few_shot_without_a_model(model, tmp_path, capsys):
    for name, seed in (("train", 0), ("test", 1)):
        command = ["features", str(model), "--data", SHAPES.format(40, seed), "--out", str(tmp_path / name)]
        assert main([*command, "--workers", "0", "--shard", "16"]) == 0
    capsys.readouterr()
    sets = ["--train", str(tmp_path / "train"), "--test", str(tmp_path / "test"), "--out", str(tmp_path / "out")]
    assert main(["fewshot", *sets, "--shots", "2", "--l2", "1024"]) == 0
    (row,) = json.loads((tmp_path / "out" / "fewshot.json").read_text())
    train, test = (open_vectors(str(tmp_path / name)) for name in ("train", "test"))
    assert row["accuracy %"] == 100 * vitlab.fewshot(train.x, train.y, test.x, test.y, shots=2, l2=1024.0).accuracy
    assert row["l2 or rate"] == 1024.0
    assert main(["fewshot", "--train", "shapes", "--test", "shapes", "--out", str(tmp_path / "x")]) == 2
    assert "name the model" in capsys.readouterr().err


def test_other_classes_in_the_test_set_are_refused(model, tmp_path):
    train, test = SHAPES.format(60, 0), SHAPES.format(40, 1).replace("classes=4", "classes=5")
    with pytest.raises(ValueError, match="the classes differ"):
        fewshot(model, [train], [test], tmp_path, FewShotOptions(shots=(1,)), quiet())
    with pytest.raises(ValueError, match="in pairs"):
        fewshot(model, [train], [], tmp_path, FewShotOptions(), quiet())
    with pytest.raises(ValueError, match="nothing to do"):
        FewShotOptions(ModelOptions(), ())


def test_the_few_shot_hook_measures_a_model_in_training(tiny):
    def batches(seed):
        return lambda: evaluation_batches(
            open_source(SHAPES.format(40, seed)), batch=16, size=(16, 16), preprocessing=HOW
        )

    measure = fewshot_hook(batches(0), batches(1), lambda pixels: normalised(pixels, HOW), shots=(1, 4), l2=1.0)
    tiny.train()
    numbers = measure(tiny)
    assert tiny.training
    normalise = lambda pixels: normalised(pixels, HOW)  # noqa: E731
    train, test = (features_and_labels(tiny, batches(seed)(), normalise) for seed in (0, 1))
    for shots in (1, 4):
        assert numbers[f"{shots}-shot"] == vitlab.fewshot(*train, *test, shots=shots, l2=1.0).accuracy
