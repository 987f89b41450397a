"""An image as a sequence of embedded patches: Eq. 1 of the paper without class token and positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def patchify(images: Tensor, patch: int) -> Tensor:
    """(B, C, H, W) -> (B, N, C P P), raster order; inside a patch channels change slowest, as in a convolution."""
    z = images.unflatten(2, (-1, patch)).unflatten(4, (-1, patch))  # (B, C, H/P, P, W/P, P)
    return z.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C P P)


class PatchEmbedding(nn.Module):
    """The linear map E on flattened patches, kept in the shape of the equal convolution (D, 3, P, P)."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, 3, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, D)."""
        return F.linear(patchify(images, self.patch), self.weight.flatten(1), self.bias)

    def initialise(self, generator: torch.Generator) -> None:
        """LeCun normal on 3 P P inputs."""
        lecun_normal_(self.weight, generator)
        nn.init.zeros_(self.bias)


def lecun_normal_(weight: Tensor, generator: torch.Generator) -> None:
    """Truncated normal on two deviations, rescaled so that its own deviation is 1/sqrt(inputs)."""
    deviation = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
