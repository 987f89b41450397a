"""Other runtimes give the plain model's logits, from a graph that is converted once."""

import errno
import importlib.util
import json
import os
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

from agreement import disagreement, randomised
from families import FAMILIES, images
from vitlab.engines import choice, graphs, machine, making
from vitlab.engines.choice import fastest
from vitlab.engines.graphs import cached_graph
from vitlab.engines.opening import open_engine
from vitlab.files.store import write_folder
from vitlab.files.strict_json import parse_json
from vitlab.models.build import build_from_spec

INSTALLED = [name for name in ("onnxruntime", "openvino") if not making.missing_packages(name)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "engines"))
    return tmp_path / "engines"


@pytest.fixture
def model():
    return randomised(build_from_spec(FAMILIES["ViT"])).eval()


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_same_answers_at_any_batch(family):
    model = randomised(build_from_spec(FAMILIES[family])).eval()
    for name in INSTALLED:
        engine = open_engine(model, name)
        for batch in (1, 3, 8):
            with torch.inference_mode():
                assert disagreement(engine(images(batch)), model(images(batch))) <= 1e-5
                assert disagreement(engine.features(images(batch)), model.features(images(batch))) <= 1e-5


@pytest.mark.slow
@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="onnxruntime is not installed")
def test_a_graph_is_converted_once_and_again_if_it_is_damaged(model, own_cache, monkeypatch):
    path = cached_graph(model)
    written = path.stat().st_mtime_ns
    assert cached_graph(model) == path
    assert path.stat().st_mtime_ns == written
    content = path.read_bytes()
    assert b"stack_trace" not in content
    assert b".py" not in content
    path.write_bytes(content[:100] + b"x" + content[101:])
    assert cached_graph(model) == path
    assert path.stat().st_mtime_ns != written
    monkeypatch.setattr("vitlab.engines.graphs.LARGEST_CACHE", 1)
    model.reset_head(3)
    other = cached_graph(model)
    assert [folder.name for folder in own_cache.iterdir()] == [other.parent.name]  # the oldest are removed


def old_graphs(folder, number):
    """Folders as the cache has them, with files of one byte."""
    paths = [folder / f"{n:032x}" for n in range(number)]
    for age, path in enumerate(paths):
        path.mkdir(parents=True)
        (path / "graph.onnx").write_bytes(b"x")
        os.utime(path, (1000 + age, 1000 + age))
    return paths


def test_the_cache_keeps_what_other_processes_write_or_remove(own_cache, monkeypatch):
    monkeypatch.setattr(graphs, "LARGEST_CACHE", 2)
    paths = old_graphs(own_cache, 4)
    others = [own_cache / ".0123.tmp-77", own_cache / ".4567.old"]
    for other in others:
        other.mkdir()
        (other / "graph.onnx").write_bytes(b"x" * 100)
    graphs._shrink(own_cache)
    assert sorted(own_cache.iterdir()) == sorted([*paths[2:], *others])


def test_the_cache_keeps_what_is_no_graph(own_cache, monkeypatch):
    monkeypatch.setattr(graphs, "LARGEST_CACHE", 1)
    packing = own_cache / "packing"
    packing.mkdir(parents=True)
    (packing / "machine.json").write_text("{}")
    os.utime(packing, (1, 1))
    paths = old_graphs(own_cache, 3)
    graphs._shrink(own_cache)
    assert sorted(own_cache.iterdir()) == sorted([packing, paths[-1]])


