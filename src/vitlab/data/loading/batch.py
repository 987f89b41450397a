"""A batch: samples ready for the device, and their way to it."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlab.data.loading.accounting import Quarantined
from vitlab.require import require


@dataclass(frozen=True)
class Batch:
    """Samples ready for the device: `pixels` (n, 3, H, W) of uint8; n falls short where samples are `bad`.

    Where the source gives float tensors (`Source.is_prepared`), the pixels are those tensors. `plans` (n, 2, M) are
    there where patches are to be corrupted: see `corruption_plan`.
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
