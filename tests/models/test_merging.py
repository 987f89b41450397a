"""Token merging against a loop over single tokens, its gradients, its compiled form, and models that do not merge."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import vitlab
from agreement import disagreement, randomised
from vitlab.inspection.rollout import rollout
from vitlab.models.build import build_from_spec, copied_model
from vitlab.models.masked import build_masked_model
from vitlab.spec import CONVENTIONS, Backbone, ViTSpec
from vitlab.train.update import recompute_activations

SIZES = {"patch": 4, "layers": 4, "width": 24, "mlp": 40, "heads": 3, "image": (16, 24), "classes": 5, "merge": 3}
CASES = {
    "class token": {},
    "exact GELU": {"conventions": CONVENTIONS["timm"]},
    "mean pooling": {"pool": "mean"},
    "an odd number of patches": {"image": (12, 20)},
    "an odd number of patches, mean pooling": {"image": (12, 20), "pool": "mean", "merge": 2},
    "distilled": {"distilled": True, "head": "linear"},
    "distilled, an odd number of patches": {"distilled": True, "head": "linear", "image": (12, 20)},
    "hybrid": {"patch": 1, "backbone": Backbone((1, 1), 8), "image": (32, 40)},
    "no positions": {"positions": "none"},
    "2d positions": {"positions": "2d"},
    "half of the tokens": {"merge": 100},
    "down to one patch": {"merge": 100, "layers": 6, "image": (8, 12)},
}


def made(**changes):
    return randomised(build_from_spec(ViTSpec(**(SIZES | changes))), seed=2).double()


@pytest.fixture(params=CASES)
def model(request):
    return made(**CASES[request.param])


def images_for(model, batch=2):
    dtype = next(model.parameters()).dtype
    return torch.randn(batch, 3, *model.spec.image, dtype=dtype, generator=torch.Generator().manual_seed(1))


# -- The same in plain loops ---------------------------------------------------------------------


def norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x, kind):
    if kind == "exact":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def looped(model, z):
    """One sequence (n, D) -> merged tokens as dictionaries, and the attention (h, n, n) of each layer over patches."""
    spec, size = model.spec, model.spec.width // model.spec.heads
    w = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    tokens = [{"z": vector, "members": [place]} for place, vector in enumerate(z)]
    maps = []
    for layer in range(spec.layers):
        at = f"blocks.{layer}"
        u = norm(np.array([t["z"] for t in tokens]), w, f"{at}.norm1")
        q, k, v = np.split(u @ w[f"{at}.attention.qkv.weight"].T + w[f"{at}.attention.qkv.bias"], 3, axis=1)
        results, attention = np.zeros_like(u), np.zeros((spec.heads, spec.tokens, spec.tokens))
        for head in range(spec.heads):
            own = slice(head * size, (head + 1) * size)
            for i, one in enumerate(tokens):
                seen = [
                    math.exp(q[i, own] @ k[j, own] / math.sqrt(size)) * len(other["members"])
                    for j, other in enumerate(tokens)
                ]
                for j, other in enumerate(tokens):
                    results[i, own] += seen[j] / sum(seen) * v[j, own]
                    for query in one["members"]:
                        for key in other["members"]:
                            attention[head, query, key] = seen[j] / sum(seen) / len(other["members"])
        maps.append(attention)
        results = results @ w[f"{at}.attention.out.weight"].T + w[f"{at}.attention.out.bias"]
        for i, one in enumerate(tokens):
            one["z"] = one["z"] + results[i]
            one["key"] = sum(k[i, head * size : (head + 1) * size] for head in range(spec.heads)) / spec.heads
        tokens = with_pairs_merged(tokens, spec.merge, spec.prefix)
        for one in tokens:
            hidden = w[f"{at}.mlp.dense1.weight"] @ norm(one["z"], w, f"{at}.norm2") + w[f"{at}.mlp.dense1.bias"]
            hidden = gelu(hidden, spec.conventions.gelu)
            one["z"] = one["z"] + w[f"{at}.mlp.dense2.weight"] @ hidden + w[f"{at}.mlp.dense2.bias"]
    return tokens, maps


def with_pairs_merged(tokens, merge, prefix):
    """Link each token of A to its most similar one of B, one by one, and merge the strongest links."""

    def likeness(a, b):
        return a["key"] @ b["key"] / np.linalg.norm(a["key"]) / np.linalg.norm(b["key"])

    set_a = [t for place, t in enumerate(tokens) if place >= prefix and place % 2 == 0]
    set_b = [t for place, t in enumerate(tokens) if place >= prefix and place % 2 == 1]
    links = [(max((likeness(a, b), number) for number, b in enumerate(set_b)), a) for a in set_a if set_b]
    links.sort(key=lambda link: -link[0][0])
    gone = []
    for (_, number), a in links[: min(merge, (len(tokens) - prefix) // 2)]:
        b = set_b[number]
        b.setdefault("parts", [b.copy()]).append(a)
        gone.append(id(a))
    for b in set_b:
        if parts := b.pop("parts", None):
            counts = [len(part["members"]) for part in parts]
            b["z"] = sum(n * part["z"] for n, part in zip(counts, parts, strict=True)) / sum(counts)
            b["members"] = [member for part in parts for member in part["members"]]
    return [t for t in tokens if id(t) not in gone]


def looped_features(model, tokens):
    """The merged tokens -> (D,), or (2, D) of a distilled model."""
    spec, w = model.spec, {name: value.detach().numpy() for name, value in model.state_dict().items()}
    normed = [norm(t["z"], w, "norm") for t in tokens]
    if spec.distilled:
        return np.array(normed[:2])
    if spec.pool == "class":
        return normed[0]
    return sum(len(t["members"]) * y for t, y in zip(tokens, normed, strict=True)) / spec.tokens


@torch.no_grad()
def test_results_and_groups_equal_a_loop_over_single_tokens(model):
    spec, images = model.spec, images_for(model)
    pooled, groups = model.pooled(images), model.groups(images).flatten(1)
    for number, z in enumerate(model.tokens(images).numpy()):
        tokens, _ = looped(model, z)
        assert len(tokens) == spec.layer_tokens[-1]
        expected = [
            next(place for place, t in enumerate(tokens) if patch in t["members"]) for patch in range(spec.tokens)
        ]
        assert groups[number].tolist() == expected[spec.prefix :]
        assert expected[: spec.prefix] == list(range(spec.prefix))
        assert disagreement(pooled[number], torch.from_numpy(looped_features(model, tokens))) <= 1e-12


@torch.no_grad()
def test_attention_between_patches_equals_the_loop_and_gives_its_rollout(model):
    spec, images = model.spec, images_for(model)
    layers = list(model.layer_attention(images))
    seen = rollout(model, images)
    for number, z in enumerate(model.tokens(images).numpy()):
        _, maps = looped(model, z)
        joint = np.eye(spec.tokens)
        for found, expected in zip(layers, maps, strict=True):
            assert disagreement(found[number], torch.from_numpy(expected)) <= 1e-12
            np.testing.assert_allclose(found[number].sum(-1), 1, rtol=1e-12)
            joint = (expected.mean(0) + np.eye(spec.tokens)) / 2 @ joint
        row = joint[0, spec.prefix :] if spec.pool == "class" else joint.mean(axis=0)
        np.testing.assert_allclose(seen[number].flatten(), row, rtol=1e-10)


@torch.no_grad()
def test_the_explain_path_equals_the_fused_one_in_every_layer(model):
    images = images_for(model)
    explained = model.each_layer(model.tokens(images), explain=True)
    for fused, (output, _) in zip(model.layer_features(images), explained, strict=False):
        assert fused.shape == (2, model.spec.tokens, model.spec.width)
        assert disagreement(output, fused) <= 1e-12


# -- Models that do not merge --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:. of 12 layers can merge 8 tokens")
@pytest.mark.parametrize("name", ["ViT-Ti/16", "DeiT-Ti/16-distilled", "R+ViT-Ti/16"])
def test_merging_nothing_is_bit_identical_and_has_the_same_weights(name):
    plain, merging = (vitlab.build_model(name, image=64, seed=3, merge=merge) for merge in (0, 8))
    images = images_for(plain)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), merging.parameters(), strict=True))
    assert list(plain.state_dict()) == list(merging.state_dict())
    before = plain.features(images)
    assert not torch.equal(merging.features(images), before)
    merging.set_merge(0)
    assert merging.spec == plain.spec
    assert torch.equal(merging.features(images), before)
    plain.set_merge(8)
    merging.set_merge(8)
    assert torch.equal(merging.features(images), plain.features(images))
    assert [type(block) for block in merging.layers] == [type(block) for block in plain.layers]


@torch.no_grad()
def test_identical_patches_lose_nothing_by_being_merged():
    model = made(positions="none", merge=0)
    images = torch.ones_like(images_for(model))
    before = model(images)
    model.set_merge(3)
    assert disagreement(model(images), before) <= 1e-12


def test_a_merging_model_copies_the_weights_of_a_plain_one():
    plain = made(merge=0).float()
    copied = copied_model(replace(plain.spec, merge=3), plain)
    plain.set_merge(3)
    assert torch.equal(copied.eval()(images_for(plain)), plain(images_for(plain)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"merge": -1}, "merge is -1; give the number of tokens"),
        ({"merge": 2.5}, "merge is 2.5; expected a whole number"),
        ({"attention": "axial", "pool": "mean", "positions": "2d"}, "axial attention .* merge must be 0"),
        ({"positions": "relative"}, "relative positions .* merge must be 0"),
        ({"positions_at": "shared"}, "positions at 'shared' .* merge must be 0"),
    ],
)
def test_what_cannot_be_merged_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        ViTSpec(**(SIZES | changes))


def test_families_without_tokens_and_masked_models_are_refused():
    with pytest.raises(ValueError, match="R50x1 is a ResNet with a linear head; it has no merge"):
        vitlab.build_model("R50x1", merge=8)
    with torch.device("meta"):
        resnet = vitlab.build_model("R50x1")
    resnet.set_merge(0)
    with pytest.raises(ValueError, match="merge 8 is for Vision Transformers and hybrids"):
        resnet.set_merge(8)
    with pytest.raises(ValueError, match="masked patches are predicted one by one; merge must be 0, not 3"):
        build_masked_model(ViTSpec(**SIZES), 6)
    with pytest.raises(ValueError, match=r"merges no tokens; model.set_merge\(8\)"):
        made(merge=0).groups(images_for(made(merge=0)))


def test_the_lengths_of_the_sequence_shrink_by_at_most_half_of_the_patches():
    spec = ViTSpec(**(SIZES | {"merge": 8, "layers": 6}))
    assert spec.layer_tokens == (25, 17, 9, 5, 3, 2, 2)
    assert replace(spec, merge=0).layer_tokens == (25,) * 7
    assert all(after >= before - 8 for before, after in pairwise(spec.layer_tokens))


# -- Training and torch's own tools --------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_gradients_equal_finite_differences(pool):
    spec = ViTSpec(patch=2, layers=2, width=4, mlp=6, heads=2, image=(4, 6), classes=3, pool=pool, merge=2)
    model = randomised(build_from_spec(spec), seed=4).double()
    images = images_for(model, batch=1).requires_grad_()
    names = [key for key, _ in model.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (images, *model.parameters()), atol=1e-6)


def test_recomputed_activations_give_the_same_gradients():
    gradients = []
    for is_recomputed in (False, True):
        model = made(dropout=0.1, stochastic_depth=0.2).train()
        if is_recomputed:
            recompute_activations(model)
        torch.manual_seed(5)
        model(images_for(model)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_half_precision_and_autocast_run_forward_and_backward(pool):
    model = made(pool=pool).to(torch.bfloat16)
    expected = made(pool=pool)
    images = images_for(expected)
    assert disagreement(model(images.bfloat16()).double(), expected(images)) <= 0.1
    with torch.autocast("cpu", torch.bfloat16):
        loss = expected.float()(images.float()).square().sum()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in expected.parameters())


@pytest.mark.slow
def test_a_merging_model_compiles_as_one_graph():
    model = made(merge=2, layers=2).float()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for batch in (2, 3):
        images = images_for(model, batch)
        assert disagreement(compiled(images), model(images)) <= 1e-6
