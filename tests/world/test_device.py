"""Devices by name, environments that tell whether bits can be the same, and randomness without state."""

import pytest
import torch

from vitlab.world.device import default_workers, differences, environment, pick_device, seed_device, seed_of


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
