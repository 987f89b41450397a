"""Traces as ONNX graphs: what they compute, and the weights that they share."""

import numpy as np
import pytest

from agreement import randomised
from families import FAMILIES
from vitlab.models.build import build_from_spec
from vitlab.page import graphs
from vitlab.page.graphs import WEIGHTS, check_graph, write_graphs
from vitlab.page.trace import Trace, at_size, shows_layers, trace

pytest.importorskip("onnxruntime")


def made(name):
    return randomised(build_from_spec(FAMILIES[name]))


def run(path, pixels, keep):
    """The outputs of a graph by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {"pixels": pixels.transpose(2, 0, 1)[None].astype(np.float32), "keep": keep[None].astype(np.float32)}
    taken = {one.name for one in session.get_inputs()}
    found = session.run(None, {name: value for name, value in given.items() if name in taken})
    return dict(zip((one.name for one in session.get_outputs()), found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ViT of timm", "mean pooling", "distilled DeiT", "hybrid", "relative positions", "BiT"]
)
def test_a_graph_computes_the_trace(name, tmp_path):
    model = made(name)
    (graph,) = write_graphs(model, [(32, 40)], tmp_path).values()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)
    keep = rng.random(20 if shows_layers(model.spec) else 0) < 0.5
    expected, found = trace(model, pixels, keep), run(tmp_path / graph, pixels, keep)
    for part in ("logits", "layer_logits", "attention", "tokens"):
        own = getattr(expected, part)
        assert found[part].shape == own.shape
        assert own.size == 0 or np.abs(found[part] - own).max() <= 1e-5 * np.abs(own).max()


@pytest.mark.slow
def test_graphs_of_several_sizes_share_their_weights_and_say_nothing_of_the_disk(tmp_path):
    model = made("ViT")
    names = write_graphs(model, [(32, 40), (48, 40)], tmp_path)
    assert names == {(32, 40): "32x40.onnx", (48, 40): "48x40.onnx"}
    own = sum(weight.numel() for weight in model.parameters()) * 4
    tables = sum(4 * at_size(model, size).positions.table.numel() for size in names)
    assert (tmp_path / WEIGHTS).stat().st_size < own + tables + 20_000  # few are stored apart, for their layout
    for name in names.values():
        text = (tmp_path / name).read_bytes()
        assert b".py" not in text
        assert b"stack_trace" not in text
    other = Trace(randomised(build_from_spec(FAMILIES["ViT"]), seed=1))
    with pytest.raises(ValueError, match=r"32x40\.onnx: logits of the graph differ"):
        check_graph(tmp_path / "32x40.onnx", other)


@pytest.mark.slow
def test_a_wrong_conversion_is_refused(tmp_path, monkeypatch):
    model, plain = made("ViT"), graphs._exported

    def wrong(traced):
        import onnx

        proto = plain(traced)
        for tensor in proto.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype == np.float32 and values.size > 500:
                tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(1.01), tensor.name))
        return proto

    monkeypatch.setattr(graphs, "_exported", wrong)
    with pytest.raises(ValueError, match="at most 1e-04 is allowed"):
        write_graphs(model, [(32, 40)], tmp_path)
