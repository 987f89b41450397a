"""The one scorer: a model over a source, every sample exactly once, on any number of ranks, resumable."""

import json
import time
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vitlab.artefacts.artefact import Artefact
from vitlab.data.loading.accounting import Account, Quarantined
from vitlab.data.loading.batches import Batch, evaluation_batches
from vitlab.data.source import Source
from vitlab.data.transforms.evaluation import as_model_input
from vitlab.engines.agreement import Agreement, agreement
from vitlab.engines.engine import CPU, EngineName, Output, Pending
from vitlab.engines.opening import open_engine
from vitlab.files.store import write_text
from vitlab.files.strict_json import from_json, parse_json, to_json
from vitlab.files.user_files import read_regular
from vitlab.metrics.answers import mistakes_in
from vitlab.metrics.multilabel import THRESHOLD, AnyScores, any_scores_from_json, empty_scores, merged
from vitlab.metrics.scores import Scores
from vitlab.metrics.targets import OWN, Target
from vitlab.models.build import Model
from vitlab.report.answers import Mistake, worst
from vitlab.require import require
from vitlab.runs.progress import Images
from vitlab.spec import Task
from vitlab.spec.pixels import Preprocessing
from vitlab.world.group import ALONE, World

SYNC = 8  # batches between two exchanges of results among the ranks
LARGEST_PROGRESS = 2**30  # bytes; the confusion matrix of 21,843 classes can be large
AHEAD = 2  # batches that are computed while the next is read
COMPARED = 64  # images on which an inexact engine is compared with the plain model
SAVE = 5.0  # least number of seconds between two writes of the progress file


@dataclass
class Progress:
    """The results so far: samples 0 to `next` - 1 are scored or quarantined. One entry per kind of labels."""

    scores: dict[str, AnyScores]
    account: Account
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)  # the worst first; single-label models only
    next: int = 0


@dataclass(frozen=True)
class Reading:
    """How images are run through a model: in batches, by which engine, read by worker processes, shared by all ranks.

    `max_bad` of them may be unreadable.
    """

    batch: int = 32
    workers: int = 0
    max_bad: float = 0.0  # share of the images
    world: World = ALONE
    engine: EngineName = "plain"

    def __post_init__(self) -> None:
        require(0 <= self.max_bad <= 1, f"max_bad {self.max_bad} is a share of the images, between 0 and 1")


def score_source(
    model: Model | Artefact,
    source: Source,
    targets: Mapping[str, Target] = OWN,
    *,
    how: Preprocessing,
    reading: Reading | None = None,
    account: Account | None = None,
    columns: Sequence[int] | None = None,
    task: Task = "single-label",
    threshold: float = THRESHOLD,
    saved: Path | None = None,
    identity: Mapping[str, object] | None = None,
    save_every: float = SAVE,
    display: Images | None = None,
) -> Progress:
    """Score every sample against each kind of labels in `targets`, in one pass over the images.

    All ranks return the same results. With `columns`, only these classes of the model compete, in this order. A
    `multi-label` model predicts the classes whose probability is at least `threshold`. Bad images are counted in
    `account`; too many raise TooManyBadImages on every rank. With `saved`, progress is written to that file and
    continued from there, provided that `identity`, the description of the evaluation, agrees.
    """
    reading = reading or Reading()
    batch, max_bad, world = reading.batch, reading.max_bad, reading.world
    classes = model.spec.classes if columns is None else len(columns)
    empty = {name: empty_scores(task, classes, threshold) for name in targets}
    if account is None:
        account = Account(len(source) + source.excluded.total(), Counter(source.excluded))
    progress = Progress(deepcopy(empty), account)
    if saved is not None:
        # All ranks continue from what rank 0 has read: starting from different places, they would wait for each other
        # or count twice. `gather`, because the launcher's store takes at most 8 MiB.
        read, *_ = world.gather(_read(saved, identity or {}) if world.leads else None)
        if read is not None:
            _book(progress, [read], 1.0)
            progress.next = read["next"]
    progress.account.add((), (), max_bad)  # the file may already hold too many bad images
    if display is not None:
        display.show(progress.next, len(source))
    last_save = time.monotonic()
    part, done = _Part(deepcopy(empty)), progress.next
    kept = None if columns is None else torch.tensor(columns, device=device_of(model))
    # The bad images are checked below on all ranks at once: a rank that stopped alone would leave the others waiting.
    lenient, shares = replace(reading, max_bad=1.0), {"rank": world.rank, "ranks": world.ranks, "in_turn": True}
    with closing(outputs(model, source, how, lenient, start=progress.next, **shares)) as made:
        for number, (scored, logits) in enumerate(made, 1):
            part.add(scored, logits if kept is None else logits[:, kept], targets)
            done = min(done + world.ranks * batch, len(source))
            if number % SYNC and done < len(source):
                continue
            _book(progress, world.gather(part.to_json()), max_bad)
            progress.next, part = done, _Part(deepcopy(empty))
            if display is not None:
                display.show(done, len(source))
            is_due = done == len(source) or time.monotonic() - last_save >= save_every
            if saved is not None and world.leads and is_due:
                _save(saved, identity or {}, progress)
                last_save = time.monotonic()
    assert progress.account.is_balanced(), "a sample was lost or counted twice"
    return progress


def device_of(model: Model | Artefact) -> torch.device:
    """Where a model computes."""
    return CPU if isinstance(model, Artefact) else next(model.parameters()).device


