"""The 1,797 handwritten digits that come with scikit-learn: real images that need no download."""

from functools import cache
from typing import Literal, get_args

import numpy as np

from vitlab.data.source import Labels, Sample, Source, check_index
from vitlab.require import require
from vitlab.shots import shot_numbers

Split = Literal["all", "train", "test"]
BRIGHTEST = 16  # the scans have 17 grey levels
TEST_EVERY = 5  # samples 5, 10, 15, ... of each class are the test set: 355 of 1,797


class DigitsSource(Source):
    """Scans of 8x8 pixels, grey as RGB; the id of a sample is its number in the whole set, in every split.

    With `shots`, only that many of each class, drawn with `seed` as `vitlab fewshot` draws them.
    """

    class_names = tuple(map(str, range(10)))

    def __init__(self, split: Split = "all", shots: int = 0, seed: int = 0) -> None:
        require(split in get_args(Split), f"split is {split!r}; the digits have {', '.join(get_args(Split))}")
        scans, labels = _load()
        chosen = np.ones(len(labels), bool) if split == "all" else _is_test(labels) == (split == "test")
        has_effect = shots or not seed
        require(bool(has_effect), f"seed={seed} has no effect without shots; give shots=5&seed={seed}, for example")
        self.numbers = np.flatnonzero(chosen)
        if shots:
            self.numbers = self.numbers[shot_numbers(labels[self.numbers], shots, seed)]
        self.scans, self.labels = scans[self.numbers], Labels(labels[self.numbers])

    def item(self, index: int) -> Sample:
        """(8, 8, 3) of uint8 and the digit."""
        grey = self.scans[check_index(index, len(self))]
        return Sample(np.repeat(grey[..., None], 3, axis=2), self.label(index), self.id(index))

    def id(self, index: int) -> str:
        """Return its number among all 1,797."""
        return str(self.numbers[check_index(index, len(self))])


def _is_test(labels: np.ndarray) -> np.ndarray:
    """(n,) of bool: the same share of every class, chosen by order."""
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    return held_out


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 8, 8) of uint8 and (1797,) labels."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the digits need scikit-learn: pip install 'vitlab[demo]'") from None
    flat, labels = load_digits(return_X_y=True)
    return np.rint(np.asarray(flat) * (255 / BRIGHTEST)).astype(np.uint8).reshape(-1, 8, 8), np.asarray(labels)
