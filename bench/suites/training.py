"""Images per second of a training step (forward, backward, AdamW in fp32), as a multiple of timm's eager model.

vitlab's step is its own `Update`, which also measures the gradient's norm and checks that all is finite; the others' is
the shortest loop that trains. All start with the same weights and see the same images; the difference is that of the
first loss. Streams are the default of a training on a CPU: one part of the batch per thread, MLPs that keep less for
the backward pass, and a last layer that computes only the class token. The limit is the matrix products of both passes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bench import libraries
from bench.limit import MatmulLimit, training_products
from bench.runner import Call, Case, Contestant
from vitlab.data.loading.batches import Batch
from vitlab.data.transforms.evaluation import normalised
from vitlab.models.build import build_from_spec
from vitlab.models.vit import make_lean
from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

ROUNDS = 9
EXACT = CONVENTIONS["timm"]
TINY = ViTSpec(patch=16, layers=12, width=192, mlp=768, heads=3, head="linear", conventions=EXACT)
SMALL = replace(TINY, patch=4, layers=9, image=(32, 32), classes=10)
CASES = {"ViT-Ti/16 at 224, batch 16": (TINY, 16), "patch 4, width 192, 9 layers at 32, batch 128": (SMALL, 128)}
RATE = 1e-3
FRESH = {
    "timm": libraries.fresh_timm,
    "torchvision": libraries.fresh_torchvision,
    "Hugging Face": libraries.fresh_hugging_face,
}
SAME = {
    "timm": libraries.timm_model,
    "torchvision": libraries.torchvision_model,
    "Hugging Face": libraries.hugging_face_model,
}


def cases(is_quick: bool) -> Iterator[Case]:
    for title, (spec, batch) in list(CASES.items())[1 if is_quick else 0 :]:
        limit = lambda spec=spec, batch=batch: MatmulLimit(training_products(spec, batch))  # noqa: E731
        yield Case(title, [Contestant(*one) for one in contestants(spec, batch)], images=batch, limit=limit)


def contestants(spec: ViTSpec, batch: int, *, is_fresh: bool = False) -> list[tuple[str, Callable[[], Call], bool]]:
    """Return (name, what makes its step, whether its loss is compared).

    With `is_fresh` every library draws its own weights, so that a process holds no other copy of the model.
    """

    def made(library: str) -> torch.nn.Module:
        return FRESH[library](spec) if is_fresh else SAME[library](libraries.random_model(spec))

    def vitlab(gelu: str, streams: int = 0) -> Call:
        own = replace(spec, conventions=CONVENTIONS[gelu])
        return vitlab_step(build_from_spec(own) if is_fresh else libraries.random_model(own), batch, streams)

    threads = torch.get_num_threads()

    return [
        ("timm", lambda: plain_step(made("timm"), spec, batch), True),
        ("timm, fused AdamW", lambda: plain_step(made("timm"), spec, batch, is_fused=True), True),
        (
            "timm compiled, fused AdamW",
            lambda: plain_step(made("timm"), spec, batch, is_fused=True, is_compiled=True),
            True,
        ),
        ("torchvision", lambda: plain_step(made("torchvision"), spec, batch), True),
        ("Hugging Face", lambda: plain_step(made("Hugging Face"), spec, batch), True),
        ("vitlab, exact GELU", lambda: vitlab("timm"), True),
        ("vitlab, tanh GELU (paper)", lambda: vitlab("paper"), False),
        ("vitlab, exact GELU, streams", lambda: vitlab("timm", threads), True),
        ("vitlab, tanh GELU (paper), streams", lambda: vitlab("paper", threads), False),
    ]


def examples(spec: ViTSpec, batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(spec.classes, (batch,), generator=generator)
    return torch.randn(batch, 3, *spec.image, generator=generator), labels


def vitlab_step(module: torch.nn.Module, batch: int, streams: int) -> Call:
    """As `vitlab pretrain` makes a step, on images that are already normalised, like the others'."""
    images, labels = examples(module.spec, batch)
    given = Examples(images, F.one_hot(labels, module.spec.classes).float())
    step = _step(module, batch, streams, lambda inputs: inputs)
    return lambda: torch.tensor([step(given)])


def vitlab_update(module: torch.nn.Module, batch: int, how: Preprocessing) -> Callable[[Batch], float]:
    """Return a step of `vitlab pretrain` with its default streams, on batches of pictures; it returns the loss."""
    step = _step(module, batch, torch.get_num_threads(), partial(normalised, how=how))
    return lambda given: step(Examples(given.pixels, given.multi_hot(module.spec.classes)))


def _step(
    module: torch.nn.Module, batch: int, streams: int, prepare: Callable[[Tensor], Tensor]
) -> Callable[[Examples], float]:
    if streams:
        make_lean(module)
    schedule = Schedule(peak=RATE, total=1_000_000, warmup=0, decay="constant")
    recipe = Recipe("bench", "bench/suites/training.py", batch, module.spec.image, schedule, AdamW())
    state = TrainState(module, make_optimizer(module, recipe.optimizer))
    update = Update(recipe, Execution(streams=streams), seed=0, prepare=prepare)
    return lambda given: update(state, module, given).loss


def plain_step(
    module: torch.nn.Module, spec: ViTSpec, batch: int, *, is_fused: bool = False, is_compiled: bool = False
) -> Call:
    images, labels = examples(spec, batch)
    forward = torch.compile(module.train()) if is_compiled else module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0.1, fused=is_fused)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        output = forward(images)
        loss = F.cross_entropy(getattr(output, "logits", output), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()[None]

    return step
