"""Few-shot, nearest neighbours and linear probe over one or many sets: `vitlab fewshot`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from vitlab.data.feature_files import Vectors
from vitlab.metrics.feature_sets import FeatureSet, checked
from vitlab.metrics.fewshot import fewshot_sets
from vitlab.metrics.neighbours import nearest_neighbours
from vitlab.metrics.probe import linear_probe
from vitlab.report.tables import Cell, Results
from vitlab.require import require
from vitlab.runs.measure.feature_pools import FewShotOptions, Maker, Pool
from vitlab.store import refuse_strange, replacing
from vitlab.world.group import ALONE, World

COLUMNS = ("data", "method", "seed", "accuracy %", "l2 or rate", "chosen by", "train", "count")


def fewshot(
    model: Path | None,
    train: Sequence[str],
    test: Sequence[str],
    out: Path,
    options: FewShotOptions,
    console: Console,
    world: World = ALONE,
) -> Results:
    """Every number of shots and every seed on every set; sets are images, for which a model is needed, or features.

    Ranks share the making of features; the first does the rest, the others return an empty table.
    """
    require(
        bool(train) and len(train) == len(test), f"{len(train)} training and {len(test)} test sets: give them in pairs"
    )
    world.first(lambda: refuse_strange(out, ("features", "fewshot.json")))
    maker = Maker(model, out, options, console, world)
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
    console.print(table.terminal())
    forms = {"json": table.to_json(), "csv": table.to_csv(), "md": table.to_markdown()}  # first what marks the folder
    for suffix, text in forms.items():
        with replacing(out / f"fewshot.{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")
    return table


def _others(name: str, pool: Pool, test: Vectors, options: FewShotOptions) -> Iterable[tuple[Cell, ...]]:
    """Nearest neighbours and the probe, on all training samples."""
    x, y = pool.x, pool.labels[pool.numbers]
    if k := options.neighbours:
        predicted = nearest_neighbours(x, y, test.x, k=k)
        right = 100 * float((predicted == test.y).mean())
        yield name, f"{k} nearest neighbours", None, right, None, None, len(x), len(test.x)
    if options.probe:
        result = linear_probe(x, y, test.x, test.y, steps=options.probe)
        rest = (100 * result.accuracy, result.rate, "held-out samples", result.train, result.count)
        yield (name, "linear probe", None, *rest)
