"""An engine gives the plain model's answers at any batch size, and notices when the weights change."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from agreement import disagreement, randomised
from families import FAMILIES, images
from vitlab import load_model, preprocess
from vitlab.engines.agreement import agreement_of
from vitlab.engines.engine import CHUNK, Engine
from vitlab.engines.making import missing_packages
from vitlab.engines.opening import open_engine
from vitlab.engines.streams import Streams
from vitlab.models.build import build_from_spec


@pytest.fixture
def model():
    return randomised(build_from_spec(FAMILIES["ViT"])).eval()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def on_streams(function, number):
    return Engine("torch", function, function, streams=Streams(number))


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 8, 33])
def test_any_batch_gives_the_same_logits_and_features_in_order(model, two_threads, batch):
    engine = open_engine(model)
    given = torch.cat([images(1) * scale for scale in torch.linspace(-2, 2, batch)]) if batch else images(1)[:0]
    with torch.inference_mode():
        expected, features = model(given), model.features(given)
    assert engine(given).shape == expected.shape
    if batch:
        assert disagreement(engine(given), expected) <= 2e-6
        assert disagreement(engine.features(given), features) <= 2e-6


def test_the_streams_are_single_threaded_and_the_caller_keeps_its_threads(two_threads):
    seen = []

    def function(given, output):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return given

    on_streams(function, 2)(torch.zeros(4 * CHUNK, 3, 1, 1))
    assert {threads for _, threads in seen} == {1}
    assert all(name.startswith("vitlab-stream") for name, _ in seen)
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]  # a stream's setting is not the default of other threads


def test_callers_in_several_threads_share_one_pool():
    seen = set()

    def function(given, output):
        seen.add(threading.current_thread())
        return given

    engine, ready = on_streams(function, 2), threading.Barrier(8)

    def call():
        ready.wait()
        engine(torch.zeros(4 * CHUNK, 3, 1, 1))

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(seen) <= 2


def test_a_batch_has_the_same_bits_on_any_number_of_streams():
    model = randomised(build_from_spec(FAMILIES["ViT"])).eval()

    def function(given, output):
        return model(given)

    given = images(8 * CHUNK)
    first, *others = (on_streams(function, number)(given) for number in (2, 3, 4, 8))
    assert all(torch.equal(first, other) for other in others)


def test_a_batch_that_would_leave_streams_idle_is_computed_by_all_cores_together():
    sizes = []

    def function(given, output):
        sizes.append(len(given))
        return given

    for batch in (1, 3, 4, 8, 9):
        on_streams(function, 2)(torch.zeros(batch, 3, 1, 1))
    assert sorted(sizes) == sorted([1, 2, 1, 2, 2, 4, 4, 9])


def test_an_error_in_a_stream_reaches_the_caller():
    def function(given, output):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        on_streams(function, 2)(torch.zeros(8, 3, 1, 1))


def test_a_stream_that_cannot_start_is_an_error_and_the_process_ends():
    """In a process of its own: streams that have started would wait at its exit for the one that has not."""
    code = (
        "import threading, torch\n"
        "from vitlab.engines.streams import Streams\n"
        "start, started = threading.Thread.start, []\n"
        "def limited(thread):\n"
        "    if started:\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    started.append(thread)\n"
        "    start(thread)\n"
        "threading.Thread.start = limited\n"
        "Streams(3).submit(abs, [1, 2])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "can't start new thread" in ended.stderr


def changes(model):
    weight = model.blocks[0].attention.out.weight
    yield "one weight by a rounding error", lambda: weight.data[3, 11].add_(1e-6)
    yield "in place", lambda: weight.detach().mul_(1.5)
    yield "behind the version counter", lambda: weight.data[:, 7:9].zero_()
    yield "exchanged rows", lambda: weight.data.copy_(weight.data.flip(0))
    yield "a state dict", lambda: model.load_state_dict(randomised(build_from_spec(model.spec), 5).state_dict())
    yield "another head", lambda: model.reset_head(3)


def test_an_engine_is_kept_until_the_weights_change(model):
    first = open_engine(model)
    assert open_engine(model) is first
    for what, change in changes(model):
        before = open_engine(model)
        change()
        after = open_engine(model)
        assert after is not before, what
        with torch.inference_mode():
            expected = model(images(3))
        if expected.abs().max():
            assert disagreement(after(images(3)), expected) <= 2e-6, what


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["packed", "not packed"])
@pytest.mark.parametrize(
    "family", ["ViT", "shared 1d positions", "merging, distilled", "windows", "hybrid", "BiT", "Axial-ViT", "Swin"]
)
def test_a_held_engine_computes_with_the_weights_it_was_opened_with(family, dtype):
    model = randomised(build_from_spec(FAMILIES[family])).to(dtype)
    held, given = open_engine(model), images(3).to(dtype)
    before = held(given), held.features(given)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)  # as the step of an optimizer: in place
    assert torch.equal(held(given), before[0])
    assert torch.equal(held.features(given), before[1])
    with torch.inference_mode():
        expected = model(given)
    assert disagreement(expected, before[0]) > 0.01
    assert disagreement(open_engine(model)(given), expected) <= 2e-6


def test_a_held_engine_does_not_keep_the_weights_that_it_has_packed(model):
    weights = [
        StorageWeakRef(weight.untyped_storage())
        for name, weight in model.named_parameters()
        if weight.dim() > 1 and name.startswith(("patches", "blocks"))
    ]
    held = open_engine(model)
    before = held(images(3))
    model.load_state_dict(randomised(build_from_spec(model.spec), 5).state_dict(), assign=True)
    gc.collect()
    assert [weight.expired() for weight in weights] == [True] * (1 + 4 * model.spec.layers)
    assert torch.equal(held(images(3)), before)


def test_a_model_goes_away_with_its_engines():
    model = build_from_spec(FAMILIES["ViT"])
    open_engine(model)(images(3))
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


def test_a_model_with_hooks_is_called_as_it_is(model):
    seen = []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    engine = open_engine(model)
    engine(images(3))
    assert seen
    assert engine.name == "plain"
    assert "hooks" in engine.note


def test_a_changed_setting_of_a_part_is_computed_although_no_weight_changed(model):
    before = open_engine(model)
    model.layers[0].norm1.eps = 0.5
    engine = open_engine(model)
    assert engine is not before
    assert "changed settings" in engine.note
    with torch.inference_mode():
        assert torch.equal(engine(images(3)), model(images(3)))
    with pytest.raises(ValueError, match="changed settings"):
        open_engine(model, "onnxruntime")


def test_the_mode_of_the_model_is_kept():
    model = randomised(build_from_spec(FAMILIES["ViT in training"])).train()
    with torch.inference_mode():
        expected = model.eval()(images(3))
    model.train()
    for name in ("plain", "torch"):
        assert disagreement(open_engine(model, name)(images(3)), expected) <= 2e-6
        assert model.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_kept(model, dtype):
    engine = open_engine(model.to(dtype))
    assert engine(images(5)).dtype == dtype


def test_a_wrong_name_or_model_is_explained(model):
    with pytest.raises(ValueError, match="engine is 'onnx'; expected 'torch', 'plain'"):
        open_engine(model, "onnx")
    with pytest.raises(ValueError, match="batch 0 must be at least 1"):
        open_engine(model, batch=0)
    with pytest.raises(ValueError, match="model is a Linear"):
        open_engine(torch.nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's own modules
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("family", ["ViT", "merging, distilled"])
def test_compiled_gives_the_logits_and_features_of_the_plain_model(family):
    model = randomised(build_from_spec(FAMILIES[family])).eval()
    engine = open_engine(model, "compiled")
    assert engine.name == "compiled"
    for batch in (1, 3):
        with torch.inference_mode():
            assert disagreement(engine(images(batch)), model(images(batch))) <= 1e-5
            assert disagreement(engine.features(images(batch)), model.features(images(batch))) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino"])
def test_exact_engines_have_the_same_top_1_on_all_photographs(name, reference, photographs, tmp_path, monkeypatch):
    if why := missing_packages(name):
        pytest.skip(why)
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path))
    model, given, expected = photographs
    found = agreement_of(open_engine(model, name)(given), expected)
    assert found.images == 200
    assert found.is_exact, found


@pytest.fixture(scope="module")
def photographs(reference):
    """ViT-Ti/16 with the released weights, 200 photographs as its inputs, and the plain model's logits for them."""
    model = load_model(reference / "weights" / "ViT-Ti_16-augreg-in1k-224.npz", conventions="timm")
    given = preprocess(model, sorted(map(str, (reference / "imagenet_val_200").glob("*.JPEG"))))
    plain = open_engine(model, "plain")
    return model, given, torch.cat([plain(part) for part in given.split(25)])


