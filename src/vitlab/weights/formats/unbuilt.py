"""Parts of other models that vitlab does not build, recognised by their tensors or their config."""

import re
from typing import Any

from vitlab.weights.files.containers import Container, WeightsError

UNBUILT = (  # pattern of tensor names: what such a model does
    (r"(^|/)MAPHead_\d+/|^probe$|^attn_pool\.|^head\.probe$", "pools by attention (a MAP head)"),
    (r"^norm_pre\.|^pre_layernorm\.", "has a norm before its first layer"),
    (r"^fc_norm\.", "normalises after pooling"),
    (r"\.ls[12]\.gamma$|\.gamma_[12]$|\.layer_scale[12]?\.", "scales its residual branches (LayerScale)"),
    (r"\.attn\.(q_norm|k_norm|norm)\.|/(query|key)_(norm|ln)/", "normalises queries and keys"),
    (r"\.mlp\.(norm|w12|w3|fc1_[gx])\b", "has another MLP"),
    (r"^reg_tokens?$|register_tokens$", "has register tokens"),
    (r"rel_pos|relative_position", "has a relative position bias"),
    (r"\.running_(mean|var)$", "has batch norms"),
)


def check_built(container: Container) -> None:
    """Raise a WeightsError for a part that vitlab does not build: without it the logits would be wrong."""
    for pattern, does in UNBUILT:
        name = next((name for name in sorted(container.shapes) if re.search(pattern, name)), None)
        if name is not None:
            raise WeightsError(
                f"{container.path.name} {does}, as its tensor {name!r:.100} shows. vitlab does not build such a model, "
                "and without that part its logits would be wrong, so allow_partial does not load it either"
            )


POOLING = ("global_pool", "pool_type", "pool", "pooling")  # keys in configs
CLASS_TOKEN = ("token", "tok", "cls", "class")
MEAN = ("avg", "gap", "mean")


def check_pooling(*configs: dict[str, Any], has_class: bool) -> None:
    """Raise unless a config pools as vitlab does: by the class token, or by the mean if there is none."""
    known = CLASS_TOKEN if has_class else MEAN
    for config in configs:
        for key in POOLING:
            stated = config.get(key)
            if stated is not None and stated not in known:
                given = "with" if has_class else "without"
                raise WeightsError(
                    f"config.json pools by {stated!r:.40} {given} a class token ({key}); only {known[0]!r} loads"
                )
