"""Which samples of each class few-shot learning learns from."""

from typing import Literal

import numpy as np

from vitlab.require import require

Draw = Literal["big-vision", "by-class"]


def shot_numbers(
    labels: np.ndarray,
    shots: int | None,
    seed: int | None = None,
    is_usable: np.ndarray | None = None,
    draw: Draw = "big-vision",
) -> np.ndarray:
    """Return the numbers of the first `shots` samples of every class, or of as many drawn with `seed`, ascending.

    `big-vision` permutes class after class with one generator, as big_vision's evaluator does. `by-class` starts the
    generator anew for every class, so that the shots of a class do not depend on the other classes. An unusable sample
    is replaced by the next of its class; all others stay. Without `shots`, all usable samples are returned.
    """
    usable = np.ones(len(labels), bool) if is_usable is None else is_usable
    if shots is None:
        return np.flatnonzero(usable)
    for name, value, least in (("shots", shots, 1), ("seed", 0 if seed is None else seed, 0)):
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        require(is_whole and value >= least, f"{name} {value!r} must be a whole number of at least {least}")
    require(draw in ("big-vision", "by-class"), f"draw {draw!r} is unknown; give 'big-vision' or 'by-class'")
    chosen, stream = [], np.random.default_rng(seed)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if seed is not None:
            own = (stream if draw == "big-vision" else np.random.default_rng(seed)).permutation(own)
        left = own[usable[own]]
        bad = f" and {len(own) - len(left)} bad ones" if len(left) < len(own) else ""
        require(len(left) >= shots, f"class {label} has {len(left)} samples{bad}; {shots} are asked for")
        chosen.append(left[:shots])
    return np.sort(np.concatenate(chosen))
