"""Which patches of a picture are hidden from a model, drawn like its crop: from (seed, epoch, sample id) alone."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from vitlab.data.transforms.augmentation import draws
from vitlab.require import require
from vitlab.strict_json import check_fields

HIDDEN = -1  # in the place of a source: the [mask] vector


@dataclass(frozen=True)
class Corruption:
    """`chosen` of `patches` patches are corrupted: a share of them `masked`, a share `swapped`, the others kept."""

    patches: int
    chosen: int
    masked: float
    swapped: float

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            1 <= self.chosen <= self.patches,
            f"{self.chosen} of {self.patches} patches would be corrupted; at least 1 and at most all can be",
        )
        require(
            min(self.masked, self.swapped) >= 0 and self.masked + self.swapped <= 1 + 1e-9,
            f"masked {self.masked} and swapped {self.swapped} must be shares that add up to 1 at most",
        )
        require(
            self.patches > 1 or self.swapped == 0,
            "a picture of 1 patch has no other patch to swap it with; give a larger picture or swapped 0",
        )


def corruption_plan(how: Corruption, seed: int, epoch: int, sample: str, repeat: int = 0) -> Tensor:
    """(2, M): the M chosen places in raster order, and beside each the place whose embedding is put there.

    That is another place of the same picture (swapped), its own (kept) or HIDDEN (masked).
    """
    rng = _own_draws(seed, epoch, sample, repeat)
    chosen = np.sort(rng.permutation(how.patches)[: how.chosen])
    fate = rng.random(how.chosen)
    others = rng.integers(max(how.patches - 1, 1), size=how.chosen)
    others += others >= chosen  # every place but its own is equally likely
    source = np.where(fate < how.masked, HIDDEN, np.where(fate < how.masked + how.swapped, others, chosen))
    return torch.from_numpy(np.stack([chosen, source]))


def _own_draws(seed: int, epoch: int, sample: str, repeat: int) -> Generator:
    """A stream far from the one of the sample's crop: another augmentation leaves the plan as it is."""
    drawn = draws(seed, epoch, sample, repeat).bit_generator
    return Generator(drawn.jumped())  # pyrefly: ignore[missing-attribute] - not declared for all, ours has it
