"""Score a model in training on its validation and test sets, and draw what a masked-patch model predicts."""

import contextlib
from collections.abc import Generator
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor, nn

from vitlab.data.loading.accounting import Account, training_limit
from vitlab.data.loading.batches import Batch, evaluation_batches
from vitlab.data.source import Source
from vitlab.data.splits import take
from vitlab.data.transforms.corruption import HIDDEN
from vitlab.drawing.canvas import contact_sheet
from vitlab.errors import TooManyBadImages
from vitlab.files.strict_json import to_json
from vitlab.metrics.answers import answers_of
from vitlab.models.build import Model
from vitlab.models.classifier import evaluating
from vitlab.run_dir import PICTURE, RunSpec, answers_file
from vitlab.runs.measure.scoring import Reading, score_source
from vitlab.runs.progress import Images
from vitlab.runs.training.data import RankAccounts, RunData, tell_bad, write_quarantine
from vitlab.runs.training.objective import corruption_of, prediction_of
from vitlab.runs.training.state import Session
from vitlab.spec import Task
from vitlab.spec.recipe import VALIDATION
from vitlab.train.masking import patches_at
from vitlab.world.group import ALONE, World

EVALUATION_BATCH = 64
SHOWN = 8  # images in the picture of a masked run
GREY = 128


def validate(session: Session, data: RunData, module: nn.Module) -> dict[str, float]:
    """Score the validation set and draw the picture of a masked run; returns the numbers by name."""
    assert data.validation is not None
    draw(session, data, module)
    return score_set(session, data.task, VALIDATION, data.validation, module)


def check_pictures(spec: RunSpec, data: RunData, console: Console) -> dict[str, Account]:
    """Read every validation and test image before the first step; returns an account of each set by name.

    Raises TooManyBadImages if a set has more bad images than the run allows.
    """
    checked = {}
    for name, source in ((VALIDATION, data.validation), ("test", data.test)):
        if source is None:
            continue
        account = checked[name] = Account(len(source))
        limit = training_limit(spec.execution.max_bad, len(source))
        batches = _batches(spec, source, account, limit, batch=EVALUATION_BATCH, workers=spec.execution.workers)
        fork = torch.random.fork_rng(devices=[])  # the loader draws a seed
        with fork, Images(console, f"checking {name} images") as display, contextlib.closing(batches):
            try:
                for _ in batches:
                    display.show(account.used[0] + account.bad[0], len(source))
            except TooManyBadImages as error:
                raise TooManyBadImages(f"of the {name} images: {error}") from None
    return checked


def score_set(session: Session, task: Task, name: str, source: Source, module: nn.Module) -> dict[str, float]:
    """Score every image of the validation or test set once over all ranks; unreadable ones are counted and quarantined.

    However many there are, they never stop the run: `check_pictures` did so before the first step, and what the model
    has learned since must not be lost because a disk went away.
    """
    run, spec, console, world = session
    account = Account(len(source))
    batch = min(EVALUATION_BATCH, spec.execution.micro_batch or EVALUATION_BATCH)
    scores, mistakes = None, []
    try:
        if spec.recipe.masking is not None:
            numbers = score_predictions(spec, source, module, account, batch, world)
        else:
            done = score_source(
                cast(Model, module),
                source,
                how=spec.model.conventions.preprocessing,
                reading=Reading(batch, spec.execution.workers, 1.0, world),
                account=account,
                task=task,
            )
            scores, mistakes = done.scores["own"], done.mistakes.get("own", [])
            numbers = scores.numbers()
    finally:
        fresh = write_quarantine(run, account, name)
    tell_bad(console, run, account, fresh, name)
    numbers = {**numbers, "not_evaluated": len(account.quarantined)}
    if scores is not None and spec.execution.report:
        run.write(answers_file(name), to_json(answers_of(scores, numbers, mistakes)))
    return numbers


def _batches(spec: RunSpec, source: Source, account: Account, max_bad: float, **how: Any) -> Generator[Batch]:
    """Images as a run evaluates them; `how` are further options of `evaluation_batches`."""
    how |= {"size": spec.recipe.image, "preprocessing": spec.model.conventions.preprocessing}
    return evaluation_batches(source, account=account, max_bad=max_bad, **how)


