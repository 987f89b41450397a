"""The whole story in minutes on a CPU: pre-train, fine-tune at a higher resolution, compare, look inside, report."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitlab.counting import count_spec
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.digits import DigitsSource
from vitlab.drawing.canvas import require_matplotlib
from vitlab.drawing.charts import draw_confusion, draw_curves, smoothed
from vitlab.drawing.page import Section, page
from vitlab.metrics.scores import Scores
from vitlab.models.build import Model
from vitlab.models.vit import ViT
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.pixels import Augmentation
from vitlab.recipe import Execution, Recipe
from vitlab.run_dir import MODEL, RESULT, VERSION, RunDir, RunSpec
from vitlab.runs.measure.inspection import sections_of
from vitlab.runs.measure.scoring import score_source
from vitlab.runs.training.data import open_material
from vitlab.runs.training.trainer import carry_out
from vitlab.spec import ViTSpec
from vitlab.store import replacing
from vitlab.strict_json import to_json
from vitlab.weights.load import load_model, weights_sha256

SHAPES = "shapes?classes=10&images=40000&size=16"
SPEC = ViTSpec(patch=4, layers=4, width=64, mlp=128, heads=4, image=(16, 16), classes=10)
LARGER = (24, 24)  # pixels of fine-tuning: 36 patches instead of 16
PRETRAINING_STEPS, STEPS, BATCH = 900, 200, 64
SHOWN = 6  # digit pictures written out and looked at
REPORT = "report.html"
PRETRAINED, FINE_TUNED, SCRATCH = "1-pretrained", "2-fine-tuned", "3-from-scratch"


def run_demo(out: Path, console: Console, program: str = "vitlab") -> None:
    """Train three models under `out` and write a report; everything printed was measured in this run.

    Stopped by Ctrl-C it raises KeyboardInterrupt with a line that says what is left and how to go on.
    """
    require_matplotlib()
    torch.set_num_threads(1)  # models this small gain nothing from more, and lose much where others are at work
    wanted, out = out, _free(out)
    if out != wanted:
        _say(console, f"{wanted} exists; this demo is written to {out}")
    try:
        _tell(out, console, program)
    except KeyboardInterrupt:
        if not any(out.iterdir()):
            out.rmdir()
        raise KeyboardInterrupt(left_over(out, program)) from None


def _tell(out: Path, console: Console, program: str) -> None:
    """The whole story, in the order in which it is printed."""
    size = f"{count_spec(SPEC).parameters:,} parameters, {SPEC.layers} layers of {SPEC.heads} heads"
    _say(
        console,
        f"1. A small Vision Transformer ({size}) is pre-trained on drawings of ten kinds of shapes, 16x16 pixels",
    )
    pretrained = _run(out / PRETRAINED, pretraining(), console)
    _say(console, "\n2. It is fine-tuned to read 1,442 real handwritten digits at 24x24: its positions are resized")
    tuned = _run(out / FINE_TUNED, reading(out / PRETRAINED / MODEL), console)
    _say(console, "\n3. The same model learns the same digits from scratch, with the same steps")
    scratch = _run(out / SCRATCH, reading(), console)
    _say(console, "\n4. What did it learn, and what does it look at?")
    pictures = list(_write_pictures(out))
    model = load_model(out / FINE_TUNED / MODEL)
    assert isinstance(model, ViT)
    scores = {
        name: _scored(load_model(run.path / MODEL)) for name, run in (("fine-tuned", tuned), ("scratch", scratch))
    }
    _print_scores(scores, console)
    text = report(model, pictures, scores, {"pre-training": pretrained, "fine-tuning": tuned, "from scratch": scratch})
    with replacing(out / REPORT) as temporary:
        temporary.write_text(text, encoding="utf-8")
    _say(console, "\nOpen this in a browser:")
    _say(console, f"  {out / REPORT}", style="bold")
    _say(console, "Try next:")
    where = str(out / FINE_TUNED / MODEL)
    for words in (
        ["predict", where, str(pictures[0])],
        ["inspect", where, *map(str, pictures[:2]), "--out", str(out / "inside")],
    ):
        _say(console, f"  {shlex.join([program, *words])}", style="bold")


def left_over(out: Path, program: str) -> str:
    """One line on a demo that was stopped: what it left under `out`, and the commands that go on."""
    runs = [out / name for name in (PRETRAINED, FINE_TUNED, SCRATCH) if (out / name).exists()]
    if not runs:
        return "stopped before anything was written"
    again = f"{program} demo begins again in a new folder"
    finished = ", ".join(run.name for run in runs if (run / RESULT).exists())
    if (runs[-1] / RESULT).exists():
        return f"stopped: {out} holds {finished}, but no report; {again}"
    holds = f"{finished}, and {runs[-1].name}" if finished else runs[-1].name
    resume = shlex.join([program, "resume", str(runs[-1])])
    return f"stopped: {out} holds {holds} unfinished; {resume} goes on with it, {again}"


def pretraining() -> RunSpec:
    """Table 3's row for small data, in small."""
    recipe = replace(_small(PRETRAINING_STEPS, "on drawings", peak=1e-3), augmentation=Augmentation(crop="none"))
    return _spec("pretrain", SPEC, recipe, SHAPES)


