"""Random numbers as pure functions of the seed and a place: nothing to save, nothing to restore."""

import hashlib

import torch


def seed_of(*key: object) -> int:
    """63 bits from a key such as (seed, step, shard): another key, another stream."""
    text = "/".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_device(seed: int, step: int, *piece: int) -> None:
    """Start the device's own generators, which dropout draws from, at this micro-batch."""
    torch.manual_seed(seed_of("device", seed, step, *piece))
