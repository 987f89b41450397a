"""Graphs with 8-bit dense layers: one scale per output of a weight, one scale per token of an activation.

A few tokens of a trained ViT carry activations a hundred times as large as the others, so a scale for a whole tensor
would round the others away. A scale per token also does not depend on the other images of a batch.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitlab.require import require

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

MICROSOFT = "com.microsoft"  # operators of ONNX Runtime
FEWEST_ROWS = 8  # tokens per image: a product of fewer takes no time worth saving, and rounding it costs accuracy
NOTHING = (
    f"engine 'onnxruntime-int8' rounds dense layers of {FEWEST_ROWS} tokens or more, and this model has none; "
    "use engine 'onnxruntime'"
)
SYMMETRIC, GELU = "symmetric", "gelu"  # where the zero of an activation lies
ZEROS = {SYMMETRIC: 128, GELU: 32}
STEPS = {SYMMETRIC: 127, GELU: 223}  # from zero to the largest activation of a token
SMALLEST = {SYMMETRIC: 1e-6, GELU: 1.2}  # largest activation of a token; GELU's least value, -0.17, is then in range


def quantise(path: Path) -> None:
    """Replace a graph, and the file of its weights, by one with 8-bit dense layers.

    The patch embedding, the head and the last layer's products for the tokens that the head reads stay in fp32. A model
    that has no other dense layers, or too few tokens for them, is a ValueError.
    """
    import onnx

    model = onnx.load(path)
    _quantise_products(model)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def _quantise_products(model: "ModelProto") -> None:
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {one.name: one for one in graph.initializer}
    makers = {name: node.op_type for node in graph.node for name in node.output}
    chosen = {node.output[0] for node in _products(graph)[1:]}  # the first is the patch embedding
    require(bool(chosen), NOTHING)
    nodes: list[NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.output[0] not in chosen:
            nodes.append(node)
            continue
        zero = GELU if makers.get(node.input[0]) == "Gelu" else SYMMETRIC
        weight, scales = rounded(numpy_helper.to_array(weights[node.input[1]]))
        constants |= {f"{node.output[0]}/weight": weight, f"{node.output[0]}/scales": scales}
        nodes += _product(node, zero)
    for zero in ZEROS:
        constants[f"{zero}/zero"] = np.array(ZEROS[zero], np.uint8)
        constants[f"{zero}/smallest"] = np.array(SMALLEST[zero], np.float32)
        constants[f"{zero}/step"] = np.array(1 / STEPS[zero], np.float32)
    constants |= {"one": np.array(1, np.float32), "last": np.array([-1])}
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [one for one in graph.initializer if one.name in read]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *(numpy_helper.from_array(array, name) for name, array in constants.items())])
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def rounded(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight (D, D') as 8-bit integers and a scale (D',) for each output.

    Processors without VNNI instructions add two neighbouring products in 16 bits and cut off what does not fit. The
    positive weights of such a pair add up to 128 at most here, and the negative ones too: 255 * 128 < 2**15.
    """
    pairs = np.pad(weight, ((0, len(weight) % 2), (0, 0))).reshape(-1, 2, weight.shape[1])
    sums = np.maximum(pairs.clip(min=0).sum(axis=1), -pairs.clip(max=0).sum(axis=1))  # (D/2, D')
    scales = np.maximum(sums.max(axis=0), 1e-12) / 127
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def _products(graph: "GraphProto") -> "list[NodeProto]":
    """The dense layers that are computed for many tokens."""
    weights = {one.name for one in graph.initializer if len(one.dims) == 2}
    shapes = {one.name: one.type.tensor_type.shape.dim for one in graph.value_info}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    return [node for node in products if shapes[node.input[0]][-2].dim_value >= FEWEST_ROWS]


def _product(node: "NodeProto", zero: str) -> "list[NodeProto]":
    """A dense layer (B, n, D) -> (B, n, D') by a product of integers."""
    from onnx import helper

    (x, _), y = node.input, node.output[0]
    make = helper.make_node
    sizes = [] if zero == GELU else [make("Abs", [x], [f"{y}/size"])]  # GELU's largest value is never negative
    return [
        *sizes,
        make("ReduceMax", [f"{y}/size" if sizes else x, "last"], [f"{y}/max"], keepdims=1),  # (B, n, 1)
        make("Max", [f"{y}/max", f"{zero}/smallest"], [f"{y}/largest"]),
        make("Mul", [f"{y}/largest", f"{zero}/step"], [f"{y}/row"]),
        make("Div", [x, f"{y}/row"], [f"{y}/scaled"]),
        make("QuantizeLinear", [f"{y}/scaled", "one", f"{zero}/zero"], [f"{y}/integers"]),  # (B, n, D)
        make(
            "MatMulIntegerToFloat",
            [f"{y}/integers", f"{y}/weight", "one", f"{y}/scales", f"{zero}/zero"],
            [f"{y}/product"],
            domain=MICROSOFT,
        ),
        make("Mul", [f"{y}/product", f"{y}/row"], [y]),  # (B, n, D')
    ]
