"""Optimizers, schedules, losses and averaging against a derivation in plain NumPy, 200 steps in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from families import FAMILIES
from vitlab.models.build import build_from_spec
from vitlab.paper.finetuning import hyper_rule
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import SGD, AdamW, Schedule
from vitlab.train.objectives import sigmoid_cross_entropy, softmax_cross_entropy
from vitlab.train.optimizers import clip_gradients, make_optimizer, set_learning_rate, update_average

STEPS = 200
SCHEDULE = Schedule(peak=3e-2, total=STEPS, warmup=20, decay="cosine", end=0.0)


class Tiny(nn.Module):
    """A matrix and a bias, trained to a fixed target through a loss with a known gradient."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.weight = nn.Parameter(torch.from_numpy(rng.normal(size=(4, 3))))
        self.bias = nn.Parameter(torch.from_numpy(rng.normal(size=4)))


def gradients(step, weight, bias):
    """Some gradient that depends on the parameters and the step."""
    rng = np.random.default_rng(1000 + step)
    return weight * 0.3 + rng.normal(size=weight.shape), bias * 0.2 + rng.normal(size=bias.shape) * 3


def run_torch(how, average=False):
    module, averaged = Tiny(), Tiny()
    optimizer = make_optimizer(module, how)
    for step in range(STEPS):
        for parameter, gradient in zip(
            (module.weight, module.bias),
            gradients(step, module.weight.detach().numpy(), module.bias.detach().numpy()),
            strict=True,
        ):
            parameter.grad = torch.from_numpy(gradient)
        clip_gradients(module.parameters(), how.clip)
        set_learning_rate(optimizer, SCHEDULE.learning_rate(step))
        optimizer.step()
        update_average(averaged, module, 0.9)
    chosen = averaged if average else module
    return chosen.weight.detach().numpy(), chosen.bias.detach().numpy()


def run_numpy(how, average=False):
    start = Tiny()
    values = [start.weight.detach().numpy().copy(), start.bias.detach().numpy().copy()]
    averages = [v.copy() for v in values]
    first, second = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]
    for step in range(STEPS):
        grads = list(gradients(step, *values))
        norm = math.sqrt(sum((g**2).sum() for g in grads))
        if how.clip is not None:
            grads = [g * min(1.0, how.clip / norm) for g in grads]
        warm = min(1.0, step / 20)
        progress = min(max((step - 20) / (STEPS - 20), 0), 1)
        rate = 3e-2 * 0.5 * (1 + math.cos(math.pi * progress)) * warm
        for i, g in enumerate(grads):
            wd = how.weight_decay if how.decay == "all" or i == 0 else 0.0
            if isinstance(how, SGD):
                first[i] = how.momentum * first[i] + g + wd * values[i]
                values[i] = values[i] - rate * first[i]
            else:
                b1, b2 = how.betas
                first[i] = b1 * first[i] + (1 - b1) * g
                second[i] = b2 * second[i] + (1 - b2) * g * g
                unbiased = first[i] / (1 - b1 ** (step + 1)), second[i] / (1 - b2 ** (step + 1))
                values[i] = (
                    values[i] - rate * unbiased[0] / (np.sqrt(unbiased[1]) + how.epsilon) - rate * wd * values[i]
                )
        averages = [0.9 * a + 0.1 * v for a, v in zip(averages, values, strict=True)]
    return averages if average else values


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    "how",
    [AdamW(), AdamW(weight_decay=0.3, clip=1.0), AdamW(decay="kernels"), SGD(), SGD(clip=None), SGD(weight_decay=1e-2)],
    ids=str,
)
def test_two_hundred_steps_equal_numpy(how, average):
    for own, expected in zip(run_torch(how, average), run_numpy(how, average), strict=True):
        assert np.abs(own - expected).max() <= 1e-12 * np.abs(expected).max()


