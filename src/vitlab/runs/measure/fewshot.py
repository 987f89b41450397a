"""Few-shot, nearest neighbours and linear probe on one or several data sets: `vitlab fewshot`."""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vitlab.data.feature_files import Vectors
from vitlab.engines.engine import EngineName
from vitlab.errors import printable
from vitlab.files.store import refuse_strange
from vitlab.metrics.feature_sets import FeatureSet, checked
from vitlab.metrics.fewshot import SHOTS, ChooseL2, Draw, fewshot_sets
from vitlab.metrics.probe import linear_probe, nearest_neighbours
from vitlab.report.tables import Cell, Results
from vitlab.require import check_arguments, require
from vitlab.runs.measure import inputs
from vitlab.runs.measure.feature_pools import Maker, Pool, Shots
from vitlab.runs.measure.inputs import DataLike, ImageSize, ModelLike, ModelOptions, PreprocessingName
from vitlab.runs.measure.scoring import Reading
from vitlab.runs.progress import say
from vitlab.spec import AttentionLike, ConventionName

COLUMNS = ("data", "method", "seed", "accuracy %", "l2 or rate", "chosen by", "train", "count", "engine")
OPTIMISTIC = (
    "l2 is chosen by accuracy on the test set, as in the paper, which makes the accuracy optimistic; --l2 held-out "
    "chooses it on training samples, and a number fixes it"
)


def fewshot_table(
    train: DataLike | Sequence[DataLike],
    test: DataLike | Sequence[DataLike],
    model: ModelLike | None = None,
    out: str | Path = "fewshot",
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = (),
    draw: Draw = "big-vision",
    l2: ChooseL2 = "mean-rank",
    neighbours: int = 0,
    probe: int = 0,
    preprocessing: PreprocessingName = "few-shot",
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    max_bad: float = 0.0,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    engine: EngineName = "torch",
    console: Console | None = None,
    quiet: bool = False,
) -> Results:
    """Measure frozen features on pairs of training and test sets: few-shot, nearest neighbours, linear probe.

    A set is a file or folder of features, or images (a spec, a source or a map-style torch Dataset) whose features the
    `model` computes. `shots` are the samples per class to learn from: the first ones, or drawn with each of `seeds`
    (see `shot_numbers` for `draw`). `l2` is a rule or a number (see `fewshot_sets`). `neighbours` also measures this
    many nearest neighbours, `probe` a linear classifier trained for this many steps. See `ModelOptions` for how the
    model is loaded, and `vitlab.open_engine` for the `engine` that computes. Table and features are written to the
    folder `out`. Under torchrun all ranks share the features; only rank 0 returns the rows. `quiet` prints no progress.
    """
    check_arguments(fewshot_table, locals())
    given = inputs.as_list(train), inputs.as_list(test)
    pairs = f"{len(given[0])} training and {len(given[1])} test sets"
    require(bool(given[0]) and len(given[0]) == len(given[1]), f"{pairs}: give them in pairs")
    require(bool(shots or neighbours or probe), "nothing to do: give shots, neighbours or probe")
    require(min(neighbours, probe) >= 0, f"neighbours {neighbours} and probe {probe} must not be negative")
    loading = ModelOptions(conventions, image, preprocessing, device, merge=merge, attention=attention)
    drawn = tuple(seeds) or (None,)
    with inputs.measuring(device, console, quiet=quiet) as (world, screen):
        reading = Reading(batch, workers, max_bad, world, engine)
        wanted = Shots(tuple(shots), drawn, draw, needs_all=neighbours + probe > 0)
        world.first(partial(refuse_strange, Path(out), ("features", "fewshot.json")))
        maker = Maker(model, loading, Path(out), reading, screen)
        trains, tests = ([maker.name_of(one) for one in sets] for sets in given)
        for name in (name for name, other in zip(trains, tests, strict=True) if name == other):
            same = f"{printable(name)} is both training and test set"
            say(screen, f"warning: {same}: the accuracy says little about new images", "yellow")
        if l2 == "mean-rank" and shots:
            say(screen, f"warning: {OPTIMISTIC}", "yellow")
        pairs = _read(maker, trains, tests, wanted)
        if not world.leads:
            return Results(COLUMNS, ())
    rows = list(_few_shots(pairs, wanted, l2))
    for name, pair in pairs.items():
        rows += _others(name, pair, neighbours, probe)
    table = Results(COLUMNS, tuple(rows))
    table.save(Path(out) / "fewshot")
    return table


class _Pair(NamedTuple):
    """Training samples and a test set, and the engines that computed their features; None if that is unknown."""

    pool: Pool
    test: Vectors
    engine: str | None


def _read(maker: Maker, train: list[str], test: list[str], shots: Shots) -> dict[str, _Pair]:
    """The features of every pair of sets, by the name that the table gives it."""
    for name, other in zip(train, test, strict=True):
        maker.check(name, other, shots)
    pools = {name: maker.pool(name, shots) for name in train}
    tests = {name: maker.vectors(name) for name in test}
    pairs = {}
    for name, other in zip(train, test, strict=True):
        engines = dict.fromkeys(engine for engine in map(maker.engine_of, (name, other)) if engine)
        called = name if train.count(name) == 1 else f"{name}, {other}"
        pairs[called] = _Pair(pools[name], tests[other], ", ".join(engines) or None)
    for name, (pool, tested, _) in pairs.items():
        checked(FeatureSet(pool.x, pool.labels[pool.numbers], tested.x, tested.y), name)
    return pairs


def _few_shots(pairs: dict[str, _Pair], shots: Shots, l2: ChooseL2) -> Iterable[tuple[Cell, ...]]:
    """A row for each number of shots, seed and pair; the pairs share their l2."""
    for number, seed in itertools.product(shots.numbers, shots.seeds):
        sets = {
            name: FeatureSet(*pool.shots(number, seed, shots.draw), tested.x, tested.y)
            for name, (pool, tested, _) in pairs.items()
        }
        for name, result in fewshot_sets(sets, None, l2=l2).items():
            found = (100 * result.accuracy, result.l2, result.chosen_by, result.train, result.count)
            yield (name, f"{number}-shot", "first" if seed is None else seed, *found, pairs[name].engine)


def _others(name: str, pair: _Pair, k: int, steps: int) -> Iterable[tuple[Cell, ...]]:
    """Rows of k nearest neighbours and of a linear probe, which use all training samples."""
    pool, test, engine = pair
    x, y = pool.x, pool.labels[pool.numbers]
    if k:
        right = 100 * float((nearest_neighbours(x, y, test.x, k=k) == test.y).mean())
        yield name, f"{k} nearest neighbours", None, right, None, None, len(x), len(test.x), engine
    if steps:
        result = linear_probe(x, y, test.x, test.y, steps=steps)
        rest = (100 * result.accuracy, result.rate, "held-out samples", result.train, result.count)
        yield (name, "linear probe", None, *rest, engine)