@pytest.fixture
def unwritable(tmp_path, monkeypatch):
    """A cache below a file: not even root can write there."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "file"))


@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
def test_without_a_cache_auto_takes_torch_and_says_why(model, unwritable):
    engine = open_engine(model, "auto", batch=2)
    assert engine.name == "torch"
    assert "file, which cannot be written to" in engine.note
    assert engine(images(2)).shape == (2, model.spec.classes)


@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
def test_a_cache_that_cannot_be_written_to_is_named_before_a_model_is_converted(model, unwritable, monkeypatch):
    monkeypatch.setattr(graphs, "write_graph", None)
    with pytest.raises(
        OSError, match=r"file, which cannot be written to .*set VITLAB_ENGINE_CACHE to a folder"
    ) as told:
        open_engine(model, INSTALLED[0])
    assert "Errno" not in str(told.value)


def test_processes_may_shrink_the_cache_at_the_same_time(own_cache, monkeypatch):
    monkeypatch.setattr(graphs, "LARGEST_CACHE", 1)
    *_, newest = old_graphs(own_cache, 60)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(graphs._shrink, own_cache) for _ in range(8)]:
            done.result()
    assert newest in own_cache.iterdir()
    assert len([path for path in own_cache.iterdir() if not path.name.startswith(".")]) == 1


@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="onnxruntime is not installed")
def test_a_graph_that_another_process_has_finished_meanwhile_is_used(model, monkeypatch):
    def slower(path, files):
        write_folder(path, files)  # as the other process
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(graphs, "write_graph", lambda model, path: path.write_bytes(b"a graph"))
    monkeypatch.setattr(graphs, "write_folder", slower)
    assert cached_graph(model).read_bytes() == b"a graph"

    def full(path, files):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(graphs, "write_folder", full)
    model.reset_head(3)
    with pytest.raises(OSError, match="No space left"):
        cached_graph(model)


@pytest.mark.slow
@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="onnxruntime is not installed")
def test_a_graph_of_other_weights_is_refused(model, monkeypatch):
    other = cached_graph(randomised(build_from_spec(model.spec), seed=9))
    monkeypatch.setattr(making, "cached_graph", lambda model, is_int8: other)
    with pytest.raises(ValueError, match=r"engine 'onnxruntime' disagrees with the model: .*use engine 'torch'"):
        open_engine(model, "onnxruntime")


@pytest.mark.slow
@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="onnxruntime is not installed")
def test_a_fault_on_all_cores_or_on_one_is_refused(model, monkeypatch):
    right, faulty = making.GRAPH_ENGINES["onnxruntime"], lambda images, output: torch.zeros(len(images), 4)
    one = torch.zeros(1, 3, *model.spec.image)  # computed by all cores, which are checked before their first batch
    for place in (0, 1):

        def functions(graph, threads, place=place):
            made = list(right.functions(graph, threads))
            made[place] = faulty
            return tuple(made)

        monkeypatch.setitem(making.GRAPH_ENGINES, "onnxruntime", right._replace(functions=functions))
        with pytest.raises(ValueError, match="engine 'onnxruntime' disagrees with the model"):
            open_engine(deepcopy(model), "onnxruntime")(one)
    monkeypatch.setitem(making.GRAPH_ENGINES, "onnxruntime", right)
    assert open_engine(model, "onnxruntime")(one).shape == (1, model.spec.classes)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
def test_the_fastest_engine_is_measured_once(model, own_cache, monkeypatch):
    first = fastest(model, 4)
    (remembered,) = own_cache.glob("*.json")
    speeds = parse_json(remembered.read_text(), "speeds")
    assert set(speeds) == {"torch", *INSTALLED}
    assert all(speed > 0 and opening > 0 for speed, opening in speeds.values())
    assert first.note.startswith("auto: images/s in batches of 4: torch ")
    assert disagreement(first(images(4)), model(images(4)).detach()) <= 1e-5
    monkeypatch.setattr("vitlab.engines.choice._measure", None)
    again = fastest(model, 4)
    assert (again.name, again.note) == (first.name, first.note)
    remembered.write_text(json.dumps({"torch": [1.0, 0.1], INSTALLED[0]: [99.0, 2.0]}))
    assert fastest(model, 4).name == fastest(model, 4, images=3).name == INSTALLED[0]
    few = fastest(model, 4, images=1)
    assert few.name == "torch"
    assert few.note == (
        "auto: estimated time for 1 image in batches of 4: torch 1.10 s (opens in 0.10 s, 1.0 images/s), "
        f"{INSTALLED[0]} 2.01 s (opens in 2.00 s, 99.0 images/s)"
    )


@pytest.mark.parametrize(
    "damaged",
    [
        *("[]", '{"torch": 1.0}', '{"torch": [0.0, 1.0]}', '{"torch": [1.0]}', '{"torch": [1e999, 1.0]}'),
        *('{"torch": [1.0, 1.0], "openvino": [1000000.0, -50.0]}', '{"torch": [1.0, 1e999]}', '{"torch": [1.0, 1.0'),
    ],
)
def test_measurements_that_no_engine_can_have_are_made_again(damaged, tmp_path):
    (tmp_path / "speeds.json").write_text(damaged)
    assert choice._read(tmp_path / "speeds.json") is None


def remember(model, batch, speeds):
    """Write a measurement as `fastest` does."""
    names = [name for name in choice.CANDIDATES if not making.missing_packages(name)]
    path = graphs.cache_folder() / f"{choice._key(model, batch, names)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(speeds))


@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
@pytest.mark.parametrize("error", [OSError("read-only"), ImportError("no library"), Exception("of another library")])
def test_if_the_chosen_engine_cannot_be_opened_auto_is_torch_and_says_why(model, monkeypatch, error):
    def fail(*_, **__):
        raise error

    remember(model, 4, {"torch": [1.0, 0.1], INSTALLED[0]: [99.0, 0.1]})
    monkeypatch.setattr(making, "cached_graph", fail)
    engine = open_engine(model, "auto", batch=4)
    assert (engine.name, engine.note) == ("torch", f"auto: {INSTALLED[0]} cannot be opened: {error}")


@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
def test_an_engine_that_cannot_be_opened_now_is_measured_next_time(model, own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(making, "cached_graph", full)
    assert open_engine(model, "auto", batch=4).name == "torch"
    assert list(own_cache.glob("*.json")) == []


@pytest.mark.skipif(not INSTALLED, reason="neither onnxruntime nor openvino is installed")
def test_auto_keeps_no_engine_but_the_chosen_one(model):
    remember(model, 4, {"torch": [99.0, 0.1], INSTALLED[0]: [1.0, 0.1]})
    making._made.setdefault(model, {})[INSTALLED[0]] = (b"", making.make_engine(model, "torch"))  # as after measuring
    open_engine(model, "auto", batch=4)
    assert list(making._made[model]) == ["torch"]


def test_auto_says_why_a_model_with_hooks_is_called_as_it_is(model):
    model.blocks[0].register_forward_hook(lambda *_: None)
    engine = open_engine(model, "auto")
    assert engine.name == "plain"
    assert engine.note.startswith("auto: plain instead of torch: the model has hooks")


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [
        ({"torch": 1.0, "onnxruntime": 1.04, "openvino": 1.04}, "torch"),
        ({"torch": 1.0, "onnxruntime": 1.1, "openvino": 1.12}, "onnxruntime"),
        ({"torch": 1.0, "openvino": 1.1}, "openvino"),
        ({"torch": 1.0, "onnxruntime": 1.1, "openvino": 1.3}, "openvino"),
    ],
)
def test_an_engine_that_opens_later_must_be_clearly_faster(speeds, taken):
    assert choice._best({name: choice.Measured(speed, 0.0) for name, speed in speeds.items()}) == taken


@pytest.mark.parametrize(("images", "taken"), [(10, "torch"), (200, "torch"), (2_000, "openvino"), (None, "openvino")])
def test_an_engine_that_opens_slowly_is_for_many_images(images, taken):
    known = {"torch": choice.Measured(42.4, 0.1), "openvino": choice.Measured(48.6, 1.0)}
    assert choice._best(known, images) == taken


def test_speeds_of_another_processor_are_not_used(model, tmp_path, monkeypatch):
    keys = set()
    for number, name in enumerate(("model name\t: A 1\n", "model name\t: B 2\n", "no such line\n")):
        (tmp_path / f"cpuinfo-{number}").write_text(f"processor\t: 0\n{name}")
        monkeypatch.setattr(machine, "CPUINFO", tmp_path / f"cpuinfo-{number}")
        keys.add(choice._key(model, 4, ["torch"]))
    assert len(keys) == 3
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "nowhere")
    assert choice._key(model, 4, ["torch"]) in keys  # as without a name


def test_without_other_runtimes_auto_is_torch(model, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engine = open_engine(model, "auto")
    assert (engine.name, engine.note) == ("torch", "auto: no other engine is installed")
    with pytest.raises(ModuleNotFoundError, match=r"engine 'openvino' needs .*pip install 'vitlab\[openvino\]'"):
        open_engine(model, "openvino")


@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="onnxruntime is not installed")
def test_what_other_runtimes_cannot_compute_is_explained(model):
    with pytest.raises(ValueError, match=r"computes in float32 on the CPU, and the model is torch.float64 on cpu"):
        open_engine(model.double(), "onnxruntime")
    model.float().blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"hooks.*use engine 'plain' instead of 'onnxruntime'"):
        open_engine(model, "onnxruntime")