class TestSchedule:
    def test_linear_is_the_papers(self):
        schedule = Schedule(peak=8e-4, total=517_822, warmup=10_000)
        assert schedule.learning_rate(0) == 0
        assert schedule.learning_rate(5_000) == pytest.approx(4e-4)
        assert schedule.learning_rate(10_000) == pytest.approx(8e-4)
        assert schedule.learning_rate((517_822 + 10_000) // 2) == pytest.approx((8e-4 + 1e-5) / 2)
        assert schedule.learning_rate(517_822) == pytest.approx(1e-5)

    @pytest.mark.parametrize("end", [0.0, 1e-5, 1e-3])
    def test_cosine_ends_at_its_end(self, end):
        schedule = Schedule(peak=3e-3, total=300, warmup=100, decay="cosine", end=end)
        assert schedule.learning_rate(100) == pytest.approx(3e-3)
        assert schedule.learning_rate(200) == pytest.approx((3e-3 + end) / 2)
        assert schedule.learning_rate(300) == pytest.approx(end, abs=1e-15)

    def test_staircase_is_bits_hyper_rule(self):
        rule = hyper_rule(50_000)
        schedule = Schedule(peak=0.003, total=rule.stop, warmup=rule.warmup, decay="staircase", boundaries=rule.decays)
        rates = {0: 0, 1: 6e-6, 250: 1.5e-3, 500: 3e-3, 3_000: 3e-3, 3_001: 3e-4, 6_000: 3e-4, 8_999: 3e-5, 9_001: 3e-6}
        for step, rate in rates.items():
            assert schedule.learning_rate(step) == pytest.approx(rate)

    def test_a_run_shorter_than_its_warm_up_gets_a_proposal(self):
        with pytest.raises(
            ValueError, match=r"the 500 total steps must be more than the 10,000 steps of warm-up; .* to 50"
        ):
            Schedule(peak=1e-3, total=500, warmup=10_000)

    def test_impossible_values_are_refused(self):
        for bad in ({"peak": -1.0}, {"end": 1.0}, {"warmup": -1}, {"boundaries": (5,)}, {"decay": "staircase"}):
            with pytest.raises(ValueError, match=r"peak|end|warmup|boundaries"):
                Schedule(**({"peak": 1e-3, "total": 100, "warmup": 10} | bad))


class TestLosses:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 7)) * 4
    hot = (rng.random((5, 7)) < 0.3).astype(float)

    @pytest.mark.parametrize("smoothing", [0.0, 1e-4, 0.1])
    def test_sigmoid_sums_over_classes(self, smoothing):
        y = np.where(self.hot == 1, 1 - smoothing, smoothing)
        p = 1 / (1 + np.exp(-self.logits))
        expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(axis=1)
        own = sigmoid_cross_entropy(
            torch.from_numpy(self.logits), torch.from_numpy(self.hot), label_smoothing=smoothing
        )
        np.testing.assert_allclose(own.numpy(), expected, rtol=1e-12)

    @pytest.mark.parametrize("weights", [None, np.arange(1.0, 8.0)])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_softmax(self, smoothing, weights):
        hot = np.eye(7)[[0, 3, 3, 6, 1]]
        y = hot * (1 - smoothing) + smoothing / 7
        logp = self.logits - np.log(np.exp(self.logits).sum(axis=1, keepdims=True))
        expected = -(y * logp * (1 if weights is None else weights)).sum(axis=1)
        given = None if weights is None else torch.from_numpy(weights)
        options = {"label_smoothing": smoothing, "class_weights": given}
        own = softmax_cross_entropy(torch.from_numpy(self.logits), torch.from_numpy(hot), **options)
        np.testing.assert_allclose(own.numpy(), expected, rtol=1e-12)
        if weights is None:
            theirs = nn.functional.cross_entropy(
                torch.from_numpy(self.logits), torch.from_numpy(hot), label_smoothing=smoothing, reduction="none"
            )
            np.testing.assert_allclose(own.numpy(), theirs.numpy(), rtol=1e-12)

    @pytest.mark.parametrize("loss", [sigmoid_cross_entropy, softmax_cross_entropy])
    def test_nothing_is_smoothed_unless_asked_for(self, loss):
        logits, hot = torch.from_numpy(self.logits), torch.eye(7, dtype=torch.float64)[:5]
        assert torch.equal(loss(logits, hot), loss(logits, hot, label_smoothing=0.0))
        assert not torch.equal(loss(logits, hot), loss(logits, hot, label_smoothing=0.01))

    def test_the_head_bias_of_minus_ten_makes_the_first_loss_small(self):
        logits = torch.full((1, 18_291), -10.0, dtype=torch.float64)
        one = torch.zeros(1, 18_291)
        one[0, 5] = 1
        assert sigmoid_cross_entropy(logits, one).item() == pytest.approx(
            10 + 18_291 * math.log1p(math.exp(-10)), rel=1e-5
        )


def test_the_average_keeps_9999_of_10000_parts_as_in_the_paper():
    average, module = nn.Linear(1, 1).double(), nn.Linear(1, 1).double()
    for one, value in ((average, 0.0), (module, 1.0)):
        nn.init.constant_(one.weight, value)
    update_average(average, module)
    assert average.weight.item() == pytest.approx(1e-4, rel=1e-9)


