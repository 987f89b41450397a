"""What stands beside each figure: what it shows, what the paper found in its large models, what was measured here.

Nothing is said of the model at hand that is not a number of it: a small one need not look like the paper's.
"""

from collections.abc import Sequence

import numpy as np

from vitlab.inspection.similarity import Likeness

ROLLOUT = (
    "Beside each picture its attention rollout, from the least (dark) to the most (bright) of this picture: attention "
    "averaged over heads and multiplied through all layers with the residual connections. Then the rendering of the "
    "paper's figure 6, the picture multiplied by that map; what is dark in the picture stays dark there, however much "
    "the model looks at it. A rollout shows where information can come from, not why the answer is what it is."
)


def heads_caption(pool: str) -> str:
    """Of the maps of all heads, for a model that is read from its class token or from the mean of all patches."""
    query = "the class token looks" if pool == "class" else "patches look on average"
    return (
        f"One map for each layer and head: where {query}, from nothing (dark) to the most of that map (bright). At the "
        "left the picture as the model sees it."
    )


def distance_caption(distances: np.ndarray, even: float) -> str:
    """(L, h) in pixels; `even` is the distance of attention that is spread evenly."""
    text = (
        "One dot for each layer and head: the mean distance in pixels between a patch and those it gathers from. In "
        "the paper's ViT-L/16 (figure 7) some heads of the lowest layers look across most of the picture and others "
        f"close by, and the distance grows with depth. Here it is {_range(distances[0])} px in layer 1"
    )
    if len(distances) > 1:
        text += f", {_range(distances[-1])} px in layer {len(distances)}, the last"
    return f"{text}; attention spread evenly over all tokens would have {even:.1f} px (dashed line)."


def filters_caption(share: Sequence[float], components: int, agreement: float | None) -> str:
    """`share` of the variance of those shown, of all `components`; `agreement` of neighbouring pixels in them."""
    text = (
        "The first principal components of the linear map on patches; grey is zero, each has its own scale. Waves and "
        "edges are components whose neighbouring pixels agree. In the paper's ViT-L/32 (figure 7) they resemble a "
        f"basis for the fine structure inside a patch. Here {len(share)} of {components} components hold "
        f"{sum(share):.0%} of the variance, the first {share[0]:.0%}; "
    )
    if agreement is None:
        return text + "patches are single pixels, without neighbours."
    return text + f"neighbouring pixels agree by {agreement:.2f} on average (1: one flat colour, 0: noise)."


def positions_caption(alike: Likeness) -> str:
    """With the mean similarities of three kinds of pairs, where there are such pairs."""
    text = (
        "One tile for each patch: the cosine similarity of its position embedding with those of all patches. In the "
        "paper's ViT-L/32 (figure 7) near patches are more alike, and so are patches of one row or column."
    )
    kinds = ("patches side by side", "others in one row or column", "all other pairs")
    here = [f"{mean:.2f} for {kind}" for mean, kind in zip(alike, kinds, strict=True) if mean is not None]
    return f"{text} Here the mean is {', '.join(here)}." if here else text


def rollout_range(least: float, most: float) -> str:
    """How uneven a rollout is, which its own scale hides."""
    return f"rollout of a patch: {least:.2f} to {most:.2f} times the mean"


def _range(values: np.ndarray) -> str:
    return f"{values.min():.1f} to {values.max():.1f}" if len(values) > 1 else f"{values[0]:.1f}"
