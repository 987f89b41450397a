"""Images per second with token merging, as a multiple of timm's eager model without it.

`merge r` is vitlab's engine `torch` with r tokens merged in every layer. ViT-Ti/16 has the released AugReg weights and
photographs where VITLAB_REFERENCE names them, ViT-B/16 random weights, on which speed does not depend. Accuracy is
measured by `python -m bench.experiments.merging`.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from bench import libraries
from bench.runner import Call, Case, Contestant
from bench.suites.inference import BASELINE, model_and_images, without_gradients

ROUNDS = 7
CASES = (("ViT-Ti/16", 16, range(17)), ("ViT-B/16", 8, range(0, 17, 4)))  # model, batch, tokens merged per layer


def cases(is_quick: bool) -> Iterator[Case]:
    for name, batch, merges in CASES[:1] if is_quick else CASES:
        model, images, what = model_and_images(name, batch)
        timm = Contestant(
            BASELINE, lambda model=model, images=images: without_gradients(libraries.timm_model(model), images)
        )
        merging = [
            Contestant(f"merge {merge}", lambda merge=merge, of=(model, images): merged(*of, merge)) for merge in merges
        ]
        yield Case(f"{name}, batch {batch}, {what}", [timm, *merging], images=batch)


def merged(model: torch.nn.Module, images: Tensor, merge: int) -> Call:
    own = copy.deepcopy(model)
    own.set_merge(merge)
    forward = libraries.engine_forward(own, "torch", images)
    return lambda: forward(images)
