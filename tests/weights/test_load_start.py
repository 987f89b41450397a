"""What a run starts from: weights loaded and hashed once, copied into the run's model without a random draw."""

import hashlib
from dataclasses import replace

import pytest
import torch

import vitlab.files.store
import vitlab.weights.load
from agreement import randomised
from vitlab import build_model, load_model, save_model
from vitlab.models.build import build_from_spec, copied_model
from vitlab.weights.load import load_start, weights_sha256


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model():
    return randomised(build_model("ViT-Ti/16", image=32, classes=5, head="linear"))


@pytest.mark.parametrize(("name", "form"), [("own", "vitlab"), ("m.npz", "google-npz"), ("hf", "hf")])
def test_the_hash_is_that_of_the_tensor_files(model, name, form, tmp_path, monkeypatch):
    save_model(model, tmp_path / name, form)
    (tmp_path / "link").symlink_to(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    start = load_start("link")
    files = {"own": "own/weights.safetensors", "m.npz": "m.npz", "hf": "hf/model.safetensors"}
    assert start.sha256 == digest(tmp_path / files[name]) == weights_sha256(tmp_path / name)
    assert start.path == (tmp_path / name).resolve()
    for ours, theirs in zip(model.parameters(), start.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_several_files_have_several_hashes(model, tmp_path):
    save_model(model, tmp_path / "own")
    (tmp_path / "own" / "another.npz").write_bytes(b"not looked into")
    first, second = digest(tmp_path / "own" / "another.npz"), digest(tmp_path / "own" / "weights.safetensors")
    assert load_start(tmp_path / "own").sha256 == f"{first}+{second}" == weights_sha256(tmp_path / "own")


@pytest.mark.parametrize(("name", "form"), [("own", "vitlab"), ("m.npz", "google-npz")])
def test_weights_are_hashed_once(model, name, form, tmp_path, monkeypatch):
    save_model(model, tmp_path / name, form)
    hashed, own = [], vitlab.files.store.sha256
    for module in (vitlab.files.store, vitlab.weights.load, vitlab.weights.foreign):
        monkeypatch.setattr(module, "sha256", lambda path: hashed.append(path.name) or own(path))
    load_start(tmp_path / name)
    assert len(hashed) == len(set(hashed))


def test_a_copy_has_the_bits_of_a_fresh_model_that_was_overwritten(model, tmp_path):
    save_model(model.to(torch.bfloat16), tmp_path / "half")
    loaded = load_model(tmp_path / "half")
    loaded.resize(48)
    loaded.reset_head(3)
    spec = replace(loaded.spec, dropout=0.1, stochastic_depth=0.2)
    before = build_from_spec(spec, seed=7)
    before.load_state_dict(loaded.state_dict())
    copy = copied_model(spec, loaded)
    assert (copy.spec, copy.training, copy.provenance) == (before.spec, before.training, before.provenance)
    assert [block.drop for block in copy.blocks] == [block.drop for block in before.blocks]
    for (name, ours), (other, theirs) in zip(copy.named_parameters(), before.named_parameters(), strict=True):
        assert name == other
        assert ours.requires_grad
        assert ours.dtype == theirs.dtype == torch.float32
        assert torch.equal(ours, theirs)
