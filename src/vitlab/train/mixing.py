"""MixUp: a picture and its partner blended, and their labels with them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitlab.world.randomness import seed_of


@dataclass(frozen=True)
class Mixing:
    """Whom every example of a rank's share is mixed with, and how much of itself it keeps."""

    partners: Tensor  # (n,) places among the examples
    shares: Tensor  # (n,)

    def pictures(self, pixels: Tensor, chosen: range) -> Tensor:
        """(n, 3, H, W) of all examples -> the chosen ones, mixed, not rounded."""
        return self._mixed(pixels if pixels.is_floating_point() else pixels.float(), chosen)

    def targets(self, targets: Tensor, chosen: range) -> Tensor:
        """(n, K) of all examples -> those of the chosen ones, mixed."""
        return self._mixed(targets, chosen)

    def _mixed(self, values: Tensor, chosen: range) -> Tensor:
        part = slice(chosen.start, chosen.stop)
        share = self.shares[part].to(values).reshape(-1, *[1] * (values.dim() - 1))
        return values[part] * share + values[self.partners[part].to(values.device)] * (1 - share)


def mixing_of(alpha: float, seed: int, step: int, shards: Mapping[int, int]) -> Mixing:
    """Every shard is mixed with itself in reverse, by one draw of Beta(alpha, alpha) a shard."""
    partners, shares, start = [], [], 0
    for shard, size in shards.items():
        partners.append(torch.arange(start + size - 1, start - 1, -1))
        shares.append(torch.full((size,), mixup_share(alpha, seed, step, shard), dtype=torch.float64))
        start += size
    return Mixing(torch.cat(partners), torch.cat(shares))


def mixup_share(alpha: float, seed: int, step: int, shard: int = 0) -> float:
    """How much of itself every picture of this shard keeps: one draw of Beta(alpha, alpha)."""
    place = (step, shard) if shard else (step,)
    return float(np.random.default_rng(seed_of("mixup", seed, *place)).beta(alpha, alpha))
