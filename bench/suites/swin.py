"""Images per second of a Swin's forward pass, fp32, as a multiple of timm's eager model.

All contestants have the same random weights and images. At 224 pixels every map is a whole number of windows; at 256
maps are padded, in timm's order.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import vitlab
from bench import libraries
from bench.peers import prepare
from bench.runner import Case, Contestant
from bench.suites.inference import BASELINE, without_gradients
from vitlab.paper.models import model_spec
from vitlab.spec import CONVENTIONS

ROUNDS = 9
CASES = (("Swin-T", 224, 8), ("Swin-T", 224, 1), ("Swin-T", 256, 8))  # model, pixels, batch
ENGINES = ("plain", "torch", "onnxruntime", "openvino")


def cases(is_quick: bool) -> Iterator[Case]:
    for name, side, batch in CASES[:1] if is_quick else CASES:
        model = libraries.random_model(model_spec(name, image=side, conventions=CONVENTIONS["timm"]))
        images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(2))
        yield Case(f"{name}, {side} pixels, batch {batch}, random weights", contestants(model, images), images=batch)


def contestants(model: torch.nn.Module, images: Tensor) -> list[Contestant]:
    def contestant(label: str, make: Callable[[], Callable[[Tensor], Tensor]], is_compared: bool = True) -> Contestant:
        return Contestant(label, lambda: without_gradients(make(), images), is_compared)

    is_whole = not any(any(windows.padding) for windows in model.spec.windows)
    return [
        contestant(BASELINE, lambda: timm_model(model)),
        contestant("Hugging Face", lambda: hugging_face_model(model), is_compared=is_whole),  # which pads first
        contestant("vitlab, the module", lambda: model),
        *(
            contestant(f"vitlab, engine {kind}", lambda kind=kind: libraries.engine_forward(model, kind, images))
            for kind in ENGINES
        ),
    ]


def timm_model(model: torch.nn.Module) -> torch.nn.Module:
    """The same model in timm, which opens a folder that vitlab has written."""
    prepare()
    import timm

    with tempfile.TemporaryDirectory() as folder:
        vitlab.save_model(model, Path(folder) / "timm", "timm")
        return timm.create_model(f"local-dir:{folder}/timm", pretrained=True).eval()


def hugging_face_model(model: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """The same weights in Hugging Face's library."""
    prepare()
    from transformers import SwinForImageClassification

    with tempfile.TemporaryDirectory() as folder:
        vitlab.save_model(model, Path(folder) / "bare.safetensors", "timm")
        theirs = vitlab.load_model(Path(folder) / "bare.safetensors", conventions="deit")
        vitlab.save_model(theirs, Path(folder) / "hf", "hf")
        loaded = SwinForImageClassification.from_pretrained(f"{folder}/hf").eval()
    return lambda images: loaded(images).logits
