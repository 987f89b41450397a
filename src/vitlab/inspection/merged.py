"""Pictures of merged patches: which of them a model that merges tokens treats as one."""

import numpy as np


def merged_picture(picture: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(H, W, 3) of uint8 and (rows, columns) -> (H, W, 3): each token's patches in their mean colour, with outlines.

    `groups` numbers the token that each patch is part of. Patches of one token need not be neighbours.
    """
    height, width = picture.shape[0] // groups.shape[0], picture.shape[1] // groups.shape[1]
    labels = np.unique(groups, return_inverse=True)[1].reshape(groups.shape)
    labels = labels.repeat(height, axis=0).repeat(width, axis=1)  # (H, W)
    pixels = np.bincount(labels.ravel())  # of each token
    means = [np.bincount(labels.ravel(), picture[..., colour].ravel()) / pixels for colour in range(3)]
    filled = np.rint(np.stack(means, axis=-1)).astype(np.uint8)[labels]  # (H, W, 3)
    is_edge = np.zeros(labels.shape, bool)
    is_edge[1:] |= labels[1:] != labels[:-1]
    is_edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    filled[is_edge] = filled[is_edge] // 2 + 127 * (filled[is_edge] < 128)  # lighter on dark colours, darker on light
    return filled
