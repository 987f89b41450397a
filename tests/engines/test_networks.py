"""A model prepared for inference computes what the model computes, with less work."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.flop_counter import FlopCounterMode

from agreement import disagreement, randomised
from families import FAMILIES, images
from vitlab.engines.networks import Dense, LeanViT, is_untouched, prepared
from vitlab.models.build import build_from_spec
from vitlab.models.vit import make_lean
from vitlab.spec import Conventions, ViTSpec


@pytest.fixture(params=FAMILIES)
def model(request):
    return randomised(build_from_spec(FAMILIES[request.param])).eval()


@pytest.mark.parametrize("pack", [False, True])
def test_every_family_gives_the_same_features_and_logits(model, pack):
    with torch.inference_mode():
        for batch in (1, 3):
            features, logits = prepared(model, pack=pack)(images(batch))
            assert disagreement(logits, model(images(batch))) <= 2e-6
            assert disagreement(features, model.features(images(batch))) <= 2e-6


def test_every_family_agrees_in_double_precision(model):
    model, given = model.double(), images(3).double()
    with torch.inference_mode():
        features, logits = prepared(model, pack=True)(given)
        assert disagreement(logits, model(given)) <= 1e-12
        assert disagreement(features, model.features(given)) <= 1e-12


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_a_large_image_agrees_although_its_mlps_are_computed_in_parts(gelu):
    how = Conventions(gelu=gelu)
    spec = ViTSpec(2, 2, 24, 48, 3, (64, 62), 4, conventions=how, pool="mean", attention="window:4")
    model = randomised(build_from_spec(spec)).eval()
    given = torch.randn(2, 3, 64, 62, generator=torch.Generator().manual_seed(0))
    assert 2 * spec.tokens > 3 * Dense.rows
    with torch.inference_mode():
        features, logits = prepared(model)(given)
        assert disagreement(logits, model(given)) <= 2e-6
        assert disagreement(features, model.features(given)) <= 2e-6


def test_preparing_changes_nothing_in_the_model_and_copies_no_dense_weight(model):
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = [name for name, _ in model.named_modules()]
    network = prepared(model)
    assert model.training
    assert [name for name, _ in model.named_modules()] == names
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    shared = {weight.data_ptr() for weight in model.parameters()}
    assert model.head.logits.weight.data_ptr() in {weight.data_ptr() for weight in network.parameters()} <= shared
    for block in network.blocks if isinstance(network, LeanViT) else ():
        own = [*block.projections, block.out, block.dense1, block.dense2]
        assert {dense.weight.untyped_storage().data_ptr() for dense in own} <= shared


def macs(function):
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.nn.attention.sdpa_kernel([]):
        function()
    return counter.get_total_flops() // 2


def test_the_last_layer_computes_only_the_tokens_that_are_read():
    spec = ViTSpec(patch=8, layers=3, width=24, mlp=48, heads=3, image=(32, 40), classes=4, head="linear")
    with torch.device("meta"):
        model = build_from_spec(spec)
        given = torch.empty(1, 3, 32, 40)
    n, width, mlp = spec.tokens, spec.width, spec.mlp
    skipped = (n - 1) * (2 * width**2 + 2 * n * width + 2 * width * mlp)  # q, out, both products of attention, MLP
    assert macs(lambda: model(given)) - macs(lambda: prepared(model)(given)) == skipped


def test_mean_pooling_reads_every_token():
    spec = FAMILIES["mean pooling"]
    with torch.device("meta"):
        model = build_from_spec(spec)
        given = torch.empty(1, 3, 32, 40)
    assert macs(lambda: model(given)) == macs(lambda: prepared(model)(given))


def test_a_replaced_dense_layer_is_called():
    model = randomised(build_from_spec(FAMILIES["ViT"])).eval()
    assert isinstance(prepared(model), LeanViT)

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    doubled = Doubled(24, 24)
    doubled.load_state_dict(model.blocks[0].attention.out.state_dict())
    model.blocks[0].attention.out = doubled
    with torch.inference_mode():
        assert disagreement(prepared(model)(images(2))[1], model(images(2))) <= 2e-6


def test_a_new_model_of_every_family_is_untouched(model):
    assert is_untouched(model)
    model.extra, model.class_names = "a note", ("a", "b", "c", "d")
    make_lean(model)
    model.requires_grad_(False).double().train()
    model.reset_head(7)
    assert is_untouched(model)


def test_a_resized_or_merging_model_is_untouched():
    model = build_from_spec(FAMILIES["ViT"])
    model.resize(48)
    assert is_untouched(model)
    model.set_merge(2)
    assert is_untouched(model)


REPLACEMENTS = {
    "the final norm": lambda model: setattr(model, "norm", nn.Identity()),
    "a head of another kind": lambda model: setattr(model, "head", nn.Linear(24, 4)),
    "an added part": lambda model: model.blocks[0].add_module("adapter", nn.Linear(24, 24)),
    "a removed layer": lambda model: model.blocks.pop(-1),
    "another width": lambda model: setattr(model.blocks[0].mlp, "dense1", nn.Linear(24, 96)),
    "no bias": lambda model: setattr(model.blocks[0].mlp, "dense1", nn.Linear(24, 48, bias=False)),
    "a parameter": lambda model: setattr(model, "class_token", None),
    "a parametrized weight": lambda model: orthogonal(model.blocks[0].mlp.dense1),
    "a method": lambda model: setattr(model, "pooled", lambda images: images.new_zeros(len(images), 24)),
    "a method of a part": lambda model: setattr(model.blocks[0].attention, "_join_heads", lambda heads: heads),
    "the epsilon of a norm": lambda model: setattr(model.blocks[0].norm1, "eps", 0.5),
    "the approximation of a GELU": lambda model: setattr(model.blocks[0].mlp, "approximate", "none"),
    "the scale of an attention": lambda model: setattr(model.blocks[1].attention, "scale", 1.0),
    "a hook before": lambda model: model.norm.register_forward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("what", REPLACEMENTS)
def test_replaced_parts_and_methods_are_seen(what):
    model = build_from_spec(FAMILIES["ViT"])
    REPLACEMENTS[what](model)
    assert not is_untouched(model)


def test_hooks_and_replaced_methods_are_seen():
    model = build_from_spec(FAMILIES["ViT"])
    assert is_untouched(model)
    handle = model.blocks[1].register_forward_hook(lambda *_: None)
    assert not is_untouched(model)
    handle.remove()
    assert is_untouched(model)
    model.blocks[0].forward = model.blocks[0].forward
    assert not is_untouched(model)
    assert not is_untouched(torch.compile(build_from_spec(FAMILIES["ViT"]), backend="eager"))


def test_a_hook_on_all_modules_is_seen():
    model = build_from_spec(FAMILIES["ViT"])
    handle = register_module_forward_hook(lambda *_: None)
    assert not is_untouched(model)
    handle.remove()
    assert is_untouched(model)