# -- Masked patches --------------------------------------------------------------------------------


@torch.no_grad()
def score_predictions(
    spec: RunSpec, source: Source, module: nn.Module, account: Account, batch: int, world: World = ALONE
) -> dict[str, float]:
    """The mean loss and the share of colours predicted right, over all images of all ranks.

    Each image has the same number of patches. Sums of floats are added in the order of ranks and batches.
    """
    how, accounts = prediction_of(spec), RankAccounts(account, 1.0, world)
    order = {"rank": world.rank, "ranks": world.ranks, "in_turn": True, "workers": spec.execution.workers}
    batches = _batches(
        spec, source, accounts.local, accounts.local_limit, batch=batch, corruption=corruption_of(spec), **order
    )
    device = next(module.parameters()).device
    images, patches, loss, right = 0, 0, 0.0, 0.0
    with evaluating(module):
        for one in batches:
            pixels, plan = one.pixels.to(device), _plans(one).to(device)
            predictions = module(how.prepare(pixels), plan)
            loss += float(how.losses(predictions, pixels, plan).sum(dtype=torch.float64))
            right += float(how.right(predictions, pixels, plan).sum(dtype=torch.float64))
            images += len(pixels)
            patches += plan[:, 0].numel()
    parts: list[list[float]] = world.gather([images, patches, loss, right])
    images, patches, loss, right = (sum(column) for column in zip(*parts, strict=True))
    accounts.settle()
    return {
        "count": images,
        "patches": patches,
        "top1": right / images if images else float("nan"),
        "loss": loss / images if images else float("nan"),
    }


def draw(session: Session, data: RunData, module: nn.Module) -> None:
    """Draw what a masked run predicts now; all ranks must call this, because the model may be sharded."""
    if session.spec.recipe.masking is None:
        return
    drawn = draw_predictions(session.spec, data.validation or data.train, module)
    if drawn is not None:
        session.run.write_bytes(PICTURE, drawn)


@torch.no_grad()
def draw_predictions(spec: RunSpec, source: Source, module: nn.Module) -> bytes | None:
    """A PNG of the first images of a source: as they are, with corrupted patches, and with what is predicted there.

    None if none of them can be read.
    """
    how, few = prediction_of(spec), take(source, range(min(SHOWN, len(source))))
    (batch,) = _batches(spec, few, Account(len(source)), 1.0, batch=SHOWN, corruption=corruption_of(spec))
    pixels, plan = batch.pixels, _plans(batch)
    if not len(pixels):
        return None
    device = next(module.parameters()).device
    with evaluating(module):
        predictions = module(how.prepare(pixels.to(device)), plan.to(device))
    shown = [pixels, _hidden(pixels, how.side, plan), _with_patches(pixels, how.painted(predictions).cpu(), plan)]
    return contact_sheet([[image.permute(1, 2, 0).numpy() for image in images] for images in shown])


def _hidden(pixels: Tensor, side: int, plan: Tensor) -> Tensor:
    """(n, 3, H, W) of uint8: masked patches grey, swapped ones as the patch that is put there."""
    put = patches_at(pixels, side, plan[:, 1].clamp(min=0))  # (n, M, 3, S, S)
    put[plan[:, 1] == HIDDEN] = GREY
    return _with_patches(pixels, put, plan)


def _with_patches(pixels: Tensor, patches: Tensor, plan: Tensor) -> Tensor:
    """(n, 3, H, W) with (n, M, 3, S, S) put at the chosen places."""
    side = patches.shape[-1]
    result = pixels.clone()
    grid = result.unflatten(2, (-1, side)).unflatten(4, (-1, side))  # (n, 3, H/S, S, W/S, S), a view
    columns = grid.shape[4]
    for image, places in enumerate(plan[:, 0].tolist()):
        for number, place in enumerate(places):
            grid[image, :, place // columns, :, place % columns] = patches[image, number]
    return result


def _plans(batch: Batch) -> Tensor:
    assert batch.plans is not None, "the batches of a masked run have plans"
    return batch.plans
