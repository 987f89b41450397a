"""Distillation's losses equal a derivation in NumPy, and the two heads get the two losses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitlab.models.build import build_from_spec
from vitlab.runs.training.objective import BothLogits
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import SGD, Distillation, Execution, Recipe, Schedule
from vitlab.train.objectives import Piece, distilled, hard_loss, soft_loss, supervised
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

RNG = np.random.default_rng(0)
STUDENT, TEACHER = (RNG.normal(size=(6, 5)) * 3 for _ in range(2))
LABELS = np.eye(5)[RNG.integers(0, 5, 6)]
RECIPE = Recipe(
    name="distilled",
    source="tests",
    batch=32,
    image=(8, 8),
    schedule=Schedule(peak=0.05, total=10, warmup=0, decay="constant"),
    optimizer=SGD(clip=None),
    label_smoothing=0.1,
)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_the_hard_loss_is_cross_entropy_with_the_teachers_best_class():
    expected = [-np.log(softmax(s)[t.argmax()]) for s, t in zip(STUDENT, TEACHER, strict=True)]
    np.testing.assert_allclose(hard_loss(*map(torch.from_numpy, (STUDENT, TEACHER))), expected, rtol=1e-10)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_soft_loss_is_the_divergence_of_softened_answers(temperature):
    expected = []
    for s, t in zip(STUDENT, TEACHER, strict=True):
        p, q = softmax(t / temperature), softmax(s / temperature)
        expected.append(temperature**2 * sum(p[k] * (np.log(p[k]) - np.log(q[k])) for k in range(5)))
    found = soft_loss(*map(torch.from_numpy, (STUDENT, TEACHER)), temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    same = torch.from_numpy(TEACHER)
    np.testing.assert_allclose(soft_loss(same, same, temperature), np.zeros(6), atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("how", "weight"),
    [
        (Distillation(), 0.5),
        (Distillation("hard", 0.3), 0.3),
        (Distillation("soft"), 0.1),
        (Distillation("soft", 0.4, 2.0), 0.4),
        (Distillation("soft", 0.0), 0.0),
    ],
)
def test_the_whole_loss_weighs_labels_and_teacher(how, weight, heads):
    other = RNG.normal(size=(6, 5))
    answer = torch.from_numpy(STUDENT if heads == 1 else np.stack([STUDENT, other], axis=1))
    taught = STUDENT if heads == 1 else other
    smooth = LABELS * 0.9 + 0.1 / 5
    labels = -(smooth * np.log(softmax(STUDENT))).sum(axis=1)
    if how.kind == "hard":
        copied = np.array([-np.log(softmax(s)[t.argmax()]) for s, t in zip(taught, TEACHER, strict=True)])
    else:
        p, q = softmax(TEACHER / how.temperature), softmax(taught / how.temperature)
        copied = how.temperature**2 * (p * np.log(p / q)).sum(axis=1)
    pixels = torch.arange(6.0)
    piece = Piece(pixels, pixels + 1, torch.from_numpy(LABELS))
    seen = []

    def call(inputs):
        seen.append(("student", inputs))
        return answer

    def teacher(given):
        seen.append(("teacher", given))
        return torch.from_numpy(TEACHER)

    found = distilled(how, supervised(RECIPE), teacher)(call, piece)
    np.testing.assert_allclose(found, (1 - weight) * labels + weight * copied, rtol=1e-10)
    assert [who for who, _ in seen] == ["student", "teacher"]
    assert torch.equal(seen[0][1], piece.inputs)
    assert torch.equal(seen[1][1], piece.pixels)  # as loaded: the teacher prepares them itself


SPEC = ViTSpec(patch=4, layers=2, width=16, mlp=32, heads=2, image=(8, 8), classes=5, head="linear", distilled=True)


def step(weight, micro=0, options=None):
    """One update of a distilled model in float64, from pictures that are mixed; the model, and the report."""
    module = build_from_spec(SPEC, seed=3).double()
    for head in (module.head.logits, module.head.distillation):
        torch.nn.init.normal_(head.weight, std=0.3, generator=torch.Generator().manual_seed(1))
    teacher = build_from_spec(replace(SPEC, distilled=False), seed=9).double()
    torch.nn.init.normal_(teacher.head.logits.weight, std=1.0, generator=torch.Generator().manual_seed(2))
    recipe = replace(RECIPE, **(options or {}))
    objective = distilled(Distillation("hard", weight), supervised(recipe), teacher)
    update = Update(recipe, Execution(micro_batch=micro), seed=1, prepare=lambda x: x, objective=objective)
    rng = np.random.default_rng(7)
    inputs = torch.from_numpy(rng.normal(size=(32, 3, 8, 8)))
    targets = torch.from_numpy(np.eye(5)[rng.integers(0, 5, 32)])
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    report = update(
        TrainState(module, make_optimizer(module, recipe.optimizer)), BothLogits(module), Examples(inputs, targets)
    )
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert all(p.grad is None for p in teacher.parameters())
    return module, report, moved


def test_each_head_learns_from_its_own_loss_alone():
    _, _, moved = step(0.0)
    assert "head.logits.weight" in moved
    assert "head.distillation.weight" not in moved
    _, _, moved = step(1.0)
    assert "head.logits.weight" not in moved
    assert "head.distillation.weight" in moved


@pytest.mark.parametrize("options", [{}, {"mixup": 0.8, "cutmix": 1.0}])
@pytest.mark.parametrize("micro", [8, 4, 5])
def test_a_distilled_batch_in_pieces_is_the_same_batch(micro, options):
    whole, report, _ = step(0.5, options=options)
    pieces, again, _ = step(0.5, micro, options)
    assert again.loss == pytest.approx(report.loss, rel=1e-12)
    for one, other in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


def test_impossible_distillations_say_what_is_allowed():
    with pytest.raises(ValueError, match=r"weight 1.5 is outside \[0, 1\]"):
        Distillation(weight=1.5)
    with pytest.raises(ValueError, match=r"temperature 0.0 is outside"):
        Distillation(temperature=0.0)
