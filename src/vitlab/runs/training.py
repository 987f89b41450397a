"""From a run's spec to its finished folder: what `pretrain`, `finetune`, `resume` and `reproduce` all end in."""

from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from vitlab.counting import count_spec
from vitlab.data.accounting import Account, TooManyBadImages
from vitlab.data.card import DataCard
from vitlab.data.loading import Batch, evaluation_batches, order_of, shard_sizes, training_batches
from vitlab.data.source import Source
from vitlab.data.transforms import normalised
from vitlab.evaluate.scores import merged, scores_from_json
from vitlab.evaluate.scoring import score
from vitlab.models.build import Model
from vitlab.models.masked import MaskedPatchModel
from vitlab.recipe import Execution
from vitlab.run_dir import CHECKPOINTS, EVENTS, MODEL, QUARANTINE, RESULT, RunDir, RunSpec
from vitlab.runs.books import Books
from vitlab.runs.display import Display, describe, say
from vitlab.runs.distilling import open_teacher, student_of
from vitlab.runs.masking import PICTURE, corruption_of, draw_predictions, prediction_of, score_predictions
from vitlab.runs.material import Material, first_state, open_material, sharded_state, whole_model
from vitlab.strict_json import from_json, require
from vitlab.train.checkpoints import Checkpoints, load_checkpoint, name_of
from vitlab.train.distillation import distilled
from vitlab.train.loop import JUDGE, Hook, Loop
from vitlab.train.signals import undisturbed
from vitlab.train.state import TrainState
from vitlab.train.tensorboard import tensorboard_writer
from vitlab.train.update import Examples, Update, recompute_activations, supervised
from vitlab.weights.save import save_model
from vitlab.world.device import differences, environment
from vitlab.world.group import ALONE, World, device_of
from vitlab.world.parallel import choose, is_cut, wrapped

EVALUATION_BATCH = 64
SAVES, LOGGED = 20, 20_000  # of a whole run, where nothing else is asked for


def carry_out(
    run: RunDir,
    console: Console,
    *,
    data: str = "",
    teacher: str = "",
    execution: Execution | None = None,
    world: World = ALONE,
) -> int:
    """Train what the folder asks for, from its newest checkpoint if it has one; returns the exit code.

    The data and the teacher may have moved and the `execution` may be another one; what is learnt is the run's. All
    ranks of a `world` call it, with a folder that only the first writes and a console that only its is heard of.
    """
    with run.held(), undisturbed():
        run.mend()
        spec = run.spec()
        spec = replace(spec, data=data or spec.data, execution=execution or spec.execution)
        require(bool(spec.teacher) or not teacher, f"{run.path} has no teacher that could have moved")
        spec = replace(spec, teacher=teacher or spec.teacher)
        if world.first((run.path / RESULT).exists):
            say(console, f"{run.path} is finished: the model is in {run.path / MODEL}")
            return 0
        material = open_material(spec, from_json(DataCard, run.card()))
        device = device_of(world, spec.execution.device)
        kind, why = choose(spec.execution.parallel, world, device, count_spec(spec.model).parameters)
        _check_kind(spec, kind, world)
        if world.ranks > 1:
            say(console, f"ranks   {world.ranks}, {kind}: {why}")
        here = environment(device) | _execution(spec, kind, world)
        checkpoints = Checkpoints(run.path / CHECKPOINTS, keep=spec.execution.keep, environment=here, world=world)
        is_begun = world.first(lambda: bool(checkpoints.steps()))
        if kind == "fsdp":
            state = sharded_state(spec, device, world, is_empty=is_begun)
        else:
            state = first_state(replace(spec, start="") if is_begun else spec, device)
        restored = checkpoints.restore(state)
        if restored is None:
            run.record("started", {"step": 0, **here})
            checkpoints.save(state, wait=True)
        else:
            changed = differences({"ranks": "1"} | restored.environment, here)
            run.record("resumed", {"step": restored.step, "damaged": list(restored.damaged), "changed": changed})
            for damage in restored.damaged:
                say(console, f"damaged, set aside: {damage}")
            say(console, f"continuing after step {restored.step:,}")
            if changed:
                say(console, f"not bit-exact because {'; '.join(changed)}")
        code = _train(run, spec, material, state, checkpoints, console, world)
        if code == 0:
            _finish(run, spec, material, state, checkpoints, console, world)
        return code


