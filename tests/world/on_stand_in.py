"""Every model, and what a run does with it, on a device that is not the CPU. Run by `test_stand_in.py`."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from families import FAMILIES
from stand_in import CUDA, DEVICE, IndexByOperators, autocast, left_behind, on, placed
from vitlab.data.loading.batches import Batch, on_device
from vitlab.data.transforms.evaluation import normalised
from vitlab.inspection.rollout import look
from vitlab.models import resnet
from vitlab.models.build import empty_model
from vitlab.models.masked import empty_masked_model
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.runs.training.objective import BothLogits, Teacher
from vitlab.spec.recipe import SGD, AdamW, Distillation, Execution, Masking, Schedule
from vitlab.train.masking import PatchPrediction
from vitlab.train.objectives import distilled, supervised
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update, recompute_activations

SPEC = FAMILIES["ViT in training"]
HOW = SPEC.conventions.preprocessing
PRECISIONS = {"fp32": torch.float32, "bf16": torch.float32, "bf16 weights": torch.bfloat16}


def model_of(spec):
    return empty_model(spec).to_empty(device="cpu")


def masked_model(outputs=6):
    return empty_masked_model(FAMILIES["ViT"], outputs).to_empty(device="cpu")


ON_HOST = "BigBird"  # its table of blocks is made on the host and copied in every call
BUILT = {name: spec for name, spec in FAMILIES.items() if name != ON_HOST}
MODELS = {name: lambda spec=spec: model_of(spec) for name, spec in BUILT.items()} | {"masked": masked_model}


def inputs_of(model, device, dtype):
    images = torch.empty(2, 3, *model.spec.image, device=device, dtype=dtype)
    return (images, plan(device)) if hasattr(model, "mask_token") else (images,)


def plan(device, batch=2):
    return torch.zeros(batch, 2, 5, dtype=torch.long, device=device)


def called(model, device, precision):
    """The output of a model whose weights are on the device, and the operators that made it."""
    dtype = PRECISIONS[precision]
    with on(device) as check, torch.no_grad(), IndexByOperators():
        placed(model, device, dtype)
        inputs = inputs_of(model, device, dtype)
        before = len(check.operators)
        if precision == "bf16":
            with autocast(device):
                answer = model(*inputs)
        else:
            answer = model(*inputs)
        return answer, check.operators[before:], check.reads


# -- Models ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def kept_layout(monkeypatch):
    """Say whether GroupNorm on CUDA keeps the channels last: no by default. Fake tensors cannot be asked."""

    def say(is_kept):
        monkeypatch.setattr(resnet, "keeps_channels_last", lambda device: is_kept)

    say(False)
    return say


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_forward_and_backward_on_its_device(name, precision):
    model, dtype = MODELS[name]().train(), PRECISIONS[precision]
    with on(DEVICE) as check:
        placed(model, DEVICE, dtype)
        inputs = inputs_of(model, DEVICE, dtype)
        if precision == "bf16":
            with autocast(DEVICE):
                answer = model(*inputs)
        else:
            answer = model(*inputs)
        assert answer.dtype == (torch.float32 if precision == "fp32" else torch.bfloat16)
        answer.float().sum().backward()
        assert check.reads == 0  # nothing makes the CPU wait
    assert left_behind(model, DEVICE) == []
    assert {p.grad.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_on_cuda_without_gradients(name, precision):
    answer, _, reads = called(MODELS[name]().eval(), CUDA, precision)
    assert answer.device == CUDA
    assert answer.dtype == (torch.float32 if precision == "fp32" else torch.bfloat16)
    assert reads == 0


# Not those that merge: what measures the cosine of keys is cast differently.
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("merging")])
def test_autocast_of_the_stand_in_is_that_of_cuda(name):
    """Operator by operator: so what holds for gradients under the stand-in's autocast holds for CUDA's."""
    operators = [called(MODELS[name]().requires_grad_(False).eval(), device, "bf16")[1] for device in (DEVICE, CUDA)]
    assert operators[0] == operators[1]
    assert torch.bfloat16 in {dtype for _, *dtypes in operators[0] for dtype in dtypes}


@pytest.mark.parametrize("name", BUILT)
def test_features_are_made_on_the_device(name):
    model = model_of(FAMILIES[name]).eval()
    with on(DEVICE):
        features = placed(model, DEVICE).features(torch.empty(2, 3, *model.spec.image, device=DEVICE))
        probabilities = model.probabilities(torch.empty(2, 4, device=DEVICE))
    assert features.device == probabilities.device == DEVICE


@pytest.mark.parametrize("name", ["ViT", "mean pooling", "relative positions", "hybrid", "distilled DeiT"])
def test_attention_is_looked_at_on_the_device(name):
    model = model_of(FAMILIES[name])
    with on(DEVICE, host=True):  # distances of patches are computed once, on the CPU
        looked = look(placed(model, DEVICE), torch.empty(2, 3, *model.spec.image, device=DEVICE))
        assert {one.device for one in looked} == {DEVICE}


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("name", ["BiT", "BiT of big_vision", "hybrid"])
def test_convolutions_on_cuda_get_channels_last_where_norms_keep_them(name, is_kept, kept_layout):
    kept_layout(is_kept)
    layouts = []

    def look_at(module, inputs):
        layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    model = model_of(FAMILIES[name])
    root = model.patches.backbone.root if name == "hybrid" else model.root
    root.register_forward_pre_hook(look_at)
    called(model.eval(), CUDA, "fp32")
    assert layouts == [is_kept]
    called(model, DEVICE, "fp32")
    assert layouts == [is_kept, False]


# -- The check itself ------------------------------------------------------------------------------


class Forgetful(nn.Module):
    """A model that adds a constant, which is not a buffer and so stays on the CPU."""

    def __init__(self, model, constant):
        super().__init__()
        self.model, self.constant = model, constant
        self.spec = model.spec

    def forward(self, images):
        return self.model(images) + self.constant


@pytest.mark.parametrize("device", [DEVICE, CUDA])
@pytest.mark.parametrize("constant", [torch.zeros(4), torch.tensor(2.0)])
def test_a_tensor_left_on_the_cpu_is_found(constant, device):
    model = Forgetful(model_of(FAMILIES["ViT"]), constant).eval()
    with pytest.raises(AssertionError, match="on cpu; all must be on"):
        called(model, device, "fp32")


def test_a_parameter_left_on_the_cpu_is_found():
    model, forgotten = model_of(FAMILIES["BiT"]), nn.Parameter(torch.zeros(4))
    with on(DEVICE):
        placed(model, DEVICE).head.logits.bias = forgotten
        images = torch.empty(2, 3, *model.spec.image, device=DEVICE)
        with pytest.raises(AssertionError, match=r"\(4,\) on cpu"):
            model(images)
    assert left_behind(model, DEVICE) == ["head.logits.bias"]


def test_a_tensor_made_on_the_cpu_is_found_where_it_meets_the_device():
    with pytest.raises(AssertionError, match="all must be on standin:0"), on(DEVICE, host=True):
        torch.zeros(3) + torch.empty(3, device=DEVICE)


def test_a_value_that_is_read_is_counted():
    with on(DEVICE) as check:
        assert float(torch.empty((), device=DEVICE)) == 1
    assert check.reads == 1


# -- A step of training ----------------------------------------------------------------------------

BASE = replace(
    pretraining_recipe("ViT-B/16@imagenet"), batch=4, image=SPEC.image, schedule=Schedule(1e-3, 10, 1), average=0.9
)
RECIPES = {
    "sigmoid, AdamW": replace(BASE, optimizer=AdamW(clip=1.0)),
    "softmax, SGD": replace(BASE, loss="softmax", optimizer=SGD(), label_smoothing=0.1),
    "softmax, SGD with momentum in bf16": replace(BASE, loss="softmax", optimizer=SGD(momentum_precision="bf16")),
    "mixup": replace(BASE, loss="softmax", mixup=0.2),
    "cutmix in shards, rolled": replace(BASE, loss="softmax", cutmix=1.0, mixup=0.8, partners="rolled", shards=2),
}
EXECUTIONS = {
    "fp32": Execution(),
    "bf16": Execution(precision="bf16"),
    "micro-batches": Execution(micro_batch=3),
    "exact": Execution(exact_elastic=True),
}


def step_of(model, recipe, execution, objective=None, targets=None, teacher=None):
    """One update of a model on the device; returns its state and the check."""
    average = copy.deepcopy(model).requires_grad_(False)
    with on(DEVICE, host=True) as check:
        for module in (model.train(), average, teacher):
            if module is not None:
                placed(module, DEVICE)
        state = TrainState(model, make_optimizer(model, recipe.optimizer), average)
        update = Update(recipe, execution, seed=0, prepare=lambda pixels: normalised(pixels, HOW), objective=objective)
        pixels = torch.empty(4, 3, *model.spec.image, dtype=torch.uint8, device=DEVICE)
        targets = torch.empty(4, 4, device=DEVICE) if targets is None else targets(DEVICE)
        shards = {0: 2, 1: 2} if recipe.shards == 2 else {}
        forward = model if teacher is None else BothLogits(model)
        step = update(state, forward, Examples(pixels, targets, shards))
        assert not step.skipped
    return state, check


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_training_stays_on_the_device(recipe, execution):
    state, check = step_of(model_of(SPEC), RECIPES[recipe], EXECUTIONS[execution])
    assert left_behind(state.module, DEVICE) == left_behind(state.average, DEVICE) == []
    kept = state.groups()["optimizer"]
    assert {tensor.device for name, tensor in kept.items() if not name.startswith("step/")} == {DEVICE}
    assert check.reads <= 3  # the loss, the norm of the gradient, and whether to clip
    halved = {name for name, *dtypes in check.operators if torch.bfloat16 in dtypes}
    assert ("aten.mm.default" in halved or "aten.addmm.default" in halved) == (execution == "bf16")


@pytest.mark.parametrize("name", ["BiT", "hybrid", "Axial-ViT", "AxialResNet", "windows", "strided", "BigBird", "Swin"])
@pytest.mark.parametrize("execution", ["fp32", "bf16"])
def test_a_step_of_other_families_stays_on_the_device(name, execution):
    state, _ = step_of(model_of(FAMILIES[name]), RECIPES["sigmoid, AdamW"], EXECUTIONS[execution])
    assert left_behind(state.module, DEVICE) == []


@pytest.mark.parametrize("target", ["mean-colour", "colours-4x4", "pixels"])
@pytest.mark.parametrize("execution", ["fp32", "bf16"])
def test_a_step_of_masked_patches_stays_on_the_device(target, execution):
    masking = Masking(target, 0.25, 0.8, 0.1, 0.1)
    recipe = replace(BASE, loss="softmax", label_smoothing=0.0, masking=masking)
    predict = PatchPrediction(masking, 8, lambda pixels: normalised(pixels, HOW))
    model = masked_model(masking.outputs(8))
    state, _ = step_of(model, recipe, EXECUTIONS[execution], predict, targets=lambda device: plan(device, 4))
    assert left_behind(state.module, DEVICE) == []
    with on(DEVICE, host=True):
        predictions = torch.empty(2, 5, masking.outputs(8), device=DEVICE)
        pixels = torch.empty(2, 3, *model.spec.image, dtype=torch.uint8, device=DEVICE)
        assert predict.right(predictions, pixels, plan(DEVICE)).device == DEVICE
        assert predict.painted(predictions).device == DEVICE


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_step_with_a_teacher_stays_on_the_device(kind):
    teacher = Teacher(model_of(replace(FAMILIES["BiT"], image=(64, 64))), [1, 0, 2, 3])
    objective = distilled(Distillation(kind), supervised(BASE), teacher)
    state, _ = step_of(model_of(FAMILIES["distilled DeiT"]), BASE, Execution(), objective, teacher=teacher.model)
    assert left_behind(state.module, DEVICE) == []


def test_recomputed_activations_stay_on_the_device():
    model = model_of(FAMILIES["ViT"])
    recompute_activations(model)
    state, _ = step_of(model, BASE, Execution(recompute=True))
    assert left_behind(state.module, DEVICE) == []


# -- Data ------------------------------------------------------------------------------------------


def test_a_batch_arrives_on_the_device_with_its_targets():
    with on(DEVICE, host=True):
        pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        batch = Batch(pixels, ((0,), (2, 1)), ("a", "b"), (0, 1), (0, 0), (0, 1), (), plan("cpu"))
        (moved,) = on_device([batch], DEVICE)
        assert moved.pixels.device == moved.plans.device == moved.multi_hot(3).device == DEVICE
        assert normalised(moved.pixels, HOW).device == DEVICE
