"""Which patches of a picture are corrupted for masked patch prediction: a function of (seed, epoch, sample id)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from vitlab.data.transforms.augmentation import draws
from vitlab.files.strict_json import check_fields
from vitlab.require import require

HIDDEN = -1  # stands for the [mask] vector


@dataclass(frozen=True)
class Corruption:
    """`chosen` of `patches` patches are corrupted: a share is `masked`, a share `swapped`, the rest kept."""

    patches: int
    chosen: int
    masked: float
    swapped: float

    def __post_init__(self) -> None:
        check_fields(self)
        are_there = 1 <= self.chosen <= self.patches
        require(are_there, f"{self.chosen} of {self.patches} patches would be corrupted; give 1 to all of them")
        are_shares = min(self.masked, self.swapped) >= 0 and self.masked + self.swapped <= 1 + 1e-9
        require(are_shares, f"masked {self.masked} and swapped {self.swapped} must be shares that add up to 1 at most")
        has_others = self.patches > 1 or self.swapped == 0
        require(has_others, "a picture of 1 patch has no other patch to swap with; use a larger picture or swapped 0")


def corruption_plan(how: Corruption, seed: int, epoch: int, sample: str, repeat: int = 0) -> Tensor:
    """Draw (2, M): the M chosen places in raster order, and for each the place whose embedding is put there.

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
    """A stream separate from that of the sample's crop, so that the augmentation does not affect the plan."""
    drawn = draws(seed, epoch, sample, repeat).bit_generator
    return Generator(drawn.jumped())  # pyrefly: ignore[missing-attribute] - not declared for all, ours has it
