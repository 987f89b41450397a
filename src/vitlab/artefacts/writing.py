"""Write a model and its preprocessing as a graph that other programs run."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitlab.artefacts.card import FILES, INPUT, Card
from vitlab.artefacts.network import PLAIN, Outputs
from vitlab.artefacts.preprocessing import Preprocess
from vitlab.engines.graphs import INPUT as IMAGES
from vitlab.engines.graphs import cached_graph, quiet, traced_graph
from vitlab.files.strict_json import to_json
from vitlab.models.build import Model
from vitlab.spec.pixels import Preprocessing

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

LARGEST_SINGLE = 2**30  # bytes of weights inside an ONNX file; those of a larger model have a file of their own
SIDES = {0: "batch", 1: "height", 2: "width"}  # of the pictures, that may have any length
EXAMPLE = (2, 48, 56, 3)  # pictures to trace with; a side of 1 would be taken as fixed


def write_artefact(model: Model, card: Card, folder: Path) -> None:
    """Write the files of the card's target into a folder."""
    path = folder / FILES[card.target]
    if card.target == "torch":
        write_torch(model, card, path)
    elif card.target == "onnx":
        write_onnx(model, card, path)
    else:
        write_openvino(model, card, path)


def write_onnx(model: Model, card: Card, path: Path, precision: torch.dtype = torch.float64) -> None:
    """Write an ONNX graph that states its card, class names and task; large weights go into a file beside it."""
    import onnx

    first = onnx.load_from_string(_preprocessing(model.spec.conventions.preprocessing, model.spec.image, precision))
    graph = _joined(first, _model_graph(model, card))
    texts = {"vitlab": to_json(card), "class_names": card.class_names}
    texts = {name: json.dumps(value, ensure_ascii=True, allow_nan=False) for name, value in texts.items()}
    onnx.helper.set_model_props(graph, texts | {"task": card.task, "preprocessing": card.preprocessing})
    is_large = sum(len(one.raw_data) for one in graph.graph.initializer) > LARGEST_SINGLE
    onnx.save(graph, path, save_as_external_data=is_large, location=f"{path.name}.data")


def _model_graph(model: Model, card: Card) -> "ModelProto":
    """The graph from images to the outputs; without attention and tokens it is the one that engines run."""
    import onnx

    if not set(card.outputs) <= set(PLAIN):
        images = torch.zeros(2, 3, *model.spec.image)
        return traced_graph(Outputs(model, card.outputs), {IMAGES: images}, card.outputs, {0: "batch"})
    graph = onnx.load(cached_graph(model, is_int8=card.int8))
    offered = {one.name: one for one in graph.graph.output}
    del graph.graph.output[:]
    graph.graph.output.extend(offered[name] for name in card.outputs)
    return graph


@cache
def _preprocessing(how: Preprocessing, size: tuple[int, int], precision: torch.dtype) -> bytes:
    """The graph from pictures to images, which is the same for many models."""
    example = torch.zeros(EXAMPLE, dtype=torch.uint8)
    return traced_graph(Preprocess(how, size, precision), {INPUT: example}, (IMAGES,), SIDES).SerializeToString()


def _joined(first: "ModelProto", second: "ModelProto") -> "ModelProto":
    """The second graph with the first in front of it; the output of one is the input of the other."""
    from onnx import compose

    joined = compose.add_prefix(second, "model/", rename_inputs=False, rename_outputs=False, inplace=True)
    nodes = [*first.graph.node, *joined.graph.node]
    del joined.graph.node[:], joined.graph.input[:], joined.graph.value_info[:]
    joined.graph.node.extend(nodes)
    joined.graph.initializer.extend(first.graph.initializer)
    joined.graph.input.extend(first.graph.input)
    return joined


def write_openvino(model: Model, card: Card, path: Path) -> None:
    """Write OpenVINO's .xml and .bin in float32; its CPU plug-in computes float64 as float32."""
    import openvino

    with TemporaryDirectory() as scratch:
        graph = Path(scratch) / FILES["onnx"]
        write_onnx(model, card, graph, torch.float32)
        openvino.save_model(openvino.convert_model(graph), path, compress_to_fp16=False)


def write_torch(model: Model, card: Card, path: Path) -> None:
    """Write a program of torch.export."""
    how = model.spec.conventions.preprocessing
    network = nn.Sequential(Preprocess(how, model.spec.image), Outputs(model, card.outputs)).requires_grad_(False)
    sides = {place: torch.export.Dim(side, min=1) for place, side in SIDES.items()}
    with quiet(), torch.no_grad():
        program = torch.export.export(network, (torch.zeros(EXAMPLE, dtype=torch.uint8),), dynamic_shapes=(sides,))
        _strip(program)
        torch.export.save(program, path)


def _strip(program: "ExportedProgram") -> None:
    """Remove what no run needs: notes on source files, example inputs, and guards, which are Python code."""
    program._example_inputs, program._guards_code = None, []  # pyrefly: ignore
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta = {name: value for name, value in node.meta.items() if name == "val"}
