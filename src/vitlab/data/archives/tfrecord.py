"""TFRecord files and the tf.Example messages in them, read without TensorFlow.

A record is its length (8 bytes, little-endian), a checksum of these bytes, the data, and a checksum of the data. The
checksums are CRC-32C, rotated and shifted by a constant. All are verified.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vitlab.data.archives.stretches import Damaged, Stretch
from vitlab.data.images.refusals import LARGEST_FILE

HEADER = struct.Struct("<QI")  # length, checksum of the length
POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
MASK = 0xA282EAD8
LANE = 64  # bytes that one table look-up per byte covers, and lanes that one more per lane's byte joins
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # wire types of a protocol buffer


class Record(NamedTuple):
    """Where the data of a record is, and the data."""

    offset: int
    data: bytes


def records(file: Stretch) -> Iterator[Record]:
    """Yield every record of a file; raises Damaged if one is cut or does not match its checksum."""
    at = 0
    while header := file.read(at, HEADER.size):
        if len(header) < HEADER.size:
            raise Damaged("ends too early")
        length, checksum = HEADER.unpack(header)
        if masked(header[:8]) != checksum or length > LARGEST_FILE:
            raise Damaged(f"has a damaged record at byte {at:,}")
        body = file.read(at + HEADER.size, length + 4)
        if len(body) < length + 4:
            raise Damaged("ends too early")
        data = body[:length]
        if masked(data) != int.from_bytes(body[length:], "little"):
            raise Damaged(f"has a record at byte {at:,} that does not match its checksum")
        yield Record(at + HEADER.size, data)
        at += HEADER.size + length + 4


# -- CRC-32C -------------------------------------------------------------------------------------


def _advanced(remainders: np.ndarray, zeros: int) -> np.ndarray:
    """The remainders after this many more zero bytes."""
    for _ in range(zeros):
        remainders = (remainders >> np.uint32(8)) ^ BYTE[remainders & np.uint32(255)]
    return remainders


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """What a byte adds to the remainder, by its place in a lane; what a byte of a lane's remainder adds, by lane."""
    places = [BYTE]
    while len(places) < LANE:
        places.append(_advanced(places[-1], 1))
    single = np.arange(256, dtype=np.uint32)
    lanes = [np.stack([single << np.uint32(8 * byte) for byte in range(4)])]  # (4, 256) of the last lane
    while len(lanes) < LANE:
        lanes.append(_advanced(lanes[-1], LANE))
    return np.stack(places[::-1]), np.stack(lanes[::-1])  # (LANE, 256), (LANE, 4, 256): the first first


BYTE = _byte_table()
PLACES, LANES = _tables()
GROUP = _advanced(LANES[0], LANE)  # (4, 256): what a byte of the remainder adds after LANE squared further bytes


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, whose contributions are looked up all at once and added up."""
    # The initial value of all ones is the same as inverting the first four bytes.
    values = np.frombuffer(data, np.uint8)
    if len(values) < 4:
        remainder = 0xFFFFFFFF
        for byte in data:
            remainder = (remainder >> 8) ^ int(BYTE[(remainder ^ byte) & 255])
        return remainder ^ 0xFFFFFFFF
    padded = np.zeros(-(-len(values) // LANE**2) * LANE**2, np.uint8)
    padded[len(padded) - len(values) :] = values  # zeros in front change nothing
    first = len(padded) - len(values)
    padded[first : first + 4] ^= 255
    lanes = np.bitwise_xor.reduce(PLACES[np.arange(LANE), padded.reshape(-1, LANE)], axis=1)  # (n / LANE,)
    parts = lanes.reshape(-1, LANE, 1) >> np.array([0, 8, 16, 24], np.uint32) & np.uint32(255)
    groups = np.bitwise_xor.reduce(LANES[np.arange(LANE)[:, None], np.arange(4), parts], axis=(1, 2))
    remainder = 0
    for group in groups.tolist():
        moved = [int(GROUP[byte, remainder >> (8 * byte) & 255]) for byte in range(4)]
        remainder = moved[0] ^ moved[1] ^ moved[2] ^ moved[3] ^ group
    return remainder ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum of a TFRecord."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


# -- tf.Example ------------------------------------------------------------------------------------


def example(data: bytes) -> dict[str, list[bytes] | list[int]]:
    """The features of a tf.Example that are bytes or whole numbers, by name; raises Damaged."""
    try:
        return dict(_features(data))
    except (IndexError, UnicodeDecodeError):
        raise Damaged("has a record that is not a tf.Example") from None


def _features(data: bytes) -> Iterator[tuple[str, list[bytes] | list[int]]]:
    for _, features in _fields(data, 1):  # Example.features
        for _, entry in _fields(features, 1):  # Features.feature, a map
            name = b"".join(value for _, value in _fields(entry, 1)).decode()
            for _, feature in _fields(entry, 2):
                for number, values in _fields(feature, 1, 3):  # bytes_list, int64_list
                    if number == 1:
                        yield name, [value for _, value in _fields(values, 1)]
                    else:
                        yield name, _whole_numbers(values)


def _fields(data: bytes, *wanted: int) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the wanted fields of a message that have a length; others are skipped."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _, at = _varint(data, at)
        elif kind == BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise IndexError
            if number in wanted:
                yield number, data[at : at + length]
            at += length
        elif kind in FIXED:
            at += FIXED[kind]
        else:
            raise IndexError


def _whole_numbers(data: bytes) -> list[int]:
    """The values of an Int64List, packed or one by one."""
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag >> 3 != 1 or tag & 7 not in (VARINT, BYTES):
            raise IndexError
        end = at
        if tag & 7 == BYTES:
            length, at = _varint(data, at)
            end = at + length
        while True:
            value, at = _varint(data, at)
            found.append(value - 2**64 if value >= 2**63 else value)
            if at >= end:
                break
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError
