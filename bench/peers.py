"""Make the libraries that vitlab is compared with import on a CPU build of torch and without a network."""

import functools
import os

import torch

_KEPT = []  # a library of operators lives as long as its object


@functools.cache
def prepare() -> None:
    """Prepare this process for timm, torchvision and transformers; to be called before the first of their imports."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    # The wheels of torchvision on the registry are built for CUDA; on CPU builds they miss these two operators.
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
