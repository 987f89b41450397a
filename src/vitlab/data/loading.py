"""Batches: the same samples with the same pixels on any number of workers and ranks, from any step on."""

import bisect
import ctypes
import hashlib
import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitlab.data.accounting import TRAINING_LIMIT, Account, Quarantined
from vitlab.data.augmentation import draws, training_pixels
from vitlab.data.corruption import Corruption, corruption_plan
from vitlab.data.gate import Decoded, read_image
from vitlab.data.order import Order
from vitlab.data.refusals import BadImage
from vitlab.data.resizing import check_result
from vitlab.data.source import Sample, Source
from vitlab.data.transforms import evaluation_pixels
from vitlab.pixels import Augmentation, Preprocessing
from vitlab.strict_json import require

GRACE = 0.5  # seconds
FAREWELL = 30  # seconds that a worker lives on after a polite stop
CPU = torch.device("cpu")
PR_SET_PDEATHSIG = 1
AHEAD = 2  # batches that each worker holds ready: what bounds the memory


@dataclass(frozen=True)
class Batch:
    """Samples ready for the device: `pixels` (n, 3, H, W) of uint8; n falls short where samples are `bad`.

    `plans` (n, 2, M) are there where patches are to be corrupted: see `corruption_plan`.
    """

    pixels: Tensor
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    numbers: tuple[int, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]  # in the stream of a training, or in the set
    bad: tuple[tuple[int, Quarantined], ...]  # with their epochs
    plans: Tensor | None = None

    def one_label(self) -> Tensor:
        """(n,) class numbers, for sets with exactly one label a sample."""
        for name, labels in zip(self.ids, self.labels, strict=True):
            require(len(labels) == 1, f"sample {name!r} has {len(labels)} labels, not one; use multi_hot")
        return torch.tensor([label for (label,) in self.labels], dtype=torch.long)

    def multi_hot(self, classes: int) -> Tensor:
        """(n, K) of 0 and 1 beside the pixels, for sets with any number of labels.

        Only the places of the ones travel: a batch of 4,096 with 21,843 classes is 358 MB.
        """
        places = torch.tensor([(row, label) for row, labels in enumerate(self.labels) for label in labels])
        hot = torch.zeros(len(self.labels), classes, device=self.pixels.device)
        if len(places):
            hot[tuple(places.to(hot.device).mT)] = 1
        return hot


class WorkerDied(RuntimeError):  # noqa: N818 - says what happened
    """A process that decodes images is gone; the message names the samples it may have died of."""


