"""How tests make weights that matter and measure how far two results are apart."""

import torch


def randomised(model, seed=0):
    """Every parameter drawn anew, large enough to matter and small enough to stay finite through many layers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.5 / max(parameter.numel() // max(len(parameter), 1), 1) ** 0.5 if parameter.dim() > 1 else 0.1
            noise *= 0.5 if "pos" in name or "token" in name else scale
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise.add_(1) if is_norm else noise)
    return model.eval()


def disagreement(a, b) -> float:
    """max|a-b| / max|b|."""
    return ((a - b).abs().max() / b.abs().max()).item()
