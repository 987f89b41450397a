"""The newcomer's first minute: a small ViT learns to read handwritten digits, is saved, and reads a few."""

import shlex
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from vitlab.counting import count_spec
from vitlab.data.digits import DigitsSource
from vitlab.data.transforms import normalised
from vitlab.deploy.predict import predict
from vitlab.models.build import build_from_spec
from vitlab.models.vit import ViT
from vitlab.spec import ViTSpec
from vitlab.weights.load import load_model
from vitlab.weights.save import save_model

SPEC = ViTSpec(patch=4, layers=4, width=96, mlp=192, heads=4, image=(8, 8), classes=10, head="linear")
STEPS, BATCH, WARMUP, PEAK = 700, 64, 70, 2e-3
SHOWN = 6  # digit pictures written out and predicted


def run_demo(out: Path, console: Console, program: str = "vitlab") -> None:
    """Train, save under `out`, load again and predict; everything printed was measured in this run."""
    out = _free(out)
    (train_x, train_y), (test_x, test_y) = load_digits("train"), load_digits("test")
    model = build_from_spec(SPEC, seed=0)
    size = f"{count_spec(SPEC).parameters:,} parameters, {SPEC.layers} layers, {SPEC.tokens} tokens"
    console.print(f"A Vision Transformer ({size}) learns to read {len(train_x):,} handwritten digits", highlight=False)
    train(model, train_x, train_y, console)
    right = int((classify(model, test_x) == test_y).sum())
    console.print(f"{right} of {len(test_y)} digits it has never seen are read right ({right / len(test_y):.1%})\n")

    model.class_names = tuple(map(str, range(10)))
    model.provenance = {"trained_by": "vitlab demo", "data": "digits of scikit-learn"}
    save_model(model, out / "model")
    pictures = [_write_picture(out, i, test_x[i], int(test_y[i])) for i in range(SHOWN)]
    _print_answers(load_model(out / "model"), pictures, console)
    command = shlex.join([program, "predict", str(out / "model"), *map(str, pictures[:2])])
    console.print(Text(f"\nThe model is in {out / 'model'}, the pictures beside it. Try it yourself:"))
    console.print(Text(f"  {command}", style="bold"), soft_wrap=True)


def load_digits(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """The built-in scans of 8x8 as (n, 3, 8, 8) of uint8, with their labels."""
    source = DigitsSource(split)
    samples = [source.item(number) for number in range(len(source))]
    pixels = np.stack([sample.data for sample in samples])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.tensor([sample.labels[0] for sample in samples])


def train(model: ViT, pixels: Tensor, labels: Tensor, console: Console) -> None:
    """Softmax cross-entropy, AdamW, linear warm-up and decay."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.05)
    columns = (TextColumn("training"), BarColumn(), TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())
    model.train()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=STEPS, loss=float("nan"))
        for step in range(STEPS):
            chosen = torch.randint(len(pixels), (BATCH,), generator=generator)
            images = normalised(pixels[chosen], SPEC.conventions.preprocessing)
            loss = F.cross_entropy(model(images), labels[chosen])
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min((step + 1) / WARMUP, 1 - (step - WARMUP) / (STEPS - WARMUP))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            progress.update(task, advance=1, loss=loss.item())
    model.eval()


@torch.inference_mode()
def classify(model: ViT, pixels: Tensor) -> Tensor:
    """(n, 3, 8, 8) of uint8 -> the class of each."""
    return model(normalised(pixels, SPEC.conventions.preprocessing)).argmax(dim=-1)


def _write_picture(out: Path, number: int, pixels: Tensor, label: int) -> Path:
    path = out / f"digit-{number}-is-{label}.png"
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((128, 128), Image.Resampling.NEAREST).save(path)
    return path


def _print_answers(model: ViT, pictures: list[Path], console: Console) -> None:
    table = Table("picture", "reads it as", "sure", "", box=None, header_style="bold")
    for answer in predict(model, pictures, top=1):
        best = answer.guesses[0]
        mark = "right" if f"is-{best.name}." in answer.image else "wrong"
        table.add_row(Path(answer.image).name, best.name, f"{best.probability:.1%}", mark)
    console.print(table)


def _free(out: Path) -> Path:
    """`out`, or the first of out-2, out-3, ... that does not exist: no run writes over another."""
    tries = (out.with_name(f"{out.name}-{n}") if n > 1 else out for n in range(1, 10_000))
    chosen = next(path for path in tries if not path.exists())
    chosen.mkdir(parents=True)
    return chosen
