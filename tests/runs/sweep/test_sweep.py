"""A sweep is the paper's protocol, in folders: killed anywhere it goes on, repeats nothing and picks the same."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import crashes
import vitlab
from agreement import randomised
from vitlab import save_model
from vitlab.cli import main
from vitlab.data import contents
from vitlab.models.build import build_from_spec
from vitlab.paper.recipes.finetuning import finetuning_recipe, quick_recipe
from vitlab.report.ledger import read
from vitlab.run_dir import CONTENTS, RunDir
from vitlab.runs.sweep.grid import Point, SweepOptions, points_of, row_rates
from vitlab.runs.sweep.plan import make_plan
from vitlab.runs.sweep.search import read_space
from vitlab.runs.sweep.selection import Judged, pick
from vitlab.runs.training.request import Request
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import Execution

TRAIN, TEST = "shapes?classes=3&images=40&size=16", "shapes?classes=3&images=30&size=16&seed=1"
STEPS = 12
ASKED = Request("digits")
SHORT = ["--recipe", "pets", "--schedule.total", str(STEPS), "--schedule.warmup", "1", "--batch", "8", "--image", "8"]
RATES = ("0.03", "0.3")
PATIENCE = 300  # seconds that nothing takes, however busy the machine is


@pytest.fixture
def model(in_memory):
    spec = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(8, 8), classes=0, head="linear")
    save_model(randomised(build_from_spec(spec)), in_memory / "model")
    return in_memory / "model"


def words(model, out, *more, test=TEST):
    return ["sweep", str(model), "--data", TRAIN, "--test", test, *SHORT, "--out", str(out), *more]


def load(path):
    return json.loads(path.read_text())


def steps(out):
    """How many steps were trained in each run folder, repeated ones counted."""
    logs = sorted(out.glob("*/*/events.jsonl"))  # not inside checkpoints, which come and go
    return {str(log.parent.relative_to(out)): len(list(RunDir(log.parent).events("step"))) for log in logs}


def kept(out):
    return [(out / name).read_bytes() for name in ("choice.json", "result.json", "result.csv", "points.md")]


# -- What is tried -------------------------------------------------------------------------------


def test_the_default_rates_are_those_of_table_4():
    assert row_rates(finetuning_recipe("imagenet"), 10**6) == (0.003, 0.01, 0.03, 0.06)
    assert row_rates(finetuning_recipe("imagenet-512"), 10**6) == (0.003, 0.01, 0.03, 0.06)
    for name in ("cifar10", "cifar100", "pets", "flowers"):
        assert row_rates(finetuning_recipe(name), 10**4) == (0.001, 0.003, 0.01, 0.03)
    assert row_rates(finetuning_recipe("vtab"), 800) == (0.01,)
    assert row_rates(finetuning_recipe("bit-small"), 800) == (0.003,)
    quick = row_rates(quick_recipe(1000, (8, 8)), 1000)
    assert quick == pytest.approx([rate * (64 / 512) ** 0.5 for rate in (0.001, 0.003, 0.01, 0.03)], rel=5e-3)


def test_a_grid_is_every_combination_and_others_compete_as_they_are():
    recipe = finetuning_recipe("pets")
    options = SweepOptions(ASKED, grid=("schedule.peak=0.1,0.2", "batch=4,8"), also=("bit-hyperrule", "cifar10"))
    names = [point.name for point in points_of(recipe, 100, options)]
    assert names[:4] == [f"schedule.peak={peak},batch={batch}" for peak in ("0.1", "0.2") for batch in ("4", "8")]
    assert names[4:] == ["bit-small", "cifar10"]
    assert [
        point.name for point in points_of(recipe, 10**6, SweepOptions(ASKED, rates=(1.0,), also=("bit-hyperrule",)))
    ] == [
        "schedule.peak=1",
        "bit-large",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grid": ("schedule.peak",)}, "must be a field and its values"),
        ({"grid": ("batch=4,,8",)}, "must be a field and its values"),
        ({"grid": ("batch=4,4",)}, "a value twice"),
        ({"grid": ("batch=4", "batch=8")}, "batch twice"),
        ({"grid": ("schedule.peak=1,2",), "rates": (1.0,)}, "are the same"),
        ({"rates": (0.1, 0.1)}, "two points of the sweep are named"),
        ({"rates": (-1.0,)}, "above 0"),
        ({"rates": (0.1,), "request": Request("digits", changes=(("schedule.peak", "1"),))}, "set and tried"),
        ({"space": ("batch=choice:1,2",)}, "search='optuna'"),
        ({"grid": ("batch=" + ",".join(map(str, range(1001))),)}, "1,001 points"),
    ],
)
def test_words_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        points_of(finetuning_recipe("pets"), 100, SweepOptions(**{"request": ASKED, **options}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates": 0.1}, r"rates is 0.1; expected a list of learning rates, such as \[0.001, 0.003\]"),
        ({"rates": ("x",)}, "rates is .'x',.; expected a list of learning rates"),
        ({"rates": "0.1"}, "rates is '0.1'; expected a list"),
        ({"held_out": "x"}, "held_out is 'x'; expected a number or None"),
        ({"held_out": 2}, "held_out is 2; expected a share of the training images"),
    ],
)
def test_values_of_the_wrong_type_are_errors_by_the_name_of_the_argument(tmp_path, given, said):
    with pytest.raises(ValueError, match=said):
        vitlab.sweep("absent", TRAIN, TEST, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schedule.peak", ": after the field comes one of log:LOW:HIGH, linear:LOW:HIGH"),
        ("a=log:0:1", ": a logarithm needs a low end above 0"),
        ("a=log:2:1", ": 2 is not below 1"),
        ("a=curved:1:2", ": after the field comes one of log:LOW:HIGH, linear:LOW:HIGH"),
        ("a=whole:1.5:2", ": after the field comes one of log:LOW:HIGH, linear:LOW:HIGH"),
        ("a=choice:1,1", " needs different values"),
        ("=log:1:2", " names no field"),
    ],
)
def test_a_space_that_means_nothing_is_refused(text, said):
    with pytest.raises(ValueError, match=f"^space '{text}'{said}"):
        read_space([text])


# -- What is picked ------------------------------------------------------------------------------


def point_of(name, rate, top1, loss=1.0, diverged=""):
    return Judged(Point(name, "pets"), rate, {"top1": top1, "loss": loss, "count": 50}, diverged)


def test_the_most_right_wins_and_ties_go_to_the_smaller_rate_then_the_earlier_point():
    best, why = pick(
        [point_of("a", 0.1, 0.5), point_of("b", 0.3, 0.8), point_of("c", 0.2, 0.8), point_of("d", 0.2, 0.8)]
    )
    assert best.point.name == "c"
    assert "top-1 80.0 % on 50 development images" in why
    assert "d, b tied: the smaller learning rate wins" in why
    assert pick([point_of("a", 0.1, 0.5), point_of("b", 0.3, 0.6)])[0].point.name == "b"


def test_what_diverged_is_worst_whatever_it_got_right():
    best, why = pick([point_of("a", 0.1, 0.2), point_of("b", 9.0, 0.9, diverged="loss 1e9")])
    assert best.point.name == "a"
    assert "diverged: b" in why
    with pytest.raises(ArithmeticError, match="every point"):
        pick([point_of("a", 1.0, 0.9, diverged="so"), Judged(Point("b", "pets"), 2.0, None, "so too")])


# -- The protocol --------------------------------------------------------------------------------


@pytest.mark.slow
def test_points_are_judged_without_the_test_and_the_best_is_retrained_on_everything(model, in_memory, capsys):
    out, ledger = in_memory / "out", in_memory / "ledger.jsonl"
    command = words(model, out, "--rates", "0.03,0.3,100", "--seeds", "3")
    assert main([*command, "--ledger", str(ledger)]) == 0
    choice, found = load(out / "choice.json"), {}
    for rate in ("0.03", "0.3", "100"):
        run = out / "grid" / f"schedule.peak={rate}"
        spec, result = load(run / "run.json"), load(run / "result.json")
        assert (spec["held_out"], spec["test"], spec["seed"]) == (0.1, "", 0)  # appendix B.1.1: 10 % for Pets
        assert result["validation"]["count"] == 4
        assert "test" not in result
        found[rate] = result["validation"]["top1"] if result["validation"]["loss"] < 10 * np.log(3) else -1
    best = max(found, key=lambda rate: (found[rate], -float(rate)))
    assert choice["pick"] == f"schedule.peak={best}"
    assert choice["points"][2]["remark"].startswith("diverged")
    accuracies = []
    for seed in range(3):
        spec = load(out / "final" / f"seed-{seed}" / "run.json")
        assert (spec["held_out"], spec["test"], spec["seed"]) == (0.0, TEST, seed)
        assert spec["recipe"]["schedule"]["peak"] == float(best)
        result = load(out / "final" / f"seed-{seed}" / "result.json")["test"]
        assert result["count"] == 30
        accuracies.append(100 * result["top1"])
    (row,) = load(out / "result.json")
    assert row["top-1 %"] == pytest.approx(np.mean(accuracies))
    assert row["std"] == pytest.approx(np.std(accuracies, ddof=1))
    (entry,), _ = read(ledger)
    assert (entry.got, entry.runs, entry.n, entry.task) == (pytest.approx(np.mean(accuracies)), 3, 30, "")
    assert steps(out) == {**{f"grid/schedule.peak={rate}": STEPS for rate in found}, **finals(3)}

    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert main(command) == 0  # again: nothing is trained, the same is said
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file() and file.name != ".lock"} == {
        file: content for file, content in before.items() if file.name != ".lock"
    }
    assert "3 of 3 runs are finished already" in capsys.readouterr().out
    assert main([*command[:-1], "2"]) == 2
    assert "holds another sweep: seeds was 3 and is 2; choose another --out" in capsys.readouterr().err
    assert main([*command, "--label_smoothing", "0.1"]) == 2
    assert "label_smoothing was not set and is 0.1" in capsys.readouterr().err


def finals(seeds):
    return {f"final/seed-{seed}": STEPS for seed in range(seeds)}


@pytest.mark.slow
def test_one_point_needs_no_picking(model, in_memory):
    out = in_memory / "out"
    assert main(words(model, out, "--schedule.peak", "0.1", "--seeds", "1")) == 0
    assert steps(out) == finals(1)
    choice = load(out / "choice.json")
    assert choice["why"] == "the only point, so nothing was picked"
    assert (choice["judged_on"], choice["rule"]) == (None, None)
    (row,) = load(out / "result.json")
    assert (row["std"], row["picked of"], row["learning rate"]) == (None, 1, 0.1)


@pytest.mark.slow
def test_a_sweep_learns_from_a_teacher_and_goes_on_with_that_one_alone(model, in_memory, capsys):
    for seed in (0, 1):
        spec = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(8, 8), classes=3, head="linear")
        save_model(randomised(build_from_spec(spec), seed=seed), in_memory / f"teacher-{seed}")
    out = in_memory / "out"
    command = words(model, out, "--schedule.peak", "0.1", "--seeds", "1", "--distillation.weight", "0.3")
    assert main([*command, "--teacher", str(in_memory / "teacher-0")]) == 0
    spec = RunDir.open(out / "final" / "seed-0").spec()
    assert (spec.teacher, spec.recipe.distillation.share) == (str((in_memory / "teacher-0").resolve()), 0.3)
    (in_memory / "teacher-0").rename(in_memory / "moved")
    assert main([*command, "--teacher", str(in_memory / "moved")]) == 0  # finished
    assert steps(out) == finals(1)
    assert main([*command, "--teacher", str(in_memory / "teacher-1")]) == 2
    assert "holds another sweep: it has another teacher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seeds", "0"], "at least 1"),
        (["--grid", "schedule.peek=1,2"], "does not exist; schedule has the fields peak"),
        (["--grid", "batch=4,many"], "batch"),
        (["--rates", "0.1;0.2"], "expected numbers and commas"),
        (["--recipe", "cifar11"], "unknown fine-tuning recipe 'cifar11'"),
        (["--also", "cifar11"], "unknown fine-tuning recipe 'cifar11'"),
        (["--jobs", "0"], "at least 1"),
        (["--held-out", "0"], "no training images are held out"),
        (["--patience", "3", "--validate-every", "2"], "train on all images, so --validate-every"),
        (["--grid", "validate_every=0,2"], "--validate-every and --patience need --validation\n"),
        (["--distillation.weight", "0.3"], "give --teacher MODEL"),
        (["--distillation.kind", "hard"], "give --teacher MODEL"),
        (["--partners", "rolled"], "--partners has no effect in this run: no images are mixed"),
        (["--grid", "schedule.decay=constant", "--grid", "schedule.end=0,1e-4"], "a constant decay has no such end"),
        (["--teacher", "nowhere"], "nowhere: no such file or folder, and no released weights have this name"),
        (["--test", TEST.replace("classes=3", "classes=4")], "does not fit the training data"),
        (["--search", "optuna"], "needs --space"),
        (["--search", "optuna", "--trials", "0"], "at least 1"),
        (["--search", "optuna", "--space", "batch=choice:1,2"], "set and tried"),
        (["--search", "optuna", "--space", "schedule.peek=log:1e-3:1"], "does not exist; schedule has the fields peak"),
        (["--search", "optuna", "--space", "loss=choice:softmax,sigmoidal"], "allowed are 'sigmoid', 'softmax'"),
        (["--search", "optuna", "--space", "dropout=linear:0:1"], "dropout 1.0 is outside [0, 1)"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused_before_there_is_a_folder(model, in_memory, capsys, more, said):
    if "optuna" in more:
        pytest.importorskip("optuna", reason="pip install 'vitlab[search]'")
    assert main(words(model, in_memory / "out", *more)) == 2
    assert said in capsys.readouterr().err
    assert not (in_memory / "out" / "sweep.json").exists()


@pytest.mark.parametrize(
    ("library", "extra", "more"),
    [
        ("ray", "ray", ["--ray", "local"]),
        ("optuna", "search", ["--search", "optuna", "--space", "schedule.peak=log:1e-3:1"]),
    ],
)
def test_a_missing_extra_is_named(model, in_memory, capsys, monkeypatch, library, extra, more):
    monkeypatch.setitem(sys.modules, library, None)
    assert main(words(model, in_memory / "out", *more)) == 2
    assert f"pip install 'vitlab[{extra}]'" in capsys.readouterr().err


def test_what_only_some_points_read_is_a_part_of_the_grid(model, in_memory):
    options = SweepOptions(
        Request(TRAIN, (8, 8), test=TEST, changes=(("partners", "rolled"),), is_swept=True),
        recipe="pets",
        grid=("mixup=0,0.2",),
        execution=Execution(device="cpu"),
    )
    plan = make_plan(model, in_memory / "out", options, Console(quiet=True), {})
    assert [plan.run_of(point).recipe.partners for point in plan.points] == ["rolled", "rolled"]


@pytest.mark.parametrize("rates", ["0.1", "0.1,0.2"])
def test_what_takes_days_on_a_cpu_has_to_be_wanted_however_few_points_there_are(model, in_memory, capsys, rates):
    total = ["--schedule.total", str(10**12), "--rates", rates]
    assert main([*words(model, in_memory / "out"), *total]) == 2
    assert "on this CPU; confirm with --yes" in " ".join(capsys.readouterr().err.split())
    assert not (in_memory / "out").exists()


def test_the_days_of_a_longer_point_count_too(model, in_memory, capsys):
    command = words(model, in_memory / "out", "--grid", f"schedule.total=12,{10**12}")
    where = command.index("--schedule.total")
    assert main([*command[:where], *command[where + 2 :]]) == 2
    assert "confirm with --yes" in " ".join(capsys.readouterr().err.split())


class Begun(Exception):  # noqa: N818 - no error
    """Instead of training."""


def begin(monkeypatch, command):
    """Start a sweep up to its first run."""

    def stop(*_):
        raise Begun

    with monkeypatch.context() as patch:
        patch.setattr("vitlab.runs.sweep.plan.Plan.judge_all", stop)
        with pytest.raises(Begun):
            main(command)


def test_a_sweep_goes_on_with_the_same_images_and_points_alone(model, in_memory, monkeypatch, capsys):
    photos = {}
    for part, seed in (("data", 0), ("test", 1), ("validation", 2)):
        photos[part] = in_memory / part
        save_pictures(photos[part], seed)
    out = in_memory / "out"
    command = ["sweep", str(model), *SHORT, "--out", str(out)]
    for part, folder in photos.items():
        command += [f"--{part}", f"folder:{folder}"]
    command += ["--rates", ",".join(f"{0.001 * n:g}" for n in range(1, 10))]
    begin(monkeypatch, command)
    begin(monkeypatch, command)  # the same again
    for part, folder in photos.items():
        new = folder / "a" / "another.png"
        Image.new("RGB", (9, 9), "red").save(new)
        assert main(command) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert f"the images of --{part} are not those it began with; choose another --out" in told
        new.unlink()
    for part, folder in photos.items():
        picture = folder / "b" / "2.png"
        held = picture.read_bytes()
        Image.new("RGB", (9, 9), "red").save(picture)
        assert main(command) == 2
        told = " ".join(capsys.readouterr().err.split())
        words = "training" if part == "data" else part
        assert f"1 of 6 files of the {words} data has changed: '{picture}'" in told
        picture.write_bytes(held)  # with another date
    begin(monkeypatch, command)
    assert main([*command[:-1], command[-1].replace("0.009", "0.5")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "holds another sweep: it tried schedule.peak=0.009 and this one tries schedule.peak=0.5; choose" in told


def test_the_images_of_a_sweep_are_hashed_once_for_all_its_runs(model, in_memory, monkeypatch):
    save_pictures(in_memory / "data", 0)
    save_pictures(in_memory / "test", 1)
    reads, plain = [], contents._hash_file

    def hash_file(path, reading):
        reads.append(path)
        return plain(path, reading)

    monkeypatch.setattr(contents, "_hash_file", hash_file)
    spec = ["--data", f"folder:{in_memory / 'data'}", "--test", f"folder:{in_memory / 'test'}", "--held-out", "0.4"]
    out = in_memory / "out"
    assert main(["sweep", str(model), *SHORT, *spec, "--rates", "0.01,0.02", "--seeds", "2", "--out", str(out)]) == 0
    assert len(reads) == len(set(reads)) == 12
    assert len(list(out.glob(f"*/*/{CONTENTS}"))) == 4


def save_pictures(folder, seed):
    rng = np.random.default_rng(seed)
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")


def test_a_folder_of_something_else_is_refused(model, capsys):
    assert main(words(model, model)) == 2
    assert not (model / ".lock").exists()  # it is refused before anything is begun
    assert "contains other files; choose an empty or a new folder" in capsys.readouterr().err
    assert {file.name for file in model.iterdir() if file.name[0] != "."} == {
        "manifest.json",
        "vitlab.json",
        "weights.safetensors",
    }


@pytest.mark.slow
def test_a_ray_that_does_not_answer_is_told_at_once(model, in_memory, capsys):
    pytest.importorskip("ray", reason="pip install 'vitlab[ray]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(words(model, in_memory / "out", "--ray", address)) == 2
    assert f"no Ray cluster responds at '{address}'" in capsys.readouterr().err


# -- Kills ---------------------------------------------------------------------------------------


class Sweep:
    """The command in a process and a session of its own; what it says goes to a file, which outlives it."""

    def __init__(self, command, folder):
        self.said = folder / "said.txt"
        self.process = crashes.start(crashes.run_command, command, self.said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()

    def wait_for(self, claim):
        end = time.monotonic() + PATIENCE
        while not claim():
            assert self.process.is_alive(), f"it ended: {self.said.read_text()}"
            assert time.monotonic() < end, f"no progress: {self.said.read_text()}"
            time.sleep(0.005)

    def send(self, number):
        os.kill(self.process.pid, number)

    def ended(self, code=0):
        """What it said, having ended with this code."""
        assert crashes.code_of(self.process) == code, self.said.read_text()
        return self.said.read_text()


def results(out):
    return sorted(str(path.parent.relative_to(out)) for path in out.glob("*/*/result.json"))


@pytest.fixture
def unbroken(model, in_memory):
    """The same sweep, in one go in this process."""
    out = in_memory / "unbroken"
    assert main(words(model, out, "--rates", ",".join(RATES), "--seeds", "2")) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "kills"), [("1", (1, 3)), ("2", (1,))])  # in the grid, and in the final runs
def test_a_killed_sweep_goes_on_without_repeating_what_is_finished_and_picks_the_same(
    model, in_memory, unbroken, jobs, kills
):
    out = in_memory / "out"
    command = words(model, out, "--rates", ",".join(RATES), "--seeds", "2", "--jobs", jobs, "--no-report")
    for number in kills:
        with Sweep(command, in_memory) as life:
            life.wait_for(lambda goal=number: len(results(out)) >= goal)
            life.send(signal.SIGKILL)
            life.ended(-signal.SIGKILL)
        done = results(out)
        before = {name: steps(out)[name] for name in done}
        assert len(done) < 4
        assert not (out / "result.json").exists()
    with Sweep(command, in_memory) as life:
        assert "finished already" in life.ended()
    trained = steps(out)
    assert {name: trained[name] for name in before} == before
    assert set(trained) == set(steps(unbroken))
    assert kept(out) == kept(unbroken)
    for run in results(out):
        assert load(out / run / "result.json") == load(unbroken / run / "result.json")
        losses = [RunDir(base / run).history("step", "loss") for base in (out, unbroken)]
        assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code", "jobs"), [("SIGTERM", 143, 2), ("SIGINT", 130, 1)])
def test_a_stopped_sweep_saves_says_how_to_go_on_and_goes_on_from_there(model, in_memory, sent, code, jobs):
    out = in_memory / "out"
    options = ["--rates", ",".join(RATES), "--seeds", "1", "--jobs", str(jobs), "--schedule.total", "150"]
    options.append("--no-report")
    command = words(model, out, *options)
    with Sweep(command, in_memory) as life:
        life.wait_for(lambda: len(running := steps(out)) == jobs and min(running.values()) > 3)
        life.send(getattr(signal, sent))
        assert "; continue with: the same command" in life.ended(code)
    for run in sorted((out / "grid").iterdir()):
        assert list(RunDir(run).events())[-1]["event"] == "stopped"
        assert (run / "log.txt").exists() == (jobs > 1)
    with Sweep(command, in_memory) as life:
        life.ended()
    assert steps(out) == {**{f"grid/schedule.peak={rate}": 150 for rate in RATES}, "final/seed-0": 150}


@pytest.mark.slow
def test_a_local_ray_with_two_workers_finishes_although_one_is_killed(model, in_memory):
    pytest.importorskip("ray", reason="pip install 'vitlab[ray]'")
    out, here = in_memory / "out", in_memory / "here"
    options = ["--rates", ",".join(RATES), "--seeds", "1", "--schedule.total", "120", "--save-every", "10"]
    options.append("--no-report")
    victim = out / "grid" / f"schedule.peak={RATES[0]}"
    with Sweep(words(model, out, *options, "--ray", "local", "--jobs", "2"), in_memory) as life:
        life.wait_for(lambda: steps(out).get(f"grid/{victim.name}", 0) > 20)
        os.kill(int((victim / ".lock").read_text()), signal.SIGKILL)
        said = life.ended()
    assert f"grid/{victim.name} killed: its worker died" in said
    resumed = list(RunDir(victim).events("resumed"))
    assert len(resumed) == 1
    assert resumed[0]["step"] >= 10  # from its checkpoint, not from the beginning
    trained = steps(out)
    assert trained.pop(f"grid/{victim.name}") <= 120 + 2 * 10 + 1  # what was not saved yet is trained again
    assert set(trained.values()) == {120}
    assert main(words(model, here, *options)) == 0
    assert kept(out) == kept(here)


# -- Another search ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_is_drawn_again_from_what_is_finished(model, in_memory):
    pytest.importorskip("optuna", reason="pip install 'vitlab[search]'")
    out, cut = in_memory / "out", in_memory / "cut"
    options = ["--search", "optuna", "--trials", "12", "--space", "schedule.peak=log:1e-3:1", "--seeds", "1"]
    assert main(words(model, out, *options)) == 0
    points = load(out / "choice.json")["points"]
    assert len({point["learning rate"] for point in points}) == 12
    assert all(1e-3 <= point["learning rate"] <= 1 for point in points)
    shutil.copytree(out, cut)
    for name in ("choice.json", "result.json", "final"):  # as if it had been killed after 11 trials
        (shutil.rmtree if (cut / name).is_dir() else Path.unlink)(cut / name)
    shutil.rmtree(next((cut / "grid").glob("trial-011*")))
    logs = {log: log.read_bytes() for log in cut.rglob("events.jsonl")}
    assert main(words(model, cut, *options)) == 0
    assert kept(cut) == kept(out)
    assert {log: log.read_bytes() for log in logs} == logs
