"""ImageNet in the shapes it is handed around in; file names and formats are real, the images are stand-ins."""

import multiprocessing
import operator
import os
import random
import tarfile
from io import BytesIO

import pytest

from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.sources.imagenet import ImageNetSource
from vitlab.paper.imagenet import imagenet_classes

WNIDS = [wnid for wnid, _ in imagenet_classes()]
NAMES = tuple(name for _, name in imagenet_classes())
DEVKIT = random.Random(0).sample(WNIDS, 1000)  # stands for the development kit's own order
NUMBERS = [412, 1, 1000, 77, 1]  # ILSVRC ids of the five images below
TRUTH = [WNIDS.index(DEVKIT[number - 1]) for number in NUMBERS]


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def data(number: int) -> bytes:
    return f"jpeg {number}".encode() * 100


@pytest.fixture(params=["folder", "tar", "tar with a folder"])
def images(request, tmp_path):
    """The first five validation images, written in no order."""
    if request.param == "folder":
        (tmp_path / "val").mkdir()
        for number in (3, 1, 5, 4, 2):
            (tmp_path / "val" / name(number)).write_bytes(data(number))
        return tmp_path / "val"
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in (3, 1, 5, 4, 2):
            info = tarfile.TarInfo("val/" * (request.param != "tar") + name(number))
            info.size = len(data(number))
            tar.addfile(info, BytesIO(data(number)))
    return tmp_path / "ILSVRC2012_img_val.tar"


def written(folder, text: str, name: str = "labels.txt"):
    (folder / name).write_text(text)
    return folder / name


def check(source) -> None:
    assert source.class_names == NAMES
    assert [source.id(i) for i in range(len(source))] == [name(n) for n in range(1, 6)]
    assert [source.item(i).data for i in range(5)] == [data(n) for n in range(1, 6)]
    assert [source.item(i).labels for i in range(5)] == [(n,) for n in TRUTH] == [source.label(i) for i in range(5)]


def test_synset_folders_have_the_class_numbers_of_all_thousand(tmp_path):
    chosen = [WNIDS[999], WNIDS[3], WNIDS[500]]
    for wnid in chosen:
        (tmp_path / "train" / wnid).mkdir(parents=True)
        (tmp_path / "train" / wnid / f"{wnid}_7.JPEG").write_bytes(wnid.encode())
    for source in (ImageNetSource(tmp_path / "train"), ImageNetSource(tmp_path, "train")):
        assert source.class_names == NAMES
        assert [source.label(i) for i in range(3)] == [(3,), (500,), (999,)]
        assert [source.id(i) for i in range(3)] == [f"{wnid}/{wnid}_7.JPEG" for wnid in sorted(chosen)]
        assert [source.item(i).data.decode() for i in range(3)] == sorted(chosen)


def test_a_synset_of_another_set_is_refused(tmp_path):
    for wnid in (WNIDS[0], "n00000001"):
        (tmp_path / wnid).mkdir()
        (tmp_path / wnid / "a.JPEG").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"folders \['n00000001'\], which are none"):
        ImageNetSource(tmp_path)


def meta_layouts() -> dict[str, str]:
    rows = list(enumerate(DEVKIT, 1))
    shuffled = random.Random(1).sample(rows, 1000)
    more = [(1001 + n, f"n9{n:07d}") for n in range(860)]  # the kit's meta goes on with the inner nodes
    return {
        "wnid words": "".join(f"{wnid} some words, 2 of them\n" for _, wnid in rows),
        "wnid id name": "".join(f"{wnid} {n} kit_fox\n" for n, wnid in shuffled),
        "meta.csv": "ILSVRC2012_ID,WNID,words\n" + "".join(f'{n},{wnid},"a, b"\n' for n, wnid in rows + more),
    }


@pytest.mark.parametrize("layout", meta_layouts())
def test_the_development_kits_ground_truth(tmp_path, images, layout):
    truth = written(tmp_path, "".join(f"{n}\n" for n in [*NUMBERS, 5, 6, 7]), "ILSVRC2012_validation_ground_truth.txt")
    synsets = written(tmp_path, meta_layouts()[layout], "meta.txt")
    check(ImageNetSource(images, labels=truth, synsets=synsets))


