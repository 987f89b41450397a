"""Facts and properties of the Vision Transformer: initial values, dropout, heads, pooling, sizes."""

import math
import warnings

import pytest
import torch

from agreement import randomised
from vitlab import build_model
from vitlab.errors import WeightsWarning
from vitlab.models.build import build_from_spec
from vitlab.models.embedding import patchify
from vitlab.models.transformer import Attention, Block
from vitlab.spec import ViTSpec


@pytest.fixture(scope="module")
def fresh():
    return build_model("ViT-S/16", head_bias=-10.0)


@pytest.mark.parametrize(
    "name",
    [
        "google/vit-base-patch16-224",
        "vit_tiny_patch16_224.augreg_in21k",
        "BiT-M-R50x1",
        "facebook/deit-tiny-patch16-224",
    ],
)
def test_a_name_of_released_weights_warns_that_they_are_random(name):
    with torch.device("meta"), pytest.warns(WeightsWarning, match=r"draws random weights.*vitlab download.*load_model"):
        build_model(name)


@pytest.mark.parametrize("name", ["ViT-Ti/16", "vit_tiny_patch16_224", "R26x0.25", "ViT-B_16"])
def test_a_name_of_a_model_does_not_warn(name):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        build_model(name)


class TestInitialValues:
    @pytest.fixture
    def model(self, fresh):
        return fresh

    def spread(self, tensor):
        return tensor.std().item()

    def test_embedding_is_a_truncated_lecun_normal(self, model):
        weight = model.patches.weight.detach()
        deviation = math.sqrt(1 / 768)
        assert self.spread(weight) == pytest.approx(deviation, rel=0.02)
        assert weight.abs().max() <= 2 * deviation / 0.87962566103423978 + 1e-7
        assert not model.patches.bias.any()

    def test_class_token_is_zero_and_positions_are_normal(self, model):
        assert not model.class_token.any()
        assert self.spread(model.positions.table) == pytest.approx(0.02, rel=0.02)
        assert model.positions.table.abs().max() > 0.06  # not truncated at two deviations

    def test_attention_is_xavier_on_each_matrix_not_on_the_fused_one(self, model):
        bound = math.sqrt(3 / 384)
        for block in model.blocks:
            for matrix in (*block.attention.qkv.weight.chunk(3), block.attention.out.weight):
                assert matrix.abs().max().item() == pytest.approx(bound, rel=1e-3)
                assert self.spread(matrix) == pytest.approx(bound / math.sqrt(3), rel=0.02)
            assert not block.attention.qkv.bias.any()
            assert not block.attention.out.bias.any()

    def test_mlp_is_xavier_with_tiny_normal_biases(self, model):
        bound = math.sqrt(6 / (384 + 1536))
        for dense in (model.blocks[0].mlp.dense1, model.blocks[0].mlp.dense2):
            assert dense.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
            assert self.spread(dense.bias) == pytest.approx(1e-6, rel=0.1)

    def test_norms_are_the_identity_and_the_head_is_zero_but_for_its_bias(self, model):
        for norm in (model.norm, model.blocks[3].norm1, model.blocks[3].norm2):
            assert torch.equal(norm.weight, torch.ones(384))
            assert not norm.bias.any()
        assert not model.head.logits.weight.any()
        assert torch.equal(model.head.logits.bias, torch.full((1000,), -10.0))
        assert self.spread(model.head.pre_logits.weight) == pytest.approx(math.sqrt(1 / 384), rel=0.02)
        assert not model.head.pre_logits.bias.any()

    def test_the_seed_decides_and_the_global_generator_is_left_alone(self):
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        one, same, other = (build_model("ViT-Ti/16", image=32, classes=3, seed=s) for s in (1, 1, 2))
        assert torch.equal(torch.rand(1), expected)
        assert torch.equal(one.patches.weight, same.patches.weight)
        assert not torch.equal(one.patches.weight, other.patches.weight)


def test_patchify_is_raster_order_and_equals_a_convolution(tiny):
    images = torch.randn(2, 3, 8, 12)
    patches = patchify(images, 4)
    assert patches.shape == (2, 6, 48)
    assert torch.equal(patches[1, 4], images[1, :, 4:8, 4:8].flatten())  # row 1, column 1
    expected = torch.nn.functional.conv2d(images, tiny.patches.weight, tiny.patches.bias, stride=4)
    torch.testing.assert_close(tiny.patches(images), expected.flatten(2).mT)


def test_features_are_the_pre_logits_before_tanh_or_the_pooled_vector(tiny):
    images = torch.randn(2, 3, 16, 16)
    pooled = list(tiny.layer_features(images))[-1][:, 0]
    expected = pooled @ tiny.head.pre_logits.weight.T + tiny.head.pre_logits.bias
    torch.testing.assert_close(tiny.features(images), expected)
    torch.testing.assert_close(tiny(images), expected.tanh() @ tiny.head.logits.weight.T + tiny.head.logits.bias)
    tiny.reset_head(3)
    torch.testing.assert_close(tiny.features(images), pooled)


