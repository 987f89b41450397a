"""Features in shards and few-shot over them: every sample once, resumed without loss, the same as by hand."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

import vitlab
from agreement import randomised
from pictures import png
from vitlab import save_model
from vitlab.cli import main
from vitlab.data.feature_files import FeatureFolder, open_vectors, read_folder
from vitlab.data.source import Sample, Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.transforms.evaluation import normalised
from vitlab.errors import TooManyBadImages
from vitlab.models.build import build_from_spec
from vitlab.runs import progress as display
from vitlab.runs.measure.features import features, write_features
from vitlab.runs.measure.fewshot import fewshot_table
from vitlab.runs.measure.scoring import Reading, outputs
from vitlab.spec import ViTSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.world.group import World

HOW = Preprocessing()
SHAPES = "shapes?classes=4&images={}&size=16&seed={}"


def quiet():
    return Console(record=True, width=300, file=io.StringIO())


def fewshot(model, train, test, out, options, console):
    return fewshot_table(train, test, model, out, **options, console=console)


class Noise(Source):
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
    write_features(tiny, HOW, Noise(23), folder, spec="noise", reading=Reading(batch=4))
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
    write_features(tiny, HOW, Noise(23), whole, spec="noise", reading=Reading(batch=2))
    with pytest.raises(KeyboardInterrupt):
        write_features(tiny, HOW, Noise(23, stop=12), torn, spec="noise", reading=Reading(batch=2))
    assert torn.missing() == [2, 3, 4]
    with pytest.raises(ValueError, match="lacks 3 of 5 files"):
        read_folder(tmp_path / "b")
    for rank in (1, 0):
        write_features(
            tiny, HOW, Noise(23), torn, spec="noise", reading=Reading(batch=2, world=World(rank=rank, ranks=2))
        )
    for number in range(5):
        with np.load(whole.file(number)) as a, np.load(torn.file(number)) as b:
            assert all(np.array_equal(a[name], b[name]) for name in a.files)


def test_a_folder_of_other_features_is_refused(tiny, tiny_spec, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 6, 5)
    write_features(tiny, HOW, Noise(6), folder, spec="noise")
    other = randomised(build_from_spec(tiny_spec), seed=1)
    for model, how, source, what in (
        (other, HOW, Noise(6), "weights"),
        (tiny, Preprocessing(fraction=0.5), Noise(6), "preprocessing"),
        (tiny, HOW, open_source(SHAPES.format(6, 0)), "class_names, data"),
    ):
        with pytest.raises(ValueError, match=rf"other features \(different {what}\)"):
            write_features(model, how, source, folder, spec="noise")


def test_a_folder_of_an_earlier_version_names_the_engine_that_continues_it(model, tmp_path, capsys):
    command = ["features", str(model), "--data", SHAPES.format(6, 0), "--out", str(tmp_path / "f"), "--workers", "0"]
    assert main([*command, "--engine", "plain"]) == 0
    card = json.loads((tmp_path / "f" / "features.json").read_text())
    del card["engine"]  # as before there were engines
    (tmp_path / "f" / "features.json").write_text(json.dumps(card))
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "(different engine); give --engine plain, which computed them, or choose another folder" in said
    assert main([*command, "--engine", "plain"]) == 0


class Dated(Noise):
    """Noise in files that were changed at certain times."""

    def __init__(self, samples, changed=(), **rest):
        super().__init__(samples, **rest)
        self.changed = changed
        self.read = []

    def stamp(self, index):
        return (100, int(index in self.changed))

    def item(self, index):
        self.read.append(index)
        return super().item(index)


def test_only_shards_whose_files_changed_are_made_again_and_it_is_said(tiny, tmp_path):
    folder, screen = FeatureFolder(tmp_path / "f", 20, 5), quiet()
    write_features(tiny, HOW, Dated(20, bad={7}), folder, spec="noise", reading=Reading(max_bad=0.1))
    mended = Dated(20, changed={7})
    write_features(tiny, HOW, mended, folder, spec="noise", console=screen)
    assert mended.read == [5, 6, 7, 8, 9]
    again = "files have changed since their features were computed: 1 of 4 shards are computed again"
    assert again in screen.export_text()
    assert len(read_folder(tmp_path / "f").x) == 20
    write_features(tiny, HOW, Dated(20, changed={7}, stop=0), folder, spec="noise", console=screen)
    assert "changed" not in screen.export_text()


def test_a_shard_whose_files_changed_does_not_survive_an_interruption(tiny, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 20, 5)
    write_features(tiny, HOW, Dated(20), folder, spec="noise")
    with pytest.raises(KeyboardInterrupt):
        write_features(tiny, HOW, Dated(20, changed={0, 19}, stop=3), folder, spec="noise")
    assert folder.missing() == [0, 3]


def test_bad_images_stop_or_are_named_also_after_an_interruption(tiny, tmp_path):
    folder = FeatureFolder(tmp_path / "f", 20, 5)
    with pytest.raises(TooManyBadImages, match="dir/3"):
        write_features(tiny, HOW, Noise(20, bad={3}), folder, spec="noise")
    assert folder.missing() == [0, 1, 2, 3]
    write_features(tiny, HOW, Noise(20, bad={3, 12}), folder, spec="noise", reading=Reading(max_bad=0.1))
    assert [sample.id for sample in folder.bad()] == [Noise(20).id(3), Noise(20).id(12)]
    assert len(read_folder(tmp_path / "f").x) == 18
    folder.file(3).unlink()
    with pytest.raises(TooManyBadImages, match="dir/3"):
        write_features(tiny, HOW, Noise(20, bad={3, 12}), folder, spec="noise", reading=Reading(max_bad=0.05))


# -- Few-shot over data specs ------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=0, head="linear")
    save_model(randomised(build_from_spec(spec)), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("draw", ["big-vision", "by-class"])
def test_few_shot_on_images_is_few_shot_on_their_features(draw, model, tmp_path):
    train, test = SHAPES.format(60, 0), SHAPES.format(40, 1)
    options = {"shots": (1, 3), "seeds": (0, 1), "draw": draw, "l2": 1.0}
    table = fewshot(model, [train], [test], tmp_path / "out", options, quiet())
    loaded = vitlab.load_model(model)
    how = Preprocessing(fraction=224 / 256)
    arrays = []
    for spec in (train, test):
        made = list(outputs(loaded, open_source(spec), how, Reading(batch=16), loaded.features))
        arrays += [torch.cat([x for _, x in made]), torch.cat([batch.one_label() for batch, _ in made])]
    for row in table.rows:
        shots, seed = int(row[1][0]), row[2]
        expected = vitlab.fewshot(*arrays, shots=shots, seed=seed, draw=draw, l2=1.0)
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
    assert [row["engine"] for row in rows] == ["torch"] * 6
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
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].startswith(f"{tmp_path / 'out'}: the table as fewshot.csv")
    assert told.err == ""
    (row,) = json.loads((tmp_path / "out" / "fewshot.json").read_text())
    train, test = (open_vectors(str(tmp_path / name)) for name in ("train", "test"))
    assert row["accuracy %"] == 100 * vitlab.fewshot(train.x, train.y, test.x, test.y, shots=2, l2=1024.0).accuracy
    assert row["l2 or rate"] == 1024.0
    assert row["engine"] == "torch"
    assert f" {row['accuracy %']:.2f} " in told.out
    np.savez(tmp_path / "from-elsewhere.npz", x=train.x, y=train.y)
    card = json.loads((tmp_path / "test" / "features.json").read_text())
    (tmp_path / "test" / "features.json").write_text(json.dumps({**card, "engine": "openvino"}))
    for given, engine in ((tmp_path / "train", "torch, openvino"), (tmp_path / "from-elsewhere.npz", "openvino")):
        table = vitlab.fewshot_table(str(given), str(tmp_path / "test"), out=tmp_path / "mixed", shots=[2], quiet=True)
        assert table.rows[0][table.columns.index("engine")] == engine
    same = ["--train", str(tmp_path / "train"), "--test", str(tmp_path / "train"), "--out", str(tmp_path / "same")]
    assert main(["fewshot", *same, "--shots", "2"]) == 0
    assert f"{tmp_path / 'train'} is both training and test set" in capsys.readouterr().err
    assert main(["fewshot", "--train", "shapes", "--test", "shapes", "--out", str(tmp_path / "x")]) == 2
    assert "give the model" in capsys.readouterr().err


def write_photos(folder, bad=()):
    """Three classes of six pictures each, of which some are none."""
    for number in range(18):
        file = folder / "abc"[number // 6] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"no picture" if number in bad else png(2, 2, bytes([80 * (number // 6), 9 * number, 0, 9])))
    return f"folder:{folder}"


def answers(table):
    """The numbers of a table without the name of the data."""
    return [row[1:] for row in table.rows]


def test_a_test_set_without_one_of_the_classes_keeps_the_numbers_of_the_others(model, tmp_path):
    train, test = write_photos(tmp_path / "train"), write_photos(tmp_path / "test")
    options = {"shots": (6,), "l2": 1.0}
    (everything,) = fewshot(model, [train], [test], tmp_path / "all", options, quiet()).rows
    for file in (tmp_path / "test" / "a").iterdir():
        file.unlink()
    (some,) = fewshot(model, [train], [test], tmp_path / "some", options, quiet()).rows
    assert (everything[7], some[7]) == (18, 12)
    assert some[3] * 12 >= everything[3] * 18 - 600, "those of the other classes are as right as they were"


@pytest.mark.parametrize("others", [{}, {"neighbours": 2, "probe": 5}])
def test_few_shot_learns_from_the_first_good_pictures_and_tests_on_all_good_ones(model, tmp_path, others):
    bad = {0, 7, 8, 9}  # one of the first shots of a class; of the next also those that take their places
    train, test = write_photos(tmp_path / "train", bad), write_photos(tmp_path / "test", {5})
    for name, numbers in (("train", bad), ("test", {5})):
        write_photos(tmp_path / f"good-{name}")
        for number in numbers:
            (tmp_path / f"good-{name}" / "abc"[number // 6] / f"{number:02d}.png").unlink()
    options, console = dict(shots=(1, 2), l2=1.0, max_bad=0.25, **others), quiet()
    table = fewshot(model, [train], [test], tmp_path / "out", options, console)
    good = (f"folder:{tmp_path}/good-train", f"folder:{tmp_path}/good-test")
    strict = dict(shots=(1, 2), l2=1.0, **others)
    assert answers(table) == answers(fewshot(model, good[:1], good[1:], tmp_path / "good", strict, quiet()))
    assert {row[7] for row in table.rows} == {17}
    said = console.export_text()
    assert "4 of 18 images are unreadable and left out: a/00.png, b/07.png, b/08.png, b/09.png" in said
    assert "1 of 18 images are unreadable and left out: a/05.png" in said
    assert answers(fewshot(model, [train], [test], tmp_path / "out", options, quiet())) == answers(table)  # from files


def test_more_bad_pictures_than_allowed_stop_few_shot(model, tmp_path, capsys):
    train, test = write_photos(tmp_path / "train", {0, 1}), write_photos(tmp_path / "test", {5})
    command = ["fewshot", "--model", str(model), "--train", train, "--test", test, "--shots", "1", "--workers", "0"]
    command += ["--out", str(tmp_path / "out"), "--max-bad"]
    assert main([*command, "0"]) == 2
    assert "1 bad image, none is allowed: 'a/00.png'" in capsys.readouterr().err
    assert main([*command, "0.1"]) == 2  # 1.8 of 18 is one; the second is read in the place of the first
    assert "2 bad images, at most 1 of 18 are allowed" in capsys.readouterr().err
    assert main([*command, "0.12"]) == 0
    assert main([*command, "1.5"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err


def test_a_class_without_enough_good_pictures_is_told(model, tmp_path):
    train, test = write_photos(tmp_path / "train", {0, 1}), write_photos(tmp_path / "test")
    with pytest.raises(ValueError, match=r"class .a. of .* has 6 samples; 25 shots .*: give shots= 1 5$"):
        fewshot("never-opened", [train], [test], tmp_path / "out", {"shots": (1, 5, 25)}, quiet())
    with pytest.raises(ValueError, match="class 0 has 4 samples and 2 bad ones; 5 are asked for"):
        fewshot(model, [train], [test], tmp_path / "out", {"shots": (5,), "max_bad": 0.5}, quiet())


def test_few_shot_notices_pictures_overwritten_under_their_names(model, tmp_path):
    for number, (name, grey) in enumerate([("ape/0.png", 30), ("ape/1.png", 60), ("bee/0.png", 200)]):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(png(2, 2, bytes([grey, number, 0, 9])))
    spec, options = f"folder:{tmp_path}/photos", {"shots": (1,), "l2": 1.0}
    console = quiet()
    first = fewshot(model, [spec], [spec], tmp_path / "out", options, console)
    assert fewshot(model, [spec], [spec], tmp_path / "out", options, console) == first
    assert "changed" not in console.export_text(clear=False)
    (tmp_path / "photos" / "ape/1.png").write_bytes(png(2, 2, bytes([200, 2, 0, 9])))  # now like the bee
    again = fewshot(model, [spec], [spec], tmp_path / "out", options, console)
    assert console.export_text().count("files have changed since their features were computed: 1 of 1 shards") == 1
    assert again == fewshot(model, [spec], [spec], tmp_path / "other", options, quiet())
    assert again != first


def test_other_classes_in_the_test_set_are_refused(model, tmp_path):
    train, test = SHAPES.format(60, 0), SHAPES.format(40, 1).replace("classes=4", "classes=5")
    with pytest.raises(ValueError, match="the classes differ"):
        fewshot(model, [train], [test], tmp_path / "out", {"shots": (1,)}, quiet())
    with pytest.raises(ValueError, match="in pairs"):
        fewshot(model, [train], [], tmp_path, {}, quiet())
    with pytest.raises(ValueError, match="nothing to do"):
        fewshot(model, [train], [train], tmp_path, {"shots": ()}, quiet())


def test_features_and_few_shot_leave_a_folder_of_something_else_alone(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "fewshot.csv").write_text("years of work")
    data = SHAPES.format(40, 0)
    with pytest.raises(FileExistsError, match="thesis contains other files"):
        features(model, data, tmp_path / "thesis", console=quiet())
    with pytest.raises(FileExistsError, match="thesis contains other files"):
        fewshot(model, [data], [data], tmp_path / "thesis", {"shots": (1,)}, quiet())
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["fewshot.csv"]


def test_long_extractions_tell_how_far_they_are(model, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "QUIET", -1.0)
    screen = quiet()
    features(model, SHAPES.format(40, 0), tmp_path / "out", console=screen, batch=16, shard=30)
    said = [line.split("  ")[0] for line in screen.export_text().splitlines() if "left" in line]
    assert said == [f"features of {done} of 40" for done in (16, 30, 40)]
    screen = quiet()
    features(model, SHAPES.format(40, 0), tmp_path / "out", console=screen, batch=16, shard=30)
    assert "left" not in screen.export_text()  # all is there
    with pytest.raises(ValueError, match="max_bad 5 is a share of the images, between 0 and 1"):
        features(model, SHAPES.format(40, 0), tmp_path / "other", console=quiet(), max_bad=5)


def test_features_made_in_two_ways_or_of_other_classes_are_no_pair(model, tmp_path):
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=0, head="linear")
    save_model(randomised(build_from_spec(spec), seed=1), tmp_path / "other")
    data = SHAPES.format(40, 0)
    ways = {
        "a": (model, data, "own"),
        "weights": (tmp_path / "other", data, "own"),
        "preprocessing": (model, data, "few-shot"),
        "classes": (model, data.replace("classes=4", "classes=5"), "own"),
    }
    for name, (path, of, seen) in ways.items():
        features(path, of, tmp_path / name, preprocessing=seen, console=quiet())

    def refused(train, test, path=None):
        with pytest.raises(ValueError) as error:
            fewshot(path, [train], [test], tmp_path / "out", {"shots": (1,)}, quiet())
        return str(error.value)

    a, *others = (str(tmp_path / name) for name in ways)
    cards = [json.loads((tmp_path / name / "features.json").read_text()) for name in ways]
    said = refused(a, others[0])
    assert said.startswith("the weights differ")
    assert all(text in said for text in (a, others[0], cards[0]["weights"][:12], cards[1]["weights"][:12]))
    said = refused(a, others[1])
    assert said.startswith("the preprocessing differs")
    assert all(text in said for text in (a, others[1], "fraction 1.0", "fraction 0.875"))
    said = refused(others[2], a)
    assert said.startswith("the classes differ")
    assert all(text in said for text in (a, others[2], "5 classes", "4 classes"))
    assert refused(data, others[0], model).startswith("the weights differ")
    assert refused(a, data, model).startswith("the preprocessing differs")  # the command's own way is few-shot's


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((6, 3), np.nan), np.arange(6) % 2, "NaN"),
        (np.ones((6, 4)), np.arange(6) % 2, "3 wide, test features 4"),
        (np.ones((6, 3)), np.arange(6), r"test classes \[2, 3, 4, 5\] do not occur"),
    ],
)
def test_neighbours_and_probe_of_unsound_features_are_refused(tmp_path, x, y, message):
    np.savez(tmp_path / "train.npz", features=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2)
    np.savez(tmp_path / "test.npz", features=x, labels=y)
    train, test = str(tmp_path / "train.npz"), str(tmp_path / "test.npz")
    for options in ({"shots": (), "neighbours": 3}, {"shots": (), "probe": 3}):
        with pytest.raises(ValueError, match=rf"train\.npz.*{message}"):
            fewshot(None, [train], [test], tmp_path / "out", options, quiet())
