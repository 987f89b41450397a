"""Checkpoints: nothing damaged is used, nothing needed is deleted, and what is saved is what was there."""

import errno
import os
import random
import shutil
import threading
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from vitlab.files import store
from vitlab.files.store import MANIFEST, write_folder
from vitlab.spec.recipe import SGD, AdamW
from vitlab.train.checkpoints import files as checkpoint_files
from vitlab.train.checkpoints.checkpoints import Checkpoints, NotSaved
from vitlab.train.checkpoints.files import BEST, LATEST, name_of, verify_checkpoint
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import Progress, Settling, TrainState

FILES = ("model.safetensors", "optimizer.safetensors", "average.safetensors", "state.json", MANIFEST)


def new_state(how=None, seed=0):
    torch.manual_seed(seed)
    module, average = nn.Linear(5, 4), nn.Linear(5, 4)
    return TrainState(module, make_optimizer(module, how or AdamW()), average)


def train(state, steps=1):
    """Some updates, with numbers that do not repeat."""
    for _ in range(steps):
        state.progress.step += 1
        state.optimizer.zero_grad()
        state.module(torch.full((2, 5), float(state.progress.step))).square().sum().backward()
        for group in state.optimizer.param_groups:
            group["lr"] = 1e-2
        state.optimizer.step()
    return state


def tensors(state):
    return {f"{g}/{n}": t.clone() for g, group in state.groups().items() for n, t in group.items()}


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


@pytest.fixture
def folder(in_memory):
    return in_memory / "run" / "checkpoints"


def opened(folder, keep=2):
    return Checkpoints(folder, keep=keep, environment={"torch": "x"})


@pytest.fixture
def two(folder):
    """Two checkpoints, of steps 1 and 2, and what the first held."""
    state = new_state()
    found = opened(folder)
    found.save(train(state), wait=True)
    first = tensors(state)
    found.save(train(state), wait=True)
    return folder, first


class TestDamage:
    def test_five_hundred_flips_and_fifty_cuts_are_all_found_and_named(self, two):
        newest, rng = two[0] / name_of(2), random.Random(0)
        whole = {name: (newest / name).read_bytes() for name in FILES}
        assert {path.name for path in newest.iterdir()} == set(FILES)
        for number in range(550):
            name = FILES[number % len(FILES)]
            content = bytearray(whole[name])
            at = rng.randrange(len(content))
            if number < 500:
                content[at] ^= rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
            else:
                del content[at:]
            (newest / name).write_bytes(content)
            with pytest.raises(ValueError) as error:
                verify_checkpoint(newest)
            assert (name if name != MANIFEST else "manifest") in str(error.value) or name == MANIFEST
            (newest / name).write_bytes(whole[name])
        verify_checkpoint(newest)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
    def test_the_checkpoint_before_is_taken_and_the_damaged_one_set_aside(self, two, name, harm):
        folder, first = two
        file = folder / name_of(2) / name
        content = file.read_bytes()
        middle = len(content) // 2
        if harm == "flip":
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif harm == "cut":
            file.write_bytes(content[:middle])
        else:
            file.unlink()
        state = new_state(seed=9)
        restored = opened(folder).restore(state)
        assert (restored.step, state.progress.step) == (1, 1)
        assert_equal(tensors(state), first)
        (said,) = restored.damaged
        assert name_of(2) in said
        assert name in said or name == MANIFEST
        assert sorted(path.name for path in folder.glob("*step*")) == [f"damaged-{name_of(2)}", name_of(1)]
        assert (folder / LATEST).read_text() == f"{name_of(1)}\n"

    def test_nothing_is_taken_when_nothing_is_whole(self, two):
        folder, _ = two
        for step in (1, 2):
            (folder / name_of(step) / "state.json").write_text("{}")
        state = new_state(seed=9)
        before = tensors(state)
        for _ in range(2):  # the second time they are set aside already
            with pytest.raises(ValueError, match=r"no checkpoint in .* is intact: .*step-00000002"):
                opened(folder).restore(state)
        assert_equal(tensors(state), before)

    def test_going_on_does_not_change_the_checkpoint_it_came_from(self, two):
        state = new_state(seed=9)
        opened(two[0]).restore(state)
        train(state, 3)
        verify_checkpoint(two[0] / name_of(2))

    def test_a_checkpoint_of_another_model_is_an_error(self, two):
        other = TrainState(nn.Linear(5, 3), torch.optim.SGD(nn.Linear(1, 1).parameters()), nn.Linear(5, 3))
        with pytest.raises(ValueError, match="is \\(4, 5\\), the model's \\(3, 5\\)"):
            opened(two[0]).restore(other)


