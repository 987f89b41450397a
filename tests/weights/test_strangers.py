"""Files of strangers: no code runs, every refusal is one line that says why, and nothing is loaded halfway."""

import argparse
import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agreement import randomised
from vitlab import load_model, save_model
from vitlab.files.store import MANIFEST
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.weights.convert import convert
from vitlab.weights.files.containers import WeightsError

SPEC = ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear", conventions=CONVENTIONS["timm"])


class Canary:
    """Unpickling it creates a file: if that file exists, somebody ran a stranger's code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def model():
    return randomised(build_from_spec(SPEC))


@pytest.fixture
def timm_file(model, tmp_path):
    save_model(model, tmp_path / "timm.safetensors", "timm")
    return tmp_path / "timm.safetensors"


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def hostile_files(folder: Path, canary: Path):
    """Every way to smuggle a pickle into something that looks like weights."""
    evil = Canary(canary)
    torch.save(evil, folder / "zip.pt")
    torch.save({"model": {"w": torch.zeros(2)}, "args": evil}, folder / "beside.pth")
    torch.save(evil, folder / "old.pt", _use_new_zipfile_serialization=False)
    for protocol in range(6):
        (folder / f"raw{protocol}.pt").write_bytes(pickle.dumps(evil, protocol=protocol))
    np.savez(folder / "object.npz", **{"embedding/kernel": np.array([evil], dtype=object)})
    (folder / "renamed.safetensors").write_bytes((folder / "zip.pt").read_bytes())
    (folder / "renamed.npz").write_bytes((folder / "zip.pt").read_bytes())
    distributed = folder / "dcp"
    distributed.mkdir()
    (distributed / ".metadata").write_bytes(pickle.dumps(evil))
    with zipfile.ZipFile(folder / "mixed.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", pickle.dumps(evil))
        archive.writestr("data.pkl", pickle.dumps(evil))
    hub = folder / "hub"
    hub.mkdir()
    (hub / "pytorch_model.bin").write_bytes((folder / "zip.pt").read_bytes())
    (hub / "config.json").write_text("{}")
    return sorted(folder.iterdir())


def test_no_pickle_ever_runs_on_loading(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "files").mkdir()
    files = hostile_files(tmp_path / "files", canary)
    assert len(files) >= 12
    for file in files:
        with pytest.raises(WeightsError) as error:
            load_model(file)
        one_line(error)
        assert not canary.exists(), file.name
    pickle.loads((tmp_path / "files" / "raw4.pt").read_bytes())  # the control: the canary does sing  # noqa: S301
    assert canary.exists()


def test_loading_a_pickle_names_the_command_that_converts_it(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=r"vitlab convert \S*weights\.pth OUT"):
        load_model(tmp_path / "weights.pth")


@pytest.mark.slow
class TestConvertingPickles:
    def test_hostile_ones_are_refused_and_do_nothing(self, tmp_path):
        canary = tmp_path / "canary"
        (tmp_path / "files").mkdir()
        for file in hostile_files(tmp_path / "files", canary):
            if file.name in ("zip.pt", "beside.pth", "old.pt", "raw2.pt", "raw5.pt"):
                with pytest.raises(WeightsError, match="refused") as error:
                    convert(file, tmp_path / "out")
                one_line(error)
                assert not canary.exists()
                assert not (tmp_path / "out").exists()

    def test_deit_files_convert_with_their_conventions(self, model, timm_file, tmp_path):
        torch.save({"model": load_file(timm_file), "epoch": 3}, tmp_path / "deit.pth")
        converted, notes = convert(tmp_path / "deit.pth", tmp_path / "out", heads=3)
        assert any("DeiT" in note for note in notes)
        assert converted.spec.conventions == CONVENTIONS["deit"]
        loaded = load_model(tmp_path / "out")
        assert torch.equal(loaded.patches.weight, model.patches.weight)
        digest = hashlib.sha256((tmp_path / "deit.pth").read_bytes()).hexdigest()
        assert (loaded.provenance["source"], loaded.provenance["sha256"]) == ("deit.pth", digest)

    def test_a_cut_file_is_named(self, timm_file, tmp_path):
        torch.save(load_file(timm_file), tmp_path / "cut.pth")
        data = (tmp_path / "cut.pth").read_bytes()
        (tmp_path / "cut.pth").write_bytes(data[: len(data) // 2])
        with pytest.raises(WeightsError, match=r"cut\.pth"):
            convert(tmp_path / "cut.pth", tmp_path / "out")

    def test_the_class_that_torch_refuses_is_named(self, tmp_path):
        torch.save({"model": {"w": torch.zeros(2)}, "args": argparse.Namespace(lr=1)}, tmp_path / "deit.pth")
        with pytest.raises(WeightsError, match=r"argparse\.Namespace.*only its state_dict"):
            convert(tmp_path / "deit.pth", tmp_path / "out")

    @pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
    def test_wrapped_names_and_plain_dictionaries(self, model, timm_file, tmp_path, wrapper):
        torch.save({wrapper + n: t for n, t in load_file(timm_file).items()}, tmp_path / "w.pt")
        converted, _ = convert(tmp_path / "w.pt", tmp_path / "out", heads=3)
        assert torch.equal(converted.patches.weight, model.patches.weight)

    def test_a_hugging_face_pickle_keeps_its_config(self, tmp_path):
        spec = ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear", conventions=CONVENTIONS["hf"])
        save_model(randomised(build_from_spec(spec)), tmp_path / "hub", "hf")
        torch.save(load_file(tmp_path / "hub" / "model.safetensors"), tmp_path / "hub" / "pytorch_model.bin")
        (tmp_path / "hub" / "model.safetensors").unlink()
        converted, _ = convert(tmp_path / "hub" / "pytorch_model.bin", tmp_path / "out")
        assert converted.spec == spec

    def test_an_entry_that_is_not_there_lists_those_that_are(self, timm_file, tmp_path):
        torch.save({"state_dict": load_file(timm_file), "epoch": 3}, tmp_path / "w.pt")
        with pytest.raises(WeightsError, match=r"no entry 'model_ema'.*epoch.*state_dict"):
            convert(tmp_path / "w.pt", tmp_path / "out", entry="model_ema")

    def test_the_child_can_neither_open_sockets_nor_start_programs(self, tmp_path):
        import subprocess
        import sys

        code = (
            "import socket, subprocess, sys; from vitlab.weights.files.unpickle import _confine; _confine(1000)\n"
            "for attempt in (lambda: socket.socket(), lambda: subprocess.run(['true'])):\n"
            "    try: attempt(); sys.exit('allowed')\n"
            "    except PermissionError: pass\n"
            "try: bytearray(4 * 2**30); sys.exit('allowed')\n"
            "except MemoryError: pass"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def floats(shape, begin, end):
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "overlap": {"a": floats([2], 0, 8), "b": floats([2], 4, 12)},
    "out of range": {"a": floats([4], 0, 16)},
    "hole": {"a": floats([1], 8, 12)},
    "wrong shape": {"a": floats([3], 0, 12), "b": floats([9], 12, 12)},
    "overflow": {"a": floats([2**62, 2**62], 0, 12)},
    "trailing bytes": {"a": floats([1], 0, 4)},
    "not an object": b"[1, 2, 3]",
    "cut": b'{"a": {"dtype": "F32", "shape": [3], "data_off',
    "deep": b'{"a":' * 50_000,
    "duplicate": b'{"a":%s,"a":%s}' % ((json.dumps(floats([3], 0, 12)).encode(),) * 2),
}


class TestMalformedSafetensors:
    def craft(self, path, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        return path

    @pytest.mark.parametrize("case", HEADERS)
    def test_is_refused_in_one_line(self, case, tmp_path):
        path = self.craft(tmp_path / "f.safetensors", HEADERS[case], b"\0" * 12)
        with pytest.raises(WeightsError) as error:
            load_model(path)
        one_line(error)

    @pytest.mark.parametrize("length", [2**63, 2**64 - 1, 99 * 2**20, 10])
    def test_header_length_that_lies(self, length, tmp_path):
        (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", length) + b'{"a": 1}' + b" " * 100)
        with pytest.raises(WeightsError) as error:
            load_model(tmp_path / "f.safetensors")
        one_line(error)


class TestMalformedNpz:
    def npy(self, header):
        text = header.encode().ljust(118) + b"\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text

    def archive(self, path, members, method=zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, "w", method) as file:
            for name, data in members:
                file.writestr(name, data)
        return path

    def test_a_header_that_claims_terabytes(self, tmp_path):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
        path = self.archive(tmp_path / "f.npz", [("embedding/kernel.npy", self.npy(header) + b"\0" * 64)])
        with pytest.raises(WeightsError, match="claims shape"):
            load_model(path)

    @pytest.mark.parametrize("descr", ["'|O'", "'<i8'", "'|S9'", "[('a', '<f4')]", "'<f16'"])
    def test_dtypes_that_are_no_plain_floats(self, descr, tmp_path):
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}"
        path = self.archive(tmp_path / "f.npz", [("embedding/kernel.npy", self.npy(header) + b"\0" * 64)])
        with pytest.raises(WeightsError) as error:
            load_model(path)
        one_line(error)

    def test_a_bomb_is_refused_before_it_unpacks(self, tmp_path):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4194304,), }"
        data = self.npy(header) + b"\0" * 2**24
        path = self.archive(tmp_path / "f.npz", [(f"w{i}.npy", data) for i in range(4)], zipfile.ZIP_DEFLATED)
        with pytest.raises(WeightsError, match=r"it would unpack to .* bytes, over 100 times its size"):
            load_model(path)

    def test_layers_stacked_by_the_million_cost_nothing(self, tmp_path):
        arrays = {"Transformer/encoderblock/LayerNorm_0/scale": np.zeros((10**9, 0), np.float32)}
        np.savez(tmp_path / "f.npz", **arrays, **{"embedding/kernel": np.zeros((1, 1, 3, 1), np.float32)})
        with pytest.raises(WeightsError, match="1 to 200 are read"):
            load_model(tmp_path / "f.npz")

    def test_duplicate_members(self, tmp_path):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"
        with pytest.warns(UserWarning, match="Duplicate"):
            path = self.archive(tmp_path / "f.npz", [("a.npy", self.npy(header) + b"\0" * 4)] * 2)
        with pytest.raises(WeightsError, match="twice"):
            load_model(path)

    def test_a_flipped_bit_in_the_values_is_found(self, tmp_path, model):
        google = randomised(build_from_spec(ViTSpec(4, 2, 24, 40, 3, (16, 16), 5)))
        save_model(google, tmp_path / "f.npz", "google-npz")
        data = bytearray((tmp_path / "f.npz").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "f.npz").write_bytes(data)
        with pytest.raises(WeightsError, match="CRC"):
            load_model(tmp_path / "f.npz")


class TestKeys:
    def rewritten(self, timm_file, change):
        tensors = load_file(timm_file)
        change(tensors)
        save_file(tensors, timm_file)
        return timm_file

    def test_missing_unexpected_and_misshaped_are_all_listed(self, timm_file):
        def change(tensors):
            del tensors["norm.bias"], tensors["blocks.1.attn.proj.weight"]
            tensors["blocks.0.attn.extra"] = torch.ones(24)
            tensors["evil\x1b[2J\u202ename"] = torch.ones(1)
            tensors["head.bias"] = torch.ones(6)

        with pytest.raises(WeightsError) as error:
            load_model(self.rewritten(timm_file, change), heads=3, conventions="timm")
        text = one_line(error)
        for expected in (
            "2 missing: 'blocks.1.attn.proj.weight', 'norm.bias'",
            "'blocks.0.attn.extra'",
            "'head.bias' is (6,), not (5,)",
        ):
            assert expected in text
        assert "\x1b" not in text
        assert "\u202e" not in text

    def test_allow_partial_loads_the_rest(self, timm_file, model):
        def change(tensors):
            del tensors["norm.bias"]
            tensors["extra"] = torch.ones(1)

        loaded = load_model(self.rewritten(timm_file, change), heads=3, conventions="timm", allow_partial=True)
        assert torch.equal(loaded.norm.bias, torch.zeros(24))
        assert torch.equal(loaded.patches.weight, model.patches.weight)

    def test_integers_where_floats_belong_are_refused(self, timm_file):
        path = self.rewritten(
            timm_file, lambda tensors: tensors.update({"norm.bias": torch.zeros(24, dtype=torch.int32)})
        )
        with pytest.raises(WeightsError, match=r"norm\.bias.*int32"):
            load_model(path, heads=3, conventions="timm")

    def test_mixed_precision_becomes_float32(self, timm_file):
        path = self.rewritten(timm_file, lambda tensors: tensors.update({"norm.bias": torch.zeros(24).double()}))
        assert {p.dtype for p in load_model(path, heads=3, conventions="timm").parameters()} == {torch.float32}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite_are_refused_unless_asked_for(self, timm_file, value):
        path = self.rewritten(timm_file, lambda tensors: tensors["blocks.1.mlp.fc1.bias"].fill_(value))
        with pytest.raises(WeightsError, match=r"blocks\.1\.mlp\.dense1\.bias.*NaN or infinity"):
            load_model(path, heads=3, conventions="timm")
        assert (
            not load_model(path, heads=3, conventions="timm", allow_nonfinite=True)
            .blocks[1]
            .mlp.dense1.bias.isfinite()
            .any()
        )


BOMBS = {
    "layers": 10**6,
    "width": 10**9,
    "classes": 10**9,
    "patch": 0,
    "heads": -1,
    "dropout": 1e999,
    "image": [224, 224, 224],
    "head": "os.system",
    "pool": ["class"],
    "mlp": "4096",
    "_instantiator": "os.system",
}


class TestOurFolder:
    @pytest.fixture
    def folder(self, model, tmp_path):
        save_model(model, tmp_path / "m")
        return tmp_path / "m"

    def card(self, folder, change):
        """Change the card and make the manifest agree, as an attacker would."""
        from vitlab.files.store import sha256

        card = json.loads((folder / "vitlab.json").read_text())
        change(card)
        (folder / "vitlab.json").write_text(json.dumps(card).replace("Infinity", "1e999"))
        manifest = json.loads((folder / MANIFEST).read_text())
        file = folder / "vitlab.json"
        manifest["vitlab.json"] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
        (folder / MANIFEST).write_text(json.dumps(manifest))

    @pytest.mark.parametrize("field", BOMBS)
    def test_config_bombs_are_schema_errors(self, folder, field):
        self.card(folder, lambda card: card["model"].__setitem__(field, BOMBS[field]))
        with pytest.raises(WeightsError, match=field) as error:
            load_model(folder)
        one_line(error)

    def test_a_card_that_does_not_match_the_weights_allocates_nothing(self, folder):
        self.card(folder, lambda card: card["model"].update(layers=200, width=16_384, mlp=131_072, heads=128))
        with pytest.raises(WeightsError, match="mis-shaped"):
            load_model(folder)

    def test_a_newer_format_version_asks_for_an_update(self, folder):
        self.card(folder, lambda card: card.update(version=99))
        with pytest.raises(WeightsError, match=r"version 99.*update vitlab"):
            load_model(folder)

    def test_deep_nesting(self, folder):
        (folder / "vitlab.json").write_text("[" * 100_000)
        with pytest.raises(WeightsError, match="nested too deeply") as error:
            load_model(folder)
        one_line(error)

    @pytest.mark.parametrize("name", ["weights.safetensors", "vitlab.json", MANIFEST])
    def test_a_deleted_file_is_named(self, folder, name):
        (folder / name).unlink()
        expected = {"weights.safetensors": "weights", "vitlab.json": "no format", MANIFEST: MANIFEST}[name]
        with pytest.raises(WeightsError, match=expected):
            load_model(folder)

    def test_a_manifest_must_list_weights_and_card(self, folder):
        (folder / MANIFEST).write_text("{}")
        with pytest.raises(WeightsError, match=r"does not list vitlab\.json, weights\.safetensors"):
            load_model(folder)

    def test_a_card_with_too_few_names_or_version_zero(self, folder):
        self.card(folder, lambda card: card.update(class_names=["one"]))
        with pytest.raises(WeightsError, match="1 class names for 5 classes"):
            load_model(folder)
        self.card(folder, lambda card: card.update(class_names=None, version=0))
        with pytest.raises(WeightsError, match="version 0"):
            load_model(folder)

    def test_every_flipped_byte_is_found(self, folder):
        rng = np.random.default_rng(0)
        for name in ("weights.safetensors", "vitlab.json"):
            good = (folder / name).read_bytes()
            for position in rng.integers(0, len(good), 40):
                bad = bytearray(good)
                bad[position] ^= 1 << int(rng.integers(8))
                (folder / name).write_bytes(bad)
                with pytest.raises(WeightsError):
                    load_model(folder)
            (folder / name).write_bytes(good)
        load_model(folder)

    def test_a_manifest_may_not_name_files_elsewhere(self, folder):
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["../../etc/passwd"] = {"bytes": 1, "sha256": "0" * 64}
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(WeightsError, match="not a plain file name"):
            load_model(folder)


class TestHuggingFaceConfigs:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hidden_act", "os.system"),
            ("layer_norm_eps", "big"),
            ("layer_norm_eps", -1),
            ("num_attention_heads", 7),
            ("num_attention_heads", 10**9),
            ("model_type", "bert"),
            ("hidden_act", []),
            ("layer_norm_eps", 10**400),
            ("hidden_dropout_prob", "high"),
        ],
    )
    def test_bad_values_are_one_line(self, key, value, tmp_path):
        model = randomised(build_from_spec(ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear")))
        save_model(model, tmp_path / "m", "hf")
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        config[key] = value
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        with pytest.raises(WeightsError) as error:
            load_model(tmp_path / "m")
        one_line(error)

    @pytest.mark.parametrize(
        "change",
        [
            {"size": {"shortest_edge": 0}, "do_center_crop": True, "crop_size": {"height": 224}},
            {"image_mean": [10**400] * 3},
            {"image_mean": 5},
            {"rescale_factor": 1.0},
            {"do_resize": False},
            {"resample": 0},
            {"size": {"shortest_edge": 256}},
        ],
    )
    def test_processors_that_cannot_be_described_are_refused(self, change, tmp_path):
        save_model(
            randomised(build_from_spec(ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear"))), tmp_path / "m", "hf"
        )
        path = tmp_path / "m" / "preprocessor_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(WeightsError) as error:
            load_model(tmp_path / "m")
        one_line(error)

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"size": 256, "crop_size": 224, "do_center_crop": True}, ("square", 0.875, 0.5)),
            ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True}, ("shorter", 0.875, 0.5)),
            ({"do_normalize": False}, ("square", 1.0, 0.0)),
        ],
    )
    def test_processors_are_read_as_their_library_reads_them(self, change, expected, tmp_path):
        save_model(
            randomised(build_from_spec(ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear"))), tmp_path / "m", "hf"
        )
        path = tmp_path / "m" / "preprocessor_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        how = load_model(tmp_path / "m").spec.conventions.preprocessing
        assert (how.resize, how.fraction, how.mean[0]) == expected

    def test_shard_names_may_not_leave_the_folder(self, tmp_path):
        (tmp_path / "m").mkdir()
        index = {"weight_map": {"a": "../../secret.safetensors"}}
        (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(WeightsError, match="plain file names"):
            load_model(tmp_path / "m")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x89HDF\r\n\x1a\n" + b"\0" * 99, b"PK\x03\x04", b"{}", b"\x93NUMPY"]
)
def test_other_files_are_refused_by_name(content, tmp_path):
    (tmp_path / "what.bin").write_bytes(content)
    with pytest.raises(WeightsError, match=r"what\.bin") as error:
        load_model(tmp_path / "what.bin")
    one_line(error)


def test_absent_files_folders_and_fifos_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "fifo.npz")
    (tmp_path / "empty").mkdir()
    for name in ("nothing.npz", "fifo.npz", "empty"):
        with pytest.raises(WeightsError) as error:
            load_model(tmp_path / name)
        one_line(error)


def test_arrays_in_memory_are_what_the_file_says(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(6, dtype=np.float32).reshape(2, 3))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    from vitlab.weights.files.npz import NpzArchive

    archive = NpzArchive(tmp_path / "a.npz")
    assert archive.shapes == {"a": (2, 3)}
    assert archive.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]
