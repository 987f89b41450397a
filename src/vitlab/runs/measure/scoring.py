"""Score a model on a set, every sample once, so that an interrupted evaluation continues where it was."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitlab.data.loading.accounting import Account, Quarantined
from vitlab.data.loading.batch import Batch, on_device
from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.source import Source
from vitlab.data.transforms.evaluation import normalised
from vitlab.evaluate.multilabel import THRESHOLD, AnyScores, any_scores_from_json, empty_scores, merged_any
from vitlab.evaluate.scoring import outputs
from vitlab.models.build import Model
from vitlab.pixels import Preprocessing
from vitlab.require import require
from vitlab.spec import Task
from vitlab.store import replacing
from vitlab.strict_json import from_json, parse_json, to_json
from vitlab.user_files import read_regular

SYNC = 8  # batches between two moments at which all ranks know what all have done
LARGEST_PROGRESS = 2**30  # bytes; confusions of 21,843 classes may take many
SAVE = 5.0  # seconds between two savings of the progress, at least

Gather = Callable[[object], list[object]]
Labeller = Callable[[Batch], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Share:
    """Which part of the set this process scores; `gather` gives the JSON values of all ranks to each of them."""

    rank: int = 0
    ranks: int = 1
    gather: Gather = lambda value: [value]


@dataclass
class Progress:
    """What is done: samples 0 to `next` - 1 are scored or quarantined."""

    scores: dict[str, AnyScores]
    account: Account
    next: int = 0


def score_source(
    model: Model,
    source: Source,
    labellers: Mapping[str, Labeller],
    *,
    how: Preprocessing,
    batch: int = 32,
    workers: int = 0,
    max_bad: float = 0.0,
    columns: Sequence[int] | None = None,
    task: Task = "single-label",
    threshold: float = THRESHOLD,
    saved: Path | None = None,
    identity: Mapping[str, object] | None = None,
    share: Share | None = None,
    save_every: float = SAVE,
    say: Callable[[int], object] = lambda done: None,
) -> Progress:
    """The scores of every kind of labels, from one pass over the images.

    With `columns` only these of the model's classes compete, in this order. A model of the `task` multi-label predicts
    the classes whose probability is at least `threshold`. Progress is kept in the file `saved` and
    taken up from there when `identity`, the description of what is evaluated, is the same.
    """
    share = share or Share()
    classes = model.spec.classes if columns is None else len(columns)
    # What the first has read all go on from: two that begin apart would wait for each other, or count twice. It is no
    # value for the launcher's store, which takes 8 MiB: a confusion of 21,843 classes may be larger.
    read, *_ = share.gather(_read(saved, identity or {}) if saved is not None and share.rank == 0 else None)

    def none() -> dict[str, AnyScores]:
        return {name: empty_scores(task, classes, threshold) for name in labellers}

    progress = _opened(read, source, none())
    progress.account.add((), (), max_bad)  # what is in the file may already be too much
    say(progress.next)
    last_save = time.monotonic()
    fresh, used, bad, done = none(), 0, [], progress.next
    device = next(model.parameters()).device
    kept = None if columns is None else torch.tensor(columns, device=device)
    batches = evaluation_batches(
        source,
        batch=batch,
        size=model.spec.image,
        preprocessing=how,
        start=progress.next,
        rank=share.rank,
        ranks=share.ranks,
        in_turn=True,
        workers=workers,
        max_bad=1.0,  # judged below, by all ranks together: one that stops alone would leave the others waiting
    )
    with closing(outputs(model, on_device(batches, device), partial(normalised, how=how))) as made:
        for number, (scored, logits) in enumerate(made, 1):
            one = cast(Batch, scored)
            for name, labeller in labellers.items():
                fresh[name].add(logits if kept is None else logits[:, kept], labeller(one))
            used, bad, done = used + len(one.ids), bad + list(one.bad), min(done + share.ranks * batch, len(source))
            if number % SYNC and done < len(source):
                continue
            _book(progress, share.gather(_told(fresh, used, bad)), max_bad)
            progress.next = done
            fresh, used, bad = none(), 0, []
            say(done)
            is_due = done == len(source) or time.monotonic() - last_save >= save_every
            if saved is not None and share.rank == 0 and is_due:
                _save(saved, identity or {}, progress)
                last_save = time.monotonic()
    assert progress.account.is_balanced(), "a sample was lost or counted twice"
    return progress


def fingerprint_of(model: Model) -> str:
    """A hash of the architecture and of every weight: what decides the logits."""
    digest = hashlib.sha256(repr(model.spec).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return cast(np.ndarray, flat.numpy()).data


# -- What ranks tell each other, and what is kept on disk ------------------------------------------


def _told(scores: Mapping[str, AnyScores], used: int, bad: list[tuple[int, Quarantined]]) -> dict[str, object]:
    return {
        "scores": {name: of.to_json() for name, of in scores.items()},
        "used": used,
        "bad": [to_json(sample) for _, sample in bad],
    }


def _book(progress: Progress, parts: list[object], max_bad: float) -> None:
    """Add what the ranks did; every one of them judges the bad images alike."""
    listed = [cast(dict[str, Any], part) for part in parts]
    for name, so_far in progress.scores.items():
        progress.scores[name] = merged_any(so_far, *(any_scores_from_json(part["scores"][name]) for part in listed))
    bad = [(0, from_json(Quarantined, sample)) for part in listed for sample in part["bad"]]
    progress.account.add([0] * sum(part["used"] for part in listed), bad, max_bad)


def _save(path: Path, identity: Mapping[str, object], progress: Progress) -> None:
    value = {
        "identity": dict(identity),
        "next": progress.next,
        "scores": {name: of.to_json() for name, of in progress.scores.items()},
        "used": progress.account.used[0],
        "quarantined": [asdict(sample) for sample in progress.account.quarantined.values()],
    }
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(path: Path, identity: Mapping[str, object]) -> dict[str, Any] | None:
    """What the file holds, if there is one; a file of something else is refused rather than added to."""
    if not path.exists():
        return None
    value = parse_json(read_regular(path, LARGEST_PROGRESS), path.name)
    keys = {"identity", "next", "scores", "used", "quarantined"}
    advice = f"remove {path} to start again"
    require(isinstance(value, dict) and set(value) == keys, f"{path} is no progress of an evaluation; {advice}")
    given = cast(dict[str, Any], value)
    require(given["identity"] == dict(identity), f"{path} is the progress of another evaluation; {advice}")
    require(given["used"] + len(given["quarantined"]) == given["next"], f"{path} does not add up; {advice}")
    return given


def _opened(read: object, source: Source, none: dict[str, AnyScores]) -> Progress:
    """The progress that was read, or none so far."""
    excluded: Counter[str] = Counter(getattr(source, "excluded", {}))
    account = Account(len(source) + excluded.total(), excluded)
    progress = Progress(none, account)
    if read is None:
        return progress
    given = cast(dict[str, Any], read)
    progress.scores = {name: any_scores_from_json(given["scores"][name]) for name in none}
    progress.next = given["next"]
    bad = [(0, from_json(Quarantined, sample)) for sample in given["quarantined"]]
    account.add([0] * given["used"], bad, 1.0)
    return progress
