"""One update: pieces of a batch add up to the whole, and every option does what its name says."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vitlab.models.build import build_from_spec
from vitlab.paper.recipes.finetuning import finetuning_recipe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import SGD, AdamW, Execution, Schedule
from vitlab.train.mixing import mixing_of, mixup_share
from vitlab.train.objectives import supervised
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update, freeze, recompute_activations

SPEC = ViTSpec(patch=4, layers=2, width=16, mlp=32, heads=2, image=(8, 8), classes=5)
RECIPE = replace(
    finetuning_recipe("cifar10"),
    batch=32,
    image=(8, 8),
    schedule=Schedule(peak=0.05, total=100, warmup=0, decay="constant"),
    optimizer=SGD(clip=None),
)


def examples(count=32, dtype=torch.float32):
    rng = np.random.default_rng(7)
    inputs = torch.from_numpy(rng.normal(size=(count, 3, 8, 8))).to(dtype)
    targets = nn.functional.one_hot(torch.from_numpy(rng.integers(0, 5, count)), 5).to(dtype)
    return Examples(inputs, targets)


def trained(recipe=RECIPE, execution=None, steps=2, dtype=torch.float32, spec=SPEC, change=None, class_weights=None):
    """The parameters after some steps, and the steps' reports."""
    module = build_from_spec(spec, seed=3).to(dtype)
    for head in (module.head.logits.weight, module.head.logits.bias):
        nn.init.normal_(head, std=0.1, generator=torch.Generator().manual_seed(0))
    if change:
        change(module)
    average = copy.deepcopy(module).requires_grad_(False) if recipe.average is not None else None
    state = TrainState(module, make_optimizer(module, recipe.optimizer), average)
    update = Update(
        recipe, execution or Execution(), seed=1, prepare=lambda x: x, objective=supervised(recipe, class_weights)
    )
    reports = []
    for _ in range(steps):
        reports.append(update(state, module, examples(dtype=dtype)))
        state.progress.step += 1
    return state, reports


@torch.no_grad()
def difference(one, other):
    flat = [torch.cat([p.flatten() for p in state.module.parameters()]) for state in (one, other)]
    return float((flat[0] - flat[1]).abs().max() / flat[0].abs().max())


@pytest.mark.parametrize("micro", [8, 4, 5, 32, 100])
@pytest.mark.parametrize("options", [{}, {"mixup": 0.4}, {"cutmix": 1.0}, {"loss": "sigmoid"}, {"average": 0.9}])
def test_a_batch_in_pieces_is_the_same_batch(micro, options):
    """1 x 32 = 4 x 8 = 8 x 4, and pieces that do not divide it.

    With SGD: Adam divides by the gradient's own size, which for the keys' biases is nothing but rounding.
    """
    recipe = replace(RECIPE, optimizer=SGD(clip=1.0), **options)
    whole, reports = trained(recipe, dtype=torch.float64)
    pieces, again = trained(recipe, Execution(micro_batch=micro), dtype=torch.float64)
    assert difference(whole, pieces) <= 1e-12
    assert [r.loss for r in again] == pytest.approx([r.loss for r in reports], rel=1e-12)
    if whole.average is not None:
        assert not torch.equal(whole.average.class_token, whole.module.class_token)


def test_a_batch_in_pieces_is_the_same_batch_in_float32():
    whole, _ = trained()
    pieces, _ = trained(execution=Execution(micro_batch=4))
    assert 0 < difference(whole, pieces) <= 1e-5


def test_sgd_equals_a_derivation_by_hand():
    """p <- p - rate * g with the gradient of the mean loss, taken by autograd in one piece."""
    state, _ = trained(steps=1)
    module = build_from_spec(SPEC, seed=3)
    for head in (module.head.logits.weight, module.head.logits.bias):
        nn.init.normal_(head, std=0.1, generator=torch.Generator().manual_seed(0))
    batch = examples()
    nn.functional.cross_entropy(module(batch.inputs), batch.targets).backward()
    for expected, found in zip(module.parameters(), state.module.parameters(), strict=True):
        torch.testing.assert_close(found, expected - 0.05 * expected.grad, rtol=0, atol=1e-6)


def test_missing_images_do_not_count_in_the_mean():
    """A batch that lost half its images to quarantine gives the gradient of the mean over the rest."""
    module = build_from_spec(SPEC, seed=3)
    state = TrainState(module, make_optimizer(module, RECIPE.optimizer))
    half = Examples(examples().inputs[:16], examples().targets[:16])
    report = Update(RECIPE, Execution(), seed=1, prepare=lambda x: x)(state, module, half)
    assert report.images == 16
    assert report.loss == pytest.approx(np.log(5), rel=1e-6)  # a zero head is undecided


def test_a_batch_without_images_changes_nothing():
    module = build_from_spec(SPEC, seed=3)
    state = TrainState(module, make_optimizer(module, RECIPE.optimizer))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    none = Examples(examples().inputs[:0], examples().targets[:0])
    report = Update(RECIPE, Execution(), seed=1, prepare=lambda x: x)(state, module, none)
    assert (report.images, report.skipped) == (0, True)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_recomputed_activations_change_nothing():
    spec = replace(SPEC, dropout=0.2)
    plain, _ = trained(spec=spec)
    again, _ = trained(spec=spec, change=recompute_activations)
    assert difference(plain, again) <= 1e-6
    assert set(plain.module.state_dict()) == set(again.module.state_dict())


