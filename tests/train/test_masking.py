"""Targets and losses of masked patches against NumPy; pieces add up; a small model learns a few pictures by heart."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from vitlab.data.transforms.corruption import Corruption, corruption_plan
from vitlab.models.masked import build_masked_model
from vitlab.paper.recipes.pretraining import MASKED, pretraining_recipe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import CELLS, COLOURS, SGD, AdamW, Execution, Masking, Schedule
from vitlab.train.masking import PatchPrediction, colour_classes, patches_at
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

TARGETS = ("mean-colour", "colours-4x4", "pixels")
MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.5, 0.25, 0.2])


def how(target, side=4, **masking):
    return PatchPrediction(Masking(**{**PLAIN, "target": target, **masking}), side, normalised)


PLAIN = {"target": "mean-colour", "corrupted": 0.5, "masked": 0.8, "swapped": 0.1, "kept": 0.1}


def normalised(pixels):
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    return ((pixels.double() / 255 - mean) / std).float()


def pictures(count=3, size=(8, 12), seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 3, *size), dtype=np.uint8))


def plan_for(count, patches, chosen, masked=0.8, swapped=0.1):
    drawn = [corruption_plan(Corruption(patches, chosen, masked, swapped), 3, 0, str(n)) for n in range(count)]
    return torch.stack(drawn)


# -- An independent derivation -----------------------------------------------------------------------


def patch_by_hand(image, side, place):
    """(3, S, S) of a picture (3, H, W)."""
    row, column = divmod(place, image.shape[2] // side)
    return image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]


def classes_by_hand(patch, cells):
    """Every cell's class, with exact fractions: the mean over the cell's area of a patch (3, S, S)."""
    side = patch.shape[1]
    found = []
    for down in range(cells):
        for across in range(cells):
            levels = []
            for channel in range(3):
                total = Fraction(0)
                for y in range(side):
                    for x in range(side):
                        tall = overlap(y, down, side, cells)
                        wide = overlap(x, across, side, cells)
                        total += int(patch[channel, y, x]) * tall * wide
                mean = total / (Fraction(side, cells) ** 2)
                levels.append(int(mean // 32))
            found.append(64 * levels[0] + 8 * levels[1] + levels[2])
    return found


def overlap(pixel, cell, side, cells):
    size = Fraction(side, cells)
    return max(Fraction(0), min(Fraction(pixel + 1), (cell + 1) * size) - max(Fraction(pixel), cell * size))


def loss_by_hand(predictions, image, plan, target, side):
    """The mean over the corrupted patches of one picture."""
    losses = []
    for number, place in enumerate(plan[0]):
        patch = patch_by_hand(image, side, place)
        if target == "pixels":
            wanted = ((patch / 255 - MEAN[:, None, None]) / STD[:, None, None]).ravel()
            losses.append(((predictions[number] - wanted) ** 2).mean())
            continue
        cells = 1 if target == "mean-colour" else 4
        parts = []
        for cell, wanted in enumerate(classes_by_hand(patch, cells)):
            logits = predictions[number, 512 * cell : 512 * (cell + 1)]
            parts.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[wanted])
        losses.append(np.mean(parts))
    return np.mean(losses)


@pytest.mark.parametrize("cells", [1, 4])
@pytest.mark.parametrize("side", [1, 2, 4, 6, 7, 14, 16])
def test_colours_equal_exact_area_means(cells, side):
    image = pictures(1, (side, 2 * side), seed=side)
    patches = patches_at(image, side, torch.tensor([[1, 0]]))
    found = colour_classes(patches, cells)[0].tolist()
    assert found == [classes_by_hand(patch_by_hand(image[0].numpy(), side, place), cells) for place in (1, 0)]


def test_levels_change_exactly_at_multiples_of_32():
    """A mean of 31.996 is level 0 and 32 is level 1; the last class is white's."""
    almost = torch.full((1, 3, 16, 16), 32, dtype=torch.uint8)
    almost[0, :, 0, 0] = 31
    assert colour_classes(almost, 1).item() == 0
    assert colour_classes(torch.full((1, 3, 16, 16), 32, dtype=torch.uint8), 1).item() == 64 + 8 + 1
    assert colour_classes(torch.full((1, 3, 16, 16), 255, dtype=torch.uint8), 1).item() == COLOURS - 1
    red = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    red[:, 0] = 200
    assert colour_classes(red, 4).tolist() == [[64 * 6] * 16]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("side", [4, 2])
