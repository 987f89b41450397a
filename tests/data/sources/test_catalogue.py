"""Every data set has a short name; a wrong one says what exists."""

import json
import re
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from pictures import photo, saved
from vitlab.cli import main
from vitlab.data.fingerprint import fingerprint
from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.sources.catalogue import KINDS, described_kinds, open_source, with_absolute_path, with_max_pixels
from vitlab.data.splits import take
from vitlab.spec.pixels import Preprocessing


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 256, (30 + number, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_a_folder_by_its_name(photos):
    source = open_source(f"folder:{photos}")
    assert (len(source), source.class_names) == (12, ("cat", "dog"))
    assert source.item(11).labels == (1,)


def test_paths_may_hold_colons_and_question_marks(photos):
    odd = photos.rename(photos.with_name("my:photos?really"))
    assert len(open_source(f"folder:{odd}")) == 12


def test_built_in_sets_take_options_and_large_numbers():
    source = open_source("fractals?classes=1000&images=1e6&size=32")
    assert (len(source), len(source.class_names)) == (1_000_000, 1000)
    assert source.item(5).data.shape == (32, 32, 3)
    assert len(open_source("shapes?images=5&size=32")) == 5


def test_digits_may_be_a_few_of_each_class():
    pytest.importorskip("sklearn")
    from vitlab.shots import shot_numbers

    few, other = open_source("digits?split=train&shots=5&seed=1"), open_source("digits?split=train&shots=5&seed=2")
    assert sorted(few.label(i)[0] for i in range(len(few))) == sorted([*range(10)] * 5)
    assert {few.id(i) for i in range(50)} != {other.id(i) for i in range(50)}
    train = open_source("digits?split=train")
    labels = np.array([train.label(i)[0] for i in range(len(train))])
    assert [few.id(i) for i in range(50)] == [train.id(i) for i in shot_numbers(labels, 5, seed=1).tolist()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("shots=200", "class 0 has 1[0-9]+ samples; 200 are asked for"),
        ("shots=-1", "shots -1 must be a whole number of at least 1"),
        ("shots=5&seed=-1", "seed -1 must be a whole number of at least 0"),
        ("seed=3", "no effect without shots; give shots=5&seed=3"),
    ],
)
def test_shots_that_cannot_be_drawn_are_errors(options, message):
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=message):
        open_source(f"digits?split=train&{options}")


