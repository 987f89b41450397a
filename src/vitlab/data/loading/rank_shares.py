"""Which part of a batch is whose: the shares of ranks, and the shards that a rank takes whole."""

import bisect
from collections import Counter

from vitlab.data.loading.batch import Batch


def share(positions: range, rank: int, ranks: int, shards: int = 1) -> range:
    """The contiguous part of `positions` that belongs to a rank; without shards the parts differ by at most one."""
    if shards == 1:
        return _part(positions, rank, rank + 1, ranks)
    whole = _part(range(shards), rank, rank + 1, ranks)
    return _part(positions, whole.start, whole.stop, shards)


def shard_sizes(batch: Batch, size: int, shards: int) -> dict[int, int]:
    """How many samples of a training batch belong to each shard, in their order; `size` is that of the whole batch."""
    ends = [size * (number + 1) // shards for number in range(shards)]
    return dict(Counter(bisect.bisect_right(ends, position % size) for position in batch.positions))


def _part(positions: range, first: int, last: int, parts: int) -> range:
    return positions[len(positions) * first // parts : len(positions) * last // parts]
