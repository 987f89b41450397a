"""The functions of each engine: what it computes a batch with, on all cores or on one."""

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitlab.engines.engine import OUTPUTS, Function, Output
from vitlab.engines.graphs import INPUT
from vitlab.models.build import Model
from vitlab.models.classifier import evaluating
from vitlab.spec import EngineName


def plain_function(model: Model) -> Function:
    """The model as it is, with every hook and change that it has."""

    def run(images: Tensor, output: Output) -> Tensor:
        with evaluating(model):
            return model(images) if output == "logits" else model.features(images)

    return run


def network_function(network: nn.Module) -> Function:
    """A network that returns features and logits, as `prepared` makes it."""
    return lambda images, output: network(images)[OUTPUTS.index(output)]


def onnxruntime_functions(graph: Path, threads: int) -> tuple[Function, Function]:
    """ONNX Runtime on all cores, and on one."""
    import onnxruntime

    building = threading.Lock()

    @cache
    def session(threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def function(threads: int) -> Function:
        def run(images: Tensor, output: Output) -> Tensor:
            with building:  # so that two streams do not build it twice
                own = session(threads)
            (found,) = own.run([output], {INPUT: images.contiguous().numpy()})
            return torch.from_numpy(found)

        return run

    return function(threads), function(1)


def openvino_functions(graph: Path, threads: int) -> tuple[Function, Function]:
    """OpenVINO on all cores, and on one."""
    import openvino

    core, building = openvino.Core(), threading.Lock()
    openvino.Type.f32.to_dtype()  # fills a table; two threads that come first at the same time would block each other

    @cache
    def compiled(streams: int) -> Any:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        settings["ENABLE_CPU_PINNING"] = False  # two models in a process would be given the same cores
        return core.compile_model(core.read_model(graph), "CPU", settings)

    def function(streams: int) -> Function:
        own = threading.local()  # a request computes one batch at a time

        def run(images: Tensor, output: Output) -> Tensor:
            if not hasattr(own, "request"):
                with building:  # so that two streams do not compile it twice
                    own.request = compiled(streams).create_infer_request()
            found = own.request.infer({INPUT: images.contiguous().numpy()}, share_inputs=True)
            return torch.from_numpy(found[output].copy())  # the request uses its memory again

        return run

    return function(1), function(threads)


class GraphEngine(NamedTuple):
    """An engine that runs a graph: its functions on all cores and on one, from a graph and the number of threads.

    `package` is the one that runs graphs, and the extra of vitlab that installs it. With `is_int8` the graph has 8-bit
    dense layers, so the logits are not those of the plain model.
    """

    functions: Callable[[Path, int], tuple[Function, Function]]
    package: str
    is_int8: bool = False


GRAPH_ENGINES: dict[EngineName, GraphEngine] = {
    "onnxruntime": GraphEngine(onnxruntime_functions, "onnxruntime"),
    "onnxruntime-int8": GraphEngine(onnxruntime_functions, "onnxruntime", is_int8=True),
    "openvino": GraphEngine(openvino_functions, "openvino"),
}


def is_inexact(engine: EngineName) -> bool:
    """Whether an engine gives other logits than the plain model, by more than rounding."""
    return engine in GRAPH_ENGINES and GRAPH_ENGINES[engine].is_int8
