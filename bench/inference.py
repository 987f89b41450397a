"""Images per second of a forward pass against timm, Hugging Face and torchvision, as ratios to timm eager.

All run in one process, interleaved in shuffled order; `timm again` is the null: what differs less is no difference.
    python bench/inference.py > evidence/inference.txt
"""

import random
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import peers
from vitlab import build_model

CASES = [("ViT-Ti/16", 8), ("ViT-B/16", 1), ("ViT-B/16", 8)]
ROUNDS = 15
SIZES = {"ViT-Ti/16": (192, 768, 3), "ViT-B/16": (768, 3072, 12)}


def contestants(name: str) -> dict[str, torch.nn.Module]:
    width, mlp, heads = SIZES[name]
    config = peers.ViTConfig(
        hidden_size=width, num_attention_heads=heads, intermediate_size=mlp, num_hidden_layers=12, num_labels=1000
    )
    timm = peers.TimmViT(patch_size=16, embed_dim=width, depth=12, num_heads=heads)
    return {
        "timm": timm,
        "timm again": timm,
        "vitlab, exact GELU": build_model(name, head="linear", conventions="timm"),
        "vitlab, tanh GELU (paper)": build_model(name, head="linear"),
        "Hugging Face": peers.ViTForImageClassification(config),
        "torchvision": peers.TorchvisionViT(224, 16, 12, heads, width, mlp),
    }


@torch.inference_mode()
def measure(name: str, batch: int) -> None:
    models = {label: model.eval() for label, model in contestants(name).items()}
    images = torch.randn(batch, 3, 224, 224)
    seconds = {label: [] for label in models}
    for model in models.values():
        model(images)
    for _ in range(ROUNDS):
        for label in random.Random(len(seconds["timm"])).sample(list(models), len(models)):
            start = time.perf_counter()
            models[label](images)
            seconds[label].append(time.perf_counter() - start)
    base = statistics.median(seconds["timm"])
    print(f"\n{name}, batch {batch}: timm {batch / base:.1f} images/s")
    for label, own in seconds.items():
        print(f"  {label:28} {base / statistics.median(own):.2f}")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ratio of speed to timm, higher is faster")
    for name, batch in CASES:
        measure(name, batch)
