"""Classes of a measured value: which bin it is in, and what the bins are called."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise


def binned(value: float, edges: Sequence[float]) -> int:
    """The class of a measured value: class i holds edges[i - 1] < value <= edges[i]."""
    return bisect_left(edges, value)


def bin_names(edges: Sequence[float], none: str = "") -> tuple[str, ...]:
    """Names for the classes of measured values; `none` is that of the last one, if it stands for no value."""
    names = [f"up to {edges[0]:g}", *(f"{a:g} to {b:g}" for a, b in pairwise(edges))]
    return (*names, none or f"over {edges[-1]:g}")