class TestRetention:
    def test_one_is_whole_at_every_instant_even_when_one_is_kept(self, folder, monkeypatch):
        looks = 0
        is_looking = False

        def look():
            nonlocal looks, is_looking
            if is_looking or not (folder / LATEST).exists():
                return
            is_looking = True
            whole = [verify_checkpoint(path) for path in folder.glob("step-*")]  # raises if one is not
            assert whole
            looks += 1
            is_looking = False

        for operation in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
            real = getattr(os, operation)
            monkeypatch.setattr(os, operation, lambda *a, real=real, **k: (look(), real(*a, **k), look())[1])
        state, found = new_state(), opened(folder, keep=1)
        for _ in range(10):
            found.save(train(state), wait=True)
        assert looks > 200
        assert found.steps() == [10]

    def test_the_last_and_the_best_stay(self, folder):
        state, found = new_state(), opened(folder, keep=2)
        for step in range(1, 8):
            train(state)
            if step == 3:
                state.progress.best, state.progress.best_step = 0.5, 3
            found.save(state, wait=True)
        assert found.steps() == [3, 6, 7]
        assert found.best() == 3
        assert (folder / BEST).read_text() == f"{name_of(3)}\n"

    def test_nothing_outside_the_folder_is_touched(self, folder, in_memory):
        outside = in_memory / "precious"
        write_folder(outside, {"a": lambda path: path.write_text("a")})
        neighbour = in_memory / "run-2" / "checkpoints"
        opened(neighbour).save(train(new_state()), wait=True)
        state, found = new_state(), opened(folder, keep=1)
        (folder / name_of(0)).symlink_to(outside)
        (folder / f".{name_of(0)}.old").symlink_to(outside)
        (folder / ".mine").write_text("a user's")
        found = opened(folder, keep=1)
        for _ in range(3):
            found.save(train(state), wait=True)
        assert sorted(path.name for path in folder.iterdir()) == [".mine", LATEST, name_of(3)]
        assert (outside / "a").read_text() == "a"
        verify_checkpoint(neighbour / name_of(1))

    def test_what_a_dead_writer_left_is_removed(self, two):
        folder, _ = two
        shutil.copytree(folder / name_of(2), folder / f".{name_of(3)}.tmp-123")
        shutil.copytree(folder / name_of(2), folder / f".{name_of(0)}.old")
        (folder / ".LATEST.tmp-9").write_text("")
        assert opened(folder).steps() == [1, 2]
        assert not list(folder.glob(".*"))


