"""Class folders and tables of paths: right bytes, labels and ids, whatever the files are called or are."""

import multiprocessing
import operator
import os
import subprocess
import sys
import textwrap
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from vitlab.data.fingerprint import unused_classes
from vitlab.data.images.gate import read_image
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.folders import FolderSource, PictureSource
from vitlab.data.sources.tables import CsvSource
from vitlab.data.splits import take


def png(shade: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (2, 2), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def write(root: Path, *names: str) -> dict[str, bytes]:
    """A different image under every name."""
    contents = {name: png(shade) for shade, name in enumerate(names)}
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return contents


def samples(source) -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """id -> bytes and class names of every sample."""
    items = [source.item(i) for i in range(len(source))]
    assert [item.id for item in items] == [source.id(i) for i in range(len(source))]
    assert [item.labels for item in items] == [source.label(i) for i in range(len(source))]
    return {item.id: (item.data, tuple(source.class_names[n] for n in item.labels)) for item in items}


def refusal(source, id: str) -> Reason:
    (index,) = [i for i in range(len(source)) if source.id(i) == id]
    with pytest.raises(BadImage) as caught:
        source.item(index)
    assert caught.value.name == id
    return caught.value.reason


# -- Class folders -------------------------------------------------------------------------------


def test_every_image_has_its_bytes_its_class_and_its_relative_path(tmp_path):
    written = write(tmp_path, "dog/a.jpg", "dog/deep/er/b.PNG", "cat/c.JPEG", "cat/a.WebP", "emu/x.gif", "emu/y.bmp")
    source = FolderSource(tmp_path)
    assert source.class_names == ("cat", "dog", "emu")
    assert samples(source) == {name: (data, (name.split("/")[0],)) for name, data in written.items()}
    assert [source.id(i) for i in range(6)] == sorted(written)
    assert str(tmp_path) not in "".join(map(source.id, range(6)))


def test_what_is_no_sample_is_counted_by_rule(tmp_path):
    write(tmp_path, "cat/a.jpg", "cat/.b.jpg", "cat/.git/c.jpg", "cat/notes.txt", "cat/raw.psd", "stray.jpg", ".hidden")
    (tmp_path / "linked").mkdir()
    (tmp_path / "cat" / "link").symlink_to(tmp_path / "linked")
    source = FolderSource(tmp_path)
    assert len(source) == 1
    counts = {"hidden": 3, "other_suffix": 2, "no_class_folder": 1, "linked_folder": 1, "empty_class_folder": 1}
    assert source.excluded == counts


def test_pictures_without_classes_lie_anywhere(tmp_path):
    written = write(tmp_path, "a.jpg", "deep/er/b.PNG", "deep/c.webp", "notes.txt", ".hidden.jpg")
    source = PictureSource(tmp_path)
    assert [source.id(n) for n in range(len(source))] == ["a.jpg", "deep/c.webp", "deep/er/b.PNG"]
    assert samples(source) == {name: (written[name], ()) for name in ("a.jpg", "deep/c.webp", "deep/er/b.PNG")}
    assert (source.class_names, source.label(2)) == ((), ())
    assert source.excluded == {"hidden": 1, "other_suffix": 1}
    with pytest.raises(IndexError, match="sample 3 does not exist; numbers go from 0 to 2"):
        source.label(3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no images \(.jpg, "):
        PictureSource(tmp_path / "empty")
    write(tmp_path / "split", "train/x/1.jpg", "val/2.jpg")
    assert open_source(f"pictures:{tmp_path / 'split'}?split=train").id(0) == "x/1.jpg"


@pytest.mark.parametrize(
    ("folder", "split"), [("train", "train"), ("validation", "val"), ("val", "validation"), ("Test", "test")]
)
def test_a_split_is_chosen_by_name(tmp_path, folder, split):
    write(tmp_path, f"{folder}/cat/a.jpg", "other/cat/b.jpg")
    source = FolderSource(tmp_path, split)
    assert [source.id(0), len(source), source.class_names] == ["cat/a.jpg", 1, ("cat",)]


def test_splits_are_never_taken_for_classes(tmp_path):
    write(tmp_path, "train/cat/a.jpg", "val/cat/b.jpg")
    with pytest.raises(ValueError, match="splits train, val; choose"):
        FolderSource(tmp_path)
    with pytest.raises(ValueError, match=r"no folder for the split 'test'; it has \['train', 'val'\]"):
        FolderSource(tmp_path, "test")
    with pytest.raises(ValueError, match="known are train"):
        FolderSource(tmp_path, "dev")


def test_a_class_named_train_among_others_is_a_class(tmp_path):
    write(tmp_path, "train/a.jpg", "tram/b.jpg")
    assert FolderSource(tmp_path).class_names == ("train", "tram")


@pytest.mark.parametrize("form", ["{}", "{:03d}"])
def test_folders_that_are_numbers_are_classes_in_their_order(tmp_path, form):  # E13
    names = [form.format(number) for number in range(12)]
    write(tmp_path, *(f"{name}/a.png" for name in names))
    source = FolderSource(tmp_path)
    assert source.class_names == tuple(names)
    assert {source.id(i): source.label(i) for i in range(12)} == {f"{form.format(n)}/a.png": (n,) for n in range(12)}
    assert [source.id(i) for i in range(12)] == sorted(f"{name}/a.png" for name in names), "the order of samples stays"


def test_folders_that_are_some_numbers_are_that_many_classes(tmp_path):
    write(tmp_path, "1/a.png", "102/a.png", "20/a.png")
    assert FolderSource(tmp_path).class_names == ("1", "20", "102")
    write(tmp_path, "background/a.png")
    assert FolderSource(tmp_path).class_names == ("1", "102", "20", "background")


def test_what_systems_put_beside_pictures_is_no_class(tmp_path):
    write(tmp_path, "cat/a.jpg", "cat/@eaDir/thumb.jpg", "dog/a.jpg", "__MACOSX/cat/a.jpg", ".git/a.jpg", "docs/x.txt")
    (tmp_path / "empty").mkdir()
    source = FolderSource(tmp_path)
    assert (source.class_names, len(source)) == (("cat", "dog"), 2)
    assert source.empty_folders == ("docs", "empty")
    assert source.excluded == {"hidden": 1, "system_folder": 2, "empty_class_folder": 2, "other_suffix": 1}
    assert len(PictureSource(tmp_path)) == 2


def test_a_system_folder_beside_a_split_is_no_class_either(tmp_path):
    write(tmp_path, "train/cat/a.jpg", "__MACOSX/b.jpg")
    with pytest.raises(ValueError, match="splits train; choose"):
        FolderSource(tmp_path)


def test_names_of_any_bytes_work(tmp_path):  # N25
    names = ["new\nline.jpg", "‮bidi.jpg", "n" * 250 + ".jpg", "-rf.jpg", "=cmd.jpg", "<img onerror=x>.jpg"]
    names.append(os.fsdecode(b"\xff\xfe.jpg"))
    written = write(tmp_path, *(f"cat/{name}" for name in names), os.fsdecode(b"k\xe4se/a.jpg"))
    source = FolderSource(tmp_path)
    assert samples(source) == {name: (data, (name.split("/")[0],)) for name, data in written.items()}
    for index in range(len(source)):
        item = source.item(index)
        assert read_image(item.data, name=item.id).image.size == (2, 2)


def test_what_is_no_regular_file_inside_the_folder_is_refused(tmp_path):  # N26
    root = tmp_path / "data"
    write(root, "cat/good.jpg", "dog/real.jpg")
    outside = tmp_path / "secret.jpg"
    outside.write_bytes(png(9))
    os.mkfifo(root / "cat" / "fifo.jpg")
    (root / "cat" / "folder.jpg").mkdir()
    (root / "cat" / "loop.jpg").symlink_to("loop.jpg")
    (root / "cat" / "passwd.jpg").symlink_to("/etc/passwd")
    (root / "cat" / "secret.jpg").symlink_to(outside)
    (root / "cat" / "dangling.jpg").symlink_to("nowhere.jpg")
    (root / "cat" / "inside.jpg").symlink_to("../dog/real.jpg")
    source = FolderSource(root)
    assert {name: refusal(source, f"cat/{name}.jpg") for name in ("fifo", "folder", "loop")} == dict.fromkeys(
        ("fifo", "folder", "loop"), Reason.special_file
    )
    assert refusal(source, "cat/passwd.jpg") == refusal(source, "cat/secret.jpg") == Reason.outside_root
    assert refusal(source, "cat/dangling.jpg") == Reason.missing
    (inside,) = [i for i in range(len(source)) if source.id(i) == "cat/inside.jpg"]
    assert source.item(inside).data == png(1)


def test_a_link_in_place_of_a_class_folder_is_an_error(tmp_path):
    write(tmp_path, "data/cat/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="dog' is a link"):
        FolderSource(tmp_path / "data")


def test_a_file_that_changes_or_goes_is_noticed(tmp_path):  # E11
    write(tmp_path, "cat/a.jpg", "cat/b.jpg", "cat/c.jpg", "cat/d.jpg")
    source = FolderSource(tmp_path)
    (tmp_path / "cat/a.jpg").write_bytes(png(77) + b"longer")
    os.utime(tmp_path / "cat/b.jpg", ns=(1, 1))
    (tmp_path / "cat/c.jpg").unlink()
    assert refusal(source, "cat/a.jpg") == refusal(source, "cat/b.jpg") == Reason.changed
    assert refusal(source, "cat/c.jpg") == Reason.missing
    assert source.item(3).data == png(3)


def test_folders_without_images_are_errors_that_say_so(tmp_path):
    with pytest.raises(ValueError, match="has no class folders"):
        FolderSource(tmp_path)
    write(tmp_path, "a.jpg", "b.PNG", "c.txt")
    with pytest.raises(ValueError, match="has 2 images but no class folders; give a folder that has one folder per cl"):
        FolderSource(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match=r"no images \(\.jpg"):
        FolderSource(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        FolderSource(tmp_path / "nowhere")


def test_numbers_outside_the_source_are_index_errors(tmp_path):
    write(tmp_path, "cat/a.jpg")
    source = FolderSource(tmp_path)
    for ask in (source.item, source.label, source.id):
        for index in (-1, 1):
            with pytest.raises(IndexError):
                ask(index)


def test_a_source_reads_the_same_in_another_process(tmp_path):
    write(tmp_path, "cat/a.jpg", os.fsdecode(b"dog/\xff.jpg"))
    (tmp_path / "table.csv").write_text("path,label\ncat/a.jpg,x\n")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for source in (FolderSource(tmp_path), CsvSource(tmp_path / "table.csv")):
            for index in range(len(source)):
                assert pool.apply(operator.methodcaller("item", index), (source,)) == source.item(index)
        bad = FolderSource(tmp_path)
        (tmp_path / "cat/a.jpg").unlink()
        with pytest.raises(BadImage, match=r"'cat/a\.jpg' does not exist"):
            pool.apply(operator.methodcaller("item", 0), (bad,))


def test_a_name_costs_its_bytes_and_24_more():
    code = """
        import sys, tracemalloc
        from pathlib import Path
        from vitlab.data.sources.folders import Files
        tracemalloc.start()
        files = Files(Path("/nonexistent"), (b"n01440764/n01440764_%07d.JPEG" % i for i in range(20_000)))
        sys.stdout.write(str(tracemalloc.get_traced_memory()[0] / len(files)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 33 + 24 + 8


# -- Tables --------------------------------------------------------------------------------------


def test_a_table_gives_paths_and_sorted_classes(tmp_path):
    written = write(tmp_path, "x/1.png", "x/2.png", "3.png")
    (tmp_path / "table.csv").write_text('label,path,note\nzebra,x/2.png,\n"ant, red",./x/1.png,hi\nzebra,3.png,\n')
    source = CsvSource(tmp_path / "table.csv")
    assert source.class_names == ("ant, red", "zebra")
    assert [source.id(i) for i in range(3)] == ["x/2.png", "x/1.png", "3.png"]
    assert samples(source) == {
        "x/2.png": (written["x/2.png"], ("zebra",)),
        "x/1.png": (written["x/1.png"], ("ant, red",)),
        "3.png": (written["3.png"], ("zebra",)),
    }


def test_a_tsv_with_other_columns_and_another_root(tmp_path):
    write(tmp_path / "images", "a.png", "b.png")
    (tmp_path / "table.tsv").write_bytes(b"\xef\xbb\xbffile\tclass_index\r\na.png\t10\r\n\r\nb.png\t9\r\n")
    source = CsvSource(tmp_path / "table.tsv", tmp_path / "images", column="file", label="class_index")
    assert source.class_names == tuple(map(str, range(11))), "whole numbers are class numbers"
    assert [(source.item(i).data, source.label(i)) for i in range(2)] == [(png(0), (10,)), (png(1), (9,))]


def test_a_root_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\na.png,x\n")
    with pytest.raises(ValueError, match="typo is not a folder"):
        CsvSource(tmp_path / "table.csv", tmp_path / "typo")


def test_several_labels_or_none_with_a_separator(tmp_path):
    write(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "table.csv").write_text("path,label\na.png,sea;sand; sea\nb.png,\nc.png,sky\n")
    source = CsvSource(tmp_path / "table.csv", separator=";")
    assert source.class_names == ("sand", "sea", "sky")
    assert [source.label(i) for i in range(3)] == [(0, 1), (), (2,)]


def test_given_classes_fix_the_numbers(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\na.png,b\n")
    assert CsvSource(tmp_path / "table.csv", classes=("c", "b", "a")).label(0) == (1,)
    with pytest.raises(ValueError, match=r"line 2, column 'label': labels \['b'\], which are not among"):
        CsvSource(tmp_path / "table.csv", classes=("a",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,x\n/etc/passwd,x\n", "line 3, column 'path': '/etc/passwd' is not a path below"),
        ("path,label\n../a.png,x\n", "line 2, column 'path': '../a.png' is not"),
        ("path,label\na/../../b.png,x\n", "line 2, column 'path'"),
        ("path,label\n,x\n", "line 2, column 'path'"),
        ('path,label\n"a\nb.png",x\n/c.png,x\n', "line 4, column 'path'"),
        ("path,label\na.png,\n", "line 2, column 'label': no label"),
        ("path,label\na.png,x\n./a.png,y\n", "line 3, column 'path': './a.png' is also on an earlier line"),
        ("path,label\na.png\n", "line 2, column 'label': 1 cells, the header 2"),
        ("path,label\na.png,x,y\n", "line 2, column 'label': 3 cells, the header 2"),
        ('path,label\na.png,x\n"a"b,x\n', "line 3: "),
        ("file,label\na.png,x\n", "no column 'path'; its header is"),
        ("path,label\n", "no rows"),
        ("", "no column"),
    ],
)
def test_a_bad_row_is_named_by_line_and_column(tmp_path, text, message):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError) as caught:
        CsvSource(tmp_path / "table.csv")
    assert message in str(caught.value)


@pytest.mark.parametrize("odd", ["-1", "1000000", "3.0", "1e3", "nan", "cat", "007x", "+5"])
@pytest.mark.parametrize("separator", ["", ";"])
def test_a_label_that_is_no_class_number_among_numbers_is_named_by_its_line(tmp_path, odd, separator):  # E13
    rows = [f"{number}.png,{number}" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows[:5], f"odd.png,{odd}", *rows[5:]]) + "\n")
    said = f"table.csv, line 7, column 'label': '{odd}' is not a class number, but 12 of 13"
    with pytest.raises(ValueError) as caught:
        CsvSource(tmp_path / "table.csv", separator=separator)
    assert str(caught.value).startswith(said)
    assert "give a number from 0 to 999,999" in str(caught.value)
    names = open_source(f"csv:{tmp_path}/table.csv?numbers=names&separator={separator}").class_names
    assert set(names) == {*map(str, range(12)), odd}
    with pytest.raises(ValueError, match=r"numbers='text'; allowed is numbers=names"):
        open_source(f"csv:{tmp_path}/table.csv?numbers=text")


def test_numbers_that_are_names_may_stand_among_as_many_words(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\na.png,911\nb.png,Corolla\nc.png,2CV\nd.png,9-3\n")
    assert CsvSource(tmp_path / "table.csv").class_names == ("2CV", "9-3", "911", "Corolla")


def test_padded_numbers_are_class_numbers_and_names_of_them_are_sorted_by_number(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\na.png,007\nb.png,010\nc.png,7\n")
    source = CsvSource(tmp_path / "table.csv")
    assert ([source.label(i) for i in range(3)], len(source.class_names)) == ([(7,), (10,), (7,)], 11)
    named = CsvSource(tmp_path / "table.csv", numbers="names")
    assert named.class_names == ("007", "7", "010")


def test_a_table_cannot_reach_outside_through_links(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a.png").write_bytes(png(0))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/way").symlink_to(tmp_path / "secret")
    (tmp_path / "data/table.csv").write_bytes(b"path,label\nway/a.png,x\nnul\0.png,x\nmissing.png,x\n")
    source = CsvSource(tmp_path / "data/table.csv")
    assert refusal(source, "way/a.png") == Reason.outside_root
    assert refusal(source, "nul\0.png") == refusal(source, "missing.png") == Reason.missing


def test_unused_classes_are_those_that_no_sample_has(tmp_path):
    (tmp_path / "table.csv").write_text("path,label\n1.png,0\n2.png,2\n3.png,2\n4.png,4\n")
    source = CsvSource(tmp_path / "table.csv")
    assert unused_classes(source) == ("1", "3")
    assert unused_classes(take(source, [1, 2])) == ("0", "1", "3", "4")
    (tmp_path / "table.csv").write_text("path,label\n1.png,0\n2.png,1\n")
    assert unused_classes(CsvSource(tmp_path / "table.csv")) == ()


def test_of_too_many_samples_to_look_at_no_class_is_called_unused():
    assert unused_classes(FractalSource(classes=1000, images=10**12, size=32, seed=0)) == ()
