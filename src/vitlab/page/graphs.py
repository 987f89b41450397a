"""The trace of a model as ONNX graphs, one per image size, that share one file of weights."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from vitlab.engines.graphs import traced_graph
from vitlab.models.build import Model, copied_model
from vitlab.page.trace import Trace, at_size
from vitlab.require import require

if TYPE_CHECKING:
    import onnx

INPUTS = ["pixels", "keep"]
OUTPUTS = ["logits", "layer_logits", "attention", "tokens"]
WEIGHTS = "weights.bin"
ALIGNMENT = 64  # bytes between the starts of weights
SMALLEST_SHARED = 1024  # bytes of a weight that is worth sharing
LARGEST_ERROR = 1e-4  # of a graph's outputs, relative to the largest number of each


def write_graphs(model: Model, sizes: Sequence[tuple[int, int]], folder: Path) -> dict[tuple[int, int], str]:
    """Write `HxW.onnx` for each size and the weights of all into one file; returns the names of the graphs.

    Every graph is run and compared with the model. Raises ValueError if one differs by more than LARGEST_ERROR.
    """
    import onnx

    model = copied_model(model.spec, model) if next(model.parameters()).dtype != torch.float32 else model
    names = {size: f"{size[0]}x{size[1]}.onnx" for size in sizes}
    with (folder / WEIGHTS).open("wb") as file:
        shared = Shared(file)
        for size, name in names.items():
            proto = _exported(Trace(at_size(model, size)))
            for tensor in proto.graph.initializer:
                shared.add(tensor)
            onnx.save_model(proto, folder / name)
    for size, name in names.items():
        check_graph(folder / name, Trace(at_size(model, size)))
    return names


class Shared:
    """A file of weights to which graphs refer; equal weights are written once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.places: dict[bytes, int] = {}

    def add(self, tensor: "onnx.TensorProto") -> None:
        """Move the values of a weight to the file, unless they are few."""
        import onnx
        from onnx.external_data_helper import set_external_data

        data = tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()
        if len(data) < SMALLEST_SHARED:
            return
        digest = hashlib.sha256(data).digest()
        if digest not in self.places:
            self.file.write(b"\0" * (-self.file.tell() % ALIGNMENT))
            self.places[digest] = self.file.tell()
            self.file.write(data)
        tensor.raw_data = data  # which set_external_data needs
        set_external_data(tensor, WEIGHTS, self.places[digest], len(data))
        tensor.ClearField("raw_data")


def _exported(traced: Trace) -> "onnx.ModelProto":
    """Convert a trace to ONNX, with its weights inside."""
    height, width = traced.model.spec.image
    examples = (torch.zeros(1, 3, height, width), torch.ones(1, traced.patches))
    return traced_graph(traced, dict(zip(INPUTS, examples, strict=True)), OUTPUTS)


def check_graph(path: Path, traced: Trace) -> None:
    """Raise ValueError unless a graph computes what the trace does, for a random picture with some patches left out."""
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (1, 3, *traced.model.spec.image), generator=generator).float()
    keep = (torch.rand(1, traced.patches, generator=generator) < 0.7).float()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    given = {name: value.numpy() for name, value in zip(INPUTS, (pixels, keep), strict=True) if name in taken}
    with torch.inference_mode():
        expected = traced(pixels, keep)
    outputs = [one.name for one in session.get_outputs()]
    found: dict[str, Any] = dict(zip(outputs, session.run(None, given), strict=True))
    for name, own in zip(OUTPUTS, expected, strict=True):
        far = distance(found[name], own.numpy()) if own.numel() else 0.0
        problem = f"{path.name}: {name} of the graph differ from the model's by {far:.1e}"
        require(far <= LARGEST_ERROR, f"{problem}; at most {LARGEST_ERROR:.0e} is allowed")


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """max|a-b| / max|b|."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
