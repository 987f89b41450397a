"""Features of every image of a data set, in shards: `vitlab.features`, `vitlab features`."""

import contextlib
import json
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
from rich.console import Console

from vitlab.data.feature_files import CARD, FeatureFolder, Vectors, read_folder
from vitlab.data.fingerprint import fingerprint, state
from vitlab.data.loading.accounting import Account, Quarantined
from vitlab.data.source import Source
from vitlab.data.splits import Subset
from vitlab.engines.engine import EngineName
from vitlab.engines.runtimes import is_inexact
from vitlab.files.store import refuse_strange
from vitlab.files.strict_json import to_json
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.paper.models import name_of
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.measure import inputs
from vitlab.runs.measure.inputs import DataLike, ImageSize, ModelLike, ModelOptions, PreprocessingName
from vitlab.runs.measure.scoring import Reading, compared, outputs
from vitlab.runs.progress import Images, say
from vitlab.spec import AttentionLike, ConventionName
from vitlab.spec.pixels import Preprocessing

SHARD = 4096  # samples; 12 MB of ViT-B


@dataclass(frozen=True)
class Features(Tabular):
    """The features of a data set, in the shards of a folder or in memory; `bad` samples have none."""

    path: Path | None
    samples: int
    width: int
    bad: tuple[Quarantined, ...] = field(repr=False)
    in_memory: Vectors | None = field(default=None, repr=False)

    @property
    def table(self) -> Results:
        """Where the features are, and how many."""
        cells = (None if self.path is None else str(self.path), self.samples, self.width, len(self.bad))
        return Results(("folder", "samples", "features each", "images without features"), (cells,))

    @property
    def vectors(self) -> Vectors:
        """All features and labels in memory: `x` (n, D), `y` (n,), `ids` and `class_names`."""
        return read_folder(cast(Path, self.path)) if self.in_memory is None else self.in_memory


def features(
    model: ModelLike,
    data: DataLike,
    out: str | Path | None = None,
    *,
    preprocessing: PreprocessingName = "own",
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    max_bad: float = 0.0,
    max_pixels: int | None = None,
    shard: int = SHARD,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    engine: EngineName = "torch",
    console: Console | None = None,
    quiet: bool = False,
) -> Features:
    """Compute the features of every image: what the model's head would receive.

    `model` is a name of released weights, a path or a module; `data` is a spec such as "folder:photos", a source, or a
    map-style torch Dataset. The features are written to the folder `out` in shards of `shard` samples, or held in
    memory. Called again with the same folder, it computes the shards that are missing or outdated. `max_bad` is the
    share of images that may be unreadable, `engine` what computes (see `vitlab.open_engine`); see `ModelOptions` for
    how the model is loaded. Under torchrun all ranks share the work. `quiet` prints no progress.
    """
    check_arguments(features, locals())
    with inputs.measuring(device, console, quiet=quiet) as (world, screen), contextlib.ExitStack() as stack:
        require(out is not None or world.ranks == 1, "several ranks need a common folder; give out")
        path = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        world.first(partial(refuse_strange, path, (CARD,)))
        options = ModelOptions(conventions, image, preprocessing, device, merge=merge, attention=attention)
        loaded, how = inputs.load(model, options, screen)
        name, source = inputs.open_set(data, max_pixels)
        used = inputs.settled(loaded, engine, batch, world, screen, -(-len(source) // world.ranks))
        reading = Reading(batch, workers, max_bad, world, used)
        folder = FeatureFolder(path, len(source), shard)
        there = folder.shards - len(folder.missing())
        say(screen, f"{there:,} of {folder.shards:,} shards exist already")
        write_features(loaded, how, source, folder, spec=name, reading=reading, console=screen)
        bad = folder.bad()
        if bad:
            say(screen, f"{len(bad):,} of {len(source):,} images have no features: the arrays `bad` name them")
        found = Features(None if out is None else path, len(source) - len(bad), loaded.spec.width, tuple(bad))
        return replace(found, in_memory=read_folder(path)) if out is None else found


def write_features(
    model: Model,
    how: Preprocessing,
    source: Source,
    folder: FeatureFolder,
    *,
    spec: str,
    reading: Reading | None = None,
    account: Account | None = None,
    console: Console | None = None,
) -> None:
    """Compute the shards of a folder that are missing or whose image files have changed; ranks take turns.

    Where the source is part of a larger set, `account` is that of the set, whose share of bad images counts. Without a
    `console` nothing is printed.
    """
    reading = reading or Reading()
    console, world, max_bad = console or Console(quiet=True), reading.world, reading.max_bad
    card = {
        **making(model, how, source),
        "data": fingerprint(source),
        "spec": spec,
        "width": model.spec.width,
        "engine": reading.engine,
    }
    world.first(partial(folder.open, card))
    parts = {}
    for number in range(world.rank, folder.shards, world.ranks):
        own = folder.part(number)
        parts[number] = Subset(source, len(own), partial(add, own.start))
    states = {number: state(part) for number, part in parts.items()}
    outdated = [number for number in parts if folder.state(number) not in (None, states[number])]
    for number in outdated:
        folder.file(number).unlink()
    if number := world.total(len(outdated)):  # all ranks have removed theirs before one looks for missing shards
        again = f"{number:,} of {folder.shards:,} shards are computed again"
        say(console, f"files have changed since their features were computed: {again}", "yellow")
    account = account or Account(len(source))
    account.add((), [(0, sample) for sample in folder.bad()], max_bad)
    missing = [number for number in folder.missing() if number in parts]
    done, total = 0, sum(len(parts[number]) for number in missing)
    if missing and is_inexact(reading.engine) and world.leads and (found := compared(model, source, how, reading)):
        say(console, f"{reading.engine}: {found}", "yellow")
    with Images(console, "features of") as display:
        if missing:
            display.show(done, total)
        for number in missing:
            # The account is that of the whole set, whose share of bad images counts.
            made = outputs(model, parts[number], how, reading, "features", account=account)
            arrays = []
            for one, x in made:
                is_finite = bool(x.isfinite().all())
                require(is_finite, "the features contain NaN or infinity: the model diverged in training")
                arrays.append((one, x.float().cpu().numpy().astype(np.float32)))
                done += len(arrays[-1][0].ids) + len(arrays[-1][0].bad)
                display.show(done, total)
            folder.write(number, arrays, states[number])
    world.meet()
    if world.ranks > 1:
        account.add((), [(0, sample) for sample in folder.bad()], max_bad)  # those of all ranks


def making(model: Model, how: Preprocessing, source: Source) -> dict[str, object]:
    """How features were computed, as JSON values for their card; training and test features must agree in it."""
    return {
        "weights": fingerprint_of(model),
        "architecture": name_of(model.spec),
        "preprocessing": json.loads(json.dumps(to_json(how), allow_nan=False)),
        "class_names": list(source.class_names),
    }
