"""The order of training samples as a pure function: position in an endless stream -> (epoch, sample number).

Nothing is stored: any position of a billion-image set is computed in constant time, and workers and ranks do not change
what is trained on. Each epoch permutes all samples. Where neighbours are read together (shards, row groups), it
permutes whole blocks, then the samples inside a window of blocks, so that reads stay local; a source that is sorted by
class must not use blocks.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from vitlab.require import require

ROUNDS = 4  # of the Feistel network


@dataclass(frozen=True)
class Order:
    """The stream of `samples` samples for a seed."""

    samples: int
    seed: int = 0
    block: int = 1  # neighbouring samples that stay together
    window: int = 64  # blocks whose samples are mixed

    def __post_init__(self) -> None:
        require(self.samples >= 1, f"an order needs at least 1 sample, not {self.samples}")
        require(min(self.block, self.window) >= 1, f"block {self.block}, window {self.window}: both must be at least 1")

    def at(self, position: int) -> tuple[int, int]:
        """Return (epoch, sample number) at a position of the endless stream."""
        require(position >= 0, f"position {position} is before the start of the stream")
        epoch, place = divmod(position, self.samples)
        if self.block == 1:
            return epoch, permuted(place, self.samples, _key(self.seed, epoch, 0))
        return epoch, self._in_blocks(epoch, place)

    def _in_blocks(self, epoch: int, place: int) -> int:
        """The sample at a place of an epoch: its window, its place in the window, its block, its number."""
        blocks = -(-self.samples // self.block)
        windows = max(1, round(blocks / self.window))  # of equal numbers of blocks, so that none is short
        key = _key(self.seed, epoch, 0)
        # The last block may be short. The slot it moved to determines where every other slot starts.
        short_slot = unpermuted(blocks - 1, blocks, key)
        gap = blocks * self.block - self.samples

        def start(slot: int) -> int:
            return slot * self.block - (gap if slot > short_slot else 0)

        def slot_of(place: int) -> int:
            slot = place // self.block
            return slot + 1 if place >= start(slot + 1) else slot

        window = ((slot_of(place) + 1) * windows - 1) // blocks
        begin, end = (start(blocks * edge // windows) for edge in (window, window + 1))
        moved = begin + permuted(place - begin, end - begin, _key(self.seed, epoch, 1 + window))
        slot = slot_of(moved)
        return permuted(slot, blocks, key) * self.block + moved - start(slot)


def permuted(number: int, size: int, key: bytes) -> int:
    """Permute 0..size-1 without storing it: a Feistel network, applied until the result is in range."""
    half, mask = _half(size)
    while True:
        left, right = number >> half, number & mask
        for round in range(ROUNDS):
            left, right = right, left ^ (_mix(right, key, round) & mask)
        number = left << half | right
        if number < size:
            return number


def unpermuted(number: int, size: int, key: bytes) -> int:
    """The inverse of `permuted`."""
    half, mask = _half(size)
    while True:
        left, right = number >> half, number & mask
        for round in reversed(range(ROUNDS)):
            left, right = right ^ (_mix(left, key, round) & mask), left
        number = left << half | right
        if number < size:
            return number


def _half(size: int) -> tuple[int, int]:
    """Bits of each half of a number below `size`, and their mask: on average at most 4 numbers are tried for one."""
    half = ((size - 1).bit_length() + 1) // 2
    return half, (1 << half) - 1


def _mix(value: int, key: bytes, round: int) -> int:
    """64 well-mixed bits of a value under a key (the finaliser of SplitMix64 on both)."""
    offset = 8 * round
    z = (value + int.from_bytes(key[offset : offset + 8], "little")) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return z ^ z >> 31


@lru_cache(maxsize=64)
def _key(seed: int, epoch: int, purpose: int) -> bytes:
    """32 bytes that differ for every seed, epoch and purpose."""
    return hashlib.blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=32).digest()
