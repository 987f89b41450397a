"""Every spelling of every format loads to the same model."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agreement import disagreement, randomised
from vitlab import load_model, save_model
from vitlab.errors import WeightsWarning
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, ViTSpec

TINY = {"patch": 4, "layers": 3, "width": 24, "mlp": 40, "heads": 3, "image": (16, 16), "classes": 5}


def make(**changes):
    return randomised(build_from_spec(ViTSpec(**(TINY | changes))))


def logits(model):
    height, width = model.spec.image
    with torch.inference_mode():
        return model(torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3)))


class TestGoogle:
    @pytest.fixture
    def model(self):
        return make()

    @pytest.fixture
    def arrays(self, model, tmp_path):
        save_model(model, tmp_path / "released.npz", "google-npz")
        with np.load(tmp_path / "released.npz") as file:
            return dict(file)

    def same(self, model, arrays, tmp_path, **options):
        np.savez(tmp_path / "other.npz", **arrays)
        loaded = load_model(tmp_path / "other.npz", **options)
        assert loaded.spec == model.spec
        assert torch.equal(logits(loaded), logits(model))

    def test_heads_that_contradict_the_file_are_refused(self, arrays, tmp_path):
        with pytest.raises(ValueError, match="has 3 attention heads, not 6"):
            load_model(tmp_path / "released.npz", heads=6)

    def test_released_names(self, model, arrays, tmp_path):
        assert "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel" in arrays
        assert "pre_logits/kernel" in arrays
        self.same(model, arrays, tmp_path)

    def test_linen_numbering(self, model, arrays, tmp_path):
        pairs = (("Attention_1", "Attention_0"), ("LayerNorm_2", "LayerNorm_1"), ("MlpBlock_3", "MlpBlock_0"))
        renamed = {}
        for name, array in arrays.items():
            for old, new in pairs:
                name = name.replace(old, new)
            renamed[name] = array
        assert set(renamed) != set(arrays)
        self.same(model, renamed, tmp_path)

    @pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "opt/target/params/"])
    def test_prefixes_and_optimizer_state_beside(self, model, arrays, tmp_path, prefix):
        prefixed = {prefix + name: array for name, array in arrays.items()}
        prefixed["opt/state/step"] = np.array(3)
        prefixed["opt/0/count"] = np.array([7], np.int32)
        prefixed["opt/0/mu/cls"] = np.zeros(24, np.float32)
        self.same(model, prefixed, tmp_path)

    def test_big_vision_positions_without_a_class_row(self, model, arrays, tmp_path):
        table = arrays.pop("Transformer/posembed_input/pos_embedding")
        arrays["cls"] = arrays["cls"] + table[:, :1]
        arrays["pos_embedding"] = table[:, 1:]
        np.savez(tmp_path / "other.npz", **arrays)
        assert disagreement(logits(load_model(tmp_path / "other.npz")), logits(model)) <= 5e-6

    @pytest.mark.parametrize("name", ["pos_embedding", "Transformer/pos_embedding"])
    def test_older_big_vision_positions_with_a_class_row(self, model, arrays, tmp_path, name):
        arrays[name] = arrays.pop("Transformer/posembed_input/pos_embedding")
        self.same(model, arrays, tmp_path)

    @pytest.mark.parametrize("name", ["pos_embedding", "Transformer/pos_embedding"])
    def test_a_class_row_in_a_non_square_table_is_known_by_the_image_size(self, tmp_path, name):
        model = make(image=(16, 28))  # 4x7 patches
        save_model(model, tmp_path / "wide.npz", "google-npz")
        with np.load(tmp_path / "wide.npz") as file:
            arrays = dict(file)
        arrays[name] = arrays.pop("Transformer/posembed_input/pos_embedding")
        self.same(model, arrays, tmp_path, image=(16, 28))

    def test_a_row_for_a_class_token_that_is_not_there_is_dropped_as_big_vision_does(self, tmp_path):
        model = make(pool="mean")
        save_model(model, tmp_path / "gap.npz", "google-npz")
        with np.load(tmp_path / "gap.npz") as file:
            arrays = dict(file)
        table = arrays.pop("Transformer/posembed_input/pos_embedding")
        arrays["pos_embedding"] = np.concatenate([np.full_like(table[:, :1], 9), table], axis=1)
        with pytest.warns(WeightsWarning, match=r"other\.npz has no class token.*mean of the patches is assumed"):
            self.same(model, arrays, tmp_path)

    def test_two_position_tables_are_refused(self, arrays, tmp_path):
        arrays["pos_embedding"] = arrays["Transformer/posembed_input/pos_embedding"]
        np.savez(tmp_path / "two.npz", **arrays)
        with pytest.raises(ValueError, match="two position tables"):
            load_model(tmp_path / "two.npz")

    def test_integers_where_weights_belong_are_refused(self, arrays, tmp_path):
        arrays["embedding/bias"] = np.zeros(24, np.uint16)
        np.savez(tmp_path / "integers.npz", **arrays)
        with pytest.raises(ValueError, match=r"patches\.bias.*is torch\.uint16"):
            load_model(tmp_path / "integers.npz")

    @pytest.fixture
    def without_table(self, arrays, tmp_path):
        del arrays["Transformer/posembed_input/pos_embedding"]
        np.savez(tmp_path / "without.npz", **arrays)
        return tmp_path / "without.npz"

    def test_a_file_without_a_table_asks_which_positions_it_has(self, without_table):
        with pytest.raises(ValueError, match=r"no position table; give positions='sincos2d', .* or positions='none'"):
            load_model(without_table)
        with pytest.raises(ValueError, match="positions is 'sincos'; expected 'sincos2d', 'none' or None"):
            load_model(without_table, positions="sincos")

    def test_positions_that_the_file_has_are_not_to_be_said(self, model, arrays, tmp_path):
        with pytest.raises(ValueError, match=r"has a position table, .*leave positions out"):
            load_model(tmp_path / "released.npz", positions="none")
        save_model(model, tmp_path / "own")
        with pytest.raises(ValueError, match=r"of format vitlab.*leave positions out"):
            load_model(tmp_path / "own", positions="none")

    def test_a_model_without_positions(self, model, without_table):
        loaded = load_model(without_table, positions="none", image=16)
        assert loaded.spec.positions == "none"
        with torch.no_grad():
            model.positions.table.zero_()
        assert torch.equal(logits(loaded), logits(model))

    def test_positions_of_sines_and_cosines_equal_plain_loops_at_the_size_asked_for(self, without_table):
        loaded = load_model(without_table, positions="sincos2d", image=(12, 20))  # 3x5 patches, width 24
        table = loaded.positions.table[0].detach()
        assert table.shape == (16, 24)
        assert not table[0].any()  # the class token has no position
        for row in range(3):
            for column in range(5):
                for k in range(6):
                    frequency = 10_000 ** (-k / 5)
                    expected = [f(p * frequency) for p in (column, row) for f in (math.sin, math.cos)]
                    got = table[1 + row * 5 + column][k::6]
                    assert got.tolist() == pytest.approx(expected, abs=1e-6)

    def test_a_file_without_a_table_is_of_224_pixels_unless_said(self, without_table):
        assert load_model(without_table, positions="sincos2d").spec.image == (224, 224)

    @pytest.mark.parametrize("options", [{}, {"allow_partial": True}])
    @pytest.mark.parametrize("name", ["MAPHead_0/probe", "probe", "params/MAPHead_0/MlpBlock_0/Dense_0/kernel"])
    def test_a_map_head_is_refused_by_name(self, arrays, tmp_path, name, options):
        prefix = "params/" if name.startswith("params/") else ""
        np.savez(
            tmp_path / "map.npz", **{prefix + n: a for n, a in arrays.items()}, **{name: np.zeros((1, 1, 24), "f4")}
        )
        with pytest.raises(ValueError, match=r"map\.npz pools by attention \(a MAP head\).*does not build"):
            load_model(tmp_path / "map.npz", **options)

    def test_big_vision_scanned_layers(self, model, arrays, tmp_path):
        stacked = {n: a for n, a in arrays.items() if "encoderblock_" not in n}
        for name in [n for n in arrays if "encoderblock_0/" in n]:
            layers = [arrays[name.replace("_0/", f"_{i}/", 1)] for i in range(3)]
            stacked[name.replace("encoderblock_0", "encoderblock")] = np.stack(layers)
        self.same(model, stacked, tmp_path)

    def test_bfloat16_as_big_vision_stores_it(self, model, arrays, tmp_path):
        half = {n: torch.from_numpy(a).bfloat16() for n, a in arrays.items()}
        np.savez(tmp_path / "half.npz", **{n: t.view(torch.uint16).numpy().view("V2") for n, t in half.items()})
        np.savez(tmp_path / "rounded.npz", **{n: t.float().numpy() for n, t in half.items()})
        loaded = load_model(tmp_path / "half.npz")
        assert loaded.norm.weight.dtype == torch.float32
        assert torch.equal(logits(loaded), logits(load_model(tmp_path / "rounded.npz")))

    def test_compressed_fortran_ordered_and_big_endian_arrays(self, model, arrays, tmp_path):
        odd = {n: np.asfortranarray(a).astype(">f4") for n, a in arrays.items()}
        np.savez_compressed(tmp_path / "odd.npz", **odd)
        assert torch.equal(logits(load_model(tmp_path / "odd.npz")), logits(model))

    def test_fine_tuned_files_have_a_linear_head_and_gap_files_no_class_token(self, tmp_path):
        for head, pool in (("linear", "class"), ("linear", "mean"), ("mlp", "mean")):
            model = make(head=head, pool=pool)
            path = tmp_path / f"{head}-{pool}.npz"
            save_model(model, path, "google-npz")
            loaded = load_model(path)
            assert loaded.spec == model.spec
            assert torch.equal(logits(loaded), logits(model))


class TestHuggingFace:
    @pytest.fixture
    def folder(self, tmp_path):
        model = make(head="linear", conventions=CONVENTIONS["hf"])
        save_model(model, tmp_path / "hf", "hf")
        return model, tmp_path / "hf"

    def test_folder_with_config(self, folder):
        model, path = folder
        loaded = load_model(path)
        assert loaded.spec == model.spec
        assert torch.equal(logits(loaded), logits(model))

    def test_bare_file_needs_no_config_when_it_carries_metadata(self, tmp_path):
        model = make(head="linear", conventions=CONVENTIONS["hf"], image=(16, 24))
        save_model(model, tmp_path / "bare.safetensors", "hf")
        assert load_model(tmp_path / "bare.safetensors").spec == model.spec

    def test_a_bare_file_of_unknown_width_asks_for_the_heads(self, folder, tmp_path):
        model, path = folder
        save_file(load_file(path / "model.safetensors"), tmp_path / "bare.safetensors")
        with pytest.raises(ValueError, match=r"attention heads.*heads="):
            load_model(tmp_path / "bare.safetensors")
        assert torch.equal(logits(load_model(tmp_path / "bare.safetensors", heads=3, conventions="hf")), logits(model))

    def test_names_of_version_five(self, folder, tmp_path):
        model, path = folder
        renamed = {}
        for name, tensor in load_file(path / "model.safetensors").items():
            name = name.replace("encoder.layer.", "layers.").replace("attention.output.dense", "attention.o_proj")
            for long, short in (("query", "q"), ("key", "k"), ("value", "v")):
                name = name.replace(f"attention.attention.{long}", f"attention.{short}_proj")
            name = name.replace("intermediate.dense", "mlp.fc1").replace("output.dense", "mlp.fc2")
            renamed[name] = tensor
        save_file(renamed, tmp_path / "five.safetensors")
        assert torch.equal(logits(load_model(tmp_path / "five.safetensors", heads=3, conventions="hf")), logits(model))

    def test_bare_vit_model_with_pooler_makes_features(self, tmp_path):
        model = make(classes=0, conventions=CONVENTIONS["hf"])
        save_model(model, tmp_path / "features", "hf")
        names = load_file(tmp_path / "features" / "model.safetensors")
        assert "pooler.dense.weight" in names
        assert not any(name.startswith("vit.") for name in names)
        images = torch.randn(2, 3, 16, 16)
        with torch.inference_mode():
            assert torch.equal(load_model(tmp_path / "features").features(images), model.features(images))

    def test_mask_token_is_left_aside(self, folder, tmp_path):
        model, path = folder
        tensors = load_file(path / "model.safetensors") | {"vit.embeddings.mask_token": torch.zeros(1, 1, 24)}
        save_file(tensors, path / "model.safetensors")
        assert torch.equal(logits(load_model(path)), logits(model))

    def test_sharded_folder(self, folder, tmp_path):
        model, path = folder
        tensors = load_file(path / "model.safetensors")
        names = sorted(tensors)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for part, own in parts.items():
            save_file({n: tensors[n] for n in own}, path / part)
        (path / "model.safetensors").unlink()
        index = {"weight_map": {n: part for part, own in parts.items() for n in own}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert torch.equal(logits(load_model(path)), logits(model))

    def test_class_names_come_along(self, tmp_path):
        model = make(head="linear", conventions=CONVENTIONS["hf"])
        model.class_names = ("ant", "bee", "cat", "dog", "eel")
        save_model(model, tmp_path / "named", "hf")
        assert load_model(tmp_path / "named").class_names == model.class_names


class TestTimm:
    def test_positions_without_a_class_row(self, tmp_path):
        model = make(head="linear", conventions=CONVENTIONS["timm"])
        save_model(model, tmp_path / "timm.safetensors", "timm")
        tensors = load_file(tmp_path / "timm.safetensors")
        tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
        tensors["pos_embed"] = tensors["pos_embed"][:, 1:].clone()
        save_file(tensors, tmp_path / "bare.safetensors")
        loaded = load_model(tmp_path / "bare.safetensors", heads=3, conventions="timm")
        assert disagreement(logits(loaded), logits(model)) <= 5e-6

    def test_old_files_with_pre_logits(self, tmp_path):
        model = make(conventions=CONVENTIONS["timm"])
        linear = make(head="linear", conventions=CONVENTIONS["timm"])
        save_model(linear, tmp_path / "timm.safetensors", "timm")
        tensors = load_file(tmp_path / "timm.safetensors")
        tensors["pre_logits.fc.weight"] = model.head.pre_logits.weight.detach()
        tensors["pre_logits.fc.bias"] = model.head.pre_logits.bias.detach()
        save_file(tensors, tmp_path / "old.safetensors")
        loaded = load_model(tmp_path / "old.safetensors", heads=3, conventions="timm")
        assert loaded.spec.head == "mlp"
        assert torch.equal(loaded.head.pre_logits.weight, model.head.pre_logits.weight)

    @pytest.mark.parametrize("pooling", ["avg", "max"])
    def test_pooling_that_is_not_built_is_refused(self, pooling, tmp_path):
        save_model(make(head="linear", conventions=CONVENTIONS["timm"]), tmp_path / "m", "timm")
        path = tmp_path / "m" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"global_pool": pooling}))
        with pytest.raises(ValueError, match=f"pools by '{pooling}' with a class token"):
            load_model(tmp_path / "m")


class TestAdapting:
    @pytest.fixture
    def file(self, tmp_path):
        save_model(make(), tmp_path / "m", "vitlab")
        return tmp_path / "m"

    def test_image_resizes_positions_by_the_models_own_convention(self, file):
        loaded = load_model(file, image=(24, 32))
        assert loaded.spec.image == (24, 32)
        expected = make()
        expected.positions.resize((6, 8), "paper")
        assert torch.equal(loaded.positions.table, expected.positions.table)
        assert logits(loaded).shape == (2, 5)

    def test_classes_put_a_fresh_zero_head(self, file):
        loaded = load_model(file, classes=7)
        assert (loaded.spec.classes, loaded.spec.head) == (7, "linear")
        assert torch.equal(logits(loaded), torch.zeros(2, 7))

    def test_the_same_number_of_classes_keeps_the_head(self, file):
        assert torch.equal(logits(load_model(file, classes=5)), logits(make()))

    def test_conventions_can_be_set_and_are_recorded(self, file, tmp_path):
        loaded = load_model(file, conventions="torchvision")
        assert loaded.spec.conventions == CONVENTIONS["torchvision"]
        assert loaded.layers[0].mlp.approximate == "none"
        save_model(loaded, tmp_path / "again")
        assert load_model(tmp_path / "again").spec.conventions == CONVENTIONS["torchvision"]

    def test_a_non_square_npz_asks_for_its_image_size(self, tmp_path):
        model = make(image=(16, 24))
        save_model(model, tmp_path / "wide.npz", "google-npz")
        with pytest.raises(ValueError, match=r"not a square.*image="):
            load_model(tmp_path / "wide.npz")
        assert torch.equal(logits(load_model(tmp_path / "wide.npz", image=(16, 24))), logits(model))

    def test_a_square_table_asked_for_another_shape_of_the_same_length_is_resized(self, tmp_path):
        model = make()  # 4x4 patches
        save_model(model, tmp_path / "square.npz", "google-npz")
        loaded = load_model(tmp_path / "square.npz", image=(8, 32))  # 2x8 patches
        assert loaded.positions.grid == (2, 8)
        assert not torch.equal(loaded.positions.table, model.positions.table)


@pytest.mark.parametrize(("path", "given"), [(None, "None"), (3, "3"), (b"m", "b'm'"), (make, "<function make at .*")])
def test_what_is_no_path_is_named(path, given):
    with pytest.raises(ValueError, match=rf"path is {given}.*; expected a string or a path"):
        load_model(path)
    with pytest.raises(ValueError, match=rf"path is {given}.*; expected a string or a path"):
        save_model(make(), path)


@pytest.mark.parametrize(("model", "said"), [("m", "a str, 'm'"), (None, "a NoneType"), (torch.nn.ReLU(), "a ReLU")])
def test_what_is_no_model_is_not_saved(model, said, tmp_path):
    with pytest.raises(ValueError, match=rf"model is {said}; .*vitlab.load_model"):
        save_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