@pytest.mark.slow
def test_two_streams_may_be_the_first_to_call_openvino(tmp_path):
    """In a process of its own, where nothing has called it before: without care they wait for each other forever."""
    pytest.importorskip("openvino", reason="pip install 'vitlab[openvino]'")
    code = (
        "import torch; torch.set_num_threads(2)\n"
        "import vitlab\n"
        "from vitlab.models.build import build_from_spec\n"
        "from vitlab.spec import ViTSpec\n"
        "model = build_from_spec(ViTSpec(4, 1, 24, 40, 3, (16, 16), 5)).eval()\n"
        "assert vitlab.open_engine(model, 'openvino')(torch.zeros(8, 3, 16, 16)).shape == (8, 5)\n"
    )
    environment = os.environ | {"VITLAB_ENGINE_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


@pytest.mark.parametrize("name", ["torch", "plain", "onnxruntime", "openvino"])
def test_images_of_another_shape_are_refused_as_they_were_given(name, model, tmp_path, monkeypatch):
    if why := missing_packages(name):
        pytest.skip(why)
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path))
    engine = open_engine(model, name)
    with pytest.raises(ValueError, match="images are 48x40, this model expects 32x40; resize them"):
        engine(torch.zeros(8, 3, 48, 40))
    with pytest.raises(ValueError, match=r"images must be \(B, 3, H, W\), not \(8, 1, 32, 40\)"):
        engine.features(torch.zeros(8, 1, 32, 40))


@pytest.mark.parametrize(
    ("given", "said"), [(torch.zeros(3, 16, 16), r"not \(3, 16, 16\)"), ("cat.jpg", "not str"), (None, "not NoneType")]
)
def test_what_is_no_batch_is_named_as_it_was_given(given, said):
    engine = open_engine(build_from_spec(next(iter(FAMILIES.values()))), "torch")
    for call in (engine, engine.features):
        with pytest.raises(ValueError, match=said):
            call(given)