def test_recomputing_needs_blocks():
    with pytest.raises(ValueError, match="has no blocks to recompute"):
        recompute_activations(nn.Linear(2, 2))


def test_bf16_is_close_to_fp32_and_keeps_fp32_weights():
    _, reports = trained()
    half, again = trained(execution=Execution(precision="bf16"))
    assert all(parameter.dtype == torch.float32 for parameter in half.module.parameters())
    assert 0 < abs(reports[-1].loss - again[-1].loss) < 0.02


def test_dropout_is_a_function_of_seed_step_and_piece_alone():
    spec = replace(SPEC, dropout=0.5)
    one, reports = trained(spec=spec)
    torch.rand(17)  # what anybody else draws has no influence
    two, again = trained(spec=spec)
    assert difference(one, two) == 0
    assert reports == again
    assert reports[0].loss != trained(spec=SPEC)[1][0].loss


def test_mixup_blends_with_the_batch_in_reverse():
    recipe = replace(RECIPE, mixup=0.4)
    share = mixup_share(0.4, 1, 0)
    assert 0 < share < 1
    batch = examples()
    blended = Examples(
        share * batch.inputs + (1 - share) * batch.inputs.flip(0),
        share * batch.targets + (1 - share) * batch.targets.flip(0),
    )
    module = build_from_spec(SPEC, seed=3)
    state = TrainState(module, make_optimizer(module, recipe.optimizer))
    mixed = Update(recipe, Execution(), seed=1, prepare=lambda x: x)(state, module, batch)
    module = build_from_spec(SPEC, seed=3)
    state = TrainState(module, make_optimizer(module, recipe.optimizer))
    plain = Update(RECIPE, Execution(), seed=1, prepare=lambda x: x)(state, module, blended)
    assert mixed.loss == pytest.approx(plain.loss, rel=1e-6)
    assert mixed.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-5)


def test_pictures_are_mixed_inside_their_shard_whoever_computes_it():
    batch = examples(20)
    shards = {0: 7, 1: 6, 2: 7}
    recipe = replace(RECIPE, mixup=0.4)
    whole = mixing_of(recipe, 1, 5, shards, (8, 8))
    start = 0
    for shard, size in shards.items():
        own = batch.inputs[start : start + size]
        share = mixup_share(0.4, 1, 5, shard)
        expected = share * own + (1 - share) * own.flip(0)
        torch.testing.assert_close(whole.pictures(batch.inputs, range(start, start + size)), expected)
        alone = mixing_of(recipe, 1, 5, {shard: size}, (8, 8))
        torch.testing.assert_close(alone.pictures(own, range(size)), expected)
        torch.testing.assert_close(whole.blended(batch.targets, range(20)).sum(dim=1), torch.ones(20))
        start += size
    assert len({mixup_share(0.4, 1, 5, shard) for shard in shards}) == 3


def test_mixup_draws_follow_the_beta_distribution():
    draws = np.array([mixup_share(0.1, 0, step) for step in range(4000)])
    expected = np.random.default_rng(1).beta(0.1, 0.1, 200_000)
    for quantile in (0.1, 0.3, 0.5, 0.7, 0.9):
        low, high = np.quantile(expected, [quantile - 0.03, quantile + 0.03])
        assert low <= np.quantile(draws, quantile) <= high


def test_class_weights_multiply_each_example():
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0])
    _, reports = trained(class_weights=weights, steps=1)
    module = build_from_spec(SPEC, seed=3)
    for head in (module.head.logits.weight, module.head.logits.bias):
        nn.init.normal_(head, std=0.1, generator=torch.Generator().manual_seed(0))
    batch = examples()
    label = batch.targets.argmax(dim=-1)
    losses = nn.functional.cross_entropy(module(batch.inputs), label, reduction="none")
    assert reports[0].loss == pytest.approx((losses * weights[label]).mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("parts", "still"),
    [
        (("backbone",), {"head"}),
        (("patches", "positions", "class_token"), {"blocks", "norm", "head"}),
        (("blocks.0",), {"patches", "positions", "class_token", "blocks", "norm", "head"}),
    ],
)
def test_frozen_parts_do_not_move(parts, still):
    state, _ = trained(change=lambda module: freeze(module, parts))
    start = build_from_spec(SPEC, seed=3).state_dict()
    moved = {
        n
        for n, t in state.module.state_dict().items()
        if n.partition(".")[0] != "head" and not torch.equal(t, start[n])
    }
    assert {name.partition(".")[0] for name in moved} | {"head"} == still
    assert not any(name.startswith("blocks.0.") for name in moved) or "blocks.0" not in parts


def test_freezing_what_does_not_exist_lists_what_does():
    with pytest.raises(
        ValueError, match=r"no part of the model is named 'stem'; known are backbone, blocks, class_token"
    ):
        freeze(build_from_spec(SPEC), ("stem",))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(poison):
    recipe = replace(RECIPE, average=0.9, optimizer=AdamW())
    state, _ = trained(recipe)
    before = {g: {n: t.clone() for n, t in tensors.items()} for g, tensors in state.groups().items()}
    batch = examples()
    batch.inputs[3, 0, 0, 0] = poison
    report = Update(recipe, Execution(micro_batch=8), seed=1, prepare=lambda x: x)(state, state.module, batch)
    assert report.skipped
    assert not np.isfinite(report.loss)
    for group, tensors in state.groups().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[group][name]), name
