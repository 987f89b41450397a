"""What is different in a run of masked patches: plans beside the pixels, another score, and a picture."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import Batch, evaluation_batches
from vitlab.data.source import Source
from vitlab.data.splits import take
from vitlab.data.transforms.corruption import HIDDEN, Corruption
from vitlab.data.transforms.evaluation import normalised
from vitlab.drawing.canvas import contact_sheet
from vitlab.models.classifier import evaluating
from vitlab.models.masked import check_maskable
from vitlab.require import require
from vitlab.run_dir import RunSpec
from vitlab.train.masking import PatchPrediction, patches_at
from vitlab.world.group import ALONE, World

SHOWN = 8  # pictures
GREY = 128


def corruption_of(spec: RunSpec) -> Corruption:
    """How a run of masked patches corrupts them."""
    masking = spec.recipe.masking
    assert masking is not None, "the run learns from masked patches"
    rows, columns = check_maskable(spec.model).grid
    patches = rows * columns
    chosen = masking.chosen(patches)
    require(
        chosen > 0,
        f"{masking.corrupted:g} of {patches} patches is none; raise --masking.corrupted, or take larger pictures",
    )
    return Corruption(patches, chosen, masking.masked, masking.swapped)


def prediction_of(spec: RunSpec) -> PatchPrediction:
    """The objective of a run of masked patches.

    Behind a hybrid's ResNet a token stands for the pixels of its cell, although its neighbours have seen them too.
    """
    masking = spec.recipe.masking
    assert masking is not None, "the run learns from masked patches"
    prepare = partial(normalised, how=spec.model.conventions.preprocessing)
    return PatchPrediction(masking, spec.model.stride, prepare)


@torch.no_grad()
def score_predictions(
    module: nn.Module, batches: Iterable[Batch], how: PatchPrediction, world: World = ALONE
) -> dict[str, float]:
    """The mean loss and the share of colours predicted right, over all images of all ranks; each image has the same
    number of patches."""
    device = next(module.parameters()).device
    images, patches, loss, right = 0, 0, 0.0, 0.0
    with evaluating(module):
        for batch in batches:
            pixels, plan = batch.pixels.to(device), _plans(batch).to(device)
            predictions = module(how.prepare(pixels), plan)
            loss += float(how.losses(predictions, pixels, plan).sum(dtype=torch.float64))
            right += float(how.right(predictions, pixels, plan).sum(dtype=torch.float64))
            images += len(pixels)
            patches += plan[:, 0].numel()
    told: list[list[float]] = world.gather([images, patches, loss, right])
    images, patches, loss, right = (sum(column) for column in zip(*told, strict=True))
    return {
        "count": images,
        "patches": patches,
        "top1": right / images if images else float("nan"),
        "loss": loss / images if images else float("nan"),
    }


@torch.no_grad()
def draw_predictions(spec: RunSpec, source: Source, module: nn.Module) -> bytes | None:
    """A PNG of the first images of a source: as they are, with corrupted patches, and with what is predicted there.

    None if not one of them can be read.
    """
    how = prediction_of(spec)
    batches = evaluation_batches(
        take(source, range(min(SHOWN, len(source)))),
        batch=SHOWN,
        size=spec.recipe.image,
        preprocessing=spec.model.conventions.preprocessing,
        corruption=corruption_of(spec),
        account=Account(len(source)),
        max_bad=1.0,
    )
    device = next(module.parameters()).device
    (batch,) = batches
    pixels, plan = batch.pixels, _plans(batch)
    if not len(pixels):
        return None
    with evaluating(module):
        predictions = module(how.prepare(pixels.to(device)), plan.to(device))
    shown = [pixels, _hidden(pixels, how.side, plan), _with_patches(pixels, how.painted(predictions).cpu(), plan)]
    return contact_sheet([[_picture(image) for image in images] for images in shown])


def _hidden(pixels: Tensor, side: int, plan: Tensor) -> Tensor:
    """(n, 3, H, W) of uint8: masked patches grey, swapped ones as the patch that is put there."""
    put = patches_at(pixels, side, plan[:, 1].clamp(min=0))  # (n, M, 3, S, S)
    put[plan[:, 1] == HIDDEN] = GREY
    return _with_patches(pixels, put, plan)


def _with_patches(pixels: Tensor, patches: Tensor, plan: Tensor) -> Tensor:
    """(n, 3, H, W) with (n, M, 3, S, S) put at the chosen places."""
    side = patches.shape[-1]
    result = pixels.clone()
    grid = result.unflatten(2, (-1, side)).unflatten(4, (-1, side))  # (n, 3, H/S, S, W/S, S), a view
    columns = grid.shape[4]
    for image, places in enumerate(plan[:, 0].tolist()):
        for number, place in enumerate(places):
            grid[image, :, place // columns, :, place % columns] = patches[image, number]
    return result


def _picture(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


def _plans(batch: Batch) -> Tensor:
    assert batch.plans is not None, "the batches of a masked run have plans"
    return batch.plans
