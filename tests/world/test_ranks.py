"""Several ranks learn what one learns: the same gradients, and with exact sums the same bits."""

import faulthandler
import json
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import ranks
from ranks import RECIPE, run_ranks, take_steps
from vitlab.spec.recipe import SGD, Execution, Schedule
from vitlab.world.group import join
from vitlab.world.parallel import wrapped

DDP, FSDP = Execution(parallel="ddp", micro_batch=5), Execution(parallel="fsdp", micro_batch=5)


def outcome(folder, number, recipe, execution, steps, *more):
    """Tensors after some steps on this many ranks, and what each rank told."""
    file = folder / f"{len(list(folder.iterdir()))}.safetensors"
    assert run_ranks(number, take_steps, file, recipe, execution, steps, *more) == [0] * number
    return load_file(file), json.loads(file.with_suffix(".json").read_text())


def farthest(found, expected, group, without=()):
    """max |a - b| / max |b| over the worst tensor of a group; one of zeros must be zeros."""
    assert set(found) == set(expected)
    names = [name for name in expected if name.startswith(group) and not name.endswith(without)]
    differences = {name: float((found[name] - expected[name]).abs().max()) for name in names}
    return max(differences[name] / (float(expected[name].abs().max()) or 1e-30) for name in names if differences[name])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One step on one rank, in one piece."""
    return outcome(tmp_path_factory.mktemp("alone"), 1, RECIPE, Execution(), 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("execution", [DDP, FSDP, replace(DDP, exact_elastic=True)], ids=["ddp", "fsdp", "exact"])
def test_first_gradients_are_those_of_one_rank(tmp_path, alone, number, execution):
    """Of 22 examples in pieces of 5: ranks have different numbers of pieces."""
    recipe = replace(RECIPE, shards=4) if execution.exact_elastic else RECIPE
    found, told = outcome(tmp_path, number, recipe, execution, 1)
    assert all(one["cut"] == (execution is FSDP) for one in told)
    assert farthest(found, alone[0], "gradients") <= 1e-5
    assert all(one["reports"] == told[0]["reports"] for one in told)  # all ranks saw the same
    assert told[0]["reports"][0]["loss"] == pytest.approx(alone[1][0]["reports"][0]["loss"], rel=1e-6)
    assert told[0]["reports"][0]["gradient_norm"] == pytest.approx(alone[1][0]["reports"][0]["gradient_norm"], rel=1e-5)
    assert sorted(place for one in told for place in one["shares"][0]) == list(range(22))


@pytest.mark.slow
@pytest.mark.parametrize("execution", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_more_ranks_than_images_learn_what_one_does(tmp_path, execution):
    recipe = replace(RECIPE, batch=3, optimizer=SGD(clip=1.0))
    expected, _ = outcome(tmp_path, 1, recipe, Execution(), 3)
    found, told = outcome(tmp_path, 4, recipe, execution, 3)
    assert [len(one["shares"][0]) for one in told] == [0, 1, 1, 1]
    assert told[0]["reports"][0]["images"] == 3
    assert farthest(found, expected, "weights") <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"average": 0.9, "layer_decay": 0.7, "frozen": ("blocks.0", "patches")},
        {"optimizer": SGD(clip=0.01), "average": 0.5},
    ],
    ids=["adamw", "sgd"],
)
def test_a_cut_model_learns_what_a_whole_one_does(tmp_path, options):
    """Six steps with everything that touches parameters; both sum the same gradients, in another order.

    Adam divides by the gradient's own size, which for the keys' biases is nothing but rounding.
    """
    noise = "qkv.bias" if "optimizer" not in options else ()
    recipe = replace(RECIPE, schedule=Schedule(peak=1e-3, total=9, warmup=2), **options)
    expected, whole = outcome(tmp_path, 2, recipe, replace(DDP, recompute=True), 6)
    found, cut = outcome(tmp_path, 2, recipe, replace(FSDP, recompute=True), 6)
    assert cut[0]["cut"]
    assert not whole[0]["cut"]
    for group in ("weights", "average"):
        assert farthest(found, expected, group, noise) <= 2e-5
    assert not torch.equal(found["average/norm.weight"], found["weights/norm.weight"])
    if "frozen" in options:
        assert "gradients/patches.weight" not in found
        assert "gradients/blocks.1.norm1.weight" in found


def let_go_late():
    """What each rank does: its copy of the model goes after the group, while the group waits for Python's lock."""
    faulthandler.dump_traceback_later(60, exit=True)  # the lock may be held for ever
    with join("cpu", ranks.TIMEOUT) as world:
        copy = wrapped(torch.nn.Linear(2, 2), world)
        group = dist.group.WORLD
    sys.setswitchinterval(1000)
    group.allgather([[torch.zeros(1) for _ in range(world.ranks)]], [torch.ones(1)])
    end = time.monotonic() + 1
    while time.monotonic() < end:  # holds the lock
        pass
    del group
    del copy


@pytest.mark.slow
def test_a_copy_that_outlives_its_ranks_lets_go():
    assert run_ranks(2, let_go_late) == [0, 0]


@pytest.mark.slow
def test_half_precision_on_ranks_keeps_full_weights(tmp_path):
    expected, reports = outcome(tmp_path, 1, RECIPE, Execution(), 3)
    for execution in (DDP, FSDP):
        found, told = outcome(tmp_path, 2, RECIPE, replace(execution, precision="bf16"), 3)
        assert all(tensor.dtype == torch.float32 for tensor in found.values())
        difference = abs(told[0]["reports"][-1]["loss"] - reports[0]["reports"][-1]["loss"])
        assert 0 < difference < 0.05
        assert farthest(found, expected, "gradients") > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("execution", [DDP, FSDP, replace(DDP, exact_elastic=True)], ids=["ddp", "fsdp", "exact"])
def test_what_is_not_a_number_on_one_rank_is_skipped_by_all(tmp_path, execution):
    recipe = replace(RECIPE, shards=4) if execution.exact_elastic else RECIPE
    found, told = outcome(tmp_path, 2, recipe, execution, 3, 20)  # number 20 of 22 is the second rank's
    assert [[report["skipped"] for report in one["reports"]] for one in told] == [[False, True, False]] * 2
    assert all(tensor.isfinite().all() for tensor in found.values())


@pytest.mark.slow
def test_exact_sums_are_bit_identical_on_any_number_of_ranks(tmp_path):
    """50 steps of AdamW with dropout and mixup, on 1, 2, 3 and 4 ranks; plain sums are not the same bits."""
    recipe = replace(RECIPE, shards=4, mixup=0.4, dropout=0.2, average=0.99)
    exact = replace(DDP, exact_elastic=True)
    expected, reports = outcome(tmp_path, 1, recipe, exact, 50, -1, 0.2)
    for number in (2, 3, 4):
        found, told = outcome(tmp_path, number, recipe, exact, 50, -1, 0.2)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(one["reports"] == reports[0]["reports"] for one in told)
    plain, _ = outcome(tmp_path, 2, recipe, DDP, 50, -1, 0.2)  # the control
    assert not torch.equal(plain["weights/norm.weight"], expected["weights/norm.weight"])
    assert not torch.equal(expected["weights/norm.weight"], torch.ones(ranks.SPEC.width))
