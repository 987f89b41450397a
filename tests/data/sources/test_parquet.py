"""Parquet files written by pyarrow, as the datasets library lays them out."""

import json
import multiprocessing
import operator
import os
import subprocess
import sys

import pytest

from vitlab.data.images.refusals import BadImage, Reason

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from vitlab.data.sources.parquet import MOST_KEPT, ParquetSource  # noqa: E402

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def image(n: int) -> bytes:
    return f"image {n}".encode() * 50


def write(
    path,
    numbers,
    *,
    images=None,
    labels=None,
    names=("cat", "dog", "emu"),
    group=3,
    kind=IMAGE,
    columns=("image", "label"),
):
    """Rows of those numbers: image n with label n % 3."""
    images = [{"bytes": image(n), "path": f"{n}.jpg"} for n in numbers] if images is None else images
    labels = pyarrow.array([n % 3 for n in numbers], pyarrow.int64()) if labels is None else labels
    table = pyarrow.table({columns[0]: pyarrow.array(images, kind), columns[1]: labels})
    if names:
        features = {columns[0]: {"_type": "Image"}, columns[1]: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=group)
    return path


def check(source, numbers, prefix=None) -> None:
    assert len(source) == len(numbers)
    order = [*range(len(numbers))]
    for index in order[::-2] + order[::3]:
        item = source.item(index)
        assert (item.data, item.labels) == (image(numbers[index]), (numbers[index] % 3,))
        assert (source.label(index), source.id(index)) == (item.labels, item.id)
    assert len({source.id(i) for i in order}) == len(numbers)


@pytest.mark.parametrize("group", [1, 3, 7, 100])
def test_every_row_of_one_file(tmp_path, group):
    source = ParquetSource(write(tmp_path / "set.parquet", range(20), group=group))
    check(source, range(20))
    assert source.class_names == ("cat", "dog", "emu")
    assert [source.id(0), source.id(19)] == ["set/0", "set/19"]


@pytest.mark.parametrize("below", ["", "data"])
def test_a_split_of_a_folder_in_the_order_of_its_files(tmp_path, below):
    for part, numbers in enumerate([range(5), range(5, 6), range(6, 15)]):
        write(tmp_path / below / f"train-{part:05d}-of-00003.parquet", numbers)
    write(tmp_path / below / "test-00000-of-00001.parquet", range(40, 44))
    check(ParquetSource(tmp_path, "train"), range(15))
    check(ParquetSource(tmp_path, "test"), range(40, 44))
    assert ParquetSource(tmp_path, "train").id(6) == "train-00002-of-00003/0"
    with pytest.raises(ValueError, match=r"splits \['test', 'train'\]; choose one"):
        ParquetSource(tmp_path)
    with pytest.raises(ValueError, match="not 'val'"):
        ParquetSource(tmp_path, "val")


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary()])
def test_images_may_be_plain_binary_and_columns_named_otherwise(tmp_path, kind):
    path = tmp_path / "set.parquet"
    write(path, range(4), images=[image(n) for n in range(4)], kind=kind, columns=("img", "fine_label"))
    check(ParquetSource(path, image="img", label="fine_label"), range(4))
    with pytest.raises(ValueError, match=r"no column 'image'; it has \['img', 'fine_label'\]"):
        ParquetSource(path)


def test_without_names_classes_are_named_by_number(tmp_path):
    assert ParquetSource(write(tmp_path / "a.parquet", range(2), names=())).class_names == ("0", "1")


def test_an_image_given_only_by_its_path_is_an_error_that_says_so(tmp_path):
    images = [{"bytes": image(0), "path": None}, {"bytes": None, "path": "cats/1.jpg"}, None]
    source = ParquetSource(write(tmp_path / "set.parquet", range(3), images=images))
    assert source.item(0).data == image(0)
    for index, said in ((1, "only the path 'cats/1.jpg' in the file"), (2, "no image in the file")):
        with pytest.raises(BadImage, match=said) as caught:
            source.item(index)
        assert (caught.value.reason, caught.value.name) == (Reason.missing, f"set/{index}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": pyarrow.array([0, -1], pyarrow.int64())}, "row 1: label -1 is not a class"),
        ({"labels": pyarrow.array([0, None], pyarrow.int64())}, "1 rows without a label"),
        ({"labels": pyarrow.array(["a", "b"])}, "column 'label' is string; allowed are whole numbers"),
        ({"labels": pyarrow.array([0, 3], pyarrow.int64())}, r"label 3, and 3 names of classes; see set/1; allowed"),
        ({"labels": pyarrow.array([0, 10**9], pyarrow.int64()), "names": ()}, "label 1000000000 is not a class"),
        ({"images": ["a", "b"], "kind": pyarrow.string()}, "column 'image' is string; allowed are binary"),
        ({"images": [{"path": "a"}] * 2, "kind": pyarrow.struct([("path", pyarrow.string())])}, "allowed are binary"),
        ({"names": (1, 2)}, "class names are not all strings"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, options, message):
    path = write(tmp_path / "set.parquet", range(2), **options)
    with pytest.raises(ValueError, match=message):
        ParquetSource(path)


