"""A forward pass in plain NumPy, from Google's npz layout and section 3.1 of the paper, sharing no code with ours."""

import numpy as np
import pytest
import torch

from vitlab import load_model

P, D, H, M, L, K, SIDE = 4, 24, 3, 40, 3, 5, 16
N = (SIDE // P) ** 2


def google_arrays(rng, *, pre_logits, pool="class", bare_positions=False):
    """Random weights as the released files lay them out."""
    n = N + (pool == "class" and not bare_positions)
    arrays = {
        "embedding/kernel": (P, P, 3, D),
        "embedding/bias": (D,),
        "pos_embedding" if bare_positions else "Transformer/posembed_input/pos_embedding": (1, n, D),
        "Transformer/encoder_norm/scale": (D,),
        "Transformer/encoder_norm/bias": (D,),
        "head/kernel": (D, K),
        "head/bias": (K,),
    }
    if pool == "class":
        arrays["cls"] = (1, 1, D)
    if pre_logits:
        arrays |= {"pre_logits/kernel": (D, D), "pre_logits/bias": (D,)}
    for i in range(L):
        block = f"Transformer/encoderblock_{i}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for name in ("query", "key", "value"):
            arrays |= {f"{attention}/{name}/kernel": (D, H, D // H), f"{attention}/{name}/bias": (H, D // H)}
        arrays |= {f"{attention}/out/kernel": (H, D // H, D), f"{attention}/out/bias": (D,)}
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            arrays |= {f"{block}/{norm}/scale": (D,), f"{block}/{norm}/bias": (D,)}
        arrays |= {f"{block}/MlpBlock_3/Dense_0/kernel": (D, M), f"{block}/MlpBlock_3/Dense_0/bias": (M,)}
        arrays |= {f"{block}/MlpBlock_3/Dense_1/kernel": (M, D), f"{block}/MlpBlock_3/Dense_1/bias": (D,)}
    return {name: rng.normal(scale=0.3, size=shape) for name, shape in arrays.items()}


def layer_norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * scale + bias


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def forward(w, images, *, pool="class"):
    """(B, SIDE, SIDE, 3) -> (B, K), one patch, one head, one layer at a time."""
    side = SIDE // P
    tokens = []
    for row in range(side):
        for column in range(side):
            patch = images[:, row * P : (row + 1) * P, column * P : (column + 1) * P]
            tokens.append(np.einsum("byxc,yxcd->bd", patch, w["embedding/kernel"]) + w["embedding/bias"])
    z = np.stack(tokens, axis=1)
    if "pos_embedding" in w:
        z = z + w["pos_embedding"]
    if pool == "class":
        z = np.concatenate([np.repeat(w["cls"], len(z), axis=0), z], axis=1)
    if "pos_embedding" not in w:
        z = z + w["Transformer/posembed_input/pos_embedding"]
    for i in range(L):
        b = f"Transformer/encoderblock_{i}"
        a = f"{b}/MultiHeadDotProductAttention_1"
        u = layer_norm(z, w[f"{b}/LayerNorm_0/scale"], w[f"{b}/LayerNorm_0/bias"])
        total = w[f"{a}/out/bias"]
        for h in range(H):
            q, k, v = (u @ w[f"{a}/{n}/kernel"][:, h] + w[f"{a}/{n}/bias"][h] for n in ("query", "key", "value"))
            attention = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(D // H))
            total = total + attention @ v @ w[f"{a}/out/kernel"][h]
        z = z + total
        y = layer_norm(z, w[f"{b}/LayerNorm_2/scale"], w[f"{b}/LayerNorm_2/bias"])
        y = gelu(y @ w[f"{b}/MlpBlock_3/Dense_0/kernel"] + w[f"{b}/MlpBlock_3/Dense_0/bias"])
        z = z + y @ w[f"{b}/MlpBlock_3/Dense_1/kernel"] + w[f"{b}/MlpBlock_3/Dense_1/bias"]
    z = layer_norm(z, w["Transformer/encoder_norm/scale"], w["Transformer/encoder_norm/bias"])
    y = z[:, 0] if pool == "class" else z.mean(axis=1)
    if "pre_logits/kernel" in w:
        y = np.tanh(y @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return y @ w["head/kernel"] + w["head/bias"]


@pytest.mark.filterwarnings("ignore:w.npz has no class token and does not state how it pools")
@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("pre_logits", [True, False])
@pytest.mark.parametrize("bare_positions", [True, False])
def test_our_forward_equals_the_numpy_one(tmp_path, pool, pre_logits, bare_positions):
    rng = np.random.default_rng(0)
    arrays = google_arrays(rng, pre_logits=pre_logits, pool=pool, bare_positions=bare_positions)
    np.savez(tmp_path / "w.npz", **arrays)
    images = rng.normal(size=(2, SIDE, SIDE, 3))
    expected = forward(arrays, images, pool=pool)

    model = load_model(tmp_path / "w.npz")  # float64 stays float64
    with torch.inference_mode():
        logits = model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(logits - expected).max() / np.abs(expected).max() <= 1e-12
    with torch.inference_mode():
        single = model.float()(torch.from_numpy(images).permute(0, 3, 1, 2).float()).numpy()
    assert np.abs(single - expected).max() / np.abs(expected).max() <= 5e-6
