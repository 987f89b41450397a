"""The outputs of a model that an artefact may have."""

import torch
from torch import Tensor, nn

from vitlab.engines.networks import frozen, is_untouched, prepared
from vitlab.models.build import Model
from vitlab.models.swin import Swin
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.spec import ExportOutput

PLAIN: tuple[ExportOutput, ...] = ("features", "logits")  # in the order in which a prepared network returns them


class Outputs(nn.Module):
    """From preprocessed images (B, 3, H, W) to the chosen outputs, in their order.

    `logits` are (B, K) and `features` (B, D). `attention` is (B, L, h, n, n): the probabilities of each layer, two for
    a layer of an Axial-ViT. `tokens` are (B, n, D), after the final norm.
    """

    def __init__(self, model: Model, outputs: tuple[ExportOutput, ...]) -> None:
        super().__init__()
        self.outputs = outputs
        self.network = prepared(model) if set(outputs) <= set(PLAIN) else LookedInto(model)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> the outputs."""
        found = self.network(images)
        made = dict(zip(PLAIN, found, strict=True)) if isinstance(found, tuple) else found
        return tuple(made[name] for name in self.outputs)


class LookedInto(nn.Module):
    """All outputs of a model with layers, computed in one pass."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = frozen(model)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) -> the outputs by name."""
        model = self.model
        assert isinstance(model, ViT)
        z, attention = model.tokens(images), []
        for output, probabilities in model.each_layer(z, explain=True):
            z = output
            attention.append(probabilities)
        y = model.pool_tokens(z)
        features, logits = model.head.features(y), model.head(y)
        return {
            "features": features,
            "logits": logits,
            "attention": torch.stack(attention, dim=1),
            "tokens": model.norm(z),
        }


def check_outputs(model: Model, outputs: tuple[ExportOutput, ...]) -> None:
    """Raise a ValueError if a model does not have these outputs, or cannot be exported at all."""
    require(bool(outputs), "outputs is empty; choose some of logits, features, attention, tokens")
    require(len(set(outputs)) == len(outputs), f"outputs {' '.join(outputs)} names one twice; name each once")
    touched = "the model has hooks, replaced parts, changed settings or a wrapper, which an export would leave out"
    require(is_untouched(model), touched)
    no_classes = "this model has no classes, only features; give outputs=features, or fine-tune it on labelled images"
    require("logits" not in outputs or model.spec.classes > 0, no_classes)
    for name in ("attention", "tokens"):
        kind = "Swin has no such" if isinstance(model, Swin) else "ResNet has no"
        has_none = f"a {kind} {name}; leave {name} out of outputs, or export a ViT or a hybrid"
        require(name not in outputs or isinstance(model, ViT), has_none)
