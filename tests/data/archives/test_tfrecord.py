"""TFRecord files against checksums computed bit by bit, and messages encoded by hand."""

import random
from pathlib import Path

import pytest

from vitlab.data.archives.stretches import Damaged, FileStretch
from vitlab.data.archives.tfrecord import crc32c, example, records
from vtab_miniatures import crc32c as crc_by_bits
from vtab_miniatures import tf_example, tfrecord


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 63, 64, 65, 4095, 4096, 4097, 10_000])
def test_crc32c_agrees_with_the_definition(size):
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == crc_by_bits(data)


def test_crc32c_of_the_standard_check_string():
    assert crc32c(b"123456789") == 0xE3069283


def stored(folder: Path, data: bytes) -> FileStretch:
    (folder / "file").write_bytes(data)
    return FileStretch(folder / "file")


def test_records_come_back_in_order(tmp_path):
    contents = [random.Random(n).randbytes(n * 700) for n in range(12)]
    found = list(records(stored(tmp_path, b"".join(map(tfrecord, contents)))))
    assert [record.data for record in found] == contents
    whole = (tmp_path / "file").read_bytes()
    assert all(whole[offset : offset + len(data)] == data for offset, data in found)


def test_every_flipped_bit_is_found(tmp_path):
    whole = tfrecord(random.Random(0).randbytes(300))
    for byte in range(len(whole)):
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << byte % 8
        with pytest.raises(Damaged):
            list(records(stored(tmp_path, bytes(damaged))))


def test_every_cut_is_found(tmp_path):
    whole = tfrecord(b"first") + tfrecord(random.Random(0).randbytes(200))
    ends = {0, len(tfrecord(b"first")), len(whole)}
    for length in set(range(len(whole))) - ends:
        with pytest.raises(Damaged, match="ends too early"):
            list(records(stored(tmp_path, whole[:length])))


def test_a_record_that_claims_to_be_huge_is_refused_without_reading_it(tmp_path):
    huge = (2**60).to_bytes(8, "little")
    mask = (crc_by_bits(huge) >> 15 | crc_by_bits(huge) << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
    with pytest.raises(Damaged, match="damaged record"):
        list(records(stored(tmp_path, huge + mask.to_bytes(4, "little") + bytes(100))))


@pytest.mark.parametrize("packed", [True, False])
def test_features_of_an_example_are_found_by_name(packed):
    found = example(tf_example(b"\xff\xd8image" * 100, "a/b.jpg", 5, packed=packed))
    assert found == {"image": [b"\xff\xd8image" * 100], "filename": [b"a/b.jpg"], "label": [5]}


def test_a_negative_number_is_read_as_such():
    minus_one = b"\x08" + b"\xff" * 9 + b"\x01"
    assert example(b"\x0a\x14\x0a\x12\x0a\x01x\x12\x0d\x1a\x0b" + minus_one) == {"x": [-1]}


def test_cut_messages_are_errors_or_have_fewer_features():
    whole = tf_example(b"image", "name", 3, packed=True)
    for length in range(1, len(whole)):
        try:
            found = example(whole[:length])
        except Damaged:
            continue
        assert len(found) < 3
