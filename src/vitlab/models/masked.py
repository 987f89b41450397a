"""Masked patch prediction (section 4.6): a ViT that sees some of its patches corrupted and predicts what they were."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitlab.models.build import empty_model, initialised
from vitlab.models.classifier import LinearHead
from vitlab.models.embedding import lecun_normal_
from vitlab.models.vit import ViT
from vitlab.spec import ModelSpec, ViTSpec

MASK = "mask_token"


class PredictionHead(LinearHead):
    """One dense layer on every corrupted patch."""

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        lecun_normal_(self.logits.weight, generator)
        nn.init.constant_(self.logits.bias, bias)


class MaskedPatchModel(ViT):
    """A ViT with a learnt [mask] vector, and a head that makes `outputs` values of every corrupted patch.

    The class token takes part and gets no loss of its own. Every other parameter has the name it has in a ViT, so
    that freezing, layer-wise rates and recomputing mean the same.
    """

    def __init__(self, spec: ViTSpec, outputs: int) -> None:
        super().__init__(replace(spec, classes=0, head="linear"))
        self.mask_token = nn.Parameter(torch.empty(spec.width))
        self.head = PredictionHead(spec.width, outputs)

    def forward(self, images: Tensor, plan: Tensor) -> Tensor:  # pyrefly: ignore[bad-override] - a plan is needed
        """(B, 3, H, W) and (B, 2, M), see `corrupted` -> (B, M, outputs)."""
        self._check(images)
        z = self.corrupted(self.patches(images), plan)  # (B, N, D)
        z = self.encoded(self.sequence(z))  # (B, n, D)
        chosen = plan[:, 0] + self.spec.prefix
        return self.head(self.norm(z[_rows(plan), chosen]))  # (B, M, outputs)

    def corrupted(self, z: Tensor, plan: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D): at the places plan[:, 0] the embedding of the place plan[:, 1], or [mask] below 0."""
        chosen, source = plan.unbind(1)  # (B, M) each
        put = z[_rows(plan), source.clamp(min=0)]  # (B, M, D)
        put = torch.where((source < 0)[..., None], self.mask_token.to(z.dtype), put)
        return z.index_put((_rows(plan), chosen), put)

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """What a ViT has is drawn first, so that the same seed makes the same ViT."""
        super().initialise(generator, head_bias)
        nn.init.normal_(self.mask_token, std=0.02, generator=generator)  # the paper is silent: as its positions

    def without_mask(self) -> ViT:
        """The ViT alone, with a zero head of no classes: what is fine-tuned. It shares this model's weights."""
        plain = empty_model(self.spec)
        assert isinstance(plain, ViT)
        kept = {name: t for name, t in self.state_dict().items() if name != MASK and not name.startswith("head.")}
        plain.load_state_dict(kept, strict=False, assign=True)
        plain.reset_head(0, "linear")
        return plain


def check_maskable(spec: ModelSpec) -> ViTSpec:
    """The spec, if it is of a model with patch embeddings that can be corrupted; a hybrid has such, a ResNet none."""
    if not isinstance(spec, ViTSpec):
        raise ValueError(
            f"masked patches need a model with patch embeddings, and a {spec.kind!r} has none; take a ViT or a hybrid"
        )
    return spec


def empty_masked_model(spec: ModelSpec, outputs: int) -> MaskedPatchModel:
    """A model without storage, on the meta device."""
    with torch.device("meta"):
        return MaskedPatchModel(check_maskable(spec), outputs)


def build_masked_model(spec: ModelSpec, outputs: int, *, seed: int = 0) -> MaskedPatchModel:
    """A model with fresh weights: those of the ViT of the same seed, a small random [mask], LeCun's head."""
    return initialised(empty_masked_model(spec, outputs), seed=seed)


def _rows(plan: Tensor) -> Tensor:
    """(B, 1): the number of each sample."""
    return torch.arange(plan.shape[0], device=plan.device)[:, None]


torch.fx.wrap("_rows")  # symbolic tracing knows no sizes to count to
