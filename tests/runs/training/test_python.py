"""Training from Python: one call, a run that shows itself, any data, and a run that continues."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import vitlab
from vitlab.cli import main
from vitlab.models.build import build_from_spec
from vitlab.run_dir import RunDir
from vitlab.spec import ViTSpec

SPEC = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(8, 8), classes=3, head="linear")
SHORT = {"schedule": {"total": 6, "warmup": 1}, "batch": 8, "device": "cpu", "report": False, "quiet": True}


class Squares(Dataset):
    """Bright squares at one of three places, as PIL images, arrays or float tensors."""

    classes = ("left", "middle", "right")

    def __init__(self, count=48, kind="pil", seed=0):
        self.count, self.kind, self.seed = count, kind, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        label = index % 3
        pixels = np.random.default_rng((self.seed, index)).integers(0, 60, (12, 12, 3), dtype=np.uint8)
        pixels[4:8, 4 * label : 4 * label + 4] += 180
        if self.kind == "pil":
            return Image.fromarray(pixels), label
        if self.kind == "array":
            return pixels, label
        small = torch.from_numpy(pixels[2:10, 2:10].copy()).permute(2, 0, 1)
        return small.float() / 127.5 - 1, label


@pytest.fixture(scope="module")
def model():
    return build_from_spec(SPEC)


def losses(run):
    return run.history.column("step", "loss")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "squares"
    return vitlab.finetune(model, Squares(), out, test=Squares(24, seed=1), held_out=0.25, **SHORT)


class TestOneCall:
    def test_it_returns_the_model_its_numbers_and_every_event(self, run, model):
        assert run.is_finished
        assert run.model.class_names == Squares.classes
        assert not run.model.training
        assert run.result["test"]["count"] == 24
        assert run.best["count"] == 12
        assert len(run.history.of("step")) == len(losses(run)) == 6

    def test_the_callers_module_is_not_changed(self, run, model):
        fresh = build_from_spec(SPEC).state_dict()
        assert all(torch.equal(tensor, fresh[name]) for name, tensor in model.state_dict().items())
        assert any(not torch.equal(tensor, fresh[name]) for name, tensor in run.model.state_dict().items())

    def test_its_model_answers(self, run):
        (answer,) = vitlab.predict(run.model, [Squares()[0][0]])
        assert {guess.name for guess in answer.guesses} == set(Squares.classes)

    def test_it_shows_itself_in_a_notebook(self, run):
        assert "finished" in repr(run)
        assert "<td>test</td>" in run._repr_html_()
        assert "<th>event</th>" in run.history._repr_html_()
        assert "6 step" in repr(run.history)

    def test_a_finished_run_is_opened_and_resuming_it_changes_nothing(self, run):
        again = vitlab.open_run(run.path).resume(quiet=True)
        assert again.result == run.result

    def test_names_are_shown_as_text(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(type(run), "result", {"<b>": {"top1": 1.0}})
        assert "<b>" not in run._repr_html_()


@pytest.mark.parametrize("kind", ["pil", "array", "float"])
def test_items_of_every_kind_are_learned_from(model, tmp_path, kind):
    data = Squares(kind=kind)
    run = vitlab.finetune(model, data, tmp_path / "run", validation=Squares(12, kind, seed=1), **SHORT)
    assert run.result["validation"]["count"] == 12


def test_float_tensors_reach_the_model_as_they_are(model, tmp_path, monkeypatch):
    seen, forward = [], vitlab.models.vit.ViT.forward
    monkeypatch.setattr(
        vitlab.models.vit.ViT, "forward", lambda self, images: (seen.append(images.detach()), forward(self, images))[1]
    )
    data = Squares(8, "float")
    vitlab.finetune(model, data, tmp_path / "run", held_out=0.0, **SHORT)
    given = torch.stack([data[i][0] for i in range(8)])
    batch = next(images for images in seen if images.shape == given.shape and images.any())
    assert {tuple(row.flatten().tolist()) for row in batch} == {tuple(row.flatten().tolist()) for row in given}


def test_the_command_and_the_call_train_the_same_bits(model, tmp_path):
    vitlab.save_model(model, tmp_path / "start")
    words = ["--data", "digits?split=test", "--schedule.total", "4", "--schedule.warmup", "1", "--batch", "8"]
    assert main(["finetune", str(tmp_path / "start"), *words, "--device", "cpu", "--out", str(tmp_path / "a")]) == 0
    fields = {"schedule": {"total": 4, "warmup": 1}, "batch": 8, "device": "cpu", "quiet": True}
    run = vitlab.finetune(tmp_path / "start", "digits?split=test", tmp_path / "b", **fields)
    assert losses(run) == losses(vitlab.open_run(tmp_path / "a"))
    assert run.result["model_sha256"] == vitlab.open_run(tmp_path / "a").result["model_sha256"]
    assert RunDir(tmp_path / "a").spec().recipe == RunDir(tmp_path / "b").spec().recipe


def test_pretraining_takes_the_architecture_and_a_callback(tmp_path):
    told = []
    small = {"layers": 1, "width": 16, "heads": 2, "mlp": 16}
    run = vitlab.pretrain(
        "ViT-B/16@imagenet", Squares(), tmp_path / "run", image=16, architecture=small, on_event=told.append, **SHORT
    )
    assert run.model.spec.width == 16
    assert [event["step"] for event in told if event["event"] == "step"] == [1, 2, 3, 4, 5, 6]


def test_a_run_in_another_thread_does_without_signal_handlers(model, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(vitlab.finetune, model, Squares(), tmp_path / "run", **SHORT).result()
    assert run.is_finished


class TestResume:
    def stopped(self, model, out, data, at=3):
        def stop(event):
            if event["event"] == "step" and event["step"] == at:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(vitlab.Stopped) as caught:
            vitlab.finetune(model, data, out, on_event=stop, held_out=0.25, **SHORT)
        assert caught.value.path == out
        assert isinstance(caught.value, KeyboardInterrupt)
        return vitlab.open_run(out)

    def test_ctrl_c_leaves_a_run_that_ends_as_if_nothing_had_happened(self, model, tmp_path):
        whole = vitlab.finetune(model, Squares(), tmp_path / "whole", held_out=0.25, **SHORT)
        run = self.stopped(model, tmp_path / "run", Squares())
        assert not run.is_finished
        with pytest.raises(ValueError, match="has no model yet"):
            _ = run.model
        assert run.resume(data=Squares(), quiet=True).result["model_sha256"] == whole.result["model_sha256"]
        assert losses(run) == losses(whole)

    def test_a_run_on_an_object_needs_the_object(self, model, tmp_path):
        run = self.stopped(model, tmp_path / "run", Squares())
        with pytest.raises(ValueError, match=r"resume\(data="):
            run.resume(quiet=True)

    @pytest.mark.parametrize("other", [Squares(seed=5), Squares(47)], ids=["other items", "another length"])
    def test_another_dataset_is_refused(self, model, tmp_path, other):
        run = self.stopped(model, tmp_path / "run", Squares())
        with pytest.raises(ValueError, match=r"cannot be continued exactly|the data has changed"):
            run.resume(data=other, quiet=True)


def test_mistakes_are_errors_that_say_what_to_do(model, tmp_path):
    with pytest.raises(ValueError, match=r"schedule\.peek does not exist"):
        vitlab.finetune(model, Squares(), tmp_path / "run", schedule={"peek": 1.0}, quiet=True)
    with pytest.raises(TypeError, match="takes a vitlab model, not a Linear"):
        vitlab.finetune(torch.nn.Linear(1, 1), Squares(), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="holds no run"):
        vitlab.open_run(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_sweep_over_a_dataset_picks_and_reports(model, tmp_path):
    vitlab.save_model(model, tmp_path / "start")
    fields = {**SHORT, "schedule": {"total": 3, "warmup": 1}}
    found = vitlab.sweep(
        tmp_path / "start",
        Squares(),
        Squares(24, seed=1),
        tmp_path / "sweep",
        grid={"schedule.peak": (0.01, 0.1)},
        recipe="quick",
        seeds=2,
        held_out=0.25,
        **fields,
    )
    assert len(found.accuracies) == 2
    assert found.points == 2
    assert "dataset:Squares" in found._repr_html_()
    again = vitlab.sweep(
        tmp_path / "start",
        Squares(),
        Squares(24, seed=1),
        tmp_path / "sweep",
        grid={"schedule.peak": (0.01, 0.1)},
        recipe="quick",
        seeds=2,
        held_out=0.25,
        **fields,
    )
    assert again == found


def test_a_source_feeds_somebody_elses_loop(tmp_path):
    data = vitlab.open_data("digits?split=test", transform=lambda picture: torch.from_numpy(np.array(picture)))
    images, labels = next(iter(DataLoader(data, batch_size=16, shuffle=True)))
    assert images.shape == (16, 8, 8, 3)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": 5}, "model is 5; expected a string, a path or a Module"),
        ({"out": 5}, "out is 5; expected a string, a path or None"),
        ({"on_event": 3}, "on_event is 3; expected a function of one event"),
        ({"seed": "a"}, "seed is 'a'; expected a whole number"),
        ({"lr": 0.1}, "lr does not exist; .* did you mean schedule.peak?"),
        ({"epoch": 3}, "epoch does not exist; .* did you mean epochs?"),
        ({"bacth": 3}, "bacth does not exist; .* did you mean batch?"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it_before_there_is_a_folder(wrong, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        vitlab.finetune(**{"model": "weights", "data": "digits", "out": "run"} | wrong)
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match="path is 5; expected a string or a path"):
        vitlab.open_run(5)


def test_a_run_is_also_the_path_of_its_model(run, model, tmp_path):
    (answer,) = vitlab.predict(run, Squares(1)[0][0])
    assert answer.guesses == vitlab.predict(run.model, Squares(1)[0][0])[0].guesses
    again = vitlab.finetune(run, Squares(), tmp_path / "again", **SHORT)
    assert again.spec.start


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            lambda out: vitlab.pretrain("ViT-Ti/16", "nothing:here", out, objective="masked_patches"),
            "objective is 'masked_patches'; expected 'labels' or 'masked-patches'",
        ),
        (
            lambda out: vitlab.sweep("no.npz", "nothing:here", "nothing:here", out, search="optune"),
            "search is 'optune'; expected 'grid' or 'optuna'",
        ),
        (
            lambda out: vitlab.transfer("no.npz", {"pets": ("nothing:here", "nothing:here")}, out, sweep=True),
            "sweep is True; expected 'auto', 'yes' or 'no'",
        ),
        (lambda out: vitlab.finetune("no.npz", "nothing:here", out, teacher=5), "teacher is 5; expected .* path.*"),
    ],
)
def test_unknown_values_are_named_before_anything_is_opened(tmp_path, start, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        start(tmp_path / "out")
    assert not (tmp_path / "out").exists()