def test_mean_pooling_averages_after_the_final_norm(tiny_spec):
    from dataclasses import replace

    model = randomised(build_from_spec(replace(tiny_spec, pool="mean", head="linear")))
    images = torch.randn(2, 3, 16, 16)
    *_, last = model.layer_features(images)
    assert last.shape[1] == 16
    torch.testing.assert_close(model.features(images), last.mean(dim=1))


def test_a_zero_head_gives_uniform_logits():
    model = build_model("ViT-Ti/16", image=32, classes=4).eval()
    assert torch.equal(model(torch.randn(2, 3, 32, 32)), torch.zeros(2, 4))


def test_reset_head_forgets_the_names_of_the_old_classes(tiny):
    tiny.class_names = tuple("abcde")
    tiny.reset_head(5)
    assert tiny.class_names is None
    assert not tiny(torch.randn(1, 3, 16, 16)).any()


def test_an_image_alone_equals_the_same_image_in_a_batch(tiny):
    images = torch.randn(5, 3, 16, 16)
    together = tiny(images)
    alone = torch.cat([tiny(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_without_positions_patches_can_be_permuted(tiny):
    with torch.no_grad():
        tiny.positions.table.zero_()
    images = torch.randn(1, 3, 16, 16)
    shuffled = torch.cat([images[:, :, 8:], images[:, :, :8]], dim=2)
    torch.testing.assert_close(tiny(images), tiny(shuffled), rtol=1e-4, atol=1e-5)


class TestDropout:
    def model(self, **options):
        spec = ViTSpec(patch=4, layers=4, width=24, mlp=40, heads=3, image=(16, 16), classes=5, **options)
        return randomised(build_from_spec(spec))

    def test_is_off_in_evaluation_and_on_in_training(self):
        model, images = self.model(dropout=0.5), torch.randn(2, 3, 16, 16)
        assert torch.equal(model(images), model(images))
        model.train()
        assert not torch.equal(model(images), model(images))

    def test_acts_at_the_four_places_of_the_paper_and_nowhere_else(self, monkeypatch):
        seen = []
        monkeypatch.setattr(
            torch.nn.functional, "dropout", lambda x, p, training: seen.append((tuple(x.shape), p, training)) or x
        )
        self.model(dropout=0.3).train()(torch.randn(2, 3, 16, 16))
        layer = [((2, 17, 24), 0.3, True), ((2, 17, 40), 0.3, True), ((2, 17, 24), 0.3, True)]
        assert seen == [((2, 17, 24), 0.3, True), *layer * 4]

    def test_stochastic_depth_grows_linearly_and_drops_whole_samples(self):
        model = self.model(stochastic_depth=0.6)
        assert [block.drop for block in model.blocks] == pytest.approx([0.0, 0.2, 0.4, 0.6])
        block = model.blocks[3].train()
        torch.manual_seed(0)
        x = torch.ones(4000, 2, 24)
        kept = block._branch(x)
        per_sample = kept.flatten(1)
        assert torch.equal(per_sample.amin(1), per_sample.amax(1))
        assert per_sample[:, 0].unique().tolist() == pytest.approx([0.0, 2.5])
        assert kept.mean().item() == pytest.approx(1.0, abs=0.08)

    @pytest.mark.parametrize("how", [{"dropout": 0.0, "drop": 1 - 1e-7}, {"dropout": 1.0, "drop": 0.0}])
    def test_a_block_whose_branches_are_all_dropped_is_the_identity(self, how):
        block = randomised(Block(Attention(24, 3), 40, gelu="tanh", norm_eps=1e-6, **how)).train()
        z = torch.randn(4, 5, 24)
        assert torch.equal(block(z), z)
        assert torch.equal(block.explain(z)[0], z)


class TestSizes:
    @pytest.mark.parametrize("image", [(16, 16), (16, 40), (4, 4), (64, 8)])
    def test_any_image_of_whole_patches_runs(self, image):
        model = build_from_spec(ViTSpec(4, 1, 8, 8, 2, image, 3))
        assert model(torch.randn(1, 3, *image)).shape == (1, 3)

    def test_others_name_the_nearest_sizes(self):
        with pytest.raises(ValueError, match=r"384x384.*14x14 patches.*378x378 or 392x392"):
            build_model("ViT-H/14", image=384)
        with pytest.raises(ValueError, match="nearest sizes are 224x224 or 224x240"):
            build_model("ViT-B/16", image=(224, 230))

    def test_images_of_another_size_say_how_to_change(self, tiny):
        with pytest.raises(ValueError, match=r"images are 16x20, this model expects 16x16.*model\.resize"):
            tiny(torch.randn(1, 3, 16, 20))
        with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
            tiny(torch.randn(3, 16, 16))

    def test_resize_then_forward(self, tiny):
        tiny.resize((24, 8))
        assert tiny(torch.randn(2, 3, 24, 8)).shape == (2, 5)
