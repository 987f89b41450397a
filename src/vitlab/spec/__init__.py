"""Specifications of models as frozen values that are validated on creation. Standard library only.

How a model is trained is in `recipe.py`, and what is done to its images in `pixels.py`; `changes.py` changes fields of
both by their names.
"""

from typing import Literal

from vitlab.spec.conventions import (
    BIT,
    CONVENTIONS,
    HYBRID,
    ConventionName,
    Conventions,
    Convolutions,
    Gelu,
    PositionResize,
    named_conventions,
)
from vitlab.spec.resnet import GROUPS, AxialResNetSpec, Backbone, ResNetSpec, last_channels, norm_groups
from vitlab.spec.sizes import LIMITS, Image, check_image, image_size, parse_size
from vitlab.spec.swin import SwinSpec, WindowOrder, Windows
from vitlab.spec.vit import (
    AttentionLike,
    HeadKind,
    Pool,
    PositionKind,
    PositionPlace,
    ViTSpec,
    check_same_weights,
    with_attention,
)

UnsavedPositions = Literal["sincos2d", "none"]  # for files without a position table
SaveFormat = Literal["vitlab", "google-npz", "timm", "hf", "microsoft"]
Task = Literal["single-label", "multi-label"]  # one class per image, or any number
EngineName = Literal["torch", "plain", "compiled", "onnxruntime", "onnxruntime-int8", "openvino", "auto"]
ExportTarget = Literal["onnx", "openvino", "torch"]
ExportTo = Literal["onnx", "openvino", "torch", "web"]
ExportOutput = Literal["logits", "features", "attention", "tokens"]
ModelSpec = ViTSpec | ResNetSpec | AxialResNetSpec | SwinSpec

__all__ = [
    "BIT",
    "CONVENTIONS",
    "GROUPS",
    "HYBRID",
    "LIMITS",
    "AttentionLike",
    "AxialResNetSpec",
    "Backbone",
    "ConventionName",
    "Conventions",
    "Convolutions",
    "EngineName",
    "ExportOutput",
    "ExportTarget",
    "ExportTo",
    "Gelu",
    "HeadKind",
    "Image",
    "ModelSpec",
    "Pool",
    "PositionKind",
    "PositionPlace",
    "PositionResize",
    "ResNetSpec",
    "SaveFormat",
    "SwinSpec",
    "Task",
    "UnsavedPositions",
    "ViTSpec",
    "WindowOrder",
    "Windows",
    "check_image",
    "check_same_weights",
    "image_size",
    "last_channels",
    "named_conventions",
    "norm_groups",
    "parse_size",
    "with_attention",
]