def order_of(source: Source, seed: int = 0) -> Order:
    """The training order of a source; what it stores together (`block`, `window`) is read together."""
    return Order(len(source), seed, block=getattr(source, "block", 1), window=getattr(source, "window", 64))


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
    their number. Bad images are booked in `account` and stop the run above `max_bad` of all.
    """
    _check(batch, size, rank, ranks, workers)
    require(start >= 0, f"start {start} must not be negative")
    require(order.samples == len(source), f"the order is of {order.samples:,} samples, the source has {len(source):,}")
    steps = itertools.count(start) if stop is None else range(start, stop)
    wanted = (share(range(step * batch, (step + 1) * batch), rank, ranks, shards) for step in steps)
    reader = _TrainingReader(source, workers, size, order, augmentation, corruption)
    return _booked(on_device(read_ranges(reader, wanted, workers), device), account or Account(len(source)), max_bad)


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


def on_device(batches: Iterable[Batch], device: torch.device) -> Generator[Batch]:
    """The same batches with their pixels on the device, the next one on its way while this one is used."""
    if device.type == "cpu":
        yield from batches
        return
    ready = None
    for batch in batches:
        pixels = batch.pixels.pin_memory() if device.type == "cuda" else batch.pixels
        plans = None if batch.plans is None else batch.plans.to(device)
        moving = replace(batch, pixels=pixels.to(device, non_blocking=True), plans=plans)
        if ready is not None:
            yield ready
        ready = moving
    if ready is not None:
        yield ready


def _check(batch: int, size: tuple[int, int], rank: int, ranks: int, workers: int) -> None:
    require(batch >= 1, f"batch {batch} must be at least 1")
    require(0 <= rank < ranks, f"rank {rank} is outside 0..{ranks - 1}")
    require(workers >= 0, f"workers {workers} must not be negative")
    check_result(size)


def _booked(batches: Iterable[Batch], account: Account, max_bad: float) -> Generator[Batch]:
    """Books are kept of what is handed out, not of what is read ahead: they are right whenever a run is saved."""
    for batch in batches:
        account.add(batch.epochs, batch.bad, max_bad)
        yield batch


# -- Reading, here or in worker processes --------------------------------------------------------


def decode(sample: Sample) -> Decoded:
    """The picture of a sample: through the gate, or the pixels it already is."""
    if isinstance(sample.data, bytes):
        return read_image(sample.data, name=sample.id)
    return Decoded(Image.fromarray(sample.data), (), "pixels")


class Sound(NamedTuple):
    """A sample that could be read, and what is kept of it."""

    kept: Any
    sample: Sample
    epoch: int
    number: int
    position: int


class RangeReader(Dataset):
    """Reads a range of positions of a source; notes which one it is at, so that a death can be explained."""

    def __init__(self, source: Source, workers: int) -> None:
        self.source = source
        self.current = torch.full((max(workers, 1),), -1, dtype=torch.long).share_memory_()

    def locate(self, position: int) -> tuple[int, int]:
        """(epoch, sample number) of a position."""
        return 0, position

    def use(self, decoded: Decoded, sample: Sample, epoch: int, position: int) -> object:
        """What is kept of a sound sample."""
        raise NotImplementedError

    def __getitem__(self, index: range) -> Any:
        worker = get_worker_info()
        slot = worker.id if worker else 0
        good, bad = [], []
        for position in index:
            self.current[slot] = position
            epoch, number = self.locate(position)
            data: object = b""
            try:
                sample = self.source.item(number)
                data = sample.data
                decoded = decode(sample)
                good.append(Sound(self.use(decoded, sample, epoch, position), sample, epoch, number, position))
            except BadImage as refusal:
                digest = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) and data else ""
                bad.append((epoch, Quarantined(self.source.id(number), str(refusal.reason), refusal.detail, digest)))
        self.current[slot] = -1
        return self.collected(good, bad)

    def collected(self, good: list["Sound"], bad: list[tuple[int, Quarantined]]) -> object:
        """What is handed on for a whole range."""
        return [sound.kept for sound in good], bad

    def in_flight(self) -> list[str]:
        """The ids of the samples that workers are at, or died at."""
        positions = [int(position) for position in self.current if position >= 0]
        return [self.source.id(self.locate(position)[1]) for position in positions]


def read_ranges(reader: RangeReader, wanted: Iterable[range], workers: int) -> Iterator[Any]:
    """What the reader makes of each range, in order, read here or by worker processes."""
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=cast(Any, wanted),  # any iterable of what __getitem__ takes
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_prepare_worker if workers else None,
    )
    try:
        yield from _unbroken(loader)
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        if "exited unexpectedly" not in said and "killed by signal" not in said:
            raise
        named = ", ".join(map(repr, reader.in_flight())) or "none"
        raise WorkerDied(f"a worker process died; samples in flight: {named} ({said})") from error


def _unbroken(loader: DataLoader) -> Iterator[Any]:
    """What the loader gives; a connection that a dying worker broke is told as its death."""
    try:
        yield from loader
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if loader.num_workers == 0 or "in DataLoader worker process" in str(error):
            raise  # the source's own error
        time.sleep(GRACE)  # torch reports the death by a signal, which is to arrive here and not somewhere later
        raise RuntimeError(f"DataLoader worker exited unexpectedly, {type(error).__name__}") from error


def _prepare_worker(worker: int) -> None:
    """One thread each; and a stop that a whole job is sent gives its main process time to save with workers alive."""
    torch.set_num_threads(1)
    if sys.platform == "linux":  # die with who started it: it has inherited the connections that other ranks watch
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(FAREWELL))


def _shared(tensor: Tensor) -> Tensor:
    """In a worker moved to shared memory here: a lack of it is an error, torch's sending thread would only die."""
    if get_worker_info() is None:
        return tensor
    try:
        return tensor.share_memory_()
    except RuntimeError as error:
        size = f"{tensor.nbytes:,} bytes"
        raise RuntimeError(
            f"a batch of {size} does not fit in shared memory ({error}); use fewer workers or smaller batches, or "
            f"enlarge /dev/shm"
        ) from None


class _BatchReader(RangeReader):
    """Reads samples into a batch of pixels; their plans are drawn with `seed`, others for each of `repeats`."""

    seed, repeats = 0, 1

    def __init__(
        self, source: Source, workers: int, size: tuple[int, int], corruption: Corruption | None = None
    ) -> None:
        super().__init__(source, workers)
        self.size, self.corruption = size, corruption

    def collected(self, good: list[Sound], bad: list[tuple[int, Quarantined]]) -> Batch:
        stacked = torch.stack([s.kept for s in good]) if good else torch.empty(0, 3, *self.size, dtype=torch.uint8)
        return Batch(
            pixels=_shared(stacked),
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
        return _shared(torch.stack(drawn)) if drawn else torch.empty(0, 2, corruption.chosen, dtype=torch.long)


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

    def use(self, decoded: Decoded, sample: Sample, epoch: int, position: int) -> Tensor:
        rng = draws(self.order.seed, epoch, sample.id, position % self.repeats)
        return training_pixels(decoded.image, self.size, self.augmentation, rng)


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

    def use(self, decoded: Decoded, sample: Sample, epoch: int, position: int) -> Tensor:
        return evaluation_pixels(decoded.image, self.size, self.preprocessing)
