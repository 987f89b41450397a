"""Features of every sample of a set, in shards that are there whole or not at all: `vitlab features`."""

import json
from collections.abc import Callable
from functools import partial
from operator import add
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console
from rich.text import Text

from vitlab.data.feature_files import CARD, FeatureFolder
from vitlab.data.fingerprint import fingerprint, state
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import Batch, evaluation_batches, on_device
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import Subset
from vitlab.data.transforms.evaluation import as_model_input
from vitlab.metrics.scoring import outputs
from vitlab.models.build import Model
from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.measure.model_options import ModelOptions, load
from vitlab.runs.measure.scoring import fingerprint_of
from vitlab.runs.progress import Images
from vitlab.store import refuse_strange
from vitlab.strict_json import to_json
from vitlab.world.group import ALONE, World

SHARD = 4096  # samples; 12 MB of ViT-B


def features(
    model: Path,
    spec: str,
    out: Path,
    options: ModelOptions,
    console: Console,
    *,
    batch: int = 32,
    workers: int = 0,
    max_bad: float = 0.0,
    shard: int = SHARD,
    world: World = ALONE,
) -> FeatureFolder:
    """Write the features of a data set to a folder; called again, it makes what is missing or outdated."""
    require(0 <= max_bad <= 1, f"max_bad {max_bad} is a share of the images, between 0 and 1")
    world.first(lambda: refuse_strange(out, (CARD,)))
    loaded, how = load(model, options)
    source = open_source(spec)
    console.print(Text(f"{printable(str(model))}: {name_of(loaded.spec)}, preprocessing: {how}", style="dim"))
    folder = FeatureFolder(out, len(source), shard)
    console.print(Text(f"{folder.shards - len(folder.missing()):,} of {folder.shards:,} shards are there"))
    tell = partial(console.print, style="yellow", markup=False)
    how_much = {"batch": batch, "workers": workers, "max_bad": max_bad}
    with Images(console, "features of") as shown:
        write_features(loaded, how, source, folder, spec=spec, **how_much, world=world, tell=tell, say=shown.show)
    if bad := len(folder.bad()):
        console.print(Text(f"{bad:,} of {len(source):,} have no features: the shards' arrays `bad` name them"))
    console.print(Text(f"{printable(str(out))}: {len(source) - bad:,} samples, {loaded.spec.width} features each"))
    return folder


def write_features(
    model: Model,
    how: Preprocessing,
    source: Source,
    folder: FeatureFolder,
    *,
    spec: str,
    batch: int = 32,
    workers: int = 0,
    max_bad: float = 0.0,
    account: Account | None = None,
    world: World = ALONE,
    tell: Callable[[str], object] = lambda text: None,
    say: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Make the shards of a folder that are missing or whose files changed; ranks take them in turn, and all wait.

    `say` hears how many images of this rank are done, of how many. `account` is that of a larger set, where the source
    is a part of one: the share of bad images is judged there.
    """
    card = {
        **making(model, how, source),
        "data": fingerprint(source),
        "spec": spec,
        "width": model.spec.width,
    }
    world.first(lambda: folder.open(card))
    parts = {number: _part(source, folder.part(number)) for number in range(world.rank, folder.shards, world.ranks)}
    states = {number: state(part) for number, part in parts.items()}
    outdated = [number for number in parts if folder.state(number) not in (None, states[number])]
    for number in outdated:
        folder.file(number).unlink()
    if number := world.total(len(outdated)):  # all have removed theirs before one looks at what is there
        again = f"{number:,} of {folder.shards:,} shards are made again"
        tell(f"files changed since their features were made: {again}")
    account = account or Account(len(source))
    account.add((), [(0, sample) for sample in folder.bad()], max_bad)
    device = next(model.parameters()).device
    missing = [number for number in folder.missing() if number in parts]
    done, total = 0, sum(len(parts[number]) for number in missing)
    if missing:
        say(done, total)
    for number in missing:
        batches = evaluation_batches(
            parts[number],
            batch=batch,
            size=model.spec.image,
            preprocessing=how,
            workers=workers,
            account=account,  # of the whole set: its share of bad images is what is judged
            max_bad=max_bad,
        )
        made = outputs(model, on_device(batches, device), as_model_input(source, how), model.features)
        arrays = []
        for one, x in made:
            require(bool(x.isfinite().all()), "the model gave NaN or infinity for features; it diverged in training")
            arrays.append((cast(Batch, one), x.float().cpu().numpy().astype(np.float32)))
            done += len(arrays[-1][0].ids) + len(arrays[-1][0].bad)
            say(done, total)
        folder.write(number, arrays, states[number])
    world.meet()
    if world.ranks > 1:
        account.add((), [(0, sample) for sample in folder.bad()], max_bad)  # those of all ranks


def making(model: Model, how: Preprocessing, source: Source) -> dict[str, object]:
    """What the card of features says about how they were made, as JSON values: that of a pair must agree in it."""
    return {
        "weights": fingerprint_of(model),
        "architecture": name_of(model.spec),
        "preprocessing": json.loads(json.dumps(to_json(how), allow_nan=False)),
        "class_names": list(source.class_names),
    }


def _part(source: Source, numbers: range) -> Subset:
    return Subset(source, len(numbers), partial(add, numbers.start))
