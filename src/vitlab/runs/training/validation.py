"""Validation and test of a model in training, and a picture of what a masked-patch model predicts."""

import contextlib
from typing import cast

import torch
from rich.console import Console
from torch import nn

from vitlab.data.loading.accounting import Account, training_limit
from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.source import Source
from vitlab.errors import TooManyBadImages
from vitlab.metrics.answers import answers_of
from vitlab.models.build import Model
from vitlab.run_dir import PICTURE, RunSpec, answers_file
from vitlab.runs.measure.scoring import Reading, score_source
from vitlab.runs.progress import Images
from vitlab.runs.training.account import Books, tell_bad, write_quarantine
from vitlab.runs.training.data import RunData
from vitlab.runs.training.masked_patches import corruption_of, draw_predictions, prediction_of, score_predictions
from vitlab.runs.training.session import Session
from vitlab.spec import Task
from vitlab.strict_json import to_json
from vitlab.train.loop import JUDGE
from vitlab.world.group import World

EVALUATION_BATCH = 64


def validate(session: Session, data: RunData, module: nn.Module) -> dict[str, float]:
    """Score the validation set and draw the picture of a masked run; returns the numbers by name."""
    assert data.validation is not None
    draw(session, data, module)
    return score_set(session, data.task, JUDGE, data.validation, module)


def check_pictures(spec: RunSpec, data: RunData, console: Console) -> dict[str, Account]:
    """Read every validation and test image before the first step; returns an account of each set by name.

    Raises TooManyBadImages if a set has more bad images than the run allows.
    """
    checked = {}
    for name, source in ((JUDGE, data.validation), ("test", data.test)):
        if source is None:
            continue
        account = checked[name] = Account(len(source))
        batches = evaluation_batches(
            source,
            batch=EVALUATION_BATCH,
            size=spec.recipe.image,
            preprocessing=spec.model.conventions.preprocessing,
            workers=spec.execution.workers,
            account=account,
            max_bad=training_limit(spec.execution.max_bad, len(source)),
        )
        fork = torch.random.fork_rng(devices=[])  # the loader draws a seed
        with fork, Images(console, f"checking {name} images") as display, contextlib.closing(batches):
            try:
                for _ in batches:
                    display.show(account.used[0] + account.bad[0], len(source))
            except TooManyBadImages as error:
                raise TooManyBadImages(f"of the {name} images: {error}") from None
    return checked


def draw(session: Session, data: RunData, module: nn.Module) -> None:
    """Draw what a masked run predicts now; all ranks must call this, because the model may be sharded."""
    if session.spec.recipe.masking is None:
        return
    drawn = draw_predictions(session.spec, data.validation or data.train, module)
    if drawn is not None:
        session.run.write_bytes(PICTURE, drawn)


def score_set(session: Session, task: Task, name: str, source: Source, module: nn.Module) -> dict[str, float]:
    """Score every image of the validation or test set once over all ranks; unreadable ones are counted and quarantined.

    However many there are, they never stop the run: `check_pictures` did so before the first step, and what the model
    has learnt since must not be lost because a disk went away.
    """
    run, spec, world = session.run, session.spec, session.world
    account = Account(len(source))
    batch = min(EVALUATION_BATCH, spec.execution.micro_batch or EVALUATION_BATCH)
    scores, mistakes = None, []
    try:
        if spec.recipe.masking is not None:
            numbers = _score_masked(spec, source, batch, account, world, module)
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
    tell_bad(session.console, run, account, fresh, name)
    numbers = {**numbers, "not_evaluated": len(account.quarantined)}
    if scores is not None and spec.execution.report:
        run.write(answers_file(name), to_json(answers_of(scores, numbers, mistakes)))
    return numbers


def _score_masked(
    spec: RunSpec, source: Source, batch: int, account: Account, world: World, module: nn.Module
) -> dict[str, float]:
    """Score the predictions of corrupted patches: sums of floats, which are added in the order of ranks and batches."""
    books = Books(account, 1.0, world)
    batches = evaluation_batches(
        source,
        batch=batch,
        size=spec.recipe.image,
        preprocessing=spec.model.conventions.preprocessing,
        corruption=corruption_of(spec),
        rank=world.rank,
        ranks=world.ranks,
        in_turn=True,
        workers=spec.execution.workers,
        account=books.own,
        max_bad=books.own_limit,
    )
    numbers = score_predictions(module, batches, prediction_of(spec), world)
    books.settle()
    return numbers