def test_losses_equal_numpy(target, side):
    objective, pixels = how(target, side), pictures()
    patches = 8 * 12 // side**2
    plan = plan_for(3, patches, patches // 2)
    outputs = objective.how.outputs(side)
    values = np.random.default_rng(2).normal(size=(3, patches // 2, outputs)) * 2
    found = objective.losses(torch.from_numpy(values), pixels, plan)
    expected = [loss_by_hand(values[n], pixels[n].numpy(), plan[n].numpy(), target, side) for n in range(3)]
    assert found.shape == (3,)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("target", ["mean-colour", "colours-4x4"])
def test_accuracy_counts_right_colours(target):
    objective, pixels, plan = how(target), pictures(2), plan_for(2, 6, 4)
    cells = CELLS[target] ** 2
    predictions = torch.zeros(2, 4, cells, COLOURS)
    for image in range(2):
        for number, place in enumerate(plan[image, 0].tolist()):
            wanted = classes_by_hand(patch_by_hand(pixels[image].numpy(), 4, place), CELLS[target])
            for cell, colour in enumerate(wanted):
                is_right = number != 0 or image == 1  # of the first picture one patch of four is wrong
                predictions[image, number, cell, colour if is_right else (colour + 1) % COLOURS] = 1
    assert objective.right(predictions.flatten(2), pixels, plan).tolist() == [0.75, 1.0]


def test_predicted_pixels_are_painted_back_and_judged_by_their_mean_colour():
    objective, pixels, plan = how("pixels"), pictures(2), plan_for(2, 6, 3)
    right = patches_at(normalised(pixels), 4, plan[:, 0]).flatten(2)
    assert torch.equal(objective.painted(right), patches_at(pixels, 4, plan[:, 0]))
    assert objective.right(right, pixels, plan).tolist() == [1.0, 1.0]
    assert objective.losses(right, pixels, plan).abs().max() < 1e-12
    assert objective.right(right + 3, pixels, plan).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("target", "side"), [("mean-colour", 4), ("colours-4x4", 8), ("colours-4x4", 6)])
def test_a_colour_is_painted_as_the_middle_of_its_levels(target, side):
    cells = CELLS[target]
    wanted = np.random.default_rng(4).integers(0, COLOURS, cells * cells)
    predictions = torch.zeros(1, 1, cells * cells, COLOURS)
    predictions[0, 0, torch.arange(cells * cells), torch.from_numpy(wanted)] = 1
    painted = how(target, side).painted(predictions.flatten(2))[0, 0].numpy()
    for y in range(side):
        for x in range(side):
            colour = wanted[int((y + 0.5) * cells / side) * cells + int((x + 0.5) * cells / side)]
            assert painted[:, y, x].tolist() == [
                colour // 64 * 32 + 16,
                colour // 8 % 8 * 32 + 16,
                colour % 8 * 32 + 16,
            ]


def test_outputs_are_those_of_the_paper_for_patches_of_16():
    for target, outputs in (("mean-colour", 512), ("colours-4x4", 16 * 512), ("pixels", 768)):
        assert Masking(**{**PLAIN, "target": target}).outputs(16) == outputs


# -- Learning ----------------------------------------------------------------------------------------

SPEC = ViTSpec(patch=4, layers=2, width=32, mlp=64, heads=2, image=(8, 12), classes=0, head="linear")


def trained(target, execution, steps=2, optimizer=None, dtype=torch.float64, average=None, count=6, peak=0.05):
    recipe = replace(
        pretraining_recipe(MASKED),
        batch=count,
        image=(8, 12),
        schedule=Schedule(peak=peak, total=10_000, warmup=0, decay="constant"),
        optimizer=optimizer or SGD(clip=1.0),
        average=average,
        masking=Masking(**{**PLAIN, "target": target}),
    )
    objective = PatchPrediction(recipe.masking, 4, normalised)
    module = build_masked_model(SPEC, recipe.masking.outputs(4), seed=1).to(dtype)
    twin = copy.deepcopy(module).requires_grad_(False) if average else None
    state = TrainState(module, make_optimizer(module, recipe.optimizer), twin)
    update = Update(recipe, execution, seed=0, prepare=lambda pixels: normalised(pixels).to(dtype), objective=objective)
    examples = Examples(pictures(count), plan_for(count, 6, 3))
    reports = []
    for _ in range(steps):
        reports.append(update(state, module, examples))
        state.progress.step += 1
    return state, reports, objective


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("micro", [1, 4])
def test_a_batch_in_pieces_is_the_same_batch(target, micro):
    whole, reports, _ = trained(target, Execution())
    pieces, again, _ = trained(target, Execution(micro_batch=micro))
    assert [r.loss for r in again] == pytest.approx([r.loss for r in reports], rel=1e-12)
    for one, other in zip(whole.module.parameters(), pieces.module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "target", ["mean-colour", *(pytest.param(target, marks=pytest.mark.slow) for target in ("colours-4x4", "pixels"))]
)
def test_a_small_model_learns_a_handful_of_pictures(target):
    _, reports, _ = trained(
        target, Execution(), steps=200, optimizer=AdamW(weight_decay=0.0), dtype=torch.float32, peak=3e-3
    )
    assert reports[0].loss > (0.5 if target == "pixels" else 6)
    assert reports[-1].loss < (0.05 if target == "pixels" else 0.1)


def test_the_mask_is_learnt_and_averaged():
    state, _, _ = trained("mean-colour", Execution(), average=0.5)
    start = build_masked_model(SPEC, COLOURS, seed=1).double()
    for module in (state.module, state.average):
        assert not torch.equal(module.mask_token, start.mask_token)
        assert not torch.equal(module.head.logits.weight, start.head.logits.weight)
    assert not torch.equal(state.module.mask_token, state.average.mask_token)
