"""Token merging by a schedule: more tokens in early or in late layers, at the multiplications of a constant number.

    VITLAB_REFERENCE=DIR python -m bench.experiments.merging_schedules > evidence/merging_schedules.txt

A layer of `slope` s merges a (1 + s (1 - 2 l / (L - 1))) tokens, l = 0 to L - 1: with 1 the number falls from 2a to 0,
with -1 it rises from 0 to 2a, with 0 it is constant. The mean a of each slope is chosen so that the multiplications are
as close as possible to those of the constant number. The model is the ViT-Ti/16 in that folder, on its 200 photographs.
"""

import csv
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

import vitlab
from bench import libraries
from vitlab.models.merging import MergingBlock, unmerged
from vitlab.models.vit import ViT
from vitlab.spec import ViTSpec

MERGES = (8, 12, 16)
SLOPES = (-1.0, -0.5, 0.0, 0.5, 1.0)
STEPS = 64  # means tried per token
BATCH = 20


def schedule(spec: ViTSpec, mean: float, slope: float) -> list[int]:
    """The tokens that each layer merges: at most half of the patches' tokens that it has, as everywhere."""
    pairs, left = [], spec.tokens
    for layer in range(spec.layers):
        wanted = mean * (1 + slope * (1 - 2 * layer / (spec.layers - 1)))
        pairs.append(min(round(wanted), (left - spec.prefix) // 2))
        left -= pairs[-1]
    return pairs


def macs(spec: ViTSpec, pairs: Sequence[int]) -> int:
    """The multiplications of the encoder: attention before a layer merges, its MLP afterwards."""
    total, tokens = 0, spec.tokens
    for merged in pairs:
        total += tokens * 4 * spec.width**2 + 2 * tokens**2 * spec.width
        tokens -= merged
        total += tokens * 2 * spec.width * spec.mlp
    return total


def matched(spec: ViTSpec, slope: float, goal: int) -> list[int]:
    """The schedule of a slope whose multiplications are closest to the goal."""
    found = [schedule(spec, number / STEPS, slope) for number in range(1, STEPS * 40)]
    return min(found, key=lambda pairs: abs(macs(spec, pairs) - goal))


@torch.inference_mode()
def answers(model: ViT, images: Tensor, pairs: Sequence[int]) -> Tensor:
    """(n, 3, H, W) -> (n,) classes."""
    found = []
    for batch in images.split(BATCH):
        tokens = unmerged(model.tokens(batch))
        for block, merged in zip(model.layers, pairs, strict=True):
            tokens = cast(MergingBlock, block)(tokens, merged, model.spec.prefix)
        found.append(model.head(model.pool_tokens(tokens.z)).argmax(dim=-1))
    return torch.cat(found)


def main() -> None:
    model, folder = cast(ViT, libraries.real_model()), libraries.photographs()
    with (folder / "labels.csv").open() as file:
        listed = list(csv.DictReader(file))
    images = vitlab.preprocess(model, [folder / row["file"] for row in listed])
    labels = torch.tensor([int(row["class_index"]) for row in listed])
    spec = model.spec
    model.set_merge(1)
    plain = answers(model, images, [0] * spec.layers)
    print("| constant at the same cost | slope | tokens merged per layer | encoder GMACs | top-1 % | agreement % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for merge in MERGES:
        goal = macs(spec, schedule(spec, merge, 0.0))
        for slope in SLOPES:
            pairs = schedule(spec, merge, 0.0) if slope == 0 else matched(spec, slope, goal)
            found = answers(model, images, pairs)
            top1, same = (100 * (found == other).double().mean().item() for other in (labels, plain))
            cost = macs(spec, pairs) / 1e9
            print(f"| {merge} | {slope:+.1f} | {' '.join(map(str, pairs))} | {cost:.3f} | {top1:.1f} | {same:.1f} |")


if __name__ == "__main__":
    main()
