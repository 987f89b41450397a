"""The hybrid of section 3.1: patches of a ResNet's feature map instead of patches of the image."""

import torch
from torch import Tensor

from vitlab.models.embedding import PatchEmbedding
from vitlab.models.resnet import ResNetV1
from vitlab.spec import Backbone, Convolutions


class HybridEmbedding(PatchEmbedding):
    """A ResNet followed by the embedding of patches of its feature map."""

    def __init__(self, backbone: Backbone, patch: int, width: int, how: Convolutions) -> None:
        super().__init__(patch, width, backbone.channels)
        self.backbone = ResNetV1(backbone, how)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, D)."""
        return super().forward(self.backbone(images))  # by way of (B, C, H/stride, W/stride)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the ResNet, then the embedding."""
        self.backbone.initialise(generator)
        super().initialise(generator)
