"""Peak memory of a process that makes two steps of a model, with all that it imports, as a multiple of timm's.

Every measurement is a process of its own, and the figure its largest resident size (VmHWM). The second training step
has the optimizer's averages from the start. Libraries draw their own weights, so that a process holds one model.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.runner import Call, Case, Contestant

ROUNDS = 3
TRAINING = (
    *("timm", "torchvision", "Hugging Face", "vitlab, exact GELU", "vitlab, tanh GELU (paper)"),
    *("vitlab, exact GELU, streams", "vitlab, tanh GELU (paper), streams"),
)
INFERENCE = (
    *("timm", "torchvision", "Hugging Face", "vitlab, the module"),
    *("vitlab, engine torch", "vitlab, engine onnxruntime", "vitlab, engine openvino"),
)
INSPECTION = {"1 image": 1, "4 images": 4, "16 images": 16}


def cases(is_quick: bool) -> Iterator[Case]:
    from bench.suites import training

    for title in list(training.CASES)[1 if is_quick else 0 :]:
        yield _case(f"training: {title}", "training", title, TRAINING)
    for name in ("ViT-Ti/16",) if is_quick else ("ViT-Ti/16", "ViT-B/16"):
        yield _case(f"inference: {name}, batch 8", "inference", name, INFERENCE)
    if not is_quick:
        inspection = [Contestant(label, lambda n=number: lambda: _inspected(n)) for label, number in INSPECTION.items()]
        yield Case("vitlab inspect: ViT-Ti/16 at 384", inspection, unit="MB", is_reported=True)


def _case(title: str, kind: str, which: str, labels: tuple[str, ...]) -> Case:
    made = [Contestant(label, lambda label=label: lambda: _child(kind, which, label)) for label in labels]
    return Case(title, made, unit="MB", is_reported=True)


def _child(kind: str, which: str, label: str) -> float:
    command = [sys.executable, "-m", "bench.suites.memory", kind, which, label]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def _inspected(number: int) -> float:
    from bench.experiments.inspect_memory import peak

    return peak("ViT-Ti/16", number)[0] / 1e6


# -- In the child ----------------------------------------------------------------------------------


def training_call(title: str, label: str) -> Call:
    from bench.suites import training

    return {name: make for name, make, _ in training.contestants(*training.CASES[title], is_fresh=True)}[label]()


def inference_call(name: str, label: str) -> Call:
    import torch

    from bench import libraries
    from bench.suites.inference import spec_of, without_gradients
    from vitlab.models.build import build_from_spec

    spec, images = spec_of(name), torch.randn(8, 3, 224, 224)
    forwards: dict[str, Callable] = {
        "timm": lambda: libraries.fresh_timm(spec).eval(),
        "torchvision": lambda: libraries.fresh_torchvision(spec).eval(),
        "Hugging Face": lambda: libraries.fresh_hugging_face(spec).eval(),
        "vitlab, the module": lambda: build_from_spec(spec).eval(),
    }
    engine = label.removeprefix("vitlab, engine ")
    make = forwards.get(label) or (lambda: libraries.engine_forward(build_from_spec(spec).eval(), engine, images))
    return without_gradients(make(), images)


def resident() -> float:
    """MB at most so far in this process alone; a peak from `getrusage` would start at the parent's."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    kind, which, label = sys.argv[1:]
    call = {"training": training_call, "inference": inference_call}[kind](which, label)
    for _ in range(2):
        call()
    print(resident())
