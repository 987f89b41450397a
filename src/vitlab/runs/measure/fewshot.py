"""Few-shot, nearest neighbours and linear probe on one or several data sets: `vitlab fewshot`."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vitlab.data.feature_files import Vectors
from vitlab.metrics.feature_sets import FeatureSet, checked
from vitlab.metrics.fewshot import SHOTS, ChooseL2, Draw, fewshot_sets
from vitlab.metrics.probe import linear_probe, nearest_neighbours
from vitlab.report.tables import Cell, Results, printable
from vitlab.require import require
from vitlab.runs.measure.feature_pools import FewShotOptions, Maker, Pool
from vitlab.runs.measure.model_options import ImageSize, ModelLike, ModelOptions, PreprocessingName
from vitlab.runs.measure.session import DataLike, listed, measuring
from vitlab.spec import ConventionName
from vitlab.store import refuse_strange, replacing
from vitlab.world.group import World

COLUMNS = ("data", "method", "seed", "accuracy %", "l2 or rate", "chosen by", "train", "count")
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
    max_bad: float = 0.0,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    console: Console | None = None,
    quiet: bool = False,
) -> Results:
    """Measure frozen features on pairs of training and test sets: few-shot, nearest neighbours, linear probe.

    A set is a file or folder of features, or images (a spec, a source or a map-style torch Dataset) whose features the
    `model` computes. `shots` are the
    samples per class to learn from: the first ones, or drawn with each of `seeds` (see `shot_numbers` for `draw`). `l2`
    is a rule or a number (see `fewshot_sets`). `neighbours` also measures so many nearest neighbours, `probe` also a
    linear classifier trained for so many steps. See `ModelOptions` for how the model is loaded. Table and features are
    written to the folder `out`. Under torchrun all ranks share the features; only rank 0 returns the rows. `quiet`
    prints no progress.
    """
    given = listed(train), listed(test)
    pairs = f"{len(given[0])} training and {len(given[1])} test sets"
    require(bool(given[0]) and len(given[0]) == len(given[1]), f"{pairs}: give them in pairs")
    loading = ModelOptions(conventions, image, preprocessing, device)
    options = FewShotOptions(loading, tuple(shots), tuple(seeds), draw, l2, neighbours, probe, batch, workers, max_bad)
    with measuring(device, console, quiet=quiet) as (world, screen):
        world.first(partial(refuse_strange, Path(out), ("features", "fewshot.json")))
        maker = Maker(model, Path(out), options, screen, world)
        trains, tests = ([maker.name_of(one) for one in sets] for sets in given)
        for name in (name for name, other in zip(trains, tests, strict=True) if name == other):
            warn(screen, f"{printable(name)} is both training and test set: the accuracy says little about new images")
        if l2 == "mean-rank" and options.shots:
            warn(screen, OPTIMISTIC)
        return _measured(maker, trains, tests, Path(out), options, world)


def warn(console: Console, line: str) -> None:
    """Print a warning."""
    console.print(Text(f"warning: {line}", style="yellow"), soft_wrap=True)


def _measured(
    maker: Maker, train: Sequence[str], test: Sequence[str], out: Path, options: FewShotOptions, world: World
) -> Results:
    for name, other in zip(train, test, strict=True):
        maker.check(name, other)
    pools = {name: maker.pool(name) for name in train}
    tests = {name: maker.vectors(name) for name in test}
    if not world.leads:
        return Results(COLUMNS, ())
    pairs = {
        (name if train.count(name) == 1 else f"{name}, {other}"): (pools[name], tests[other])
        for name, other in zip(train, test, strict=True)
    }
    for name, (pool, tested) in pairs.items():
        checked(FeatureSet(pool.x, pool.labels[pool.numbers], tested.x, tested.y), name)
    rows: list[tuple[Cell, ...]] = []
    for shots in options.shots:
        for seed in options.draws:
            sets = {}
            for name, (pool, tested) in pairs.items():
                x, y = pool.shots(shots, seed, options.draw)
                sets[name] = FeatureSet(x, y, tested.x, tested.y)
            for name, result in fewshot_sets(sets, None, l2=options.l2).items():
                found = (100 * result.accuracy, result.l2, result.chosen_by, result.train, result.count)
                rows.append((name, f"{shots}-shot", "first" if seed is None else seed, *found))
    for name, (pool, tested) in pairs.items():
        rows += _others(name, pool, tested, options)
    table = Results(COLUMNS, tuple(rows))
    forms = {"json": table.to_json(), "csv": table.to_csv(), "md": table.to_markdown()}  # JSON marks the folder: first
    for suffix, text in forms.items():
        with replacing(out / f"fewshot.{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")
    return table


def _others(name: str, pool: Pool, test: Vectors, options: FewShotOptions) -> Iterable[tuple[Cell, ...]]:
    """Rows of nearest neighbours and linear probe, which use all training samples."""
    x, y = pool.x, pool.labels[pool.numbers]
    if k := options.neighbours:
        predicted = nearest_neighbours(x, y, test.x, k=k)
        right = 100 * float((predicted == test.y).mean())
        yield name, f"{k} nearest neighbours", None, right, None, None, len(x), len(test.x)
    if options.probe:
        result = linear_probe(x, y, test.x, test.y, steps=options.probe)
        rest = (100 * result.accuracy, result.rate, "held-out samples", result.train, result.count)
        yield (name, "linear probe", None, *rest)
