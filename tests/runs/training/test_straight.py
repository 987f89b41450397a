"""`finetune` reads from top to bottom: nothing is read twice, and no function is passed down to be called back."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_pre_hook

import vitlab
from vitlab.cli import main
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec
from vitlab.weights.load import load_model

PACKAGE = str(Path(vitlab.__file__).parent)
SPEC = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(8, 8), classes=3, head="linear")
SHORT = ["--batch", "8", "--schedule.total", "3", "--schedule.warmup", "1", "--device", "cpu", "--workers", "0"]


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(10):
            pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path("photos", name, f"{number}.png"))
    vitlab.save_model(build_from_spec(SPEC), "start")
    return ["finetune", "start", "--data", "folder:photos", "--out", "run", *SHORT]


class Opened:
    """How often each file was opened for reading; only one audit hook can ever be added per use."""

    current = None

    def __init__(self):
        self.paths = []

    def __enter__(self):
        if Opened.current is None:
            sys.addaudithook(_note)
        Opened.current = self
        return self

    def __exit__(self, *_):
        Opened.current = Opened()

    def count(self, name):
        return sum(Path(path).match(name) for path in self.paths)


def _note(event, arguments):
    if event == "open" and Opened.current is not None and isinstance(arguments[0], str | Path):
        path, mode, _ = arguments
        if mode is None or not set("wax+") & set(mode):
            Opened.current.paths.append(str(path))


def noted_loads(monkeypatch):
    """A list that gets the path of every model that is loaded from now on."""
    loads, load = [], load_model

    def noted(path, **how):
        loads.append(path)
        return load(path, **how)

    monkeypatch.setattr("vitlab.weights.load.load_model", noted)
    return loads


def test_weights_are_loaded_and_hashed_once(command, monkeypatch):
    loads, load = [], vitlab.weights.load.load_model
    monkeypatch.setattr(
        "vitlab.weights.load.load_model", lambda path, **how: (loads.append(path), load(path, **how))[1]
    )
    with Opened() as opened:
        assert main(command) == 0
    assert [Path(path).name for path in loads].count("start") == 1  # and the report loads what was trained
    assert opened.count("start/weights.safetensors") == 1  # for its hash; safetensors maps it by itself


def test_a_sweep_loads_its_weights_once_while_it_plans(command, monkeypatch, tmp_path):
    loads, load = [], vitlab.weights.load.load_model
    monkeypatch.setattr(
        "vitlab.weights.load.load_model", lambda path, **how: (loads.append(path), load(path, **how))[1]
    )

    def planned(*_):
        raise InterruptedError("the first run begins")

    monkeypatch.setattr("vitlab.runs.sweep.plan.train_point", planned)
    rates = ["--rates", "0.1,0.2,0.3,0.4", "--test", "folder:photos", "--held-out", "0.2"]
    words = ["sweep", "start", "--data", "folder:photos", "--out", "swept", *SHORT, *rates]
    assert main(words) == 2
    assert len(loads) == 1


def test_run_json_is_read_once(command):
    with Opened() as opened:
        assert main(command) == 0
    assert opened.count("run.json") == 0  # it was made here
    Path("run/result.json").unlink()
    with Opened() as opened:
        assert main(["resume", "run"]) == 0
    assert opened.count("run.json") == 1


def test_no_function_inside_another_is_called_by_another_module(command):
    """Up to the first step of the optimizer; a method or a `partial` of a module's function says where it is."""
    crossed = set()

    def profile(frame, event, _):
        name = frame.f_code.co_qualname
        if event != "call" or "<locals>" not in name or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if name.endswith(("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            files = (Path(one.f_code.co_filename).relative_to(PACKAGE) for one in (frame, caller))
            crossed.add((name, *map(str, files)))

    def stop(optimizer, *_):
        if all(group["params"][0].grad is not None for group in optimizer.param_groups) and sys.getprofile():
            caller = sys._getframe()
            while caller is not None and "update.py" not in caller.f_code.co_filename:
                caller = caller.f_back
            if caller is not None:
                raise KeyboardInterrupt

    handle = register_optimizer_step_pre_hook(stop)
    sys.setprofile(profile)
    try:
        main(command)
    finally:
        sys.setprofile(None)
        handle.remove()
    assert not crossed
