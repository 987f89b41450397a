"""How alike the features of two images are: a second opinion on candidates, from any model."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from vitlab.data.source import Source
from vitlab.data.splits import take
from vitlab.runs.dedup.picture_hashes import HashedSet
from vitlab.runs.measure import inputs
from vitlab.runs.measure.inputs import ModelLike, ModelOptions
from vitlab.runs.measure.scoring import Reading, outputs
from vitlab.runs.progress import Images

MIN_SIMILARITY = 0.9
LEAST_CORRELATION = 0.5  # of the pixels of pairs whose features are compared


def similarities(
    model: ModelLike, device: str, own: HashedSet, others: Sequence[HashedSet], pairs: np.ndarray, console: Console
) -> np.ndarray:
    """(m,) the cosine of the features of each pair; only the images of pairs are run through the model."""
    loaded, how = inputs.load(model, ModelOptions(device=device), console)
    wanted: list[tuple[Source, np.ndarray]] = [(own.source, np.unique(pairs["train"]))]
    for other in others:
        numbers = np.unique(pairs["test"])
        inside = (numbers >= other.offset) & (numbers < other.offset + len(other.source))
        wanted.append((other.source, numbers[inside] - other.offset))
    total, done, found = sum(len(numbers) for _, numbers in wanted), 0, []
    with Images(console, "features of") as display:
        display.show(0, total)
        for source, numbers in wanted:
            features = np.zeros((len(numbers), loaded.spec.width), np.float32)
            for batch, x in (
                outputs(loaded, take(source, numbers), how, Reading(max_bad=1.0), "features") if len(numbers) else ()
            ):
                features[list(batch.numbers)] = x.float().cpu().numpy()
                done += len(batch.numbers) + len(batch.bad)
                display.show(done, total)
            found.append(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12))
    tests = np.concatenate(found[1:])
    ours = found[0][np.searchsorted(wanted[0][1], pairs["train"])]
    return (ours * tests[np.searchsorted(np.unique(pairs["test"]), pairs["test"])]).sum(axis=1)
