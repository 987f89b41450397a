"""Streams: the same bits on any number of threads, and the same gradients as without them up to rounding."""

import copy
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from agreement import randomised
from vitlab.models.build import build_from_spec
from vitlab.models.vit import make_lean
from vitlab.paper.recipes.finetuning import finetuning_recipe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import SGD, AdamW, Execution, Schedule
from vitlab.train import streams
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.streams import add_gradients, divided, one_thread
from vitlab.train.update import Examples, Update, freeze, recompute_activations

# Large enough that torch would divide its products and sums over two threads.
SPEC = ViTSpec(patch=4, layers=2, width=96, mlp=384, heads=2, image=(20, 20), classes=5)
RECIPE = replace(
    finetuning_recipe("cifar10"),
    batch=24,
    image=SPEC.image,
    schedule=Schedule(peak=0.01, total=100, warmup=0, decay="constant"),
)
ADAMW, MIXED = replace(RECIPE, optimizer=AdamW()), replace(RECIPE, mixup=0.4, cutmix=1.0, average=0.9)


def examples(count=24, dtype=torch.float32):
    rng = np.random.default_rng(7)
    inputs = torch.from_numpy(rng.normal(size=(count, 3, *SPEC.image))).to(dtype)
    targets = torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 5, count)), 5).to(dtype)
    return Examples(inputs, targets)


def trained(
    recipe=RECIPE, streams=2, *, threads=2, steps=3, micro_batch=0, dtype=torch.float32, change=make_lean, count=24
):
    """The state after some steps, as names and tensors, and the steps' reports."""
    module = randomised(build_from_spec(SPEC, seed=3)).to(dtype)
    change(module)
    average = copy.deepcopy(module).requires_grad_(False) if recipe.average is not None else None
    state = TrainState(module, make_optimizer(module, recipe.optimizer), average)
    update = Update(recipe, Execution(streams=streams, micro_batch=micro_batch), seed=1, prepare=lambda x: x)
    reports, before = [], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            reports.append(update(state, module, examples(count, dtype)))
            state.progress.step += 1
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    return {(group, name): t for group, own in state.groups().items() for name, t in own.items()}, reports


@pytest.mark.parametrize("micro_batch", [0, 10])
@pytest.mark.parametrize("recipe", [RECIPE, ADAMW, MIXED], ids=["sgd", "adamw", "mixed"])
def test_bits_do_not_depend_on_the_number_of_threads(recipe, micro_batch):
    alone, reports = trained(recipe, streams=3, threads=1, micro_batch=micro_batch)
    for threads in (2, 3):
        beside, again = trained(recipe, streams=3, threads=threads, micro_batch=micro_batch)
        assert again == reports
        assert all(torch.equal(tensor, beside[name]) for name, tensor in alone.items())


@pytest.mark.parametrize("count", [24, 7, 1])
@pytest.mark.parametrize("recipe", [RECIPE, MIXED], ids=["sgd", "mixed"])
def test_streams_learn_what_a_whole_batch_learns(recipe, count):
    whole, reports = trained(recipe, streams=0, dtype=torch.float64, change=lambda module: None, count=count)
    parts, again = trained(recipe, streams=2, dtype=torch.float64, count=count)
    assert [step.loss for step in again] == pytest.approx([step.loss for step in reports], rel=1e-12)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-10, atol=1e-12)


def test_streams_round_differently_than_a_whole_batch():
    assert trained(streams=0)[1] != trained(streams=2)[1]


@pytest.mark.parametrize("change", [lambda m: freeze(m, ("backbone",)), lambda m: freeze(m, ("blocks.0",))])
def test_frozen_parts_have_no_gradient(change):
    whole, _ = trained(streams=0, dtype=torch.float64, change=change)
    parts, _ = trained(streams=2, dtype=torch.float64, change=lambda module: (change(module), make_lean(module)))
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-10, atol=1e-12)


def test_activations_can_be_recomputed_in_streams():
    plain, _ = trained()
    again, _ = trained(change=lambda module: (make_lean(module), recompute_activations(module)))
    assert all(torch.equal(tensor, again[name]) for name, tensor in plain.items())


