"""ONNX files from elsewhere are refused, with the reason."""

import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

import vitlab  # noqa: E402
from families import FAMILIES  # noqa: E402
from vitlab.artefacts.artefact import is_artefact, open_artefact  # noqa: E402
from vitlab.strict_json import to_json  # noqa: E402

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
        ({"card": None}, r"is not of vitlab export"),
        ({"card": CARD | {"version": 9}}, r"format version 9.*update vitlab"),
        ({"card": CARD | {"class_names": ["a"]}}, r"1 class names for 4 classes"),
        ({"card": CARD | {"outputs": []}}, r"lists no outputs"),
        ({"card": CARD | {"extra": 1}}, r"unknown keys \['extra'\]"),
        ({"domain": "evil.ops"}, r"has operators of \['evil.ops'\]"),
        ({"location": "../../secret"}, r"has weights outside its folder: \['../../secret'\]"),
        ({"location": "/etc/passwd"}, r"has weights outside its folder"),
    ],
)
def test_strange_graphs_are_refused(made, said, tmp_path):
    (tmp_path / "x.onnx").write_bytes(graph(**made).SerializeToString())
    with pytest.raises(ValueError, match=said):
        vitlab.predict(tmp_path / "x.onnx", [np.zeros((9, 9, 3), np.uint8)], quiet=True)


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
