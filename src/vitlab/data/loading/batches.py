"""Batches: the same samples with the same pixels on any number of workers and ranks, from any step on."""

import itertools
from collections.abc import Generator, Iterable

import torch
from PIL import Image
from torch import Tensor

from vitlab.data.loading.accounting import TRAINING_LIMIT, Account, Quarantined, training_limit
from vitlab.data.loading.batch import Batch, on_device
from vitlab.data.loading.order import Order
from vitlab.data.loading.rank_shares import share
from vitlab.data.loading.workers import RangeReader, Sound, check_workers, read_ranges, shared
from vitlab.data.source import Sample, Source, decode
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.data.transforms.corruption import Corruption, corruption_plan
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.data.transforms.resizing import check_result
from vitlab.pixels import Augmentation, Preprocessing
from vitlab.require import require

CPU = torch.device("cpu")


def order_of(source: Source, seed: int = 0) -> Order:
    """The training order of a source; what it stores together (`block`, `window`) is read together."""
    return Order(len(source), seed, block=source.block, window=source.window)


def training_batches(
    source: Source,
    order: Order,
    *,
    batch: int,
    size: tuple[int, int],
    augmentation: Augmentation,
    start: int = 0,
    stop: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    shards: int = 1,
    corruption: Corruption | None = None,
    workers: int = 0,
    account: Account | None = None,
    max_bad: float = TRAINING_LIMIT,
    device: torch.device = CPU,
) -> Generator[Batch]:
    """Batches `start` to `stop` - 1 of the endless stream; batch k holds positions [k batch, (k + 1) batch).

    Each rank gets its share of every batch, of several `shards` whole ones; together the shares are the batch, whatever
    their number. Bad images are booked in `account`; see `training_limit` for how many of them stop the run.
    """
    _check(batch, size, rank, ranks, workers)
    require(start >= 0, f"start {start} must not be negative")
    require(order.samples == len(source), f"the order is of {order.samples:,} samples, the source has {len(source):,}")
    steps = itertools.count(start) if stop is None else range(start, stop)
    wanted = (share(range(step * batch, (step + 1) * batch), rank, ranks, shards) for step in steps)
    reader = _TrainingReader(source, workers, size, order, augmentation, corruption)
    books = account or Account(len(source))
    limit = training_limit(max_bad, books.samples)
    return _booked(on_device(read_ranges(reader, wanted, workers), device), books, limit)


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    size: tuple[int, int],
    preprocessing: Preprocessing,
    corruption: Corruption | None = None,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    in_turn: bool = False,
    workers: int = 0,
    account: Account | None = None,
    max_bad: float = 0.0,
    device: torch.device = CPU,
) -> Generator[Batch]:
    """Every sample from number `start` on exactly once over all ranks, in order; the last batch may be short.

    Each rank gets its share of every batch, so what all ranks have finished is always a beginning of the set. With
    `in_turn` ranks take whole batches in turn, which are computed as one rank alone would; the last may be empty. A bad
    image stops by default; one that is allowed by `max_bad` is booked in `account`, never replaced. A `corruption` is
    drawn with seed 0, so that a sample has the same plan in every evaluation.
    """
    _check(batch, size, rank, ranks, workers)
    require(0 <= start <= len(source), f"start {start} is outside 0..{len(source)}")
    whole = range(start, len(source))
    if in_turn:
        wanted = (whole[at + rank * batch :][:batch] for at in range(0, len(whole), ranks * batch))
    else:
        wanted = (share(whole[at : at + batch], rank, ranks) for at in range(0, len(whole), batch))
    reader = _EvaluationReader(source, workers, size, preprocessing, corruption)
    return _booked(on_device(read_ranges(reader, wanted, workers), device), account or Account(len(source)), max_bad)


def _check(batch: int, size: tuple[int, int], rank: int, ranks: int, workers: int) -> None:
    require(batch >= 1, f"batch {batch} must be at least 1")
    require(0 <= rank < ranks, f"rank {rank} is outside 0..{ranks - 1}")
    check_workers(workers)
    check_result(size)


