"""The libraries we agree with, made to import on a CPU build of torch and without a network."""

import warnings

from bench.peers import prepare

prepare()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm
    import torchvision
    import transformers
    from timm.layers.pos_embed import resample_abs_pos_embed
    from timm.models.swin_transformer import SwinTransformer as TimmSwin
    from timm.models.vision_transformer import VisionTransformer as TimmViT
    from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
    from torchvision.models.vision_transformer import interpolate_embeddings
    from transformers import (
        SwinConfig,
        SwinForImageClassification,
        SwinModel,
        ViTConfig,
        ViTForImageClassification,
        ViTModel,
    )

__all__ = [
    "SwinConfig",
    "SwinForImageClassification",
    "SwinModel",
    "TimmSwin",
    "TimmViT",
    "TorchvisionViT",
    "ViTConfig",
    "ViTForImageClassification",
    "ViTModel",
    "interpolate_embeddings",
    "resample_abs_pos_embed",
    "timm",
    "torchvision",
    "transformers",
]
