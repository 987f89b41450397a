"""How a model in training is judged: every image once over all ranks, and a picture of what a masked one predicts."""

import contextlib
from functools import partial

import torch
from rich.console import Console
from torch import nn

from vitlab.data.loading.accounting import Account, training_limit
from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.source import Source
from vitlab.data.transforms.evaluation import normalised
from vitlab.errors import TooManyBadImages
from vitlab.evaluate.answers import MistakeFinder, answers_of
from vitlab.evaluate.multilabel import any_scores_from_json, empty_scores, merged_any
from vitlab.evaluate.scoring import fill
from vitlab.run_dir import PICTURE, RunDir, RunSpec, answers_file
from vitlab.runs.progress import Images
from vitlab.runs.training.account import Books, tell_bad, write_quarantine
from vitlab.runs.training.data import Material
from vitlab.runs.training.masked_patches import corruption_of, draw_predictions, prediction_of, score_predictions
from vitlab.spec import Task
from vitlab.strict_json import to_json
from vitlab.train.loop import JUDGE
from vitlab.world.group import World

EVALUATION_BATCH = 64


def judge(
    run: RunDir, spec: RunSpec, material: Material, console: Console, world: World, module: nn.Module
) -> dict[str, float]:
    """The numbers of the validation, and the picture of a masked run."""
    assert material.validation is not None
    draw(run, spec, material, module)
    return score_source(run, spec, material.task, JUDGE, material.validation, console, world, module)


def judge_pictures(spec: RunSpec, material: Material, console: Console) -> dict[str, Account]:
    """Read every image to validate and to test on, before the first step: an account of each set by its name.

    Raises TooManyBadImages for a set of which more are bad than the run allows.
    """
    judged = {}
    for name, source in ((JUDGE, material.validation), ("test", material.test)):
        if source is None:
            continue
        account = judged[name] = Account(len(source))
        batches = evaluation_batches(
            source,
            batch=EVALUATION_BATCH,
            size=spec.recipe.image,
            preprocessing=spec.model.conventions.preprocessing,
            workers=spec.execution.workers,
            account=account,
            max_bad=training_limit(spec.execution.max_bad, len(source)),
        )
        fork = torch.random.fork_rng(devices=[])  # a loader draws a seed
        with fork, Images(console, f"checking {name} images") as display, contextlib.closing(batches):
            try:
                for _ in batches:
                    display.show(account.used[0] + account.bad[0], len(source))
            except TooManyBadImages as error:
                raise TooManyBadImages(f"of the {name} images: {error}") from None
    return judged


def draw(run: RunDir, spec: RunSpec, material: Material, module: nn.Module) -> None:
    """A picture of what a masked run predicts now; of a model in parts all ranks draw it."""
    if spec.recipe.masking is None:
        return
    drawn = draw_predictions(spec, material.validation or material.train, module)
    if drawn is not None:
        run.write_bytes(PICTURE, drawn)


def score_source(
    run: RunDir,
    spec: RunSpec,
    task: Task,
    name: str,
    source: Source,
    console: Console,
    world: World,
    module: nn.Module,
) -> dict[str, float]:
    """Every image of the source once over all ranks; unreadable ones are counted, named in the quarantine file, never
    replaced.

    However many there are, they stop nothing: `judge_pictures` did so before the first step, and what has been learnt
    since must not be lost because a disk went away.
    """
    how = spec.model.conventions.preprocessing
    books = Books(Account(len(source)), 1.0, world)
    batches = evaluation_batches(
        source,
        batch=min(EVALUATION_BATCH, spec.execution.micro_batch or EVALUATION_BATCH),
        size=spec.recipe.image,
        preprocessing=how,
        corruption=corruption_of(spec),
        rank=world.rank,
        ranks=world.ranks,
        in_turn=True,
        workers=spec.execution.workers,
        account=books.own,
        max_bad=books.own_limit,
    )
    prediction = prediction_of(spec)
    scores, found = None, []
    try:
        if prediction is not None:
            numbers = score_predictions(module, batches, prediction, world)
        else:
            finder, own = MistakeFinder(), empty_scores(task, spec.model.classes)
            fill(own, module, batches, partial(normalised, how=how), finder.add)
            scores = merged_any(*map(any_scores_from_json, world.gather(own.to_json())))
            numbers = scores.numbers()
            found = world.gather([to_json(mistake) for mistake in finder.found])
        books.settle()
    finally:
        fresh = write_quarantine(run, books.account, name)
    tell_bad(console, run, books.account, fresh, name)
    numbers = {**numbers, "not_evaluated": len(books.account.quarantined)}
    if scores is not None and spec.execution.report:
        run.write(answers_file(name), to_json(answers_of(scores, numbers, found)))
    return numbers
