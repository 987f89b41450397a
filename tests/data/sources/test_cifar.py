"""CIFAR in both forms, and pickles that are read without being unpickled."""

import multiprocessing
import operator
import os
import pickle
import pickletools
import struct
import subprocess
import sys

import numpy as np
import pytest

from vitlab.data.sources.cifar import CifarSource
from vitlab.data.sources.pickles import Machine, UnsafePickle, read_pickle

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HUNDRED = [f"fine {n}" for n in range(100)]


def images(n: int, seed: int) -> np.ndarray:
    """(n, 3072), different everywhere."""
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)


def check(source, planes: np.ndarray, labels: list[int], names: list[str]) -> None:
    assert len(source) == len(planes)
    assert source.class_names == tuple(names)
    for index in range(len(source)):
        item = source.item(index)
        assert (item.labels, item.id) == ((labels[index],), str(index))
        assert source.label(index) == item.labels
        assert item.data.shape == (32, 32, 3)
        for channel in range(3):  # the format: the red plane row by row, the green, the blue
            for row in (0, 31):
                start = channel * 1024 + row * 32
                assert item.data[row, :, channel].tolist() == planes[index, start : start + 32].tolist()


# -- The pickle that the authors' Python 2 wrote, opcode by opcode -------------------------------


def short_string(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()


def python2_array(planes: np.ndarray) -> bytes:
    data = planes.tobytes()
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01btR",
            b"(K\x01" + b"J" + struct.pack("<i", len(planes)) + b"M" + struct.pack("<H", 3072) + b"\x86",
            b"cnumpy\ndtype\n" + short_string("u1") + b"K\0K\x01\x87R(K\x03" + short_string("|") + b"NNN",
            b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89",
            b"T" + struct.pack("<i", len(data)) + data + b"tb",
        ]
    )


def python2_list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def python2_dict(entries: dict[str, bytes]) -> bytes:
    return b"\x80\x02}q\x01(" + b"".join(short_string(k) + b"q\x05" + v for k, v in entries.items()) + b"u."


def python2_batch(planes: np.ndarray, labels: list[int], key: str) -> bytes:
    return python2_dict(
        {
            "batch_label": short_string("training batch 1 of 5"),
            key: python2_list([b"K" + bytes([n]) for n in labels]),
            "data": python2_array(planes),
            "filenames": python2_list([short_string(f"{n}.png") for n in range(len(labels))]),
        }
    )


def test_the_test_writes_what_python_reads():
    planes = images(3, 0)
    value = pickle.loads(python2_batch(planes, [1, 2, 3], "labels"), encoding="bytes")  # noqa: S301  written above
    assert value[b"labels"] == [1, 2, 3]
    assert (value[b"data"] == planes).all()


# -- Reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(tmp_path, below):
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    planes, labels = images(15, 1), [n % 10 for n in range(15)]
    for batch in range(5):
        part = range(3 * batch, 3 * batch + 3)
        data = b"".join(bytes([labels[n]]) + planes[n].tobytes() for n in part)
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(data)
    (folder / "test_batch.bin").write_bytes(b"\x09" + planes[0].tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    check(CifarSource(10, tmp_path), planes, labels, TEN)
    check(CifarSource(10, tmp_path, "test"), planes[:1], [9], TEN)


def test_cifar100_binary_has_the_coarse_label_first(tmp_path):
    planes, labels = images(4, 2), [0, 99, 50, 7]
    data = b"".join(bytes([n % 20, labels[n]]) + planes[n].tobytes() for n in range(4))
    (tmp_path / "train.bin").write_bytes(data)
    (tmp_path / "fine_label_names.txt").write_text("\n".join(HUNDRED))
    check(CifarSource(100, tmp_path), planes, labels, HUNDRED)


def test_cifar10_python_as_its_authors_wrote_it(tmp_path):
    planes, labels = images(10, 3), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    for batch in range(5):
        part = slice(2 * batch, 2 * batch + 2)
        (tmp_path / f"data_batch_{batch + 1}").write_bytes(python2_batch(planes[part], labels[part], "labels"))
    names = python2_list([short_string(name) for name in TEN])
    (tmp_path / "batches.meta").write_bytes(python2_dict({"num_vis": b"M\x00\x0c", "label_names": names}))
    check(CifarSource(10, tmp_path), planes, labels, TEN)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_cifar100_python_of_any_protocol(tmp_path, protocol):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    planes, labels = images(300, 4), [n % 100 for n in range(300)]
    batch = {b"filenames": [b"a.png"] * 300, b"fine_labels": labels, b"coarse_labels": [0] * 300, b"data": planes}
    (folder / "test").write_bytes(pickle.dumps(batch, protocol))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": HUNDRED}, protocol))
    check(CifarSource(100, tmp_path, "test"), planes, labels, HUNDRED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [10, 0]}, "no list `labels` of numbers from 0 to 9"),
        ({"labels": [0]}, "2 images and 1 labels"),
        ({"labels": [True, 0]}, "no list `labels`"),
        ({"data": np.zeros((2, 3071), np.uint8)}, r"no array `data` of \(n, 3072\)"),
        ({"data": [1, 2]}, "no array `data`"),
        ({"data": np.zeros((2, 3072), np.float32)}, "holds a call"),
    ],
)
def test_a_batch_that_is_not_cifar_is_refused(tmp_path, change, message):
    batch = {"labels": [1, 2], "data": images(2, 5)} | change
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(ValueError, match=f"^test_batch .*{message}"):
        CifarSource(10, tmp_path, "test")