def test_damaged_and_empty_files_are_refused(tmp_path):
    path = write(tmp_path / "set.parquet", range(10))
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[: len(whole) // 2], b"<html>" * 100):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"set\.parquet is not a valid parquet file"):
            ParquetSource(path)
    write(path, range(0))
    with pytest.raises(ValueError, match="no rows"):
        ParquetSource(path)
    with pytest.raises(ValueError, match="does not exist"):
        ParquetSource(tmp_path / "nowhere")


def test_a_damaged_row_group_is_refused_and_the_others_are_read(tmp_path):
    path = write(tmp_path / "set.parquet", range(4), group=2)
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 24] = b"\xff" * 24
    path.write_bytes(data)
    source = ParquetSource(path)
    with pytest.raises(BadImage) as caught:
        source.item(0)
    assert caught.value.reason == Reason.corrupt
    assert source.item(3).data == image(3)


def test_a_file_that_changes_is_noticed(tmp_path):
    path = write(tmp_path / "set.parquet", range(4), group=2)
    source = ParquetSource(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadImage) as caught:
        source.item(0)
    assert caught.value.reason == Reason.changed


def test_few_row_groups_are_kept(tmp_path):
    source = ParquetSource(write(tmp_path / "set.parquet", range(40), group=2))
    for index in range(40):
        source.item(index)
    assert len(source._kept) == MOST_KEPT
    assert source.block == 2
    assert source.window <= MOST_KEPT  # what the training order mixes is in memory


def test_few_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr("vitlab.data.sources.parquet.MOST_OPEN", 3)
    for number in range(8):
        write(tmp_path / f"train-{number:05}-of-00008.parquet", range(4))
    source = ParquetSource(tmp_path, "train")
    assert [source.item(index).labels for index in range(32)] == [source.label(index) for index in range(32)]
    assert len(source._open) == 3


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_parquet_reads_the_same_in_another_process(tmp_path, method):
    source = ParquetSource(write(tmp_path / "set.parquet", range(10)))
    source.item(9)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(operator.methodcaller("item", 7), (source,)) == source.item(7)
    for index in (-1, 10):
        with pytest.raises(IndexError):
            source.item(index)


def test_without_pyarrow_the_error_names_the_extra(tmp_path):
    path = write(tmp_path / "set.parquet", range(1))
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from vitlab.data.sources.parquet import MOST_KEPT, ParquetSource\n"
        "try: ParquetSource(Path(sys.argv[1]))\n"
        "except ModuleNotFoundError as error: sys.stdout.write(str(error))\n"
        "from vitlab.cli import main; sys.exit(main(['data', 'check', f'parquet:{sys.argv[1]}']))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    said = "parquet files need pyarrow: pip install 'vitlab[data]'"
    assert done.stdout.startswith(said)
    assert done.returncode == 2
    assert f"vitlab: {said}" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_error_of_pyarrow_is_explained(tmp_path, monkeypatch):
    source = ParquetSource(write(tmp_path / "set.parquet", range(3)))

    def fail(*arguments, **options):
        raise pyarrow.ArrowNotImplementedError("nested data\nis not implemented")

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", fail)
    with pytest.raises(BadImage, match=r"damaged row group \(nested data\); download the file again"):
        source.item(0)
    monkeypatch.setattr(parquet.ParquetFile, "read", fail)
    with pytest.raises(ValueError, match=r"column 'label' is damaged \(nested data\); download"):
        ParquetSource(tmp_path / "set.parquet")
    monkeypatch.setattr(parquet, "ParquetFile", fail)
    with pytest.raises(ValueError, match=r"not a valid parquet file \(nested data\); download"):
        ParquetSource(tmp_path / "set.parquet")


def test_short_memory_is_not_a_damaged_file(tmp_path, monkeypatch):
    source = ParquetSource(write(tmp_path / "set.parquet", range(3)))

    def fail(*arguments, **options):
        raise pyarrow.ArrowMemoryError("malloc failed")

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", fail)
    with pytest.raises(MemoryError):
        source.item(0)