class TestBackground:
    def test_a_hundred_saves_hold_the_values_from_before_the_next_change(self, folder):
        state, found = train(new_state()), opened(folder, keep=1000)
        expected = {}
        for step in range(100):
            state.progress.step = step
            expected[step] = tensors(state)
            found.save(state)
            with torch.no_grad():
                for group in state.groups().values():
                    for tensor in group.values():
                        tensor.add_(1)
        found.wait()
        assert found.steps() == list(range(100))
        for step, values in expected.items():
            stored = {
                f"{name}/{key}": tensor
                for name in ("model", "optimizer", "average")
                for key, tensor in load_file(folder / name_of(step) / f"{name}.safetensors").items()
            }
            assert_equal(stored, values)

    @pytest.mark.parametrize("ask", ["check", "wait", "save"])
    def test_an_error_surfaces_at_the_next_question_and_the_old_one_stays(self, two, monkeypatch, ask):
        go = threading.Event()

        def full(*_):
            assert go.wait(60)  # or `save` itself would sometimes see it already
            raise OSError(errno.ENOSPC, "No space left on device")

        folder, _ = two
        state, found = new_state(), opened(folder)
        found.restore(state)
        monkeypatch.setattr(checkpoint_files, "save_file", full)
        found.save(train(state))
        go.set()
        found.close()
        with pytest.raises(NotSaved, match=r"No space left on device; the last good one is of step 2"):
            found.save(state) if ask == "save" else getattr(found, ask)()
        found.check()  # told once
        verify_checkpoint(folder / name_of(2))
        assert (folder / LATEST).read_text() == f"{name_of(2)}\n"
        assert not list(folder.glob(".*"))

    def test_latest_moves_after_the_checkpoint_has_its_name(self, two, monkeypatch):
        folder, _ = two
        reached, go = threading.Event(), threading.Event()
        rename = Path.rename

        def slow(path, target):
            reached.set()
            assert go.wait(60)
            return rename(path, target)

        state, found = new_state(), opened(folder)
        found.restore(state)
        monkeypatch.setattr(Path, "rename", slow)
        found.save(train(state))
        assert reached.wait(60)
        assert (folder / LATEST).read_text() == f"{name_of(2)}\n"
        assert not (folder / name_of(3)).exists()
        go.set()
        found.wait()
        assert (folder / LATEST).read_text() == f"{name_of(3)}\n"


class TestState:
    def test_every_number_of_the_progress_comes_back(self, folder):
        books = {"found": 3, "quarantined": [{"id": "a"}]}
        progress = Progress(7, 84, 2, 1, 0.25, 5, 3, Settling(1.5, 4, 2.0, 0.5, 2), books)
        for field in fields(Progress):  # a new field has to be given here, or this is no test of it
            assert getattr(progress, field.name) != getattr(Progress(), field.name), field.name
        state = train(new_state())
        state.progress = progress
        opened(folder).save(state, wait=True)
        other = new_state(seed=9)
        opened(folder).restore(other)
        assert asdict(other.progress) == asdict(progress)

    @pytest.mark.parametrize("how", [AdamW(), SGD(), AdamW(decay="kernels")])
    def test_every_tensor_of_the_optimizer_comes_back_and_it_goes_on_the_same(self, folder, how):
        state = train(new_state(how), 3)
        opened(folder).save(state, wait=True)
        other = new_state(how, seed=9)
        opened(folder).restore(other)
        kept, found = state.optimizer.state_dict(), other.optimizer.state_dict()
        assert kept["state"].keys() == found["state"].keys() != set()
        for number, values in kept["state"].items():
            assert values.keys() == found["state"][number].keys()
            for what, value in values.items():
                assert value is None or torch.equal(value, found["state"][number][what]), what
        assert_equal(tensors(train(state, 5)), tensors(train(other, 5)))

    def test_the_state_has_nothing_that_is_not_saved(self):
        assert {field.name for field in fields(TrainState)} == {"module", "optimizer", "average", "progress"}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("group", ["model", "optimizer", "average"])
    def test_a_state_that_is_not_finite_is_not_saved(self, two, group, value):
        state, found = new_state(), opened(two[0])
        found.restore(state)
        train(state)
        next(iter(state.groups()[group].values())).view(-1)[0] = value
        with pytest.raises(FloatingPointError, match=rf"{group}/.* has NaN or infinity after step 3"):
            found.save(state, wait=True)
        assert found.steps() == [1, 2]


def test_files_are_written_through_the_one_store(folder, monkeypatch):
    """Nothing here has a way of its own to write."""
    written = []
    monkeypatch.setattr(store, "_sync", lambda path: written.append(path.name))
    opened(folder).save(train(new_state()), wait=True)
    assert {*FILES, "checkpoints", f".{LATEST}.tmp-{os.getpid()}"} <= set(written)
