"""MixUp and CutMix: blend an image with its partner, or paste a box of one into the other; mix their labels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitlab.spec.recipe import Recipe
from vitlab.world.device import seed_of

SWITCH = 0.5  # probability of CutMix if a recipe has both
NOWHERE = (0, 0, 0, 0)
Box = tuple[int, int, int, int]  # top, bottom, left, right


@dataclass(frozen=True)
class Mixing:
    """The partner of every example of a rank's share, and the share of itself that the example keeps.

    If a box is not empty, the pixels inside it are the partner's and all others the example's own.
    """

    partners: Tensor  # (n,) indices of examples
    shares: Tensor  # (n,)
    boxes: Tensor  # (n, 4)

    def pictures(self, pixels: Tensor, chosen: range) -> Tensor:
        """(n, 3, H, W) of all examples -> the chosen ones, mixed and not rounded."""
        values = pixels if pixels.is_floating_point() else pixels.float()
        blended = self.blended(values, chosen)
        part = slice(chosen.start, chosen.stop)
        boxes = self.boxes[part]
        if not boxes.any():
            return blended
        top, bottom, left, right = (edge[:, None, None, None] for edge in boxes.to(values.device).unbind(dim=1))
        is_cut = bottom > top
        row = torch.arange(values.shape[2], device=values.device)[:, None]
        column = torch.arange(values.shape[3], device=values.device)
        is_pasted = (top <= row) & (row < bottom) & (left <= column) & (column < right)  # (n, 1, H, W)
        own, partner = values[part], values[self.partners[part].to(values.device)]
        return torch.where(is_cut, torch.where(is_pasted, partner, own), blended)

    def blended(self, values: Tensor, chosen: range) -> Tensor:
        """(n, ...) of all examples, such as targets -> the chosen ones, each blended with its partner's."""
        part = slice(chosen.start, chosen.stop)
        share = self.shares[part].to(values).reshape(-1, *[1] * (values.dim() - 1))
        return values[part] * share + values[self.partners[part].to(values.device)] * (1 - share)


def mixing_of(recipe: Recipe, seed: int, step: int, shards: Mapping[int, int], size: tuple[int, int]) -> Mixing:
    """Mix every shard within itself, with partners in reverse order or rolled by one sample; one draw per shard.

    `rolled` is big_vision's MixUp, where an example never weighs less than its partner. A repeated sample is not its
    own partner if the shard has room for two samples.
    """
    partners, shares, boxes, start = [], [], [], 0
    for shard, count in shards.items():
        places = torch.arange(start, start + count)
        distance = max(min(recipe.augmentation.repeats, count // 2), 1)
        partners.append(places.flip(0) if recipe.partners == "reversed" else places.roll(distance))
        share, box = _drawn(recipe, seed, step, shard, size)
        shares += [share] * count
        boxes += [box] * count
        start += count
    return Mixing(torch.cat(partners), torch.tensor(shares, dtype=torch.float64), torch.tensor(boxes).reshape(-1, 4))


def _drawn(recipe: Recipe, seed: int, step: int, shard: int, size: tuple[int, int]) -> tuple[float, Box]:
    """The share that is kept, and the box of CutMix, empty for MixUp."""
    if recipe.cutmix:
        rng = np.random.default_rng(seed_of("cutmix", seed, step, shard))
        if not recipe.mixup or rng.random() < SWITCH:
            return cutmix_box(float(rng.beta(recipe.cutmix, recipe.cutmix)), size, rng)
    share = mixup_share(recipe.mixup, seed, step, shard)
    return (max(share, 1 - share) if recipe.partners == "rolled" else share), NOWHERE


def cutmix_box(share: float, size: tuple[int, int], rng: np.random.Generator) -> tuple[float, Box]:
    """(share kept, box): a box with sqrt(1 - share) of the image's sides, centred anywhere in the image.

    The box is clipped at the border, and the share recomputed from its area.
    """
    edges = []
    for side in size:
        length = int(side * math.sqrt(1 - share))
        centre = int(rng.integers(side))
        edges += [max(centre - length // 2, 0), min(centre + (length + 1) // 2, side)]
    top, bottom, left, right = edges
    return 1 - (bottom - top) * (right - left) / (size[0] * size[1]), (top, bottom, left, right)


def mixup_share(alpha: float, seed: int, step: int, shard: int = 0) -> float:
    """The share of itself that every image of this shard keeps: one draw from Beta(alpha, alpha)."""
    place = (step, shard) if shard else (step,)
    return float(np.random.default_rng(seed_of("mixup", seed, *place)).beta(alpha, alpha))