def reading(start: Path | None = None) -> RunSpec:
    """Digits at the higher resolution, from pre-trained weights or from fresh ones: the same recipe."""
    # Differs from the paper: fine-tuning in `vitlab demo` has Adam as well, so that it takes the same steps with and
    # without pre-training.
    digits = replace(
        _small(STEPS, "on digits", peak=2e-3),
        image=LARGER,
        augmentation=Augmentation(crop="none", flip=False),
    )
    model = replace(SPEC, image=LARGER, classes=10, head="linear")
    spec = _spec("finetune", model, digits, "digits?split=train", test="digits?split=test")
    return spec if start is None else replace(spec, start=str(start), start_sha256=weights_sha256(start))


def _small(steps: int, where: str, peak: float) -> Recipe:
    """The ImageNet row of table 3 with a batch, a rate and a length for minutes on a CPU, and the softmax loss."""
    recipe = pretraining_recipe("ViT-B/16@imagenet", Length(batch=BATCH, total=steps, warmup=steps // 10))
    schedule = replace(recipe.schedule, peak=peak)
    optimizer = replace(recipe.optimizer, weight_decay=0.1)
    recipe = replace(recipe, name=f"demo {where}", schedule=schedule, optimizer=optimizer, image=SPEC.image)
    return replace(recipe, loss="softmax", label_smoothing=0.0, dropout=0.0)


def _spec(kind: str, model: ViTSpec, recipe: Recipe, data: str, test: str = "") -> RunSpec:
    return RunSpec(
        format="vitlab-run",
        version=VERSION,
        kind="pretrain" if kind == "pretrain" else "finetune",
        model=model,
        recipe=recipe,
        data=data,
        execution=Execution(workers=1 if kind == "pretrain" else 0),
        test=test,
    )


def _run(path: Path, spec: RunSpec, console: Console) -> RunDir:
    material = open_material(spec)
    run = RunDir.create(path, spec, to_json(material.card))
    if code := carry_out(run, console, material=material):
        raise KeyboardInterrupt(code)
    return run


def _scored(model: Model) -> Scores:
    """Every held-out digit once."""
    how = model.spec.conventions.preprocessing
    scores = score_source(model, open_source("digits?split=test"), how=how, batch=64).scores["own"]
    assert isinstance(scores, Scores)
    return scores


def _print_scores(scores: dict[str, Scores], console: Console) -> None:
    table = Table("", "digits read right", "", "loss", box=None, header_style="bold")
    for name, found in scores.items():
        table.add_row(name, f"{found.top1} of {found.count}", f"{found.accuracy:.1%}", f"{found.mean_loss:.3f}")
    console.print(table)


def report(model: ViT, pictures: list[Path], scores: dict[str, Scores], runs: dict[str, RunDir]) -> str:
    """One page: curves, table, confusions, and what the model looks at."""
    losses = {name: smoothed(run.history("step", "loss")) for name, run in runs.items() if name != "pre-training"}
    before = {"pre-training": smoothed(runs["pre-training"].history("step", "loss"))}
    confusion = np.zeros((10, 10), dtype=int)
    for (truth, answer), number in scores["fine-tuned"].confusion.items():
        confusion[truth, answer] = number
    rows = [
        ("", "digits read right", "share", "loss"),
        *((n, f"{s.top1} of {s.count}", f"{s.accuracy:.1%}", f"{s.mean_loss:.3f}") for n, s in scores.items()),
    ]
    sections = [
        Section(
            "Pre-trained or from scratch",
            f"Both learnt the same {STEPS} batches of {BATCH} digits with the same recipe and were asked for the same "
            "digits, which neither had seen. One run each: another seed gives somewhat other numbers.",
            table=rows,
            figures=[("loss while the digits are learnt", draw_curves(losses, x="step", y="loss").svg)],
        ),
        Section(
            "Which digits it takes for which",
            "The fine-tuned model's answers for every held-out digit.",
            figures=[("confusion of digits", draw_confusion(confusion, tuple("0123456789")).svg)],
        ),
        Section(
            "Pre-training",
            f"{PRETRAINING_STEPS} batches of {BATCH} drawings of ten kinds of shapes, made on the fly.",
            figures=[("loss of pre-training", draw_curves(before, x="step", y="loss").svg)],
        ),
        *sections_of(model, pictures),
    ]
    about = "A small Vision Transformer, pre-trained on drawings, fine-tuned on real digits at a higher resolution."
    return page("What happened in the demo", about, sections)


def _write_pictures(out: Path) -> Iterator[Path]:
    """Held-out digits as picture files, the label in their names."""
    source = DigitsSource("test")
    for number in range(SHOWN):
        sample = source.item(number)
        path = out / f"digit-{number}-is-{sample.labels[0]}.png"
        assert not isinstance(sample.data, bytes)
        # Smooth, as the model saw digits enlarged in training; blocks would be pictures of another kind.
        Image.fromarray(sample.data).resize((192, 192), Image.Resampling.BILINEAR).save(path)
        yield path


def _free(out: Path) -> Path:
    """`out`, or the first of out-2, out-3, ... that does not exist: no run writes over another."""
    tries = (out.with_name(f"{out.name}-{n}") if n > 1 else out for n in range(1, 10_000))
    chosen = next(path for path in tries if not path.exists())
    chosen.mkdir(parents=True)
    return chosen


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
