"""Devices by name, environments that tell whether bits can be the same, and randomness without state."""

import pytest
import torch

from vitlab.runs.measure.inputs import measuring
from vitlab.world.device import (
    attention_kernel,
    check_precision,
    default_workers,
    differences,
    environment,
    is_out_of_memory,
    pick_device,
    products_in,
    seed_device,
    seed_of,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def tf32():
    """Read whether torch may use TF32 in products and in convolutions; restored after the test."""
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    yield lambda: tuple(flag.allow_tf32 for flag in flags)
    for flag, was in zip(flags, before, strict=True):
        flag.allow_tf32 = was


@pytest.fixture
def ampere(monkeypatch):
    """A GPU that has TF32, as far as torch's questions about it go."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "A100")


def test_the_cpu_is_always_there():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["tpu", "", "cpu:3x"])
def test_an_unknown_device_lists_the_known(name):
    with pytest.raises(ValueError, match="no device is named"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_a_device_that_is_not_here_says_what_is():
    with pytest.raises(ValueError, match="'cuda' is not available here; available are cpu"):
        pick_device("cuda")


def test_what_changed_between_two_machines_is_named():
    here = environment(torch.device("cpu"))
    assert differences(here, dict(here)) == []
    there = here | {"threads": "64", "torch": "1.0"}
    assert differences(there, here) == [
        f"threads was 64 and is {here['threads']}",
        f"torch was 1.0 and is {here['torch']}",
    ]
    assert differences({}, {"threads": "2"}) == ["threads was unknown and is 2"]


def test_another_key_is_another_stream():
    seeds = {seed_of("device", seed, step, shard) for seed in range(10) for step in range(100) for shard in range(10)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 2) == seed_of(1, 2) != seed_of(1, 3)


def test_a_micro_batch_draws_the_same_whatever_came_before():
    seed_device(0, 5, 1)
    first = torch.rand(4)
    torch.rand(99)
    seed_device(0, 5, 1)
    assert torch.equal(torch.rand(4), first)
    seed_device(0, 5, 2)
    assert not torch.equal(torch.rand(4), first)


def test_workers_are_chosen_by_cores_and_device(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    assert default_workers(torch.device("cpu")) == 0
    assert default_workers(torch.device("cuda")) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers(torch.device("cuda")) == 3


# -- TF32 ------------------------------------------------------------------------------------------


def test_picking_a_gpu_leaves_the_settings_of_the_program_alone(ampere, tf32):
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, True
    assert pick_device("auto").type == "cuda"
    assert tf32() == (True, True)


@pytest.mark.parametrize("before", [(False, True), (True, False)])  # torch's default, and another
@pytest.mark.parametrize(("precision", "is_allowed"), [("fp32", False), ("bf16", False), ("tf32", True)])
def test_tf32_is_used_only_where_it_is_asked_for(precision, is_allowed, before, ampere, tf32):
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    with products_in(precision, CUDA):
        assert tf32() == (is_allowed, is_allowed)
        with products_in("fp32", CUDA):  # as a measurement within a run
            assert tf32() == (False, False)
        assert tf32() == (is_allowed, is_allowed)
    assert tf32() == before
    with pytest.raises(KeyError), products_in(precision, CUDA):
        raise KeyError
    assert tf32() == before


def test_measuring_on_a_gpu_is_in_float32_and_gives_the_settings_back(ampere, tf32):
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    with measuring("auto", None, quiet=True):
        assert tf32() == (False, False)
    assert tf32()[1] is True


def test_a_cpu_leaves_the_flags_of_cuda_alone(tf32):
    before = tf32()
    with products_in("fp32", pick_device("cpu")):
        assert tf32() == before
    assert tf32() == before


def test_tf32_on_a_cpu_is_an_error_that_says_what_has_it():
    with pytest.raises(ValueError, match="only NVIDIA GPUs have TF32, and the device is cpu; give precision='fp32'"):
        check_precision("tf32", CPU)
    with pytest.raises(ValueError, match="only NVIDIA GPUs have TF32"), products_in("tf32", CPU):
        pass
    check_precision("bf16", CPU)


def test_tf32_on_an_older_gpu_is_an_error(ampere, monkeypatch):
    check_precision("tf32", CUDA)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (7, 5))
    with pytest.raises(ValueError, match=r"needs compute capability 8\.0, and A100 has 7\.5"):
        check_precision("tf32", CUDA)
    monkeypatch.setattr("torch.version.hip", "6.4")
    with pytest.raises(ValueError, match="the device is an AMD GPU"):
        check_precision("tf32", CUDA)


def test_the_kernel_of_attention_is_named():
    assert attention_kernel(CPU, torch.float32) == "flash attention"
    assert attention_kernel(CPU, torch.float32, has_bias=True) == "plain operators"


def test_running_out_of_memory_is_recognised():
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(failed.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as failed:
        torch.zeros(2) @ torch.zeros(3)
    assert not is_out_of_memory(failed.value)
    assert not is_out_of_memory(ValueError("out of memory"))
