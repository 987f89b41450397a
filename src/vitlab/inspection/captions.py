"""The captions of the figures: what each shows, what the paper found in its large models, what was measured here.

What they say about this model is measured: a small model need not look like the paper's.
"""

from collections.abc import Sequence

import numpy as np

from vitlab.inspection.weights import Likeness

ROLLOUT = (
    "Each picture with its attention rollout, from its minimum (dark) to its maximum (bright): attention averaged over "
    "heads and multiplied through all layers, with the residual connections. The third image is the rendering of the "
    "paper's figure 6, the picture multiplied by the rollout; dark regions of the picture stay dark however much "
    "attention they get. A rollout shows where information can come from, not why the model gives its answer."
)


def merged_caption(layer_tokens: Sequence[int], prefix: int, merge: int) -> str:
    """The caption of the merged patches, of a model with these numbers of tokens before and after its layers."""
    before, after = layer_tokens[0] - prefix, layer_tokens[-1] - prefix
    return (
        f"Every layer merges up to {merge} tokens with similar keys, so that {before} patches leave the last layer as "
        f"{after} tokens. Patches of one token are filled with their mean colour; lines separate tokens. Patches "
        "of a token need not be neighbours. In the attention figures, patches of a token attend alike and share the "
        "attention that it gets equally."
    )


def heads_caption(pool: str) -> str:
    """The caption of the maps of all heads, for a model that pools the class token or the mean over patches."""
    query = "the class token attends" if pool == "class" else "patches attend on average"
    return (
        f"One map for each layer and head: where {query}, from zero (dark) to the maximum of the map (bright). On the "
        "left is the picture as the model sees it."
    )


def windows_caption(at: tuple[int, int], layer: int | None) -> str:
    """The caption of the windows of a pixel: in every layer, or in one with its heads apart."""
    tiles = f"One tile for each head of layer {layer}" if layer else "One tile for each layer, as the mean of its heads"
    return (
        f"{tiles}: where the pixel in row {at[0]} and column {at[1]} (red) looks. Within its window, colours run from "
        "zero (dark) to the largest probability (bright); the rest of the picture is darkened. Every second layer of a "
        "stage shifts its windows, and the cells of later stages are larger, so windows cover more of the picture with "
        "depth. On the left is the picture as the model sees it."
    )


def distance_caption(distances: np.ndarray, even: float) -> str:
    """The caption of distances (L, h) in pixels; `even` is the distance of uniform attention."""
    text = (
        "One dot for each layer and head: the mean distance in pixels between a patch and those it attends to. In "
        "the paper's ViT-L/16 (figure 7) some heads of the lowest layers attend to most of the picture and others stay "
        f"local, and the distance grows with depth. Here it is {_range(distances[0])} px in layer 1"
    )
    if len(distances) > 1:
        text += f", {_range(distances[-1])} px in layer {len(distances)}, the last"
    return f"{text}; uniform attention over all tokens has {even:.1f} px (dashed line)."


def filters_caption(share: Sequence[float], components: int, agreement: float | None) -> str:
    """The caption of the filters, with the `share` of the variance of each one shown.

    `components` counts all of them; `agreement` is that of neighbouring pixels.
    """
    text = (
        "The first principal components of the patch embedding; grey is zero, and each has its own scale. In waves and "
        "edges neighbouring pixels agree. In the paper's ViT-L/32 (figure 7) the components resemble a basis for the "
        f"fine structure within a patch. Here {len(share)} of {components} components explain {sum(share):.0%} of the "
        f"variance, the first one {share[0]:.0%}; "
    )
    if agreement is None:
        return text + "patches are single pixels without neighbours."
    return text + f"neighbouring pixels agree by {agreement:.2f} on average (1: one flat colour, 0: noise)."


def positions_caption(alike: Likeness) -> str:
    """The caption of the position embeddings, with the mean similarities of three kinds of pairs."""
    text = (
        "One tile for each patch: the cosine similarity of its position embedding with those of all patches. In the "
        "paper's ViT-L/32 (figure 7) nearby patches are more similar, and so are patches of the same row or column."
    )
    kinds = ("adjacent patches", "other patches in the same row or column", "all other pairs")
    here = [f"{mean:.2f} for {kind}" for mean, kind in zip(alike, kinds, strict=True) if mean is not None]
    return f"{text} Here the mean is {', '.join(here)}." if here else text


def rollout_range(least: float, most: float) -> str:
    """How much a rollout varies, which its own colour scale hides."""
    return f"rollout per patch: {least:.2f} to {most:.2f} times the mean"


def _range(values: np.ndarray) -> str:
    return f"{values.min():.1f} to {values.max():.1f}" if len(values) > 1 else f"{values[0]:.1f}"