class TestGroups:
    @pytest.fixture
    def model(self):
        return build_from_spec(ViTSpec(patch=4, layers=3, width=8, mlp=8, heads=2, image=(8, 8), classes=3))

    def decayed(self, model, how):
        optimizer = make_optimizer(model, how)
        names = {id(p): n for n, p in model.named_parameters()}
        return {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}

    @pytest.mark.parametrize("how", [SGD(), AdamW()])
    def test_without_a_rate_nothing_is_learnt(self, model, how):
        """A schedule gives the rate of every step; torch's default would be one of its own."""
        assert {group["lr"] for group in make_optimizer(model, how).param_groups} == {0.0}

    def test_adamw_is_one_pass_over_memory_on_a_cpu_only(self, model):
        assert make_optimizer(model, AdamW()).defaults["fused"] is True
        assert not make_optimizer(model.to("meta"), AdamW()).defaults["fused"]

    def test_the_paper_decays_everything(self, model):
        assert self.decayed(model, AdamW()) == {name for name, _ in model.named_parameters()}

    def test_kernels_are_matrices_without_tokens_and_positions(self, model):
        names = self.decayed(model, AdamW(decay="kernels"))
        assert "patches.weight" in names
        assert "blocks.0.attention.qkv.weight" in names
        assert not any(n.endswith("bias") or "norm" in n or "token" in n or "positions" in n for n in names)

    def test_layer_decay_slows_early_layers(self, model):
        optimizer = make_optimizer(model, SGD(), layer_decay=0.5)
        set_learning_rate(optimizer, 0.8)
        names = {id(p): n for n, p in model.named_parameters()}
        rates = {names[id(p)]: g["lr"] for g in optimizer.param_groups for p in g["params"]}
        assert rates["head.logits.weight"] == pytest.approx(0.8)
        assert rates["blocks.2.mlp.dense1.weight"] == pytest.approx(0.4)
        assert rates["blocks.0.mlp.dense1.weight"] == pytest.approx(0.1)
        assert rates["patches.weight"] == rates["class_token"] == pytest.approx(0.05)

    def test_layer_decay_counts_the_layers_of_all_stages(self):
        model = build_from_spec(FAMILIES["Swin"])
        optimizer = make_optimizer(model, SGD(), layer_decay=0.5)
        names = {id(p): n for n, p in model.named_parameters()}
        scales = {names[id(p)]: g["scale"] for g in optimizer.param_groups for p in g["params"]}
        assert scales["head.logits.weight"] == scales["norm.bias"] == 1
        assert scales["stages.1.blocks.1.attention.table"] == 1 / 2
        assert scales["stages.1.blocks.0.norm1.weight"] == scales["stages.1.merging.dense.weight"] == 1 / 4
        assert scales["stages.0.blocks.0.mlp.dense1.weight"] == 1 / 16
        assert scales["patches.weight"] == scales["patch_norm.bias"] == 1 / 32

    def test_frozen_parts_stay_and_nothing_to_train_is_an_error(self, model):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        with pytest.raises(ValueError, match="all parameters are frozen"):
            make_optimizer(model, SGD())
        model.head.requires_grad_(True)
        assert len([p for g in make_optimizer(model, SGD()).param_groups for p in g["params"]]) == 4


def test_momentum_in_bf16_is_rounded_between_steps_only():
    """As in the released code: the update is that of full precision, what is kept of it has 8 bits."""
    how = SGD(momentum_precision="bf16", weight_decay=0.01, clip=None)
    module = Tiny().float()
    optimizer = make_optimizer(module, how)
    values, kept = module.weight.detach().clone(), None
    for step in range(STEPS):
        module.weight.grad = torch.from_numpy(gradients(step, values.numpy(), np.zeros(4))[0]).float()
        change = module.weight.grad + 0.01 * values
        change = change if kept is None else change + 0.9 * kept.float()
        kept = change.bfloat16()
        values = values - SCHEDULE.learning_rate(step) * change
        set_learning_rate(optimizer, SCHEDULE.learning_rate(step))
        optimizer.step()
    assert (module.weight - values).abs().max() <= 5e-6 * values.abs().max()
    assert optimizer.state[module.weight]["momentum_buffer"].dtype == torch.bfloat16
    again = make_optimizer(module, how)
    again.load_state_dict(optimizer.state_dict())
    buffers = [of.state[module.weight]["momentum_buffer"] for of in (optimizer, again)]
    assert buffers[1].dtype == torch.bfloat16
    assert torch.equal(*buffers)
    plain = make_optimizer(module, SGD(weight_decay=0.01))
    assert type(plain) is torch.optim.SGD