def test_values_may_be_escaped(photos):
    (photos.parent / "a&b.csv").write_text("path,label\nphotos/cat/0.png,x;y\n")
    source = open_source(f"csv:{photos.parent / 'a&b.csv'}?separator=%3B")
    assert source.label(0) == (0, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("folders:x?split=val", "no data is named 'folders:x?split=val'; did you mean 'folder:x?split=val'?"),
        ("", "the kinds are folder, pictures"),
        ("nonsense", "'nonsense' does not exist, and no kind of data has that name"),
        ("folder", "needs a path"),
        ("digits:here", "takes no path"),
        ("fractals?colour=red", "no option 'colour'; it has classes, images, size, seed"),
        ("fractals?images=many", "whole number"),
        ("fractals?images=1.5", "whole number"),
        ("fractals?size=9&size=9", "twice"),
        ("folder:absent", "absent is not a folder"),
        ("cifar10:absent?split=dev", "split"),
    ],
)
def test_mistakes_say_what_is_allowed(spec, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        open_source(spec)


def test_a_plain_path_gets_a_proposal(photos):
    with pytest.raises(ValueError, match=f"did you mean 'folder:{photos}'"):
        open_source(str(photos))


def test_every_kind_is_described():
    assert len(described_kinds()) == len(KINDS)
    assert all(described_kinds().values())


def test_every_kind_takes_a_subset_and_smaller_ones_are_part_of_larger_ones():
    whole, large, small = (
        open_source(f"shapes?classes=4&images=40&size=16{part}") for part in ("", "&subset=20", "&subset=8")
    )
    ids = [{one.id(number) for number in range(len(one))} for one in (whole, large, small)]
    assert [len(one) for one in ids] == [40, 20, 8]
    assert ids[0] > ids[1] > ids[2]
    assert small.spec == "shapes?classes=4&images=40&size=16&subset=8"
    assert small.class_names == whole.class_names
    other = open_source("shapes?classes=4&images=40&size=16&seed=1&subset=8")
    assert fingerprint(other) != fingerprint(small), "drawn images of another seed are other images"
    assert all("subset=" in line for line in described_kinds())
    with pytest.raises(ValueError, match="the data has 1 to 40"):
        open_source("shapes?classes=4&images=40&size=16&subset=41")


def test_an_address_with_a_secret_is_refused_before_it_is_printed(capsys):
    for spec in ("shards:https://user:pw@127.0.0.1/x", "shards:https://127.0.0.1/x?X-Signature=pw"):
        for call in (vitlab.check_data, lambda data: vitlab.evaluate("ViT-Ti/16", data)):
            with pytest.raises((ValueError, FileNotFoundError)):
                call(spec)
    assert "pw" not in "".join(capsys.readouterr())


def test_an_empty_list_of_exclusions_is_an_error():
    with pytest.raises(ValueError, match=r"option exclude= is empty; give a path, or leave it out"):
        open_source("shapes?exclude=")


def test_a_subset_of_several_labels_per_image_is_one_too(tmp_path):
    images = "".join(f"{number}.png,{'a;b' if number == 7 else 'a'}\n" for number in range(12))
    (tmp_path / "labels.csv").write_text(f"path,label\n{images}")
    assert open_source(f"csv:{tmp_path / 'labels.csv'}?separator=;&subset=12").first_not_single is not None
    one = open_source(f"csv:{tmp_path / 'labels.csv'}?separator=;&subset=1")
    assert (one.first_not_single is None) == (len(one.label(0)) == 1)


def test_the_pixel_limit_is_an_option_of_every_kind_of_image_files(photos):
    read = list(
        evaluation_batches(open_source(f"folder:{photos}"), batch=64, size=(8, 8), preprocessing=Preprocessing())
    )
    assert [len(batch.ids) for batch in read] == [12]
    for limited in (
        open_source(f"folder:{photos}?max_pixels=1199"),
        take(open_source(f"folder:{photos}?max_pixels=1199"), [0]),
    ):
        (batch,) = evaluation_batches(limited, batch=64, size=(8, 8), preprocessing=Preprocessing(), max_bad=1.0)
        assert len(batch.ids) == 0  # the smallest is 40 x 30
        assert {bad.reason for _, bad in batch.bad} == {"too_many_pixels"}
    assert all("max_pixels=" in line for line in described_kinds() if KINDS[re.split("[:?]", line)[0]].is_encoded)


def test_a_pixel_limit_is_added_to_a_spec_and_refused_where_it_has_no_effect():
    assert with_max_pixels("folder:x", 5) == "folder:x?max_pixels=5"
    assert with_max_pixels("folder:x?split=val", 5) == "folder:x?split=val&max_pixels=5"
    assert with_max_pixels("folder:x", None) == "folder:x"
    assert with_max_pixels("", 5) == ""
    with pytest.raises(ValueError, match="no effect on 'digits'"):
        with_max_pixels("digits", 5)
    with pytest.raises(ValueError, match="must be at least 1"):
        with_max_pixels("folder:x", 0)


def test_a_data_set_is_checked_from_python_and_shows_in_a_notebook(photos, tmp_path):
    (photos / "cat" / "<b>.png").write_bytes(b"nothing")
    found = vitlab.check_data(f"folder:{photos}", against=vitlab.open_data(f"folder:{photos}"))
    assert (found.problems, len(found.duplicates)) == (14, 13)  # a file that is no image is one all the same
    assert "bad          'cat/<b>.png' starts with" in repr(found)
    shown = found._repr_html_()
    assert "&lt;b&gt;.png" in shown
    assert "<b>" not in shown
    assert not list(tmp_path.glob("*/report.json"))
    found.save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["classes"] == {"cat": 6, "dog": 6}


def test_any_dataset_is_checked_and_float_tensors_have_no_pictures(capsys):
    pictures = [(Image.new("RGB", (5, 4), (n, 0, 0)), n % 2) for n in range(6)]
    assert vitlab.check_data(pictures).survey.sizes == {(5, 4): 6}
    assert "opening list" in capsys.readouterr().err
    found = vitlab.check_data(pictures, image=32, quiet=True)
    assert found.contact_sheet == vitlab.check_data(pictures, image=(32, 32), quiet=True).contact_sheet
    assert capsys.readouterr().err == ""
    assert "(of names and labels, not of image contents)" in str(found)
    with pytest.raises(ValueError, match="no pictures to check"):
        vitlab.check_data([(torch.zeros(3, 4, 4), 0)])


def test_kinds_of_data_are_a_table():
    forms = [form for form, _ in vitlab.data_kinds().rows]
    assert {form.partition(":")[0].partition("?")[0] for form in forms} == set(KINDS)


class TestCheck:
    def test_what_is_excluded_is_named_with_its_rule_and_the_way_out(self, photos, tmp_path, capsys):
        for number in range(4):
            (photos / "cat" / f"IMG_{number}.JXL").touch()
        (photos / "dog" / "notes.txt").touch()
        assert main(["data", "check", f"folder:{photos}", "--out", str(tmp_path / "out"), "--workers", "0"]) == 0
        printed = capsys.readouterr().out
        named = "excluded     4 .jxl files ('cat/IMG_"
        assert named in printed
        (line,) = [line for line in printed.splitlines() if line.startswith(named)]
        assert line.endswith("JPEG XL is not supported; convert to JPEG or PNG, for example with djxl IN.jxl OUT.png")
        assert "excluded     1 .txt file ('dog/notes.txt')" in printed
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert [(row["suffix"], row["count"]) for row in report["excluded"]] == [(".jxl", 4), (".txt", 1)]

    def test_a_pixel_limit_is_a_flag(self, photos, tmp_path, capsys):
        words = ["data", "check", f"folder:{photos}", "--out", str(tmp_path / "out"), "--workers", "0"]
        assert main([*words, "--max-pixels", "1199"]) == 1
        assert "quarantined  12 too many pixels" in capsys.readouterr().out

    def test_counts_sizes_and_bad_files_and_a_contact_sheet(self, photos, tmp_path, capsys):
        (photos / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff nonsense")
        (photos / "dog" / "notes.txt").write_text("not an image")
        assert main(["data", "check", f"folder:{photos}", "--out", str(tmp_path / "out"), "--workers", "0"]) == 1
        printed = capsys.readouterr().out
        books = ("found        14", "used         12", "quarantined  1 truncated", "excluded     1 .txt file")
        for line in (*books, "40 x 30", "12 PNG"):
            assert line in printed
        assert "'cat/broken.jpg' ends before the JPEG's end mark" in printed
        assert "2, 6 each" in printed
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert [bad["id"] for bad in report["account"]["quarantined"]] == ["cat/broken.jpg"]
        assert report["card"]["class_names"] == ["cat", "dog"]
        with Image.open(tmp_path / "out" / "contact-sheet.png") as image:
            assert image.size[0] > 400
            assert len(image.getcolors(2**24)) > 100  # pictures, not a blank page

    def test_a_class_without_a_sample_is_named(self, photos, tmp_path, capsys):
        (photos / "eel").mkdir()
        command = ["data", "check", "--out", str(tmp_path / "out"), "--workers", "0"]
        assert main([*command, f"folder:{photos}"]) == 0
        said = capsys.readouterr().out
        assert "excluded     1 class folder without images ('eel')" in said
        (photos / "table.csv").write_text("path,label\ncat/0.png,2\n")
        assert main([*command, f"csv:{photos}/table.csv"]) == 0
        assert "no sample    of class '1'" in capsys.readouterr().out

    def test_the_same_image_in_two_classes_is_named(self, photos, tmp_path, capsys):
        first = (photos / "cat" / "0.png").read_bytes()
        (photos / "dog" / "copy.png").write_bytes(first)
        (photos / "cat" / "again.png").write_bytes(first)
        assert main(["data", "check", f"folder:{photos}", "--out", str(tmp_path / "out"), "--workers", "0"]) == 1
        said = capsys.readouterr().out
        assert "conflicts    1 sample is the same image as one of another class" in said
        assert "same image   'cat/0.png' and 'dog/copy.png'" in said
        assert "copies       1 sample is the same image as another of the same class" in said
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["conflicts"], report["copies"]) == ([["cat/0.png", "dog/copy.png"]], 1)

    def test_pixels_need_no_decoding(self, tmp_path, capsys):
        spec = "shapes?classes=10&images=30&size=32"
        assert main(["data", "check", spec, "--out", str(tmp_path / "o"), "--workers", "0", "--image", "32"]) == 0
        pixels = np.stack([open_source(spec).item(i).data for i in range(30)])
        means = " ".join(f"{mean:.4f}" for mean in pixels.mean(axis=(0, 1, 2)) / 255)
        printed = capsys.readouterr().out
        assert "used         30" in printed
        assert f"mean colour  {means}" in printed

    def test_samples_that_leaked_from_training_are_listed(self, photos, tmp_path, capsys):
        (tmp_path / "test" / "cat").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "test" / "cat" / "fresh.png")
        (tmp_path / "test" / "cat" / "stolen.png").write_bytes((photos / "dog" / "3.png").read_bytes())
        command = ["data", "check", f"folder:{tmp_path / 'test'}", "--against", f"folder:{photos}"]
        assert main([*command, "--out", str(tmp_path / "o"), "--workers", "0"]) == 1
        printed = capsys.readouterr().out
        assert "duplicates   1 sample is also in" in printed
        assert "'cat/stolen.png' is 'dog/3.png' there" in printed

    def test_classes_that_differ_from_the_other_set_are_a_finding(self, photos, tmp_path, capsys):
        (tmp_path / "test" / "cat").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "test" / "cat" / "fresh.png")
        command = ["data", "check", f"folder:{tmp_path / 'test'}", "--against", f"folder:{photos}"]
        assert main([*command, "--out", str(tmp_path / "o"), "--workers", "0"]) == 1
        assert "missing 'dog'" in capsys.readouterr().out

    def test_a_killed_worker_is_one_line(self, tmp_path, capsys, monkeypatch):
        import os
        import signal

        from vitlab.data.sources.drawn.shapes import ShapeSource

        monkeypatch.setattr(ShapeSource, "item", lambda self, index: os.kill(os.getpid(), signal.SIGKILL))
        assert main(["data", "check", "shapes?images=9&size=32", "--out", str(tmp_path / "o"), "--workers", "1"]) == 3
        printed = capsys.readouterr().err
        assert "a worker process died; samples in flight: '0'" in printed
        assert printed.count("\n") == 1

    @pytest.mark.parametrize(("image", "complaint"), [("0", "is not a size"), ("5000", "must be 1x1 or more")])
    def test_absurd_sizes_are_refused_before_looking(self, image, complaint, tmp_path, capsys):
        assert main(["data", "check", "shapes?images=9", "--out", str(tmp_path / "o"), "--image", image]) == 2
        assert complaint in capsys.readouterr().err

    def test_mistakes_are_one_line(self, capsys):
        assert main(["data", "check", "folder:absent"]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_kinds_are_listed(self, capsys):
        assert main(["data", "kinds"]) == 0
        assert "fractals?classes=&images=&size=&seed=" in capsys.readouterr().out

    def test_shards_are_indexed_and_then_open(self, photos, tmp_path, capsys):
        (tmp_path / "shards").mkdir()
        with tarfile.open(tmp_path / "shards" / "a.tar", "w") as tar:
            for number in range(4):
                tar.add(photos / "cat" / f"{number}.png", f"s{number}.png")
                label = tmp_path / "label.json"
                label.write_text(json.dumps({"label": number}))
                tar.add(label, f"s{number}.json")
        assert main(["data", "index", str(tmp_path / "shards")]) == 0
        assert "indexed 4 samples" in capsys.readouterr().out
        assert open_source(f"shards:{tmp_path / 'shards'}").label(3) == (3,)


def test_paths_without_a_kind_say_what_to_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/a.tar").write_bytes(b"")
    for spec, told in (
        ("packed", "did you mean 'shards:packed'"),
        ("/no/such/dir", "^/no/such/dir does not exist; check the path"),
        ("nofolder", "'nofolder' does not exist, and no kind of data"),
        ("digit", "did you mean 'digits'"),
        ("csv:none.csv", "none.csv does not exist; give a CSV or TSV file"),
    ):
        with pytest.raises((ValueError, OSError), match=told):
            open_source(spec)


@pytest.mark.parametrize("written", ["sets/a%26b/", "./sets/../sets/a%26b", "~/sets/a%26b", "{here}/sets/a%26b"])
def test_a_local_path_has_one_spelling(tmp_path, monkeypatch, written):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sets" / "a&b").mkdir(parents=True)
    spec = f"folder:{written.format(here=tmp_path)}?split=train"
    assert with_absolute_path(spec) == f"folder:{tmp_path}/sets/a%26b?split=train"


@pytest.mark.parametrize("spec", ["digits?split=train", "folder:missing/", "shards:s3://bucket/a", "hf:owner/name", ""])
def test_what_is_no_local_path_keeps_its_spelling(spec):
    assert with_absolute_path(spec) == spec


def test_an_image_in_place_of_data_is_told_its_folder(photos):
    image = next(path for path in sorted(photos.rglob("*")) if path.is_file())
    with pytest.raises(ValueError, match=f"is a single image, not a data set; .* such as folder:{photos}$"):
        open_source(str(image))


def test_images_of_the_other_data_that_cannot_be_read_are_counted(tmp_path):
    for name in ("own", "other"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a/1.png").write_bytes(saved(photo(8, 8), "PNG"))
    (tmp_path / "other/a/loop.png").symlink_to("loop.png")
    found = vitlab.check_data(f"folder:{tmp_path}/own", f"folder:{tmp_path}/other", quiet=True)
    (unread,) = found.not_compared
    assert unread.startswith("'a/loop.png' is a loop of symbolic links")
    assert found.problems == 2, "a duplicate, and an image that was not compared"
    assert f"not compared 1 sample of 'folder:{tmp_path}/other' cannot be read" in repr(found)
    assert found.to_json()["not_compared"] == [unread]