def _booked(batches: Iterable[Batch], account: Account, max_bad: float) -> Generator[Batch]:
    """Books are kept of what is handed out, not of what is read ahead: they are right whenever a run is saved."""
    for batch in batches:
        account.add(batch.epochs, batch.bad, max_bad)
        yield batch


class _BatchReader(RangeReader):
    """Reads samples into a batch of pixels; their plans are drawn with `seed`, others for each of `repeats`."""

    seed, repeats = 0, 1

    def __init__(
        self, source: Source, workers: int, size: tuple[int, int], corruption: Corruption | None = None
    ) -> None:
        super().__init__(source, workers)
        self.size, self.corruption = size, corruption
        require(
            corruption is None or not source.is_prepared,
            "masked patch prediction needs pictures, and the data set gives float tensors; return PIL images or uint8",
        )

    def use(self, sample: Sample, epoch: int, position: int) -> Tensor:
        if not isinstance(sample.data, Tensor):
            return self.pixels(decode(sample, self.source.max_pixels).image, sample, epoch, position)
        (height, width), (rows, columns) = self.size, sample.data.shape[1:]
        require(
            (rows, columns) == (height, width),
            f"sample {sample.id!r} is a float tensor of {rows}x{columns}, and the model takes {height}x{width}; float "
            f"tensors are not resized: return them in that size, or return PIL images",
        )
        return sample.data

    def pixels(self, image: Image.Image, sample: Sample, epoch: int, position: int) -> Tensor:
        """(3, H, W) of uint8 from the picture of a sample."""
        raise NotImplementedError

    def collected(self, good: list[Sound], bad: list[tuple[int, Quarantined]]) -> Batch:
        stacked = torch.stack([s.kept for s in good]) if good else torch.empty(0, 3, *self.size, dtype=torch.uint8)
        return Batch(
            pixels=shared(stacked),
            labels=tuple(s.sample.labels for s in good),
            ids=tuple(s.sample.id for s in good),
            numbers=tuple(s.number for s in good),
            epochs=tuple(s.epoch for s in good),
            positions=tuple(s.position for s in good),
            bad=tuple(bad),
            plans=None if self.corruption is None else self._plans(self.corruption, good),
        )

    def _plans(self, corruption: Corruption, good: list[Sound]) -> Tensor:
        drawn = [corruption_plan(corruption, self.seed, s.epoch, s.sample.id, s.position % self.repeats) for s in good]
        return shared(torch.stack(drawn)) if drawn else torch.empty(0, 2, corruption.chosen, dtype=torch.long)


class _TrainingReader(_BatchReader):
    def __init__(
        self,
        source: Source,
        workers: int,
        size: tuple[int, int],
        order: Order,
        augmentation: Augmentation,
        corruption: Corruption | None,
    ) -> None:
        super().__init__(source, workers, size, corruption)
        self.order, self.augmentation = order, augmentation
        self.seed, self.repeats = order.seed, augmentation.repeats

    def locate(self, position: int) -> tuple[int, int]:
        # Differs from DeiT: its epoch is as long without repeats and ends after a third of the samples, drawn anew.
        # Here an epoch of the order goes on until every sample has come, `repeats` times in a row.
        return self.order.at(position // self.repeats)

    def pixels(self, image: Image.Image, sample: Sample, epoch: int, position: int) -> Tensor:
        rng = draws(self.order.seed, epoch, sample.id, position % self.repeats)
        return training_pixels(image, self.size, self.augmentation, rng)


class _EvaluationReader(_BatchReader):
    def __init__(
        self,
        source: Source,
        workers: int,
        size: tuple[int, int],
        preprocessing: Preprocessing,
        corruption: Corruption | None,
    ) -> None:
        super().__init__(source, workers, size, corruption)
        self.preprocessing = preprocessing

    def pixels(self, image: Image.Image, sample: Sample, epoch: int, position: int) -> Tensor:
        return evaluation_pixels(image, self.size, self.preprocessing)
