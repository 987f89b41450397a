"""One picture through a model, with everything on the way: attention, tokens, and the answer after each layer."""

import copy
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.models.build import Model
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.spec import Image, ViTSpec, image_size

LARGEST_EXACT = 32 * 2**20  # bytes of attention; more is sent with 8 bits per probability


def shows_layers(spec: object) -> bool:
    """Whether a model of this spec has layers to show: attention between patches, and all tokens in every layer.

    In a pattern, a patch may see none of the patches that are kept, but always a class token.
    """
    if not isinstance(spec, ViTSpec) or spec.merge or spec.attention == "axial":
        return False
    return spec.attention == "full" or spec.pool == "class"


class Trace(nn.Module):
    """A model that also returns what is inside; it shares the weights of `model`, which stays as it is.

    A model without layers to show, see `shows_layers`, gives only its answer: attention and tokens are empty, and the
    answers after each layer are one, the final one.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = _shared(model).eval()
        how = model.spec.conventions.preprocessing
        self.register_buffer("mean", torch.tensor(how.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(how.std)[:, None, None])

    @property
    def patches(self) -> int:
        """N, the length of `keep`; 0 for a model that gives only its answer."""
        spec = self.model.spec
        return spec.grid[0] * spec.grid[1] if isinstance(spec, ViTSpec) and shows_layers(spec) else 0

    def forward(self, pixels: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pixels (1, 3, H, W) of 0..255 and keep (1, N) of 0 or 1 -> logits, layer_logits, attention, tokens.

        The shapes are (K,), (L+1, K), (L, h, n, n) and (L+1, n, D), all in float32. A patch with keep 0 takes no part,
        as if it were not in the sequence: no token attends to it, and the mean of the patches leaves it out. Row l of
        `layer_logits` is the head applied to the tokens after layer l, with the final norm and pooling; row 0 is for
        the embedding and the last row equals the logits. `tokens` are those before the final norm.
        """
        images = ((pixels / 255 - self.mean) / self.std).to(next(self.model.parameters()).dtype)
        if not self.patches:
            logits = self.model(images).float()
            return logits[0], logits, logits.new_zeros(0, 0, 0, 0), logits.new_zeros(0, 0, 0)
        model = cast(ViT, self.model)
        kept = torch.cat([keep.new_ones(1, model.spec.prefix), keep], dim=1).to(images.dtype)  # (1, n)
        tokens, attention = zip(*self._layers(model.tokens(images), kept.log()[:, None, None]), strict=True)
        z = torch.cat(tokens)  # (L+1, n, D)
        logits = model.head(self._pooled(model, z, kept)).float()  # (L+1, K)  Eq. 4
        return logits[-1], logits, torch.cat(attention[1:]).float(), z.float()

    def _layers(self, z: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens (1, n, D) and attention (1, h, n, n) of each layer; first the embedding, without any."""
        model = cast(ViT, self.model)
        yield z, mask
        for number, block in enumerate(model.layers):
            z, attention = block.explain(model.with_positions(number, z), mask)  # Eq. 2, 3
            yield z, attention

    def _pooled(self, model: ViT, z: Tensor, kept: Tensor) -> Tensor:
        """(L+1, n, D) -> (L+1, D), or (L+1, 2, D) of a distilled model."""
        if model.spec.pool == "class":
            return model.pool_tokens(z)
        return (model.norm(z) * kept[..., None]).sum(dim=1) / kept.sum()


@dataclass(frozen=True)
class Traced:
    """What `Trace` returns for one picture, as float32 arrays."""

    logits: np.ndarray  # (K,)
    layer_logits: np.ndarray  # (L+1, K)
    attention: np.ndarray  # (L, h, n, n)
    tokens: np.ndarray  # (L+1, n, D)

    def to_bytes(self) -> bytes:
        """The arrays as the page reads them.

        A JSON header, preceded by its length as a little-endian uint32 and padded with spaces to a multiple of 4, names
        each array with its dtype, shape and offset from the end of the header; the arrays follow, little-endian, each
        at a multiple of 4. Attention of more than LARGEST_EXACT bytes is sent as uint8, probability * 255 rounded.
        """
        attention = self.attention
        if attention.nbytes > LARGEST_EXACT:
            attention = np.rint(attention * 255).astype(np.uint8)
        arrays = {"logits": self.logits, "layer_logits": self.layer_logits, "attention": attention}
        described, parts, offset = [], [], 0
        for name, array in {**arrays, "tokens": self.tokens}.items():
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            described.append({"name": name, "dtype": str(array.dtype), "shape": array.shape, "offset": offset})
            parts.append(data.ljust(-(-len(data) // 4) * 4, b"\0"))
            offset += len(parts[-1])
        header = json.dumps({"arrays": described}, allow_nan=False).encode()
        header = header.ljust(-(-len(header) // 4) * 4)
        return b"".join([struct.pack("<I", len(header)), header, *parts])


def trace(model: Model | Trace, pixels: np.ndarray, keep: np.ndarray | None = None) -> Traced:
    """Trace a picture, (H, W, 3) of uint8 at the size of the model, as `evaluation_pixels` makes them.

    `keep` (N,) says which patches take part, in raster order; all by default. For many pictures, make one `Trace` and
    give it instead of the model. Raises ValueError if the model returns NaN or infinity.
    """
    traced = model if isinstance(model, Trace) else Trace(model)
    size = traced.model.spec.image
    expected, given = (*size, 3), f"{pixels.dtype} of {'x'.join(map(str, pixels.shape))}"
    at = "at_size(model, size) gives the model for another size"
    fits = pixels.shape == expected and pixels.dtype == np.uint8
    require(fits, f"pixels are {given}; expected uint8 of {'x'.join(map(str, expected))}; {at}")
    weight = next(traced.model.parameters())
    with torch.inference_mode():
        images = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None].to(weight.device).float()
        found = [part.cpu().numpy() for part in traced(images, _kept(traced, keep).to(weight.device))]
    finite = bool(np.isfinite(found[1]).all())
    require(finite, "the model returned NaN or infinity: it diverged in training, or its file is damaged")
    return Traced(*found)


def _kept(traced: Trace, keep: np.ndarray | None) -> Tensor:
    """The patches that take part as (1, N) of 0 or 1, checked."""
    if keep is None:
        return torch.ones(1, traced.patches)
    patches, spec = traced.patches, traced.model.spec
    require(keep.shape == (patches,), f"keep has shape {keep.shape}; expected ({patches},), a value for each patch")
    needs_one = isinstance(spec, ViTSpec) and spec.pool == "mean" and patches > 0
    is_enough = bool(keep.any()) or not needs_one
    require(is_enough, "no patch is kept, but this model's answer is the mean of its patches; keep one or more")
    return torch.from_numpy(keep.astype(bool)).float()[None]


def at_size(model: Model, size: Image) -> Model:
    """The model for images of another size, (H, W) or one side, sharing its weights; `model` stays as it is.

    Positions are interpolated according to the model's conventions. Raises ValueError for a size that is not a whole
    number of patches, and for relative positions, which belong to one grid.
    """
    if image_size(size) == model.spec.image:
        return model
    other = _shared(model)
    other.resize(size)
    return other


def _shared(model: Model) -> Model:
    """A copy with modules of its own and the same weights."""
    weights = {id(weight): weight for weight in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, weights)
