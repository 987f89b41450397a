"""Images per second with patterns of attention, as a multiple of full attention in the same engine.

ViT-Ti/16 with random weights, on which speed does not depend, in vitlab's engine `torch`, against the image size. In
`window:8+global:6` two of the twelve layers are full. Accuracy is measured by `python -m bench.experiments.patterns`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench import libraries
from bench.runner import Call, Case, Contestant
from vitlab.paper.models import model_spec

ROUNDS = 7
PATTERNS = (
    *("full", "window:8", "window:8+global:6", "window:7+global:6", "window:16+global:6"),
    *("neighbourhood:7", "strided", "fixed", "bigbird"),
)
CASES = ((224, 8), (512, 2), (1024, 1))  # side of the image, batch


def cases(is_quick: bool) -> Iterator[Case]:
    for side, batch in CASES[:1] if is_quick else CASES:
        images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(2))
        contestants = [
            Contestant(attention, lambda attention=attention, images=images: attending(attention, images), False)
            for attention in PATTERNS
        ]
        yield Case(f"ViT-Ti/16, {side} x {side} pixels, batch {batch}", contestants, images=batch)


def attending(attention: str, images: Tensor) -> Call:
    spec = model_spec("ViT-Ti/16", image=images.shape[-1], head="linear", attention=attention)
    forward = libraries.engine_forward(libraries.random_model(spec), "torch", images)
    return lambda: forward(images)
