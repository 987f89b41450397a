"""What identifies a model: its architecture and every weight."""

import hashlib
from typing import cast

import numpy as np
import torch

from vitlab.models.build import Model


def fingerprint_of(model: Model) -> str:
    """SHA-256 of the architecture and of every weight: all that determines the logits."""
    described = repr(model.spec).replace(", merge=0", "")  # as before the field existed: the results are the same
    digest = hashlib.sha256(described.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(cast(np.ndarray, flat.numpy()).data)
    return digest.hexdigest()
