"""Batches: the same samples with the same pixels on any number of workers and ranks, from any step on."""

import bisect
import itertools
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlab.data.loading.accounting import TRAINING_LIMIT, Account, Quarantined, training_limit
from vitlab.data.loading.order import Order
from vitlab.data.loading.workers import RangeReader, Sound, check_workers, read_ranges, shared
from vitlab.data.source import Sample, Source, decode, opened
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.data.transforms.corruption import Corruption, corruption_plan
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.data.transforms.resizing import check_result, to_tensor
from vitlab.require import require
from vitlab.spec.pixels import Augmentation, Preprocessing

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Samples ready for the device: `pixels` (n, 3, H, W) of uint8; n is smaller than asked for if samples are `bad`.

    If the source gives float tensors (`Source.is_prepared`), the pixels are those tensors. `plans` (n, 2, M) say which
    patches to corrupt, for runs that predict masked patches: see `corruption_plan`. If nothing was to be prepared, the
    `pictures` are the decoded ones, (H, W, 3) of any sizes, and there are no pixels.
    """

    pixels: Tensor
    labels: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...]
    numbers: tuple[int, ...]
    epochs: tuple[int, ...]
    positions: tuple[int, ...]  # in the stream of a training, or in the data set
    bad: tuple[tuple[int, Quarantined], ...]  # with their epochs
    plans: Tensor | None = None
    pictures: tuple[Tensor, ...] = ()

    def one_label(self) -> Tensor:
        """(n,) class numbers, for data sets with exactly one label per sample."""
        for name, labels in zip(self.ids, self.labels, strict=True):
            require(len(labels) == 1, f"sample {name!r} has {len(labels)} labels, not one; use multi_hot")
        return torch.tensor([label for (label,) in self.labels], dtype=torch.long)

    def multi_hot(self, classes: int) -> Tensor:
        """(n, K) of 0 and 1 on the device of the pixels, for data sets with any number of labels.

        Only the places of the ones are copied to the device: a batch of 4,096 with 21,843 classes is 358 MB.
        """
        places = torch.tensor([(row, label) for row, labels in enumerate(self.labels) for label in labels])
        hot = torch.zeros(len(self.labels), classes, device=self.pixels.device)
        if len(places):
            hot[tuple(places.to(hot.device).mT)] = 1
        return hot


def order_of(source: Source, seed: int = 0) -> Order:
    """The training order of a source; samples that are stored together (`block`, `window`) are read together."""
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
    slices: int = 1,
    corruption: Corruption | None = None,
    workers: int = 0,
    account: Account | None = None,
    max_bad: float = TRAINING_LIMIT,
    device: torch.device = CPU,
) -> Generator[Batch]:
    """Yield batches `start` to `stop` - 1 of the endless stream; batch k holds positions [k batch, (k + 1) batch).

    Each rank gets its `share` of every batch; together the shares are the batch, on any number of ranks. Bad images
    are counted in `account`; `training_limit` says how many stop the run.
    """
    _check(batch, size, rank, ranks, workers)
    require(start >= 0, f"start {start} must not be negative")
    require(order.samples == len(source), f"the order is of {order.samples:,} samples, the source has {len(source):,}")
    steps = itertools.count(start) if stop is None else range(start, stop)
    wanted = (share(range(step * batch, (step + 1) * batch), rank, ranks, slices) for step in steps)
    reader = _BatchReader(source, workers, size, augmentation, corruption, order)
    counted = account or Account(len(source))
    limit = training_limit(max_bad, counted.samples)
    return _accounted(on_device(read_ranges(reader, wanted, workers), device), counted, limit)


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    size: tuple[int, int],
    preprocessing: Preprocessing | None,
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
    """Yield every sample from number `start` on exactly once over all ranks, in order; the last batch may be short.

    Each rank gets its share of every batch, so what all ranks have finished is always a prefix of the data set. With
    `in_turn`, ranks take whole batches in turn, with the results of a single rank; a rank's last batch may be empty. A
    bad image raises by default; one that `max_bad` allows is counted in `account`, never replaced. A `corruption` is
    drawn with seed 0, so that a sample has the same plan in every evaluation. Without `preprocessing`, batches have the
    decoded pictures, for models that prepare them.
    """
    _check(batch, size, rank, ranks, workers)
    require(0 <= start <= len(source), f"start {start} is outside 0..{len(source)}")
    whole = range(start, len(source))
    if in_turn:
        wanted = (whole[at + rank * batch :][:batch] for at in range(0, len(whole), ranks * batch))
    else:
        wanted = (share(whole[at : at + batch], rank, ranks) for at in range(0, len(whole), batch))
    reader = _BatchReader(source, workers, size, preprocessing, corruption)
    return _accounted(on_device(read_ranges(reader, wanted, workers), device), account or Account(len(source)), max_bad)


def is_pinned_for(device: torch.device) -> bool:
    """Whether batches are copied to the device from pinned memory, while it computes."""
    return device.type == "cuda"


def on_device(batches: Iterable[Batch], device: torch.device) -> Generator[Batch]:
    """Yield the batches with their pixels on the device; the next one is copied while this one is used."""
    if device.type == "cpu":
        yield from batches
        return
    ready = None
    for batch in batches:
        plans = None if batch.plans is None else _moved(batch.plans, device)
        moving = replace(batch, pixels=_moved(batch.pixels, device), plans=plans)
        if ready is not None:
            yield ready
        ready = moving
    if ready is not None:
        yield ready


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    # Only a copy from pinned memory may go on while the CPU continues: other memory could change before it is read.
    is_pinned = is_pinned_for(device)
    return (tensor.pin_memory() if is_pinned else tensor).to(device, non_blocking=is_pinned)


# -- Which part of a batch is whose ----------------------------------------------------------------


def share(positions: range, rank: int, ranks: int, slices: int = 1) -> range:
    """The contiguous part of `positions` that belongs to a rank; the parts differ in length by at most one.

    With several `slices`, the positions are cut into that many equal slices, and a rank takes whole ones.
    """
    if slices == 1:
        return _part(positions, rank, rank + 1, ranks)
    whole = _part(range(slices), rank, rank + 1, ranks)
    return _part(positions, whole.start, whole.stop, slices)


def slice_sizes(batch: Batch, size: int, slices: int) -> dict[int, int]:
    """How many samples of a training batch belong to each slice, in order; `size` is that of the whole batch."""
    ends = [size * (number + 1) // slices for number in range(slices)]
    return dict(Counter(bisect.bisect_right(ends, position % size) for position in batch.positions))


def _part(positions: range, first: int, last: int, parts: int) -> range:
    return positions[len(positions) * first // parts : len(positions) * last // parts]


# -- Reading ---------------------------------------------------------------------------------------


def _check(batch: int, size: tuple[int, int], rank: int, ranks: int, workers: int) -> None:
    require(batch >= 1, f"batch {batch} must be at least 1")
    require(0 <= rank < ranks, f"rank {rank} is outside 0..{ranks - 1}")
    check_workers(workers)
    check_result(size)


def _accounted(batches: Iterable[Batch], account: Account, max_bad: float) -> Generator[Batch]:
    """Count batches when they are handed out, not when they are read ahead: the account is right at every save."""
    for batch in batches:
        account.add(batch.epochs, batch.bad, max_bad)
        yield batch


class _BatchReader(RangeReader):
    """Reads samples into batches: augmented, in the order of a training, or preprocessed, in their own order."""

    def __init__(
        self,
        source: Source,
        workers: int,
        size: tuple[int, int],
        how: Augmentation | Preprocessing | None,
        corruption: Corruption | None,
        order: Order | None = None,
    ) -> None:
        super().__init__(source, workers)
        self.size, self.how, self.corruption, self.order = size, how, corruption, order
        self.seed = order.seed if order else 0
        self.repeats = how.repeats if isinstance(how, Augmentation) else 1
        are_pictures = corruption is None or not source.is_prepared
        need = "the model prepares its pictures, and the data are float tensors; return PIL images or uint8"
        require(how is not None or not source.is_prepared, need)
        require(are_pictures, "masked patch prediction needs pictures, not float tensors; return PIL images or uint8")

    def locate(self, position: int) -> tuple[int, int]:
        # Differs from DeiT: its epoch is as long as without repeats and ends after a third of the samples, drawn anew.
        # Here an epoch of the order lasts until every sample has come, `repeats` times in a row.
        return self.order.at(position // self.repeats) if self.order else (0, position)

    def use(self, sample: Sample, epoch: int, position: int) -> Tensor:
        if not isinstance(sample.data, Tensor):
            if self.how is None:
                image = decode(sample, self.source.max_pixels).image
                return shared(to_tensor(image).permute(1, 2, 0).contiguous())
            picture = opened(sample, self.source)
            if isinstance(self.how, Preprocessing):
                return evaluation_pixels(picture, self.size, self.how)
            rng = draws(self.seed, epoch, sample.id, position % self.repeats)
            return training_pixels(picture, self.size, self.how, rng)
        (height, width), (rows, columns) = self.size, sample.data.shape[1:]
        found = f"sample {sample.id!r} is a float tensor of {rows}x{columns}, and the model takes {height}x{width}"
        require((rows, columns) == self.size, f"{found}; tensors are not resized: return that size, or PIL images")
        return sample.data

    def collected(self, good: list[Sound], bad: list[tuple[int, Quarantined]]) -> Batch:
        is_stacked = bool(good) and self.how is not None
        stacked = (
            torch.stack([s.kept for s in good]) if is_stacked else torch.empty(0, 3, *self.size, dtype=torch.uint8)
        )
        return Batch(
            pixels=shared(stacked),
            labels=tuple(s.sample.labels for s in good),
            ids=tuple(s.sample.id for s in good),
            numbers=tuple(s.number for s in good),
            epochs=tuple(s.epoch for s in good),
            positions=tuple(s.position for s in good),
            bad=tuple(bad),
            plans=None if self.corruption is None else self._plans(self.corruption, good),
            pictures=() if self.how is not None else tuple(s.kept for s in good),
        )

    def _plans(self, corruption: Corruption, good: list[Sound]) -> Tensor:
        drawn = [corruption_plan(corruption, self.seed, s.epoch, s.sample.id, s.position % self.repeats) for s in good]
        return shared(torch.stack(drawn)) if drawn else torch.empty(0, 2, corruption.chosen, dtype=torch.long)
