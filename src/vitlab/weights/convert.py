"""From any weights file to any format, pickles included."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vitlab.models.vit import ViT
from vitlab.spec import ConventionName, Image
from vitlab.weights import timm
from vitlab.weights.containers import WeightsError, open_container
from vitlab.weights.load import load_model
from vitlab.weights.save import SaveFormat, save_model

PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
LONGEST = 900  # seconds a pickle may take


def convert(
    source: Path,
    target: Path,
    to: SaveFormat = "vitlab",
    *,
    image: Image | None = None,
    classes: int | None = None,
    conventions: ConventionName | None = None,
    heads: int | None = None,
    entry: str = "",
    allow_partial: bool = False,
) -> tuple[ViT, list[str]]:
    """Load `source`, save it as `to`; return the model and what the new format could not say.

    `entry` names the dictionary inside a pickle to take, such as model_ema.
    """
    with _safe(source, entry) as (safe, found):
        notes = []
        if conventions is None and found == "model" and timm.matches(open_container(safe)):
            conventions = "deit"
            notes.append("conventions of DeiT were assumed (ImageNet mean and std); --conventions says otherwise")
        model = load_model(
            safe, image=image, classes=classes, conventions=conventions, heads=heads, allow_partial=allow_partial
        )
    if safe != source:
        model.provenance["source"] = source.name
    return model, notes + save_model(model, target, to)


@contextlib.contextmanager
def _safe(source: Path, entry: str) -> Iterator[tuple[Path, str]]:
    """`source` itself, or a temporary safetensors file with the tensors of a pickle, and the entry they came from."""
    if not source.is_file() or source.suffix.lower() not in PICKLE_SUFFIXES:
        yield source, ""
        return
    with tempfile.TemporaryDirectory(prefix="vitlab-") as scratch:
        safe = Path(scratch) / f"{source.stem}.safetensors"
        command = [sys.executable, "-I", "-m", "vitlab.weights.unpickle", str(source.resolve()), str(safe), entry]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False, env={})
        except subprocess.TimeoutExpired:
            raise WeightsError(f"{source.name} was not read within {LONGEST} seconds") from None
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["it was stopped by its limits"])[-1]
            raise WeightsError(f"{source.name} was refused: {reason}")
        yield safe, open_container(safe).metadata.get("entry", "")
