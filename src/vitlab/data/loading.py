"""Batches: the same samples with the same pixels on any number of workers and ranks, from any step on."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitlab.data.accounting import Account, Quarantined
from vitlab.data.augmentation import draws, training_pixels
from vitlab.data.gate import read_image
from vitlab.data.order import Order
from vitlab.data.refusals import BadImage
from vitlab.data.source import Source
from vitlab.data.transforms import evaluation_pixels
from vitlab.spec import Augmentation, Preprocessing

AHEAD = 2  # batches that each worker holds ready: what bounds the memory


@dataclass(frozen=True)
class Batch:
    """Samples ready for the device: `pixels` (n, 3, H, W) of uint8; n falls short where samples are `bad`."""

    pixels: Tensor
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    numbers: tuple[int, ...]
    bad: tuple[Quarantined, ...]

    def one_label(self) -> Tensor:
        """(n,) class numbers, for sets with exactly one label a sample."""
        return torch.tensor([label for (label,) in self.labels], dtype=torch.long)

    def multi_hot(self, classes: int) -> Tensor:
        """(n, K) of 0 and 1, for sets with any number of labels."""
        hot = torch.zeros(len(self.labels), classes)
        for row, labels in zip(hot, self.labels, strict=True):
            row[list(labels)] = 1
        return hot


class WorkerDied(RuntimeError):  # noqa: N818 - says what happened
    """A process that decodes images is gone; the message names the samples it may have died of."""


@dataclass(frozen=True)
class _Training:
    """How a position of the stream becomes a number of the source and augmented pixels."""

    order: Order
    size: tuple[int, int]
    augmentation: Augmentation

    def locate(self, position: int) -> tuple[int, int]:
        return self.order.at(position)

    def pixels(self, image: Image.Image, epoch: int, number: int) -> Tensor:
        return training_pixels(image, self.size, self.augmentation, draws(self.order.seed, epoch, number))


@dataclass(frozen=True)
class _Evaluation:
    """Numbers as they are, pixels without chance."""

    size: tuple[int, int]
    preprocessing: Preprocessing

    def locate(self, position: int) -> tuple[int, int]:
        return 0, position

    def pixels(self, image: Image.Image, epoch: int, number: int) -> Tensor:
        return evaluation_pixels(image, self.size, self.preprocessing)


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
    workers: int = 0,
) -> Iterator[Batch]:
    """Batches `start` to `stop` - 1 of the endless stream; batch k holds positions [k batch, (k + 1) batch).

    Each rank gets its share of every batch; together the shares are the batch, whatever their number.
    """
    steps = itertools.count(start) if stop is None else range(start, stop)
    wanted = (share(range(step * batch, (step + 1) * batch), rank, ranks) for step in steps)
    return _load(source, _Training(order, size, augmentation), wanted, workers)


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    size: tuple[int, int],
    preprocessing: Preprocessing,
    start: int = 0,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
) -> Iterator[Batch]:
    """Every sample from number `start` on exactly once over all ranks, in order; the last batch may be short."""
    own = share(range(start, len(source)), rank, ranks)
    wanted = (own[at : at + batch] for at in range(0, len(own), batch))
    return _load(source, _Evaluation(size, preprocessing), wanted, workers)


def share(positions: range, rank: int, ranks: int) -> range:
    """The contiguous part of `positions` that belongs to a rank; the parts differ in length by at most one."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is outside 0..{ranks - 1}")
    return positions[len(positions) * rank // ranks : len(positions) * (rank + 1) // ranks]


def counted(batches: Iterable[Batch], account: Account, *, max_bad: float) -> Iterator[Batch]:
    """The same batches, booked; raises TooManyBadImages once over `max_bad` of the samples are bad."""
    for batch in batches:
        account.add(len(batch.ids), batch.bad, max_bad)
        yield batch


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches with their pixels on the device, the next one on its way while this one is used."""
    ready = None
    for batch in batches:
        pixels = batch.pixels.pin_memory() if device.type == "cuda" else batch.pixels
        moving = replace(batch, pixels=pixels.to(device, non_blocking=True))
        if ready is not None:
            yield ready
        ready = moving
    if ready is not None:
        yield ready


class _Reader(Dataset):
    """Reads the samples of one batch; notes which one it is at, so that a death can be explained."""

    def __init__(self, source: Source, view: _Training | _Evaluation, workers: int) -> None:
        self.source, self.view = source, view
        self.current = torch.full((max(workers, 1),), -1, dtype=torch.long).share_memory_()

    def __getitem__(self, index: range) -> Batch:
        worker = get_worker_info()
        slot = worker.id if worker else 0
        rows, bad = [], []
        for position in index:
            self.current[slot] = position
            epoch, number = self.view.locate(position)
            try:
                sample = self.source.item(number)
                data = sample.data
                image = read_image(data, name=sample.id).image if isinstance(data, bytes) else Image.fromarray(data)
                rows.append((self.view.pixels(image, epoch, number), sample.labels, sample.id, number))
            except BadImage as refusal:
                bad.append(Quarantined(self.source.id(number), str(refusal.reason), refusal.detail))
        self.current[slot] = -1
        pixels, labels, ids, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
        stacked = torch.stack(pixels) if rows else torch.empty(0, 3, *self.view.size, dtype=torch.uint8)
        return Batch(stacked, labels, ids, numbers, tuple(bad))

    def in_flight(self) -> list[str]:
        """The ids of the samples that workers are at, or died at."""
        positions = [int(position) for position in self.current if position >= 0]
        return [self.source.id(self.view.locate(position)[1]) for position in positions]


def _load(source: Source, view: _Training | _Evaluation, wanted: Iterable[range], workers: int) -> Iterator[Batch]:
    """The wanted batches in order, read here or by worker processes."""
    reader = _Reader(source, view, workers)
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=cast(Any, wanted),  # any iterable of what __getitem__ takes
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_one_thread if workers else None,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        named = ", ".join(map(repr, reader.in_flight())) or "none"
        raise WorkerDied(f"a worker process died; samples in flight: {named} ({str(error).splitlines()[0]})") from error


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)
