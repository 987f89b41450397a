"""Rollout, head maps and attention distance in one pass through the model."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlab.inspection.attention import attentive, each_layer, from_query, small_batches
from vitlab.inspection.distance import mean_distance, patch_distances
from vitlab.inspection.rollout import Rolling


class Look(NamedTuple):
    """`rollout` (B, rows, columns), `maps` (B, L, h, rows, columns) and `distance` (B, L, h) in pixels."""

    rollout: Tensor
    maps: Tensor
    distance: Tensor


def look(model: nn.Module, images: Tensor) -> Look:
    """(B, 3, H, W) -> the results of `rollout`, `head_maps` and `attention_distance`, from one pass."""
    parts = [_look(model, batch) for batch in small_batches(model, images)]
    return Look(*(torch.cat(same) for same in zip(*parts, strict=True)))


def _look(model: nn.Module, images: Tensor) -> Look:
    spec = attentive(model).spec
    pixels, rolling = patch_distances(spec), Rolling()

    def reduced(attention: Tensor) -> tuple[Tensor, Tensor]:
        rolling.add(attention)
        return from_query(attention, spec).clone(), mean_distance(attention, pixels)

    maps, distances = zip(*each_layer(model, images, reduced), strict=True)
    return Look(rolling.seen(spec), torch.stack(maps, dim=1), torch.stack(distances, dim=1))