def outputs(
    model: Model | Artefact,
    source: Source,
    how: Preprocessing,
    reading: Reading,
    output: Output = "logits",
    **batching: Any,
) -> Generator[tuple[Batch, Tensor], None, None]:
    """Yield each batch of a source with the output of the model for it; a batch may be empty.

    Runs on the device and in the precision of the model's weights, without gradients and without dropout. The next
    batches are read while the engine computes. `batching` are further arguments of `evaluation_batches`. An artefact
    gets the decoded pictures, which it prepares itself.
    """
    batching |= {"batch": reading.batch, "workers": reading.workers, "max_bad": reading.max_bad}
    batching |= {"size": model.spec.image, "device": device_of(model)}
    if isinstance(model, Artefact):
        with closing(evaluation_batches(source, preprocessing=None, **batching)) as batches:
            for batch in batches:
                empty = torch.empty(0, model.spec.classes if output == "logits" else model.spec.width)
                yield batch, model.outputs(batch.pictures, output) if batch.pictures else empty
        return
    normalise = as_model_input(source, how)
    engine = open_engine(model, reading.engine, batch=reading.batch)
    batches = evaluation_batches(source, preprocessing=how, **batching)
    pending: deque[tuple[Batch, Pending]] = deque()
    failure = None
    try:
        with closing(batches):
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                except BaseException as error:  # also Ctrl-C: what was read before is computed and handed out first
                    failure = error
                    break
                pending.append((batch, engine.submit(batch.pixels, output, normalise)))
                if len(pending) > (AHEAD if engine.is_concurrent else 0):
                    batch, made = pending.popleft()
                    yield batch, made.result()
        while pending:
            batch, made = pending.popleft()
            yield batch, made.result()
        if failure is not None:
            raise failure
    finally:
        for _, made in pending:
            made.cancel()


def compared(model: Model | Artefact, source: Source, how: Preprocessing, reading: Reading) -> Agreement | None:
    """Compare the engine with the plain model on the first images of a source; None if none can be read.

    Also None for an artefact, whose model is not here: its report says how far both agree.
    """
    if isinstance(model, Artefact):
        return None
    batching = {"batch": COMPARED, "max_bad": 1.0, "preprocessing": how, "size": model.spec.image}
    with closing(evaluation_batches(source, **batching)) as batches:
        batch = next((one for one in batches if len(one.ids)), None)
    if batch is None:
        return None
    engine = open_engine(model, reading.engine, batch=reading.batch)
    return agreement(engine, model, as_model_input(source, how)(batch.pixels))


# -- What the ranks exchange, and what the progress file holds -------------------------------------


@dataclass
class _Part:
    """What was scored: by this rank since the last exchange, or by all ranks so far."""

    scores: dict[str, AnyScores]
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)
    used: int = 0
    bad: list[Quarantined] = field(default_factory=list)

    def add(self, batch: Batch, logits: Tensor, targets: Mapping[str, Target]) -> None:
        for name, target in targets.items():
            labels = tuple(tuple(target.of(given, id)) for given, id in zip(batch.labels, batch.ids, strict=True))
            self.scores[name].add(logits, labels)
            if isinstance(self.scores[name], Scores):
                found = mistakes_in(batch.numbers, batch.ids, labels, logits)
                self.mistakes[name] = worst([*self.mistakes.get(name, ()), *found])
        self.used += len(batch.ids)
        self.bad += [sample for _, sample in batch.bad]

    def to_json(self) -> dict[str, object]:
        return {
            "scores": {name: scores.to_json() for name, scores in self.scores.items()},
            "mistakes": {name: [to_json(one) for one in found] for name, found in self.mistakes.items()},
            "used": self.used,
            "quarantined": [asdict(sample) for sample in self.bad],
        }


def _book(progress: Progress, parts: Sequence[dict[str, Any]], max_bad: float) -> None:
    """Add the parts of all ranks; each rank reaches the same verdict on the bad images."""
    for part in parts:
        for name, so_far in progress.scores.items():
            progress.scores[name] = merged(so_far, any_scores_from_json(part["scores"][name]))
        for name, found in part.get("mistakes", {}).items():  # files of earlier versions have none
            known = progress.mistakes.get(name, [])
            progress.mistakes[name] = worst([*known, *(from_json(Mistake, one) for one in found)])
        bad = [(0, from_json(Quarantined, sample)) for sample in part["quarantined"]]
        progress.account.add([0] * part["used"], bad, 1.0)
    progress.account.add((), (), max_bad)


def _save(path: Path, identity: Mapping[str, object], progress: Progress) -> None:
    account = progress.account
    so_far = _Part(progress.scores, progress.mistakes, account.used[0], list(account.quarantined.values()))
    value = {"identity": dict(identity), "next": progress.next, **so_far.to_json()}
    write_text(path, json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def _read(path: Path, identity: Mapping[str, object]) -> dict[str, Any] | None:
    """The content of the progress file, or None without one; the progress of another evaluation is an error."""
    if not path.exists():
        return None
    value = parse_json(read_regular(path, LARGEST_PROGRESS), path.name)
    keys = {"identity", "next", "scores", "mistakes", "used", "quarantined"}
    advice = f"remove {path} to start again"
    is_progress = isinstance(value, dict) and {*value, "mistakes"} == keys
    require(is_progress, f"{path} is not the progress of an evaluation; {advice}")
    given = cast(dict[str, Any], value)
    require(given["identity"] == dict(identity), f"{path} is the progress of another evaluation; {advice}")
    require(given["used"] + len(given["quarantined"]) == given["next"], f"{path} is inconsistent; {advice}")
    return given
