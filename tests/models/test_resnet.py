"""BiT's ResNet-v2, the hybrids' ResNet-v1 and DeiT's second head against plain NumPy, and what they start from."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab import build_model
from vitlab.models.build import build_from_spec
from vitlab.models.resnet import PostUnit, PreUnit, ResNetV1, StandardConv, group_norm, same_padding
from vitlab.models.vit import HybridEmbedding
from vitlab.spec import (
    BIT,
    CONVENTIONS,
    HYBRID,
    AxialResNetSpec,
    Backbone,
    Conventions,
    Convolutions,
    ResNetSpec,
    ViTSpec,
)

SMALL = ResNetSpec((1, 2), root=8, image=(17, 22), classes=3)


def standardised(weight, how):
    out = np.empty_like(weight)
    for channel, kernel in enumerate(weight):
        centred = kernel - kernel.mean()
        if how.epsilon_joins == "variance":
            out[channel] = centred / np.sqrt((centred**2).mean() + how.epsilon)
        else:
            out[channel] = centred / (np.sqrt((centred**2).mean()) + how.epsilon)
    return out


def conv(layer, x, *, same, stride=1):
    """(C, H, W) -> (C', H', W'), one result at a time."""
    weight = standardised(layer.weight.detach().numpy(), layer.how)
    kernel = weight.shape[-1]
    sizes = [-(-side // stride) for side in x.shape[1:]]
    totals = [max((n - 1) * stride + kernel - side, 0) for n, side in zip(sizes, x.shape[1:], strict=True)]
    before = [total // 2 if same else (kernel - 1) // 2 for total in totals]
    padded = np.pad(x, ((0, 0), *((b, kernel) for b in before)))
    out = np.zeros((len(weight), *sizes))
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            window = padded[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            out[:, i, j] = (weight * window).sum(axis=(1, 2, 3))
    return out


def norm(layer, x):
    out = np.empty_like(x)
    size = len(x) // layer.num_groups
    for group in range(layer.num_groups):
        part = x[group * size : (group + 1) * size]
        out[group * size : (group + 1) * size] = (part - part.mean()) / np.sqrt(part.var() + layer.eps)
    return out * layer.weight.detach().numpy()[:, None, None] + layer.bias.detach().numpy()[:, None, None]


def relu(x):
    return np.maximum(x, 0)


def pooled(x, before, value):
    """3x3 max-pooling with stride 2 and `value` around the map."""
    sizes = [-(-side // 2) for side in x.shape[1:]]
    padded = np.pad(x, ((0, 0), *((b, 3) for b in before)), constant_values=value)
    out = np.empty((len(x), *sizes))
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            out[:, i, j] = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max(axis=(1, 2))
    return out


def pre_unit(unit, x):
    a = relu(norm(unit.norm1, x))
    stride = unit.conv2.stride
    m = relu(norm(unit.norm2, conv(unit.conv1, a, same=False)))
    m = relu(norm(unit.norm3, conv(unit.conv2, m, same=False, stride=stride)))
    shortcut = x if unit.shortcut is None else conv(unit.shortcut, a, same=False, stride=stride)
    return conv(unit.conv3, m, same=False) + shortcut


def post_unit(unit, x):
    stride = unit.conv2.stride
    m = relu(norm(unit.norm1, conv(unit.conv1, x, same=True)))
    m = relu(norm(unit.norm2, conv(unit.conv2, m, same=True, stride=stride)))
    m = norm(unit.norm3, conv(unit.conv3, m, same=True))
    if unit.shortcut is not None:
        x = norm(unit.shortcut_norm, conv(unit.shortcut, x, same=True, stride=stride))
    return relu(x + m)


@pytest.mark.parametrize("padding", ["zero", "infinite"])
def test_a_bit_resnet_equals_plain_numpy(padding):
    conventions = Conventions(bit=replace(BIT, pool_padding=padding))
    model = randomised(build_from_spec(replace(SMALL, conventions=conventions))).double()
    images = torch.randn(2, 3, 17, 22, dtype=torch.float64)
    with torch.no_grad():
        logits, features = model(images), model.features(images)
    for image, own, feature in zip(images, logits, features, strict=True):
        x = conv(model.root, image.numpy(), same=False, stride=2)
        x = pooled(x, (1, 1), 0.0 if padding == "zero" else -np.inf)
        for stage in model.stages:
            for unit in stage:
                x = pre_unit(unit, x)
        y = relu(norm(model.norm, x)).mean(axis=(1, 2))
        expected = model.head.logits.weight.detach().numpy() @ y + model.head.logits.bias.detach().numpy()
        assert disagreement(feature, torch.from_numpy(y)) <= 1e-11
        assert disagreement(own, torch.from_numpy(expected)) <= 1e-11


@pytest.mark.parametrize("size", [(16, 24), (15, 22)])
def test_the_resnet_of_hybrids_equals_plain_numpy_with_padding_as_in_tensorflow(size):
    backbone = randomised(ResNetV1(Backbone((1, 2), root=8), HYBRID)).double()
    images = torch.randn(1, 3, *size, dtype=torch.float64)
    x = relu(norm(backbone.root_norm, conv(backbone.root, images[0].numpy(), same=True, stride=2)))
    x = pooled(x, [same_padding(side, 3, 2)[0] for side in x.shape[1:]], -np.inf)
    for stage in backbone.stages:
        for unit in stage:
            x = post_unit(unit, x)
    with torch.no_grad():
        assert disagreement(backbone(images)[0], torch.from_numpy(x)) <= 1e-11


@pytest.mark.parametrize("patch", [1, 2])
def test_a_hybrid_embeds_patches_of_the_feature_map_in_raster_order(patch):
    embedding = randomised(HybridEmbedding(Backbone((1,), root=4), patch, 6, HYBRID)).double()
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    with torch.no_grad():
        feature_map = embedding.backbone(images)  # (2, 16, 4, 6)
        tokens = embedding(images)
        expected = torch.nn.functional.conv2d(feature_map, embedding.weight, embedding.bias, stride=patch)
    assert tokens.shape == (2, 24 // patch**2, 6)
    assert disagreement(tokens, expected.flatten(2).mT) <= 1e-12


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [(224, 7, 2, (2, 3)), (112, 3, 2, (0, 1)), (113, 3, 2, (1, 1)), (56, 3, 1, (1, 1)), (56, 1, 2, (0, 0))],
)
def test_same_padding_is_tensorflows(size, kernel, stride, padding):
    assert same_padding(size, kernel, stride) == padding


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (32, 32), (16, 16), (48, 16), (20, 4), (7, 1)])
def test_groups_divide_the_channels(channels, groups):
    assert group_norm(channels, 1e-5).num_groups == groups


def test_what_surrounds_the_root_pooling_matters():
    model = randomised(build_model("R14x0.25", image=32, classes=3))
    other = replace(model.spec, conventions=Conventions(bit=replace(BIT, pool_padding="infinite")))
    twin = build_from_spec(other)
    twin.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert disagreement(twin.eval()(images), model(images)) > 1e-3


def test_timms_epsilons_are_those_of_its_conventions():
    assert CONVENTIONS["timm"].bit == Convolutions(1e-8, "variance", 1e-5, "zero")
    assert (CONVENTIONS["paper"].bit.epsilon, CONVENTIONS["paper"].bit.norm_eps) == (1e-10, 1e-5)
    assert CONVENTIONS["paper"].hybrid == Convolutions(1e-5, "deviation", 1e-6)


GRADIENTS = {
    "convolution": (lambda: StandardConv(2, 3, 3, how=BIT, stride=2), (1, 2, 5, 4)),
    "convolution of a hybrid": (lambda: StandardConv(2, 3, 3, how=HYBRID, stride=2, same=True), (1, 2, 5, 4)),
    "unit of BiT": (lambda: PreUnit(4, 2, stride=2, how=BIT), (1, 4, 4, 4)),
    "unit of a hybrid": (lambda: PostUnit(4, 2, stride=2, how=HYBRID), (1, 4, 4, 4)),
    "hybrid embedding": (lambda: HybridEmbedding(Backbone((), root=2), 1, 3, HYBRID), (1, 3, 8, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_finite_differences(name):
    make, shape = GRADIENTS[name]
    module = randomised(make()).double()
    names = [key for key, _ in module.named_parameters()]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))

    def run(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *module.parameters()), atol=1e-6)


class TestInitialValues:
    def test_a_fresh_bit_has_lecun_convolutions_identity_norms_and_a_zero_head(self):
        model = build_model("R26x0.5", image=64, head_bias=-10.0)
        weight = model.stages[2][1].conv2.weight
        assert weight.std().item() == pytest.approx((1 / weight[0].numel()) ** 0.5, rel=0.02)
        assert torch.equal(model.norm.weight, torch.ones(1024))
        assert not model.head.logits.weight.any()
        assert torch.equal(model.head.logits.bias, torch.full((1000,), -10.0))

    def test_a_fresh_unit_of_a_hybrid_is_its_shortcut(self):
        model = build_from_spec(ViTSpec(1, 1, 12, 8, 3, (32, 32), 5, backbone=Backbone((2, 2), root=8)))
        for stage in model.patches.backbone.stages:
            for unit in stage:
                assert not unit.norm3.weight.any()

    def test_the_distillation_token_is_a_truncated_normal(self):
        token = build_model("DeiT-S/16-distilled", image=32).distillation_token
        assert token.std().item() == pytest.approx(0.02, rel=0.15)


class TestHeadsAndSizes:
    def test_fine_tuning_at_another_resolution_keeps_the_weights(self):
        model = randomised(build_from_spec(SMALL))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.resize((40, 33))
        assert model(torch.randn(2, 3, 40, 33)).shape == (2, 3)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    def test_reset_head_and_features(self):
        model = randomised(build_from_spec(SMALL))
        images = torch.randn(2, 3, 17, 22)
        features = model.features(images)
        assert features.shape == (2, 64)
        model.reset_head(7)
        assert torch.equal(model(images), torch.zeros(2, 7))
        assert torch.equal(model.features(images), features)
        with pytest.raises(ValueError, match="linear"):
            model.reset_head(7, "mlp")

    def test_a_bit_has_no_attention_and_says_so(self):
        with pytest.raises(ValueError, match="no attention between patches"):
            build_from_spec(SMALL).layer_attention(torch.randn(1, 3, 17, 22))

    def test_a_hybrid_shows_the_attention_of_its_transformer(self):
        spec = ViTSpec(1, 2, 12, 20, 3, (32, 48), 5, backbone=Backbone((1, 1), root=8))
        model = randomised(build_from_spec(spec))
        shapes = [tuple(a.shape) for a in model.layer_attention(torch.randn(2, 3, 32, 48))]
        assert shapes == [(2, 3, 4 * 6 + 1, 4 * 6 + 1)] * 2
        model.resize((48, 48))
        assert model(torch.randn(1, 3, 48, 48)).shape == (1, 5)


class TestDistillation:
    @pytest.fixture
    def model(self):
        spec = ViTSpec(4, 2, 12, 20, 3, (8, 12), 5, head="linear", distilled=True)
        return randomised(build_from_spec(spec))

    def test_logits_are_the_mean_of_two_heads_on_two_tokens(self, model):
        images = torch.randn(2, 3, 8, 12)
        *_, last = model.layer_features(images)
        assert last.shape == (2, 8, 12)
        own = last[:, 0] @ model.head.logits.weight.T + model.head.logits.bias
        taught = last[:, 1] @ model.head.distillation.weight.T + model.head.distillation.bias
        for a, b in zip(model.both_logits(images), (own, taught), strict=True):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(model(images), (own + taught) / 2)
        torch.testing.assert_close(model.features(images), (last[:, 0] + last[:, 1]) / 2)

    def test_both_tokens_keep_their_rows_when_the_grid_is_stretched(self, model):
        before = model.positions.table[:, :2].detach().clone()
        model.resize((16, 16))
        assert torch.equal(model.positions.table[:, :2], before)
        assert model(torch.randn(1, 3, 16, 16)).shape == (1, 5)

    def test_reset_head_makes_two_zero_heads(self, model):
        model.reset_head(4)
        own, taught = model.both_logits(torch.randn(1, 3, 8, 12))
        assert own.shape == taught.shape == (1, 4)
        assert not own.any()
        assert not taught.any()

    def test_a_model_with_one_head_says_so_whatever_its_family(self, tiny):
        axial = AxialResNetSpec((1, 1), 8, 2, (16, 16), 3)
        for model in (tiny, build_from_spec(SMALL), build_from_spec(axial)):
            with pytest.raises(ValueError, match="one head"):
                model.both_logits(torch.randn(1, 3, *model.spec.image))


def narrowest_group(spec):
    """Numbers that the smallest group of any GroupNorm sees of one picture, counted as they pass by."""
    sizes = []
    model = build_from_spec(spec)
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.register_forward_pre_hook(lambda norm, x: sizes.append(x[0][0].numel() // norm.num_groups))
    model(torch.randn(2, 3, *spec.image, generator=torch.Generator().manual_seed(0)))
    return min(sizes)


@pytest.mark.parametrize("image", [(1, 1), (8, 8), (9, 16), (17, 17), (32, 32), (33, 33), (64, 64)])
@pytest.mark.parametrize("root", [1, 2, 3, 16, 32, 33, 64])
def test_a_resnet_runs_or_is_refused_before_it_is_built(root, image):
    """Of one number, a norm leaves nothing; so does the standardisation of a kernel that has one weight."""
    last = (math.ceil(image[0] / 32), math.ceil(image[1] / 32))
    narrow = [stage for stage in range(4) if 32 % (root * 2**stage) == 0 and max(image) <= 4 * 2**stage]
    if root == 1 or narrow:
        assert root == 1 or last == (1, 1)
        with pytest.raises(ValueError, match=r"one number|one weight"):
            ResNetSpec((1, 1, 2, 1), root, image, 3)
        return
    spec = ResNetSpec((1, 1, 2, 1), root, image, 3)
    assert narrowest_group(spec) > 1
    one = torch.randn(1, 3, *image, generator=torch.Generator().manual_seed(1))
    assert build_from_spec(spec).features(one).any()


@pytest.mark.parametrize(("root", "image", "runs"), [(2, 16, True), (2, 8, False), (1, 16, False), (64, 8, True)])
def test_so_does_the_resnet_of_a_hybrid(root, image, runs):
    vit = {"patch": 1, "layers": 1, "width": 8, "mlp": 8, "heads": 2, "image": (image, image), "classes": 3}
    if not runs:
        with pytest.raises(ValueError, match=r"one number|one weight"):
            ViTSpec(**vit, backbone=Backbone((1, 1), root))
        return
    assert narrowest_group(ViTSpec(**vit, backbone=Backbone((1, 1), root))) > 1
