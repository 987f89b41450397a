"""Images per second of exported models from decoded pixels to the top class, as a multiple of vitlab's engine `torch`.

The photographs are decoded before the clock starts. The baseline resizes them with the gate and computes with engine
`torch`, both in batches of 16. An artefact resizes them itself, one at a time, because they have different sizes. The
model is ViT-Ti/16 with the released AugReg weights; `int8` has 8-bit dense layers. The agreement is that of the top
classes with the baseline's.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitlab
from bench import libraries
from bench.runner import Call, Case, Contestant
from vitlab.artefacts.artefact import open_artefact
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.engines.opening import open_engine

ROUNDS = 5
BATCH = 16
ARTEFACTS = {
    "artefact onnx": {"to": "onnx"},
    "artefact onnx, int8": {"to": "onnx", "int8": True},
    "artefact openvino": {"to": "openvino"},
    "artefact torch": {"to": "torch"},
}


def cases(is_quick: bool) -> Iterator[Case]:
    if libraries.reference() is None:
        return
    files = sorted(libraries.photographs().glob("*.JPEG"))[: 8 if is_quick else 64]
    photographs = [np.array(Image.open(file).convert("RGB")) for file in files]
    model = libraries.real_model()
    made = [
        Contestant(name, lambda given=given: artefact(model, photographs, **given)) for name, given in ARTEFACTS.items()
    ]
    baseline = Contestant("vitlab, gate and engine torch", lambda: gate(model, photographs))
    yield Case(f"{len(files)} photographs, decoded, ViT-Ti/16", [baseline, *made], images=len(files))


def gate(model: torch.nn.Module, photographs: list[np.ndarray]) -> Call:
    how, engine = model.spec.conventions.preprocessing, open_engine(model, "torch", batch=BATCH)

    def run() -> Tensor:
        answers = []
        for start in range(0, len(photographs), BATCH):
            pictures = map(Image.fromarray, photographs[start : start + BATCH])
            pixels = torch.stack([evaluation_pixels(picture, model.spec.image, how) for picture in pictures])
            answers.append(engine(normalised(pixels, how)).argmax(dim=1))
        return torch.cat(answers)

    return run


def artefact(model: torch.nn.Module, photographs: list[np.ndarray], **given: object) -> Call:
    with tempfile.TemporaryDirectory() as folder:
        vitlab.export(model, Path(folder) / "out", check=photographs[:4], agreement=0.5, quiet=True, **given)
        opened = open_artefact(Path(folder) / "out")
    pictures = [torch.from_numpy(one) for one in photographs]
    return lambda: opened.outputs(pictures).argmax(dim=1)
