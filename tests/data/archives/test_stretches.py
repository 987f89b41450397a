"""Bytes of compressed streams at any offset, checked against the whole stream unpacked by zlib and gzip."""

import gzip
import pickle
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

from vitlab.data.archives import stretches
from vitlab.data.archives.stretches import DEFLATE, Damaged, FileStretch, Inflated, Part


@pytest.fixture
def close_starts(monkeypatch):
    """Small pieces, so that small streams have many places to start from."""
    monkeypatch.setattr(stretches, "OUTPUT", 1000)
    monkeypatch.setattr(stretches, "INPUT", 100)
    monkeypatch.setattr(stretches, "MOST_STARTS", 8)


def content(size: int) -> bytes:
    """Half noise, half runs: some input unpacks to little, some to much."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, size // 2, np.uint8).tobytes()
    return noise + b"".join(bytes([n % 251]) * 997 for n in range(size // 2 // 997))


def stored(path: Path, data: bytes) -> FileStretch:
    path.write_bytes(data)
    return FileStretch(path)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@pytest.mark.usefixtures("close_starts")
@pytest.mark.parametrize("form", ["gzip", "two gzip streams", "gzip and padding", "deflate"])
def test_any_offset_can_be_read_in_any_order(tmp_path, form):
    data = content(60_000)
    packed = {
        "gzip": gzip.compress(data),
        "two gzip streams": gzip.compress(data[:20_001]) + gzip.compress(data[20_001:]),
        "gzip and padding": gzip.compress(data) + bytes(600),
        "deflate": raw_deflate(data),
    }[form]
    file = stored(tmp_path / "packed", packed)
    inflated = Inflated(file, DEFLATE, zlib.crc32(data)) if form == "deflate" else Inflated(file)
    draw = random.Random(0)
    for _ in range(300):
        offset, size = draw.randrange(len(data) + 500), draw.choice((1, 512, 3000))
        assert inflated.read(offset, size) == data[offset : offset + size]
    assert inflated.size() == len(data)
    assert len(inflated._starts) <= 9


@pytest.mark.usefixtures("close_starts")
def test_a_copy_in_another_process_starts_from_the_beginning(tmp_path):
    data = content(20_000)
    inflated = Inflated(stored(tmp_path / "packed", gzip.compress(data)))
    assert inflated.read(15_000, 10) == data[15_000:15_010]
    sent = pickle.loads(pickle.dumps(inflated))  # noqa: S301  our own bytes
    assert sent.read(7_000, 2_000) == data[7_000:9_000]


@pytest.mark.usefixtures("close_starts")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda packed: packed[:-100], "ends too early"),
        (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "incorrect data check"),
        (lambda packed: packed[:5_000] + b"\xff" * 200 + packed[5_200:], "is damaged|ends too early|data check"),
        (lambda packed: packed[:3], "ends too early"),
    ],
)
def test_a_damaged_stream_is_an_error(tmp_path, damage, said):
    inflated = Inflated(stored(tmp_path / "packed", damage(gzip.compress(content(20_000)))))
    with pytest.raises(Damaged, match=said):
        inflated.size()


def test_a_stream_without_its_own_checksum_is_compared_with_the_one_given(tmp_path):
    file = stored(tmp_path / "packed", raw_deflate(b"words " * 1000))
    with pytest.raises(Damaged, match="checksum"):
        Inflated(file, DEFLATE, zlib.crc32(b"other words")).size()


def test_a_part_ends_where_it_ends(tmp_path):
    part = Part(stored(tmp_path / "file", bytes(range(100))), 10, 20)
    assert part.read(0, 100) == bytes(range(10, 30))
    assert part.read(15, 100) == bytes(range(25, 30))
    assert part.read(30, 5) == b""


def test_memory_is_bounded_by_the_number_of_starts(tmp_path):
    zeros = 64 * 2**20
    inflated = Inflated(stored(tmp_path / "packed", gzip.compress(bytes(zeros), 1)))
    assert inflated.size() == zeros
    assert len(inflated._starts) <= stretches.MOST_STARTS
    assert inflated.read(zeros - 5, 10) == bytes(5)
