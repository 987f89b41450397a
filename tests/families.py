"""A small model of every family, and images for it."""

import torch

from vitlab.spec import CONVENTIONS, AxialResNetSpec, Backbone, Conventions, Convolutions, ResNetSpec, SwinSpec, ViTSpec

VIT = {"patch": 8, "layers": 2, "width": 24, "mlp": 48, "heads": 3, "image": (32, 40), "classes": 4, "head": "linear"}
SWIN = {"stages": (2, 2), "root": 12, "heads": 3, "window": 3, "image": (32, 40), "classes": 4}
FAMILIES = {
    "ViT": ViTSpec(**VIT),
    "ViT with pre-logits": ViTSpec(**(VIT | {"head": "mlp"})),
    "ViT of timm": ViTSpec(**(VIT | {"conventions": CONVENTIONS["timm"]})),
    "ViT in training": ViTSpec(**(VIT | {"dropout": 0.1, "stochastic_depth": 0.5})),
    "mean pooling": ViTSpec(**(VIT | {"pool": "mean"})),
    "no positions": ViTSpec(**(VIT | {"positions": "none"})),
    "relative positions": ViTSpec(**(VIT | {"positions": "relative"})),
    "2d positions in every layer": ViTSpec(**(VIT | {"positions": "2d", "positions_at": "every-layer"})),
    "shared 1d positions": ViTSpec(**(VIT | {"positions_at": "shared"})),
    "distilled DeiT": ViTSpec(**(VIT | {"distilled": True})),
    "merging": ViTSpec(**(VIT | {"merge": 3})),
    "merging, mean pooling": ViTSpec(**(VIT | {"merge": 9, "pool": "mean"})),
    "merging, distilled": ViTSpec(**(VIT | {"merge": 3, "distilled": True})),
    "hybrid": ViTSpec(**(VIT | {"patch": 1, "backbone": Backbone((1, 1), 8)})),
    "hybrid of a root alone": ViTSpec(**(VIT | {"patch": 2, "backbone": Backbone((), 8)})),
    "BiT": ResNetSpec((1, 1), 8, (32, 40), 4),
    "BiT of big_vision": ResNetSpec(
        (1, 1), 8, (32, 40), 4, conventions=Conventions(bit=Convolutions(pool_padding="infinite"))
    ),
    "windows": ViTSpec(**(VIT | {"attention": "window:3"})),
    "windows and a full layer, distilled": ViTSpec(**(VIT | {"attention": "window:2+global:2", "distilled": True})),
    "neighbourhoods, mean pooling": ViTSpec(**(VIT | {"attention": "neighbourhood:3", "pool": "mean"})),
    "strided": ViTSpec(**(VIT | {"attention": "strided"})),
    "fixed": ViTSpec(**(VIT | {"attention": "fixed:3"})),
    "BigBird": ViTSpec(**(VIT | {"attention": "bigbird:block=2,window=1,random=2,seed=5"})),
    "Axial-ViT": ViTSpec(**(VIT | {"attention": "axial", "pool": "mean", "positions": "2d"})),
    "AxialResNet": AxialResNetSpec((1, 1), 8, 2, (32, 40), 4),
    "Swin": SwinSpec(**SWIN),  # maps of 8x10 and 4x5 cells, padded to 9x12 and 6x6
    "Swin of timm": SwinSpec(**(SWIN | {"window": 4, "stochastic_depth": 0.2, "conventions": CONVENTIONS["timm"]})),
}


def images(batch):
    return torch.randn(batch, 3, 32, 40, generator=torch.Generator().manual_seed(batch))
