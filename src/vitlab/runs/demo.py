"""The paper's point in minutes on a CPU: pre-train once, then fine-tune with few labels and with many."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from PIL import Image
from rich.console import Console

from vitlab.counting import count_spec
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.digits import DigitsSource
from vitlab.drawing.canvas import require_matplotlib
from vitlab.files.store import write_text
from vitlab.files.strict_json import read_json, to_json
from vitlab.jobs.job import Job, Processes
from vitlab.jobs.mapping import Crew, Event
from vitlab.metrics.scores import Scores
from vitlab.models.vit import ViT
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.report.tables import Results
from vitlab.run_dir import MODEL, RESULT, RUN, VERSION, RunDir, RunSpec
from vitlab.runs.demo_report import ALL, Accuracies, Story, accuracy_rows, report, shots_name
from vitlab.runs.measure.scoring import Reading, score_source
from vitlab.runs.progress import say
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.trainer import InMemory, train_run
from vitlab.spec import ViTSpec
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import Execution
from vitlab.weights.load import load_model, weights_sha256

LETTERS = "letters?images=1e6&size=16"
# Differs from the paper: pre-training in `vitlab demo` uses a linear head, which learns more than the MLP head in so
# few steps.
SPEC = ViTSpec(patch=4, layers=4, width=64, mlp=128, heads=4, image=(16, 16), classes=29, head="linear")
LARGER = (20, 20)  # pixels of fine-tuning: 25 patches instead of 16
PRETRAINING_STEPS, PRETRAINING_BATCH, PRETRAINING_PEAK = 1000, 64, 3e-3
# The best of three rates for either way, on training digits that the run had not seen: bench/experiments/demo_rates.py.
BATCH, PEAK = 32, 2e-3
STEPS, STEPS_WITH_ALL = 120, 300  # learning from every label takes longer
SHOTS, SEEDS = (1, 5, 10, 50, ALL), (0, 1, 2)  # labels per class; each seed draws other labelled digits
SHOWN = 6  # digit pictures that are written and inspected
WAYS = ("pre-trained", "from scratch")
REPORT, PRETRAINED, DIGITS = "report.html", "1-pretrained", "2-digits"


def run_demo(out: Path, console: Console, program: str = "vitlab") -> None:
    """Train every model of the demo under `out` and write a report; all numbers printed are measured in this run.

    Ctrl-C raises KeyboardInterrupt with a line that says what is left under `out` and how to continue.
    """
    require_matplotlib()
    torch.set_num_threads(1)  # models this small gain nothing from more threads, and lose much on a busy machine
    wanted, out = out, _free(out)
    if out != wanted:
        say(console, f"{wanted} exists; this demo is written to {out}")
    try:
        _run_all(out, console, program)
    except KeyboardInterrupt:
        if not any(out.iterdir()):
            out.rmdir()
        raise KeyboardInterrupt(left_over(out, program)) from None


def _run_all(out: Path, console: Console, program: str) -> None:
    """Run the whole demo, in the order in which it is printed."""
    size = f"{count_spec(SPEC).parameters:,} parameters, {SPEC.layers} layers of {SPEC.heads} heads"
    say(console, f"1. Pre-train a small Vision Transformer ({size}) on printed letters, 16x16 pixels")
    if code := train((out / PRETRAINED, pretraining()), console):
        raise KeyboardInterrupt(code)
    amounts = ", ".join(map(str, SHOTS[:-1]))
    say(console, f"\n2. Fine-tune it on handwritten digits, 20x20 pixels, with {amounts} and all labels per class;")
    say(console, f"   train the same model on the same digits from scratch; {len(SEEDS)} seeds each")
    accuracies = _train_on_digits(out / DIGITS, out / PRETRAINED / MODEL, console)
    say(console, "\n3. Accuracy on 355 digits that no model was trained on")
    heading, *rows = accuracy_rows(accuracies)
    console.print(Results(heading, tuple(rows)).terminal())
    pictures = list(_write_pictures(out))
    runs = {way: RunDir.open(out / DIGITS / run_name(way, ALL, SEEDS[0])) for way in WAYS}
    fine_tuned = runs["pre-trained"].path / MODEL
    model = load_model(fine_tuned)
    assert isinstance(model, ViT)
    how = model.spec.conventions.preprocessing
    scores = score_source(model, open_source("digits?split=test"), how=how, reading=Reading(64)).scores["own"]
    assert isinstance(scores, Scores)
    text = report(Story(model, pictures, accuracies, scores, RunDir.open(out / PRETRAINED), runs, STEPS))
    write_text(out / REPORT, text)
    say(console, "\nOpen this in a browser:")
    say(console, f"  {out / REPORT}", "bold")
    say(console, "Try next:")
    for words in (
        ["predict", str(fine_tuned), str(pictures[0])],
        ["inspect", str(fine_tuned), *map(str, pictures[:2]), "--out", str(out / "inside")],
    ):
        say(console, f"  {shlex.join([program, *words])}", "bold")


def left_over(out: Path, program: str) -> str:
    """Describe a stopped demo in one line: what is left under `out`, and the commands that continue."""
    again = f"{program} demo starts again in a new folder"
    first = out / PRETRAINED
    if not first.exists():
        return "stopped before anything was written"
    if not (first / RESULT).exists():
        resume = shlex.join([program, "resume", str(first)])
        return f"stopped: {out} holds {PRETRAINED}, unfinished; {resume} continues it, {again}"
    done = sum((run / RESULT).exists() for run in (out / DIGITS).glob("*"))
    return f"stopped: {out} holds {PRETRAINED} and {done} of {len(_all_runs())} runs in {DIGITS}, no report; {again}"


def pretraining() -> RunSpec:
    """Printed letters, none of which looks like a digit; the row of table 3 for small data, scaled down."""
    return _spec("pretrain", SPEC, LETTERS, PRETRAINING_STEPS, PRETRAINING_BATCH, PRETRAINING_PEAK)


def reading(start: Path | None, shots: int, seed: int) -> RunSpec:
    """Handwritten digits at the higher resolution, `shots` labelled ones per class drawn by `seed`.

    `start` are the pre-trained weights, or None to train from scratch with the same recipe.
    """
    # Differs from the paper: fine-tuning in `vitlab demo` uses Adam, so that both ways take the same steps.
    data = "digits?split=train" + (f"&shots={shots}&seed={seed}" if shots != ALL else "")
    steps, model = STEPS_WITH_ALL if shots == ALL else STEPS, replace(SPEC, image=LARGER, classes=10)
    spec = _spec("finetune", model, data, steps, min(BATCH, 10 * shots), PEAK)
    spec = replace(spec, test="digits?split=test", seed=seed)
    return spec if start is None else replace(spec, start=str(start), start_sha256=weights_sha256(start))


def run_name(way: str, shots: int, seed: int) -> str:
    """The folder of one run on digits, such as `50-from-scratch-0`."""
    return f"{shots_name(shots)}-{way.replace(' ', '-')}-{seed}"


def _all_runs() -> list[tuple[str, int, int]]:
    """Way, labels per class and seed of every run on digits, the longest first."""
    return [(way, shots, seed) for shots in reversed(SHOTS) for way in WAYS for seed in SEEDS]


def _spec(
    kind: Literal["pretrain", "finetune"], model: ViTSpec, data: str, steps: int, batch: int, peak: float
) -> RunSpec:
    """A run with the ImageNet row of table 3, a length and a rate for minutes on a CPU, and the softmax loss."""
    recipe = pretraining_recipe("ViT-B/16@imagenet", Length(batch=batch, total=steps, warmup=steps // 10))
    recipe = replace(
        recipe,
        name=f"demo on {'letters' if kind == 'pretrain' else 'digits'}",
        image=model.image,
        schedule=replace(recipe.schedule, peak=peak),
        optimizer=replace(recipe.optimizer, weight_decay=0.1),
        augmentation=Augmentation(crop="none", flip=False),  # a mirrored letter or digit is another one, or none
        loss="softmax",
        label_smoothing=0.0,
        dropout=0.0,
    )
    how = Execution(workers=1) if kind == "pretrain" else Execution(save_every=steps)  # fine-tuning takes seconds
    return RunSpec("vitlab-run", VERSION, kind, model=model, recipe=recipe, data=data, execution=how)


def train(asked: tuple[Path, RunSpec], console: Console) -> int:
    """Train a run in its folder from its last checkpoint to its end; returns the exit code."""
    path, spec = asked
    if (path / RUN).exists():
        return train_run(RunDir.open(path), console)
    data = open_run_data(spec)
    return train_run(RunDir.create(path, spec, to_json(data.card)), console, memory=InMemory(data))


def _train_on_digits(folder: Path, start: Path, console: Console) -> Accuracies:
    """Train both ways with every number of labels and every seed, two runs at a time; returns test accuracies in %."""
    jobs = {}
    for way, shots, seed in _all_runs():
        path = folder / run_name(way, shots, seed)
        spec = reading(start if way == "pre-trained" else None, shots, seed)
        jobs[way, shots, seed] = Job(path.name, train, (path, spec), path)

    def show(job: Job, event: Event, words: str) -> None:
        if event != "started":
            done = sum(job.is_done() for job in jobs.values())
            say(console, f"{done} of {len(jobs)}: {job.name} {event} {words}".rstrip())

    with Crew(Processes(min(2, os.cpu_count() or 1))) as crew:
        if code := crew.map(list(jobs.values()), console, show):
            raise KeyboardInterrupt(code)
    return {
        way: {shots: [_accuracy(jobs[way, shots, seed].folder) for seed in SEEDS] for shots in SHOTS} for way in WAYS
    }


def _accuracy(folder: Path) -> float:
    """The accuracy of a finished run on the held-out digits, in %."""
    return 100 * cast(dict[str, Any], read_json(folder / RESULT))["test"]["top1"]


def _write_pictures(out: Path) -> Iterator[Path]:
    """Write held-out digits as picture files with the label in their names."""
    source = DigitsSource("test")
    for number in range(SHOWN):
        picture, label = source[number]
        path = out / f"digit-{number}-is-{label}.png"
        # Smooth, as the model saw digits enlarged in training; blocks would be pictures of another kind.
        picture.resize((192, 192), Image.Resampling.BILINEAR).save(path)
        yield path


def _free(out: Path) -> Path:
    """`out`, or the first of out-2, out-3, ... that does not exist: no run overwrites another."""
    tries = (out.with_name(f"{out.name}-{n}") if n > 1 else out for n in range(1, 10_000))
    chosen = next(path for path in tries if not path.exists())
    chosen.mkdir(parents=True)
    return chosen
