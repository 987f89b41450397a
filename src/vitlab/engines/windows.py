"""A Swin prepared for inference: biases looked up once, dense layers with what follows them in one pass."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.engines.dense import MakeDense, both, drop_dense
from vitlab.models.embedding import patchify
from vitlab.models.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    by_offset,
    cut,
    joined,
    put_together,
    roll_mask,
)


class LeanSwin(nn.Module):
    """A Swin from images (B, 3, H, W) to features (B, D) and logits (B, K)."""

    def __init__(self, model: Swin, dense: MakeDense) -> None:
        super().__init__()
        self.model = model
        self.patches = dense(model.patches.weight.flatten(1), model.patches.bias)
        self.parts: list[LeanMerging | LeanLayer] = []
        for stage in model.parts:
            if stage.merging is not None:
                self.parts.append(LeanMerging(stage.merging, dense))
            self.parts.extend(LeanLayer(cast(SwinBlock, block), dense) for block in stage.layers)
        drop_dense(model.patches, model.blocks)
        for stage in model.parts:
            if stage.merging is not None:
                del stage.merging.dense

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> features (B, D), logits (B, K)."""
        model = self.model
        z = model.patch_norm(self.patches(patchify(model.padded(images), model.spec.patch)))  # (B, N, C)
        for part in self.parts:
            z = part(z)
        return both(model, model.pool_cells(z))


class LeanMerging:
    """The merging of 2x2 cells before a stage."""

    def __init__(self, merging: PatchMerging, dense: MakeDense) -> None:
        self.grid, self.norm = merging.grid, merging.norm
        self.dense = dense(merging.dense.weight, None)

    def __call__(self, z: Tensor) -> Tensor:
        """(B, N, C) -> (B, N/4, 2C)."""
        return self.dense(self.norm(joined(z, self.grid)))


class LeanLayer:
    """One layer. The projection of the attended values comes after windows are put together: not for padding."""

    def __init__(self, block: SwinBlock, dense: MakeDense) -> None:
        attention = cast(WindowAttention, block.attention)
        self.norm1, self.norm2, self.approximate = block.norm1, block.norm2, block.mlp.approximate
        self.windows, self.order, self.heads = attention.windows, attention.order, attention.heads
        self.qkv, self.out, self.dense1, self.dense2 = (
            dense(layer.weight, layer.bias)
            for layer in (attention.qkv, attention.out, block.mlp.dense1, block.mlp.dense2)
        )
        with torch.no_grad():
            bias = by_offset(attention.table, attention.windows.sides)  # (1, h, M, M)
            if any(attention.windows.shift):
                windows = attention.windows
                bias = bias + roll_mask(bias, windows.number, windows.sides, windows.shift)
        self.bias = bias.contiguous()  # (1, h, M, M), or (windows, h, M, M)

    def __call__(self, z: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        u = self.qkv(cut(self.norm1(z), self.windows, self.order))  # (B windows, M, 3C)
        q, k, v = u.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B windows, h, M, Dh)
        bias = self.bias if len(self.bias) == 1 else self.bias.repeat(z.shape[0], 1, 1, 1)  # (1 or B windows, h, M, M)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)  # (B windows, M, C)
        z = self.out.plus(put_together(a, self.windows, self.order).contiguous(), z)
        return self.dense2.plus(self.dense1.gelu(self.norm2(z), self.approximate), z)
