"""Tokens, parameters and multiply-accumulates in closed form, without allocating anything or importing torch."""

from dataclasses import dataclass

from vitlab.paper.models import vit_spec
from vitlab.spec import HeadKind, Image, Pool, ViTSpec


@dataclass(frozen=True)
class Count:
    """What one model costs: `macs` are multiply-accumulates of one image's forward pass (FLOPs are twice that)."""

    tokens: int
    parameters: int
    macs: int


def count(
    name: str, *, image: Image | None = None, classes: int = 1000, head: HeadKind = "mlp", pool: Pool = "class"
) -> Count:
    """Count a model of the paper by its name."""
    return count_spec(vit_spec(name, image=image, classes=classes, head=head, pool=pool))


def count_spec(spec: ViTSpec) -> Count:
    """Count a model of any spec (sections 1 and 3.1 of the paper)."""
    return Count(spec.tokens, _parameters(spec), _macs(spec))


def _parameters(spec: ViTSpec) -> int:
    d, m = spec.width, spec.mlp
    embedding = _dense(3 * spec.patch**2, d) + (d if spec.pool == "class" else 0) + spec.tokens * d
    block = 4 * _dense(d, d) + _dense(d, m) + _dense(m, d) + 2 * 2 * d
    pre_logits = _dense(d, d) if spec.head == "mlp" else 0
    return embedding + spec.layers * block + 2 * d + pre_logits + _dense(d, spec.classes)


def _macs(spec: ViTSpec) -> int:
    """Matrix products only: norms, softmax, GELU and additions are not counted, as in the paper's exaFLOPs."""
    d, n = spec.width, spec.tokens
    patches = spec.grid[0] * spec.grid[1]
    block = 4 * n * d**2 + 2 * n**2 * d + 2 * n * d * spec.mlp
    pre_logits = d**2 if spec.head == "mlp" else 0
    return patches * 3 * spec.patch**2 * d + spec.layers * block + pre_logits + d * spec.classes


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