def _execution(spec: RunSpec, kind: str, world: World) -> dict[str, str]:
    """What of the execution shows in the bits."""
    how = spec.execution
    ranks = str(world.ranks) if kind == "alone" else f"{world.ranks} {kind}"
    return {
        "precision": how.precision,
        "micro-batch": str(how.micro_batch),
        "compile": str(how.compile),
        "ranks": "any" if how.exact_elastic else ranks,
    }


def _check_kind(spec: RunSpec, kind: str, world: World) -> None:
    """Raise what the specs cannot know: which parallelism `auto` becomes, and how many ranks there are."""
    if kind == "fsdp":
        replace(spec.execution, parallel="fsdp")
    shards = spec.recipe.shards
    require(
        not spec.execution.exact_elastic or shards > 1 or spec.recipe.batch == 1,
        "the run was begun without --exact-elastic and sums whole batches; leave it out, or start a new run with it",
    )
    require(
        not spec.recipe.mixes or world.ranks <= shards,
        f"the run mixes pictures inside {shards} part(s) of a batch, and {world.ranks} ranks cannot share them without "
        f"learning something else; take {shards} ranks at most, or begin a run with --shards {world.ranks}",
    )


# -- Training ------------------------------------------------------------------------------------


def _train(
    run: RunDir,
    spec: RunSpec,
    material: Material,
    state: TrainState,
    checkpoints: Checkpoints,
    console: Console,
    world: World,
) -> int:
    recipe, execution = spec.recipe, spec.execution
    saved = state.progress.books
    account = Account.from_json(saved) if saved else _new_account(material)
    books = Books(account, execution.max_bad, world)
    forward: nn.Module = student_of(spec, state.module)
    if execution.recompute:
        recompute_activations(state.module)
    if execution.compile:
        forward = torch.compile(forward)  # pyrefly: ignore[bad-assignment] - calls like the module
    parallel = wrapped(forward, world, is_exact=execution.exact_elastic)

    def keep_books(state: TrainState) -> None:
        books.settle()
        state.progress.books = account.to_json()
        if account.quarantined:
            run.write(QUARANTINE, account.to_json())
        run.sync()

    total = recipe.schedule.total
    prepare = partial(normalised, how=spec.model.conventions.preprocessing)
    device = next(state.module.parameters()).device
    objective = prediction_of(spec) or supervised(recipe, _class_weights(spec, material.train, device))
    if spec.teacher:
        objective = distilled(recipe.distillation, objective, open_teacher(spec, material.card, device))
    update = Update(
        recipe, execution, seed=spec.seed, prepare=prepare, objective=objective, world=world, parallel=parallel
    )
    with ExitStack() as stack:
        display = stack.enter_context(Display(console, total, state.progress.step))
        log = stack.enter_context(tensorboard_writer(run.path)) if execution.tensorboard and run.writes else None

        def record(kind: str, values: Mapping[str, object]) -> None:
            run.record(kind, values)
            display.show(kind, values)
            if log is not None:
                log.add(kind, values)

        loop = Loop(
            total=total,
            save_every=execution.save_every or max(total // SAVES, 1),
            log_every=max(total // LOGGED, 1),
            checkpoints=checkpoints,
            record=record,
            hooks=tuple(_hooks(run, spec, material, world)),
            patience=recipe.patience,
            before_save=keep_books,
        )
        try:
            return loop.run(state, parallel.forward, update, _examples(spec, material.train, state, books))
        except TooManyBadImages:
            if account.quarantined:  # else they are of a validation, which has a file of its own
                run.write(QUARANTINE, account.to_json())
            raise
        except (MemoryError, RuntimeError) as error:
            raise _explained(error, spec) from error


def _new_account(material: Material) -> Account:
    return Account(len(material.train) + material.excluded.total(), material.excluded)


def _examples(spec: RunSpec, source: Source, state: TrainState, books: Books) -> Generator[Examples]:
    """The stream of this rank's shares from the state's step on, as inputs and targets on the device."""
    device = next(state.module.parameters()).device
    recipe = spec.recipe
    batches = training_batches(
        source,
        order_of(source, spec.seed),
        batch=recipe.batch,
        size=recipe.image,
        augmentation=recipe.augmentation,
        start=state.progress.step,
        stop=recipe.schedule.total,
        rank=books.world.rank,
        ranks=books.world.ranks,
        shards=recipe.shards,
        corruption=corruption_of(spec),
        workers=spec.execution.workers,
        account=books.own,
        max_bad=books.own_limit,
        device=device,
    )
    for batch in books.kept(batches):
        yield Examples(batch.pixels, _targets(batch, spec), shard_sizes(batch, recipe.batch, recipe.shards))


def _targets(batch: Batch, spec: RunSpec) -> Tensor:
    """(n, K): several ones for the sigmoid loss, exactly one for softmax; the plans where patches are predicted."""
    if batch.plans is not None:
        return batch.plans
    if spec.recipe.loss == "softmax":
        batch.one_label()
    return batch.multi_hot(spec.model.classes)


def _class_weights(spec: RunSpec, source: Source, device: torch.device) -> Tensor | None:
    """(K,) inversely proportional to how often a class occurs, 1 on average over the samples."""
    if spec.recipe.class_weights == "none":
        return None
    counts = Counter(label for number in range(len(source)) for label in source.label(number))
    occurring = len(counts)
    weights = [len(source) / (occurring * counts[k]) if counts[k] else 0.0 for k in range(spec.model.classes)]
    return torch.tensor(weights, device=device)


def _hooks(run: RunDir, spec: RunSpec, material: Material, world: World) -> Generator[Hook]:
    if material.validation is not None:
        yield Hook(JUDGE, spec.recipe.validate_every, partial(_judge, run, spec, material, world))


def _judge(run: RunDir, spec: RunSpec, material: Material, world: World, module: nn.Module) -> dict[str, float]:
    assert material.validation is not None
    _draw(run, spec, material, module)
    return _score(run, spec, JUDGE, material.validation, world, module)


def _draw(run: RunDir, spec: RunSpec, material: Material, module: nn.Module) -> None:
    """A picture of what a masked run predicts now; of a model in parts all ranks draw it."""
    if spec.recipe.masking is None:
        return
    drawn = draw_predictions(spec, material.validation or material.train, module)
    if drawn is not None:
        run.write_bytes(PICTURE, drawn)


def _score(run: RunDir, spec: RunSpec, name: str, source: Source, world: World, module: nn.Module) -> dict[str, float]:
    """Every image of the source once over all ranks; unreadable ones are counted, named in the quarantine file, never
    replaced."""
    how = spec.model.conventions.preprocessing
    books = Books(Account(len(source)), spec.execution.max_bad, world)
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
    try:
        if prediction is not None:
            numbers = score_predictions(module, batches, prediction, world)
        else:
            own = score(module, batches, partial(normalised, how=how), spec.model.classes)
            numbers = merged(map(scores_from_json, world.gather(own.to_json()))).numbers()
        books.settle()
    finally:
        if books.account.quarantined:
            run.write(f"{name}-{QUARANTINE}", books.account.to_json())
    return {**numbers, "not_evaluated": len(books.account.quarantined)}


def _explained(error: BaseException, spec: RunSpec) -> BaseException:
    """A lack of memory says what to change; anything else stays what it is."""
    if not isinstance(error, MemoryError) and not any(
        sign in str(error) for sign in ("out of memory", "can't allocate memory", "not enough memory")
    ):
        return error
    micro = spec.execution.micro_batch or spec.recipe.batch
    return MemoryError(
        f"out of memory with {micro} images at once; --micro-batch {max(micro // 2, 1)} learns the same in smaller "
        f"pieces, --recompute keeps fewer activations; vitlab resume takes both"
    )


# -- After the last step -------------------------------------------------------------------------


def _finish(
    run: RunDir,
    spec: RunSpec,
    material: Material,
    state: TrainState,
    checkpoints: Checkpoints,
    console: Console,
    world: World,
) -> None:
    """Save the model that is kept, judge it, and write the result."""
    weights = "best" if spec.recipe.patience and _take_best(state, checkpoints, console) else "last"
    model = state.trained.eval().requires_grad_(True)
    assert isinstance(model, Model)
    progress = state.progress
    result: dict[str, object] = {
        "step": progress.step,
        "weights": weights,
        "images": progress.images,
        "skipped": progress.skipped,
    }
    for name, source in ((JUDGE, material.validation), ("test", material.test)):
        if source is not None:
            numbers = world.first(partial(_recorded, run, name, progress.step))
            if numbers is None:
                numbers = _score(run, spec, name, source, world, model)
                run.record(name, {"step": progress.step, **numbers})
            result[name] = numbers
            say(console, f"{name}: {describe(numbers)}")
    _draw(run, spec, material, model)
    if not world.first((run.path / MODEL).exists):
        kept = whole_model(model, spec, world) if is_cut(model) else model
        world.first(lambda: _save(kept, run, spec, material, progress.step))
    run.write(RESULT, result)
    run.record("finished", {"step": progress.step})
    if run.dropped:
        say(console, f"{run.dropped:,} events could not be written to {run.path / EVENTS}")
    say(console, f"the model is in {run.path / MODEL}")


def _save(model: Model | None, run: RunDir, spec: RunSpec, material: Material, step: int) -> None:
    assert model is not None, "the first rank has it"
    if isinstance(model, MaskedPatchModel):
        model = model.without_mask()
    else:
        model.class_names = material.card.class_names or None
    model.provenance = provenance(spec, material.card, step)
    save_model(model.to("cpu"), run.path / MODEL)


def _take_best(state: TrainState, checkpoints: Checkpoints, console: Console) -> bool:
    """Fill the state from the best checkpoint; one that is lost is told, and the last weights stay."""
    if state.progress.best is None:
        return False
    path = checkpoints.folder / name_of(state.progress.best_step)
    if fault := checkpoints.fault(path):
        say(console, f"the best checkpoint cannot be used, the last weights are kept: {fault}")
        return False
    load_checkpoint(path, state)
    return True


def _recorded(run: RunDir, name: str, step: int) -> dict[str, float] | None:
    """The numbers of a measurement after this step, if there was one."""
    found = [event for event in run.events(name) if event["step"] == step]
    return {key: value for key, value in found[-1].items() if key not in ("event", "time", "step")} if found else None


def provenance(spec: RunSpec, card: DataCard, step: int) -> dict[str, str]:
    """Where a trained model comes from; it travels with it."""
    from vitlab import __version__

    masking = spec.recipe.masking
    return {
        "trained_by": f"vitlab {__version__} {spec.kind}",
        **({"objective": f"masked patches, {masking.target}, {masking.corrupted:g} corrupted"} if masking else {}),
        "recipe": f"{spec.recipe.name} ({spec.recipe.source})",
        "data": card.spec,
        "data_fingerprint": card.fingerprint,
        "start": Path(spec.start).name if spec.start else "fresh",
        "start_sha256": spec.start_sha256,
        **({"teacher": Path(spec.teacher).name, "teacher_sha256": spec.teacher_sha256} if spec.teacher else {}),
        "seed": str(spec.seed),
        "steps": str(step),
    }