def test_files_that_are_cut_or_absent_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no CIFAR-10 .*put the download there"):
        CifarSource(10, tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match=r"test_batch\.bin has 3,072 bytes, not a multiple of 3073"):
        CifarSource(10, tmp_path, "test")
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(ValueError, match=r"batches\.meta\.txt is missing"):
        CifarSource(10, tmp_path, "test")
    (tmp_path / "batches.meta.txt").write_text("\n".join(TEN))
    with pytest.raises(ValueError, match="labels from 10 to 10; allowed are 0 to 9"):
        CifarSource(10, tmp_path, "test")
    with pytest.raises(ValueError, match="known are 10 and 100"):
        CifarSource(10, tmp_path, "val")


def test_cifar_reads_the_same_in_another_process(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x01" + images(1, 6).tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join(TEN))
    source = CifarSource(10, tmp_path, "test")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        item = pool.apply(operator.methodcaller("item", 0), (source,))
    assert (item.data == source.item(0).data).all()
    assert (item.labels, item.id) == ((1,), "0")
    for index in (-1, 1):
        with pytest.raises(IndexError):
            source.item(index)


# -- Hostile pickles -----------------------------------------------------------------------------


class Runs:
    """What an attacker pickles: loading it runs a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def hostile(command: str) -> dict[str, bytes]:
    """Pickles that run the command when they are unpickled."""
    quoted = command.encode()
    nested = {"labels": [1], "data": Runs(command)}
    return {
        **{f"protocol {n}": pickle.dumps(nested, n) for n in range(6)},
        "global": b"cos\nsystem\n(S'" + quoted + b"'\ntR.",
        "inst": b"(S'" + quoted + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + quoted + b"'\no.",
        "stack global": b"\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(quoted)]) + quoted + b"\x85R.",
        "newobj": b"\x80\x02csubprocess\nPopen\n(](S'sh'\nS'-c'\nS'" + quoted + b"'\net\x81.",
        "behind the array": b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\nS'" + quoted + b"'\ntR.",
    }


@pytest.mark.parametrize("name", hostile("x"))
def test_a_hostile_pickle_is_refused_and_never_runs(tmp_path, name):
    canary = tmp_path / "canary"
    data = hostile(f"touch {canary}")[name]
    (tmp_path / "test_batch").write_bytes(data)
    with pytest.raises(ValueError, match=r"test_batch holds the (name|opcode) .*nothing of it was run"):
        CifarSource(10, tmp_path, "test")
    assert not canary.exists()


def test_the_canary_would_sing(tmp_path):
    """The hostile pickles do run where they are unpickled: in a process of their own."""
    (tmp_path / "p").write_bytes(hostile(f"touch {tmp_path}/canary")["protocol 2"])
    code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "p")], check=True)
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"0.",
        b"t.",
        b"K\x01u.",
        b"}K\x01K\x02s.",
        b"}U\x01as.",
        b"h\x00.",
        b"K\x01K\x02R.",
        b"K\x01}b.",
        b"K\x01",
        b"cnumpy\ndtype\n.",
        b"cnumpy\nload\n.",
        b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0utf-8tR.",
        b"cnumpy\ndtype\n(U\x01OK\0K\x01tR.",
        b"T\xff\xff\xff\x7fabc.",
        b"\x8e" + b"\xff" * 8 + b"abc.",
        b"\x8b\xff\xff\xff\x7f1.",
        b"\x97.",
        b"Pid\n.",
        b"\x82\x01.",
    ],
)
def test_a_damaged_or_strange_pickle_is_refused(data):
    with pytest.raises(UnsafePickle):
        read_pickle(data)


def test_no_opcode_that_makes_objects_is_known():
    makers = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}
    assert makers <= {opcode.name for opcode in pickletools.opcodes}
    for maker in makers:
        with pytest.raises(UnsafePickle, match=f"the opcode {maker},"):
            Machine([1, 2, 3], [0, 0]).step(maker, "x y")


def test_references_to_references_cost_nothing():
    """A billion laughs: 60 lists, each holding the one before it twice."""
    data = (
        b"]q\0" + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(60)) + b"."
    )
    assert isinstance(read_pickle(data), list)
