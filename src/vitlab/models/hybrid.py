"""The hybrid of section 3.1: patches of a ResNet's feature map in place of patches of the image."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.patches import lecun_normal_, patchify
from vitlab.models.resnet import ResNetV1
from vitlab.spec import Backbone, Convolutions


class HybridEmbedding(nn.Module):
    """A ResNet, then the linear map on patches of its feature map, kept in the shape of the equal convolution."""

    def __init__(self, backbone: Backbone, patch: int, width: int, how: Convolutions) -> None:
        super().__init__()
        self.patch = patch
        self.backbone = ResNetV1(backbone, how)
        self.weight = nn.Parameter(torch.empty(width, backbone.channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, D)."""
        x = self.backbone(images)  # (B, C, H/stride, W/stride)
        return F.linear(patchify(x, self.patch), self.weight.flatten(1), self.bias)

    def initialise(self, generator: torch.Generator) -> None:
        """LeCun normal on C P P inputs."""
        self.backbone.initialise(generator)
        lecun_normal_(self.weight, generator)
        nn.init.zeros_(self.bias)
