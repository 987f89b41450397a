"""MixUp: a picture and its partner blended, and their labels with them."""

import numpy as np
from torch import Tensor

from vitlab.world.randomness import seed_of


def mixup_share(alpha: float, seed: int, step: int) -> float:
    """How much of itself every picture of this step keeps: one draw of Beta(alpha, alpha)."""
    return float(np.random.default_rng(seed_of("mixup", seed, step)).beta(alpha, alpha))


def mixed(values: Tensor, partners: Tensor, share: float) -> Tensor:
    """share * values + (1 - share) * partners."""
    return values * share + partners * (1 - share)
