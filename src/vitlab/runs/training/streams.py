"""How many streams a run has: parts of a micro-batch that a CPU computes at the same time, each on one thread."""

import torch

from vitlab.counting import count_spec
from vitlab.errors import InvalidValue
from vitlab.recipe import CHOSEN, Execution, Recipe
from vitlab.spec import ModelSpec, ViTSpec
from vitlab.world.device import pick_device

MOST = 8  # threads: with more, the streams' own gradients would take too much memory
LARGEST = 2**28  # numbers in the gradients of all streams that are chosen automatically: 1 GiB
WORTHWHILE = 10**9  # multiply-accumulates of a part's forward pass: in smaller ones Python takes too much of the time


def unfit(model: ModelSpec, execution: Execution, *, ranks: int = 1) -> str:
    """Why a run cannot have streams; empty if it can."""
    device = pick_device(execution.device).type
    if device != "cpu":
        return f"streams are for the CPU, and the device is {device}"
    if ranks > 1:
        return f"streams are for a single rank, and there are {ranks}"
    if execution.precision != "fp32" or execution.compile or execution.exact_elastic:
        return "streams do not work with precision='bf16', compile= or exact_elastic="
    is_random = isinstance(model, ViTSpec) and (model.dropout > 0 or model.stochastic_depth > 0)
    return "dropout and stochastic depth draw random numbers, which streams would share" if is_random else ""


def applied(model: ModelSpec, execution: Execution, *, ranks: int = 1) -> int:
    """The streams that a run computes with: those that were recorded, if they apply on this device and these ranks."""
    return 0 if execution.streams < 1 or unfit(model, execution, ranks=ranks) else execution.streams


def resolved(model: ModelSpec, recipe: Recipe, execution: Execution) -> int:
    """The number of streams to record: chosen, or as requested; an InvalidValue if these have no effect."""
    why = unfit(model, execution)
    if execution.streams == CHOSEN:
        return 0 if why else chosen(model, execution.micro_batch or recipe.batch)
    if execution.streams and why:
        raise InvalidValue(f"has no effect in this run: {why}", field="streams")
    return execution.streams


def chosen(model: ModelSpec, images: int) -> int:
    """One stream per thread where that pays; `images` are those of a micro-batch."""
    threads, size = torch.get_num_threads(), count_spec(model)
    is_worthwhile = images // threads * size.macs >= WORTHWHILE
    return threads if 1 < threads <= MOST and is_worthwhile and threads * size.parameters <= LARGEST else 0
