"""What files say and would change the answers is used or refused; what they do not say is warned of."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from agreement import randomised
from vitlab import load_model, save_model
from vitlab.cli import main
from vitlab.errors import WeightsWarning
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, ResNetSpec, ViTSpec
from vitlab.spec.pixels import IMAGENET_MEAN, Preprocessing
from vitlab.weights.convert import convert
from vitlab.weights.files.containers import WeightsError

TINY = {"patch": 4, "layers": 1, "width": 24, "mlp": 40, "heads": 3, "image": (16, 16), "classes": 5, "head": "linear"}
HALF = (0.5, 0.5, 0.5)


def make(**changes):
    return randomised(build_from_spec(ViTSpec(**(TINY | {"conventions": CONVENTIONS["timm"]} | changes))))


@pytest.fixture
def timm(tmp_path):
    save_model(make(), tmp_path / "timm", "timm")
    return tmp_path / "timm"


@pytest.fixture
def hf(tmp_path):
    save_model(make(conventions=CONVENTIONS["hf"]), tmp_path / "hf", "hf")
    return tmp_path / "hf"


@pytest.fixture
def bit(tmp_path):
    save_model(randomised(build_from_spec(bit_spec())), tmp_path / "bit.safetensors", "timm")
    (tmp_path / "bit").mkdir()
    (tmp_path / "bit.safetensors").rename(tmp_path / "bit" / "model.safetensors")
    (tmp_path / "bit" / "config.json").write_text("{}")
    return tmp_path / "bit"


def bit_spec():
    return ResNetSpec((1, 1, 1, 1), 32, (64, 64), 5, conventions=CONVENTIONS["timm"])


def changed(folder, name="config.json", **changes):
    """A config with other top-level fields; None removes one. `model_args` are changed one by one."""
    path = folder / name
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config[key] = config.get(key, {}) | value if isinstance(value, dict) else value
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def bare(folder, name):
    """The tensors alone, as others write them: no header, no config."""
    path = folder.parent / name
    save_file(load_file(folder / "model.safetensors"), path)
    return path


def mean(model):
    return model.spec.conventions.preprocessing.mean


class TestParts:
    @pytest.mark.parametrize("allow_partial", [False, True])
    @pytest.mark.parametrize(
        ("tensor", "does"),
        [
            ("attn_pool.latent", "pools by attention"),
            ("fc_norm.weight", "normalises after pooling"),
            ("norm_pre.weight", "norm before its first layer"),
            ("blocks.0.ls1.gamma", "LayerScale"),
            ("blocks.0.attn.q_norm.weight", "normalises queries and keys"),
            ("reg_token", "register tokens"),
            ("blocks.0.attn.rel_pos.relative_position_bias_table", "relative position bias"),
        ],
    )
    def test_a_part_that_is_not_built_is_never_left_out(self, timm, tensor, does, allow_partial):
        save_file(load_file(timm / "model.safetensors") | {tensor: torch.ones(24)}, timm / "model.safetensors")
        with pytest.raises(WeightsError, match=f"{does}.*does not build"):
            load_model(timm, allow_partial=allow_partial)


class TestConfigs:
    @pytest.mark.parametrize("key", ["pool_type", "pool", "global_pool", "pooling"])
    @pytest.mark.parametrize("value", ["0", "map", "avg", "", 7])
    def test_a_pooling_that_is_not_built_is_refused_by_name(self, timm, hf, key, value):
        for folder in (timm, hf):
            with pytest.raises(WeightsError, match=rf"pools by {value!r} with a class token \({key}\)"):
                load_model(changed(folder, **{key: value}))

    def test_a_resnet_that_pools_otherwise_is_refused(self, bit):
        assert load_model(bit).spec.stages == bit_spec().stages
        with pytest.raises(WeightsError, match="pools by 'max' without a class token"):
            load_model(changed(bit, global_pool="max"))

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("qkv_bias", False),
            ("qk_norm", True),
            ("class_token", False),
            ("reg_tokens", 4),
            ("pre_norm", True),
            ("fc_norm", True),
            ("init_values", 1e-5),
            ("pos_embed", "none"),
            ("norm_layer", "rmsnorm"),
            ("in_chans", 1),
            ("act_layer", "quick_gelu"),
            ("dynamic_img_pad", True),
            ("final_norm", False),
            ("invented", 1),
        ],
    )
    def test_an_argument_of_timm_that_makes_another_function_is_refused(self, timm, argument, value):
        with pytest.raises(WeightsError, match=argument if argument != "act_layer" else "activation 'quick_gelu'"):
            load_model(changed(timm, model_args={argument: value}))

    def test_arguments_that_change_nothing_load(self, timm):
        same = {"dynamic_img_size": True, "no_embed_class": False, "init_values": None, "norm_layer": "layernorm"}
        assert load_model(changed(timm, model_args=same)).spec == make().spec

    def test_a_resnet_with_another_stem_or_activation_is_refused(self, bit):
        for argument, value in (("stem_type", "same"), ("act_layer", "silu"), ("preact", False)):
            (bit / "config.json").write_text("{}")
            with pytest.raises(WeightsError, match=argument):
                load_model(changed(bit, model_args={argument: value}))

    def test_timms_first_configs_say_it_at_the_top(self, timm):
        stated = json.loads((timm / "config.json").read_text())["pretrained_cfg"] | {"mean": list(IMAGENET_MEAN)}
        changed(timm, pretrained_cfg=None)
        assert mean(load_model(changed(timm, **stated))) == IMAGENET_MEAN

    def test_a_crop_that_is_not_known_is_refused(self, timm):
        with pytest.raises(WeightsError, match="crop_mode 'border'"):
            load_model(changed(timm, pretrained_cfg={"crop_mode": "border"}))

    @pytest.mark.parametrize("change", [{"do_flip_channel_order": True}, {"do_pad": True}, {"crop_pct": 0.9}])
    def test_a_processor_that_does_more_is_refused(self, hf, change):
        with pytest.raises(WeightsError, match=next(iter(change))):
            load_model(changed(hf, "preprocessor_config.json", **change))

    def test_another_activation_of_the_pooler_is_refused(self, hf):
        with pytest.raises(WeightsError, match="pooler_act 'gelu'"):
            load_model(changed(hf, pooler_act="gelu"))

    @pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
    @pytest.mark.parametrize("damage", ["link", "folder", "text", "list"])
    def test_a_config_that_cannot_be_read_is_an_error(self, hf, name, damage):
        path = hf / name
        path.unlink()
        if damage == "link":
            path.symlink_to("gone.json")
        elif damage == "folder":
            path.mkdir()
        else:
            path.write_text("{" if damage == "text" else "[]")
        for given in (hf, hf / "model.safetensors"):
            with pytest.raises(WeightsError, match=rf"{name} cannot be read: .*restore it, or remove it"):
                load_model(given)

    def test_the_file_inside_a_folder_is_loaded_with_the_config_beside_it(self, timm):
        changed(timm, pretrained_cfg={"mean": list(IMAGENET_MEAN)})
        assert mean(load_model(timm / "model.safetensors")) == IMAGENET_MEAN

    def test_a_pickle_beside_a_config_that_cannot_be_read_is_not_converted(self, hf, tmp_path):
        torch.save(load_file(hf / "model.safetensors"), hf / "pytorch_model.bin")
        (hf / "config.json").unlink()
        (hf / "config.json").symlink_to("gone.json")
        with pytest.raises(WeightsError, match=r"config\.json cannot be read"):
            convert(hf / "pytorch_model.bin", tmp_path / "out")


class TestNormalisation:
    def test_it_is_warned_of_where_it_is_assumed(self, timm, hf):
        for folder, conventions in ((timm, "timm"), (hf, "hf")):
            path = bare(folder, f"plain-{conventions}.safetensors")
            with pytest.warns(WeightsWarning, match=r"plain-.*mean 0\.5 and std 0\.5 are assumed.*conventions='deit'"):
                assert mean(load_model(path, heads=3)) == HALF

    def test_saying_the_conventions_ends_the_doubt(self, timm):
        path = bare(timm, "deit.safetensors")
        for name in ("timm", "deit"):
            assert load_model(path, heads=3, conventions=name).spec.conventions == CONVENTIONS[name]

    def test_a_name_that_says_deit_is_believed_and_reported(self, timm, hf):
        for folder in (timm, hf):
            with pytest.warns(WeightsWarning, match="DeiT's ImageNet mean and std are assumed because of its name"):
                assert mean(load_model(bare(folder, "my_DeiT_tiny.safetensors"), heads=3)) == IMAGENET_MEAN

    def test_an_architecture_that_says_deit_is_certain(self, timm):
        changed(timm, architecture="deit_tiny_patch16_224", pretrained_cfg=None)
        assert mean(load_model(timm)) == IMAGENET_MEAN

    def test_a_folder_without_a_processor_is_warned_of(self, hf):
        (hf / "preprocessor_config.json").unlink()
        with pytest.warns(WeightsWarning, match="does not state how its images were normalised"):
            load_model(hf)

    def test_bare_files_of_ours_come_back_with_their_preprocessing(self, tmp_path):
        own = Preprocessing("square", 0.7, "bilinear", True, IMAGENET_MEAN, (0.2, 0.3, 0.4))
        for format in ("timm", "hf"):
            conventions = CONVENTIONS[format]
            path = tmp_path / f"{format}.safetensors"
            model = make(conventions=type(conventions)(conventions.gelu, conventions.norm_eps, format, own))
            save_model(model, path, format)
            assert load_model(path).spec.conventions.preprocessing == own

    def test_a_pickle_is_converted_with_a_note(self, timm, tmp_path):
        torch.save(load_file(timm / "model.safetensors"), tmp_path / "plain.pth")
        _, notes = convert(tmp_path / "plain.pth", tmp_path / "out", heads=3)
        assert any(note.startswith("plain.pth does not state how its images were normalised") for note in notes)
        torch.save(load_file(timm / "model.safetensors"), tmp_path / "deit_small.pth")
        model, _ = convert(tmp_path / "deit_small.pth", tmp_path / "deit", heads=3)
        assert mean(model) == IMAGENET_MEAN

    def test_the_command_line_says_it_in_one_line(self, timm, tmp_path, capsys):
        path = bare(timm, "plain.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            main(["predict", str(path), str(tmp_path / "absent.png"), "--heads", "3"])
        said = capsys.readouterr().err
        assert said.count("vitlab: warning: plain.safetensors does not state how its images were normalised") == 1
        assert "WeightsWarning" not in said
