"""Masked patch prediction (section 4.6): a ViT that predicts the contents of its corrupted patches."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitlab.models.build import empty_model, initialised
from vitlab.models.classifier import LinearHead
from vitlab.models.embedding import lecun_normal_
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.spec import ModelSpec, ViTSpec

MASK = "mask_token"


class PredictionHead(LinearHead):
    """One dense layer on every corrupted patch."""

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        lecun_normal_(self.logits.weight, generator)
        nn.init.constant_(self.logits.bias, bias)


class MaskedPatchModel(ViT):
    """A ViT with a learned [mask] vector and a head that predicts `outputs` values for every corrupted patch.

    The class token takes part but has no loss. All other parameters have the same names as in a ViT, so that freezing,
    layer-wise learning rates and recomputation work in the same way.
    """

    def __init__(self, spec: ViTSpec, outputs: int) -> None:
        super().__init__(replace(spec, classes=0, head="linear"))
        self.mask_token = nn.Parameter(torch.empty(spec.width))
        self.head = PredictionHead(spec.width, outputs)

    def forward(self, images: Tensor, plan: Tensor) -> Tensor:  # pyrefly: ignore[bad-override] - also takes a plan
        """(B, 3, H, W) and (B, 2, M), see `corrupted` -> (B, M, outputs)."""
        self.check(images)
        z = self.corrupted(self.patches(images), plan)  # (B, N, D)
        z = self.encoded(self.sequence(z))  # (B, n, D)
        chosen = plan[:, 0] + self.spec.prefix
        return self.head(self.norm(z[_rows(plan), chosen]))  # (B, M, outputs)

    def corrupted(self, z: Tensor, plan: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D): put the embedding of place plan[:, 1], or [mask] if negative, at place plan[:, 0]."""
        chosen, source = plan.unbind(1)  # (B, M) each
        put = z[_rows(plan), source.clamp(min=0)]  # (B, M, D)
        put = torch.where((source < 0)[..., None], self.mask_token.to(z.dtype), put)
        return z.index_put((_rows(plan), chosen), put)

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw the ViT first, so that a seed gives the same ViT as without masking."""
        super().initialise(generator, head_bias)
        nn.init.normal_(self.mask_token, std=0.02, generator=generator)  # like positions; the paper does not say

    def without_mask(self) -> ViT:
        """Return the ViT alone, without classes, for fine-tuning. It shares this model's weights."""
        plain = empty_model(self.spec)
        assert isinstance(plain, ViT)
        kept = {name: t for name, t in self.state_dict().items() if name != MASK and not name.startswith("head.")}
        plain.load_state_dict(kept, strict=False, assign=True)
        plain.reset_head(0, "linear")
        return plain


def check_maskable(spec: ModelSpec) -> ViTSpec:
    """Return the spec of a model with patch embeddings, as ViTs and hybrids have; a ValueError for a ResNet."""
    if not isinstance(spec, ViTSpec):
        raise ValueError(f"masking needs patch embeddings, which {spec.kind!r} models lack; use a ViT or a hybrid")
    require(spec.merge == 0, f"masked patches are predicted one by one; merge must be 0, not {spec.merge}")
    return spec


def empty_masked_model(spec: ModelSpec, outputs: int) -> MaskedPatchModel:
    """Build a model without storage, on the meta device."""
    with torch.device("meta"):
        return MaskedPatchModel(check_maskable(spec), outputs)


def build_masked_model(spec: ModelSpec, outputs: int, *, seed: int = 0) -> MaskedPatchModel:
    """Build a model: the ViT of the same seed, a small random [mask] vector and a LeCun normal head."""
    return initialised(empty_masked_model(spec, outputs), seed=seed)


def _rows(plan: Tensor) -> Tensor:
    """Return the index of each sample, (B, 1)."""
    return torch.arange(plan.shape[0], device=plan.device)[:, None]


torch.fx.wrap("_rows")  # symbolic tracing has no sizes to count to