@pytest.mark.parametrize(
    "line",
    [
        "{file},{wnid}",
        "{file} {wnid}",
        "val/{file}\t{wnid}",
        '"{file}","{wnid}"',
        "{stem},{wnid} 85 1 499 272 {wnid} 1 2 3 4 ",  # Kaggle's LOC_val_solution.csv
    ],
)
def test_a_list_of_names_and_synsets(tmp_path, images, line):
    rows = [line.format(file=name(n), stem=name(n)[:-5], wnid=WNIDS[TRUTH[n - 1]]) for n in (2, 5, 1, 3, 4)]
    for header in ("", "file,label\n"):
        check(ImageNetSource(images, labels=written(tmp_path, header + "\n".join(rows) + "\n")))


def test_an_order_sorted_by_synset_is_not_the_kits(tmp_path, images):
    truth = written(tmp_path, "".join(f"{n}\n" for n in NUMBERS))
    caffe = written(tmp_path, "".join(f"{wnid} words\n" for wnid in WNIDS), "synset_words.txt")
    with pytest.raises(
        ValueError, match=r"synset_words\.txt is sorted by WordNet id; the development kit has another order"
    ):
        ImageNetSource(images, labels=truth, synsets=caffe)


@pytest.mark.parametrize(
    ("truth", "synsets", "message"),
    [
        ("1\n2\n", None, "give its synsets too"),
        ("1\n2\n", DEVKIT, "no label for 3 images, the first being .*00000003"),
        ("1\n2\n3\n1001\n5\n", DEVKIT, r"labels\.txt, line 4: '1001' is not a number from 1 to 1000"),
        ("1\n2\n0\n4\n5\n", DEVKIT, "line 3: '0'"),
        ("1\n2\ncat\n4\n5\n", DEVKIT, "line 3: 'cat'"),
        ("1\n2\n3\n4\n5\n", DEVKIT[:999], "does not give each of the 1000 synsets"),
        ("1\n2\n3\n4\n5\n", [*DEVKIT[:999], DEVKIT[0]], "does not give each"),
        ("", None, "is empty"),
        (f"a.JPEG {WNIDS[0]}\nb.JPEG 65\n", None, "line 2: 'b.JPEG 65' is not a file name and one of"),
        (f"a.JPEG {WNIDS[0]}\nb.JPEG n00000001\n", None, "line 2"),
        (f"a.JPEG {WNIDS[0]}\na.JPEG {WNIDS[1]}\n", None, "line 2: 'a' has another label"),
        (None, None, "give the file of its labels"),
    ],
)
def test_a_ground_truth_that_does_not_fit_is_refused(tmp_path, images, truth, synsets, message):
    labels = None if truth is None else written(tmp_path, truth)
    order = None if synsets is None else written(tmp_path, "\n".join(synsets), "meta.txt")
    with pytest.raises(ValueError, match=message):
        ImageNetSource(images, labels=labels, synsets=order)


def test_an_option_that_nothing_would_read_is_refused(tmp_path, images):
    labels = written(tmp_path, "".join(f"{name(n)} {WNIDS[n]}\n" for n in range(1, 6)))
    with pytest.raises(ValueError, match=r"names the synsets itself; leave out .*labels\.txt"):
        ImageNetSource(images, labels=labels, synsets=labels)
    with pytest.raises(ValueError, match="split 'val'"):
        ImageNetSource(images, "val", labels=labels)


def test_a_cut_tar_is_refused_and_a_changed_one_noticed(tmp_path):
    path = tmp_path / "val.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name(1))
        info.size = 700
        tar.addfile(info, BytesIO(bytes(700)))
        link = tarfile.TarInfo(name(2))
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    labels = written(tmp_path, f"{name(1)} {WNIDS[0]}")
    source = ImageNetSource(path, labels=labels)
    assert (len(source), source.excluded) == (1, {"link": 1})
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadImage) as caught:
        source.item(0)
    assert caught.value.reason == Reason.changed
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="truncated"):
        ImageNetSource(path, labels=labels)


def test_other_files_of_a_flat_folder_are_counted(tmp_path):
    for file in (name(1), "labels.csv", ".hidden.JPEG"):
        (tmp_path / file).write_bytes(b"x")
    labels = written(tmp_path, f"{name(1)} {WNIDS[0]}", "truth.txt")
    assert ImageNetSource(tmp_path, labels=labels).excluded == {"other_suffix": 2, "hidden": 1}


def test_imagenet_reads_the_same_in_another_process(tmp_path, images):
    labels = written(tmp_path, "".join(f"{name(n)} {WNIDS[n]}\n" for n in range(1, 6)))
    source = ImageNetSource(images, labels=labels)
    source.item(0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(operator.methodcaller("item", 4), (source,)) == source.item(4)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            source.item(index)
