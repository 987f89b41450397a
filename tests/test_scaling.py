"""The model of cost against what torch really keeps, sends and computes."""

from dataclasses import replace

import pytest
import torch

from bench.experiments import fake_ranks
from bench.experiments.scaling import Machine, activations, exchanged, state_bytes, step_cost
from vitlab.counting import count_spec
from vitlab.models.build import build_from_spec, empty_model
from vitlab.paper.models import model_spec
from vitlab.train.update import recompute_activations
from vitlab.world.parallel import rows_of_rank

MACHINE = Machine("test", 1e12, 0.5, 16e9, 100e9, 10e9, 8, 1000.0)
SPEC = model_spec("ViT-L/16", classes=1000)


def kept(spec, recompute, batch=2):
    """Bytes an image that autograd holds after a forward pass, weights left out."""
    model = build_from_spec(spec).train()
    if recompute:
        recompute_activations(model)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found, alive = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randn(batch, 3, *spec.image)).sum()
    return sum(found.values()) / batch


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-S/32"])
def test_activations_are_what_autograd_keeps(name):
    spec = model_spec(name, classes=10, head="linear")
    assert activations(spec) == pytest.approx(kept(spec, False), rel=0.05)


def test_recomputed_blocks_keep_only_what_enters_them():
    spec = model_spec("ViT-Ti/16", classes=10, head="linear")
    between = 4 * spec.layers * spec.tokens * spec.width  # the block that is whole comes on the way back
    assert between <= kept(spec, True) <= 1.5 * between
    assert activations(spec, recompute=True) < activations(spec) / 5


def test_a_ring_sends_every_gradient_nearly_twice():
    """A plain ring: n - 1 rounds to reduce, n - 1 to spread, a part of 1 / n each."""
    for devices in (1, 2, 3, 8, 1024):
        sent = sum(1000 * 4 / devices for _ in range(2 * (devices - 1)))
        assert exchanged(1000, devices, "ddp") == pytest.approx(sent)
    assert exchanged(1000, 8, "fsdp", 4) == pytest.approx(1.5 * exchanged(1000, 8, "ddp"))
    assert exchanged(1000, 8, "fsdp", 2) == pytest.approx(exchanged(1000, 8, "ddp"))


def test_sharding_divides_the_state():
    parameters = count_spec(SPEC).parameters
    assert state_bytes(SPEC, 1, "ddp") == parameters * 20
    alone, many = state_bytes(SPEC, 8, "fsdp"), state_bytes(SPEC, 1024, "fsdp")
    assert alone - many == pytest.approx(parameters * 16 * (1 / 8 - 1 / 1024))


def test_a_step_is_bound_by_its_slowest_part():
    step = step_cost(SPEC, MACHINE, devices=8, batch=4096, parallel="ddp")
    assert step.images == 512
    assert step.compute == pytest.approx(6 * count_spec(SPEC).macs * 512 / 5e11)
    assert (step.bound, step.seconds) == ("compute", step.compute)
    assert step_cost(SPEC, MACHINE, devices=4096, batch=4096, parallel="ddp").compute == step.compute / 512
    slow = replace(MACHINE, outside=1e6)
    assert step_cost(SPEC, slow, devices=16, batch=4096, parallel="fsdp").bound == "exchange"
    assert step_cost(SPEC, slow, devices=8, batch=4096, parallel="fsdp").bound == "compute"
    assert step_cost(SPEC, replace(MACHINE, decoding=0.1), devices=8, batch=4096, parallel="ddp").bound == "data"
    again = step_cost(SPEC, MACHINE, devices=8, batch=4096, parallel="ddp", recompute=True)
    assert again.compute == pytest.approx(step.compute * 4 / 3)
    assert again.memory < step.memory


@pytest.mark.parametrize(("devices", "batch"), [(0, 1), (1, 0)])
def test_nothing_is_no_cluster(devices, batch):
    with pytest.raises(ValueError, match="at least 1"):
        step_cost(SPEC, MACHINE, devices=devices, batch=batch, parallel="ddp")


# -- Ranks of 1,024 that are not there -------------------------------------------------------------


def padded(tensor):
    """FSDP2 splits the first dimension, and pads it to a multiple of the ranks."""
    return -(-tensor.shape[0] // fake_ranks.RANKS) * fake_ranks.RANKS * tensor[0].numel()


@pytest.mark.slow
@pytest.mark.parametrize("rank", fake_ranks.CHOSEN)
@pytest.mark.parametrize("name", fake_ranks.MODELS)
def test_a_rank_of_1024_holds_what_is_predicted(name, rank):
    found, said = fake_ranks.in_child(name, rank), fake_ranks.predicted(name)
    peak, end = found["peak"], found["end"]
    model = empty_model(model_spec(name, classes=fake_ranks.CLASSES))
    tensors = list(model.parameters())
    rows = [len(rows_of_rank(len(tensor), rank, fake_ranks.RANKS)) for tensor in tensors]
    own = sum(number * tensor[0].numel() for number, tensor in zip(rows, tensors, strict=True))
    assert found["parameters"] == own
    assert peak["Activation"] + peak["Temp"] == pytest.approx(said["activations"], rel=0.02)
    held = 4 * sum(map(padded, tensors)) // fake_ranks.RANKS  # a rank with fewer rows is padded to those of rank 0
    assert end["Sharded Param"] == end["Sharded Grad"] == held >= 4 * own
    assert 8 * own <= end["OptState"] <= 8 * own + 4 * len(tensors)  # and a step counter per tensor
    assert not any(end[kind] for kind in fake_ranks.GATHERED), "a block stays gathered"
    # At the peak all activations are held, and the parts outside of the blocks are gathered, in bf16, twice.
    root = [tensor for name, tensor in model.named_parameters() if not name.startswith("blocks.")]
    assert peak["Unsharded Param"] == peak["All Gather"] == 2 * sum(map(padded, root))