@pytest.mark.parametrize("optimizer", [SGD(), AdamW()], ids=["sgd", "adamw"])
def test_a_step_that_is_not_finite_changes_nothing(optimizer):
    recipe = replace(RECIPE, optimizer=optimizer)
    module = build_from_spec(SPEC, seed=3)
    state, before = TrainState(module, make_optimizer(module, optimizer)), copy.deepcopy(module.state_dict())
    batch = examples()
    batch.inputs[20, 0, 0, 0] = float("nan")
    assert Update(recipe, Execution(streams=2), seed=1, prepare=lambda x: x)(state, module, batch).skipped
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("count", [1, 2, 24])
def test_every_gradient_has_its_own_memory_in_the_order_of_its_parameter(count):
    module = build_from_spec(SPEC, seed=3)
    state = TrainState(module, make_optimizer(module, RECIPE.optimizer))
    Update(RECIPE, Execution(streams=2), seed=1, prepare=lambda x: x)(state, module, examples(count))
    assert all(parameter.grad.stride() == parameter.stride() for parameter in module.parameters())
    memories = {parameter.grad.untyped_storage().data_ptr() for parameter in module.parameters()}
    assert len(memories) == len(list(module.parameters()))


def test_an_error_in_a_stream_is_raised_and_the_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    module = build_from_spec(SPEC)
    state = TrainState(module, make_optimizer(module, RECIPE.optimizer))

    def fail(inputs):
        raise MemoryError("no memory left")

    try:
        with pytest.raises(MemoryError, match="no memory left"):
            Update(RECIPE, Execution(streams=2), seed=1, prepare=fail)(state, module, examples())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_finished_gradients_do_not_pile_up_behind_a_slow_part():
    weight, begun, third = torch.nn.Parameter(torch.ones(3)), [], threading.Event()
    meanwhile = []

    def loss_of(part):
        begun.append(part)
        if part.start == 0:  # the slow one: it ends after the third has begun, and what else may begin without it
            third.wait(60)
            time.sleep(0.2)
            meanwhile.extend(begun)
        elif part.start == 2:
            third.set()
        return (weight * part.start).sum()

    with one_thread():
        losses = add_gradients(loss_of, [range(n, n + 1) for n in range(9)], [weight], threads=2)
    assert sorted(part.start for part in meanwhile) == [0, 1, 2]
    assert [float(loss) for loss in losses] == [3.0 * n for n in range(9)]
    assert torch.equal(weight.grad, torch.full((3,), 36.0))


def test_added_gradients_are_freed_before_the_next_ones_are_awaited(monkeypatch):
    weight, gradients, alive, take = torch.nn.Parameter(torch.ones(3)), [], [], torch.autograd.grad

    def taken(*given, **how):
        found = take(*given, **how)
        gradients.append(weakref.ref(found[0]))
        return found

    def loss_of(part):
        if part.start == 3:
            time.sleep(0.2)  # until the main thread waits for this part
            alive.extend(gradient() is not None for gradient in gradients)
        return (weight * part.start).sum()

    monkeypatch.setattr(torch.autograd, "grad", taken)
    with one_thread():
        add_gradients(loss_of, [range(n, n + 1) for n in range(4)], [weight], threads=1)
    assert alive == [True, False, False]  # the first is the parameter's gradient


def test_parts_that_have_not_begun_are_given_up_with_the_others():
    begun = []

    def found(part):
        begun.append(part.start)
        time.sleep(0.1)

    with ThreadPoolExecutor(1) as pool:
        results = streams._in_order(pool, found, [range(n, n + 1) for n in range(9)], 4)
        next(results)
        results.close()  # as an error does
    assert set(begun) <= {0, 1}


def test_one_thread_holds_inside_its_block_only():
    before = torch.get_num_threads()
    with one_thread() as outside:
        assert (outside, torch.get_num_threads()) == (before, 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("examples", "parts", "sizes"), [(range(8), 2, [4, 4]), (range(3, 10), 3, [2, 2, 3]), (range(2), 4, [1, 1])]
)
def test_parts_cover_a_range_in_order(examples, parts, sizes):
    found = divided(examples, parts)
    assert [len(part) for part in found] == sizes
    assert [number for part in found for number in part] == list(examples)
