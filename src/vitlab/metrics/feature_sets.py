"""Features with labels from any library, checked once for all methods that learn from them."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.require import require

LABELS = {"i": "whole numbers", "u": "whole numbers", "b": "whole numbers", "U": "text"}  # by the kind of a dtype


@dataclass(frozen=True)
class FeatureSet:
    """Training and test features (n, D) with labels (n,), whole numbers or text, as torch or NumPy arrays."""

    train_x: Any
    train_y: Any
    test_x: Any
    test_y: Any


@dataclass(frozen=True)
class Checked:
    """A checked set: finite features of equal width, and labels as positions among the training classes."""

    train_x: Tensor  # (n, D)
    train_y: Tensor  # (n,) positions in `names`
    test_x: Tensor
    test_y: Tensor
    names: np.ndarray  # (K,) the labels that occur in training, sorted


def checked(given: FeatureSet, name: str = "") -> Checked:
    """Check a set and return it as tensors; raises a ValueError that says which part is wrong and why."""
    where = f"set {name!r}: " if name else ""
    train_x, train = checked_part(given.train_x, given.train_y, f"{where}train")
    test_x, test = checked_part(given.test_x, given.test_y, f"{where}test")
    check_widths(train_x, test_x, where)
    kinds = LABELS[train.dtype.kind], LABELS[test.dtype.kind]
    require(kinds[0] == kinds[1], f"{where}train labels are {kinds[0]}, test labels {kinds[1]}")
    names, places = np.unique(train, return_inverse=True)
    unknown = np.setdiff1d(test, names).tolist()
    require(not unknown, f"{where}test classes {unknown[:5]} do not occur among the training labels")
    return Checked(train_x, torch.from_numpy(places), test_x, torch.from_numpy(np.searchsorted(names, test)), names)


def checked_part(x: Any, y: Any, part: str) -> tuple[Tensor, np.ndarray]:
    """Check features (n, D) with labels (n,); `part` names them in messages."""
    features = checked_features(x, part)
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    shapes = f"{tuple(features.shape)} and {labels.shape}"
    has_one_each = labels.shape == (len(features),)
    require(has_one_each, f"{part} features and labels have shapes {shapes}; expected (n, D) and (n,)")
    require(labels.dtype.kind in LABELS, f"{part} labels have dtype {labels.dtype}; expected whole numbers or text")
    return features, labels


def checked_features(x: Any, part: str) -> Tensor:
    """Return features (n, D) as a finite tensor on the CPU."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
            features = torch.as_tensor(x).detach().cpu()
    except TypeError as error:
        raise ValueError(f"{part} features cannot be converted ({error!s:.200}); expected real numbers") from None
    require(not features.is_complex(), f"{part} features have dtype {features.dtype}; expected real numbers")
    fits = features.dim() == 2 and features.numel() > 0
    require(fits, f"{part} features have shape {tuple(features.shape)}; expected (n, D) with n, D >= 1")
    require(bool(features.isfinite().all()), f"{part} features contain NaN or infinity")
    return features


def check_widths(train: Tensor, test: Tensor, where: str = "") -> None:
    """Raise unless both have the same width."""
    widths = train.shape[1], test.shape[1]
    require(widths[0] == widths[1], f"{where}train features are {widths[0]} wide, test features {widths[1]}")
