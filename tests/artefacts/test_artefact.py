"""Artefacts from elsewhere are refused, with the reason, and those with other weights have another fingerprint."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

import vitlab  # noqa: E402
from families import FAMILIES  # noqa: E402
from vitlab.artefacts.artefact import is_artefact, open_artefact  # noqa: E402
from vitlab.files.store import write_folder  # noqa: E402
from vitlab.files.strict_json import to_json  # noqa: E402

CARD = {
    "format": "vitlab-artefact",
    "version": 1,
    "target": "onnx",
    "name": "x",
    "outputs": ["logits"],
    "task": "single-label",
    "class_names": ["a", "b", "c", "d"],
    "class_names_from": "",
    "input": "",
    "preprocessing": "",
    "int8": False,
    "provenance": {},
    "versions": {},
    "model": to_json(FAMILIES["ViT"]),
}


def graph(card=CARD, domain="", location=""):
    """A graph that returns zeros."""
    make, kinds = onnx.helper, onnx.TensorProto
    weights = onnx.numpy_helper.from_array(np.zeros((1, 4), np.float32), "zeros")
    if location:
        onnx.external_data_helper.set_external_data(weights, location)
        weights.ClearField("raw_data")
    node = make.make_node("Identity", ["zeros"], ["logits"], domain=domain)
    inputs = [make.make_tensor_value_info("pictures", kinds.UINT8, ["b", "h", "w", 3])]
    outputs = [make.make_tensor_value_info("logits", kinds.FLOAT, ["b", 4])]
    opsets = [make.make_opsetid("", 18)]
    plain = make.make_graph([node], "x", inputs, outputs, [weights])
    made = make.make_model(plain, opset_imports=opsets, ir_version=10)
    if card is not None:
        make.set_model_props(made, {"vitlab": json.dumps(card, allow_nan=False)})
    return made


def test_a_plain_graph_opens(tmp_path):
    (tmp_path / "x.onnx").write_bytes(graph().SerializeToString())
    assert is_artefact(tmp_path / "x.onnx")
    assert open_artefact(tmp_path / "x.onnx").card.class_names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"card": None}, r"x.onnx: was not written by vitlab export"),
        ({"card": CARD | {"version": 9}}, r"format version 9.*update vitlab"),
        ({"card": CARD | {"class_names": ["a"]}}, r"1 class names for 4 classes"),
        ({"card": CARD | {"outputs": []}}, r"lists no outputs"),
        ({"card": CARD | {"extra": 1}}, r"unknown keys \['extra'\]"),
        ({"domain": "evil.ops"}, r"has operators of \['evil.ops'\]"),
        ({"location": "../../secret"}, r"has weights outside its folder: \['../../secret'\]"),
        ({"location": "/etc/passwd"}, r"has weights outside its folder"),
        (
            {"location": "model.onnx.data"},
            r"has weights in \['model.onnx.data'\], which cannot be checked; give the folder",
        ),
        ({"card": CARD | {"target": "torch"}}, r"with the card of an artefact for torch"),
    ],
)
def test_strange_graphs_are_refused(made, said, tmp_path):
    (tmp_path / "x.onnx").write_bytes(graph(**made).SerializeToString())
    with pytest.raises(ValueError, match=said):
        vitlab.predict(tmp_path / "x.onnx", [np.zeros((9, 9, 3), np.uint8)], quiet=True)


def in_a_branch(made, node):
    """Move a node into a branch of an If."""
    make, kinds = onnx.helper, onnx.TensorProto
    outputs = [make.make_tensor_value_info("inside", kinds.FLOAT, [1, 4])]
    branch = make.make_graph([node], "branch", [], outputs)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    choice = make.make_node("If", ["yes"], ["either"], then_branch=branch, else_branch=branch)
    made.graph.node.append(choice)


def outside(tensor):
    onnx.external_data_helper.set_external_data(tensor, "../secret")
    tensor.ClearField("raw_data")
    return tensor


def zeros():
    return onnx.numpy_helper.from_array(np.zeros((1, 4), np.float32), "more")


def strange_branch(made):
    in_a_branch(made, onnx.helper.make_node("Steal", ["zeros"], ["inside"], domain="evil.ops"))


def constant_in_a_branch(made):
    in_a_branch(made, onnx.helper.make_node("Constant", [], ["inside"], value=outside(zeros())))


def sparse(made):
    values = outside(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "more"))
    indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "places")
    made.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))


def function(made):
    made.functions.append(onnx.helper.make_function("", "F", ["a"], ["b"], [], []))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (strange_branch, r"has operators of \['evil.ops'\]"),
        (constant_in_a_branch, r"has weights outside its folder: \['../secret'\]"),
        (sparse, r"has weights outside its folder: \['../secret'\]"),
        (function, r"has functions, which vitlab does not write"),
    ],
)
def test_strange_parts_are_found_wherever_they_are(change, said, tmp_path):
    made = graph()
    change(made)
    (tmp_path / "x.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ValueError, match=said):
        open_artefact(tmp_path / "x.onnx")


def undefined_input(made):
    made.graph.node[0].input[0] = "nowhere"


def unknown_operator(made):
    made.graph.node[0].op_type = "Nonsense"


def other_classes(made):
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 5), np.float32), "zeros"))
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5


def other_input(made):
    made.graph.input[0].name = "images"


def other_output(made):
    made.graph.output[0].name = made.graph.node[0].output[0] = "features"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (undefined_input, r"x.onnx: cannot be opened by ONNX Runtime: .*nowhere"),
        (unknown_operator, r"x.onnx: cannot be opened by ONNX Runtime: .*Nonsense"),
        (other_classes, r"x.onnx: returns logits \(1, 5\) for one picture, where artefact.json promises \(1, 4\)"),
        (other_input, r"x.onnx: cannot be run by onnxruntime: .*pictures"),
        (other_output, r"x.onnx: cannot be run by onnxruntime: .*logits"),
    ],
)
def test_a_graph_that_does_not_fit_its_card_is_refused_when_it_is_opened(change, said, tmp_path):
    made = graph()
    change(made)
    (tmp_path / "x.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ValueError, match=said):
        open_artefact(tmp_path / "x.onnx")


def folder_with(weights, path):
    """A folder whose graph has its weights in a file of their own."""
    files = {
        "artefact.json": json.dumps(CARD, allow_nan=False).encode(),
        "model.onnx": graph(location="model.onnx.data").SerializeToString(),
        "model.onnx.data": np.array(weights, np.float32).tobytes(),
    }
    write_folder(path, {name: partial(Path.write_bytes, data=content) for name, content in files.items()})
    return path


def test_an_artefact_with_other_weights_is_evaluated_again(tmp_path):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "photos" / "a" / "0.png")
    given = (f"folder:{tmp_path / 'photos'}", tmp_path / "out")
    scores, fingerprints = [], []
    for weights in ([9, 0, 0, 0], [0, 9, 0, 0]):
        folder = folder_with(weights, tmp_path / "model")
        fingerprints.append(open_artefact(folder).fingerprint)
        scores.append(vitlab.evaluate(folder, *given, batch=1, workers=0, quiet=True).rows[0].scores.top1)
        shutil.rmtree(folder)
    assert fingerprints[0] != fingerprints[1]
    assert scores == [1.0, 0.0]


def test_weights_that_the_manifest_does_not_list_are_refused(tmp_path):
    folder = folder_with([0, 0, 0, 0], tmp_path / "model")
    listed = json.loads((folder / "manifest.json").read_text())
    del listed["model.onnx.data"]
    (folder / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"has weights in \['model.onnx.data'\], which cannot be checked"):
        open_artefact(folder)


@pytest.mark.parametrize("content", [b"", b"text", b"\x80\x02]q\x00.", b"\x08" * 1000])
def test_files_that_are_no_graphs_are_refused(content, tmp_path):
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(ValueError, match=r"x.onnx"):
        open_artefact(tmp_path / "x.onnx")


def test_other_files_need_their_folder(tmp_path):
    for name in ("model.xml", "model.pt2"):
        (tmp_path / name).write_bytes(b"<?xml")
        with pytest.raises(ValueError, match=r"has no artefact.json beside it; give the folder"):
            open_artefact(tmp_path / name)


def test_other_paths_are_no_artefacts(tmp_path):
    assert not is_artefact(tmp_path)
    assert not is_artefact("nowhere.onnx")
    assert not is_artefact("a\0b")
    assert not is_artefact(b"x.onnx")
