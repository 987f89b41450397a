"""Programs of torch.export from untrusted files: what vitlab writes opens, and nothing else does."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from agreement import randomised
from families import FAMILIES
from vitlab.artefacts.card import Card
from vitlab.artefacts.programs import GRAPH, _check_texts, open_program
from vitlab.artefacts.writing import write_torch
from vitlab.models.build import build_from_spec

LIST = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def write(family, path, outputs=("logits",)):
    model = randomised(build_from_spec(FAMILIES[family])).eval()
    names, texts = ("a", "b", "c", "d"), ("", "", "")
    write_torch(
        model,
        Card("vitlab-artefact", 1, "torch", "", model.spec, outputs, "single-label", names, *texts, False, {}, {}),
        path,
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The parts of a sound program, by name."""
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    write("ViT of timm", path)
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(parts, path, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(f"model/{name}", content)
    return path


class Touch:
    """Unpickles by creating a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def changed(parts, name, change):
    """The parts with a JSON file changed."""
    value = json.loads(parts[name])
    change(value)
    return parts | {name: json.dumps(value).encode()}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["merging", "hybrid", "Axial-ViT", "BigBird"])
def test_programs_with_every_output_open(family, tmp_path):
    write(family, tmp_path / "model.pt2", ("logits", "features", "attention", "tokens"))
    program = open_program(tmp_path / "model.pt2")
    with torch.inference_mode():
        assert program(torch.zeros(1, 50, 20, 3, dtype=torch.uint8))[0].shape == (1, 4)


SIDE = "Symbol('s1', positive=True, integer=True)"


@pytest.mark.parametrize("size", [SIDE, f"Mul(Integer(-96), {SIDE})", f"Add(Pow({SIDE}, Integer(2)), Integer(1))"])
def test_sizes_that_depend_on_the_input_are_plain(size):
    _check_texts({"expr_str": size})


@pytest.mark.parametrize(
    "size",
    [
        "Pow(Integer(9), Pow(Integer(9), Integer(99)))",
        f"Pow({SIDE}, Integer(99))",
        f"Pow(Pow({SIDE}, Integer(9)), Integer(9))",
        f"Pow({SIDE}, {SIDE})",
        f"Integer({'9' * 5000})",
        "Integer(9999999999999999999)",
        f"Add({', '.join(['Integer(1)'] * 100)})",
    ],
)
def test_sizes_that_take_long_to_evaluate_are_refused(size):
    with pytest.raises(ValueError, match=r"has a text that may be code"):
        _check_texts({"expr_str": size})


@pytest.mark.slow
class TestHostilePrograms:
    def test_torch_itself_would_run_the_code(self, parts, tmp_path):
        """The control: what is refused below is not harmless."""
        canary = tmp_path / "ran"
        hostile = packed(parts | {"data/sample_inputs/model.pt": saved(Touch(canary))}, tmp_path / "hostile.pt2")
        with pytest.raises((AssertionError, TypeError)):  # what torch says about the result, or its own log line
            torch.export.load(hostile)
        assert canary.exists()

    def test_pickles_are_refused_and_do_nothing(self, parts, tmp_path):
        canary = tmp_path / "ran"
        code, plain = saved(Touch(canary)), pickle.dumps(Touch(canary))

        def pickled(value):
            next(iter(value["config"].values())).update(use_pickle=True, path_name="weight_0", tensor_meta=None)

        def opaque(value):
            entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
            value["config"]["x"] = entry

        cases = {
            "example inputs": parts | {"data/sample_inputs/model.pt": code},
            "pickled tensor": changed(parts | {"data/weights/weight_0": code}, LIST, pickled),
            "old weights": parts | {"data/weights/model.pt": code},
            "old constants": parts | {"data/constants/model.pt": code},
            "no plain file": changed(parts, CONSTANTS, opaque),
            "opaque object": parts | {"data/constants/opaque_obj_0": plain},
        }
        for name, case in cases.items():
            with pytest.raises(ValueError, match=r"may run code|can run code|may contain code|in no plain file"):
                open_program(packed(case, tmp_path / f"{name}.pt2"))
        assert not canary.exists()

    @pytest.mark.parametrize(
        "target",
        [
            "torch.ops.aten.from_file.default",
            "torch.ops.higher_order.wrap",
            "_operator.attrgetter",
            "os.system",
            "torch.ops.aten..add",
            "builtins.exec.a.b.c",
        ],
    )
    def test_operators_that_no_model_has_are_refused(self, parts, target, tmp_path):
        def call(value):
            value["graph_module"]["graph"]["nodes"][0]["target"] = target

        with pytest.raises(ValueError, match=r"calls .*, which no program of vitlab does"):
            open_program(packed(changed(parts, GRAPH, call), tmp_path / "x.pt2"))

    @pytest.mark.parametrize(
        "text",
        [
            "__import__('os').system('true')",
            "(lambda: 0)()",
            "Symbol('s1', positive=True, integer=True).__class__",
            "exit()",
            '{"type": "os.system"}',
        ],
    )
    def test_texts_that_may_be_code_are_refused(self, parts, text, tmp_path):
        def write_size(value):
            values = value["graph_module"]["graph"]["tensor_values"]
            next(iter(values.values()))["sizes"] = [{"as_expr": {"expr_str": text, "hint": None}}]

        def write_guard(value):
            value["guards_code"] = [text]

        def write_note(value):
            value["graph_module"]["graph"]["nodes"][0]["metadata"] = {"stack_trace": "x"}

        for change in (write_size, write_guard, write_note):
            with pytest.raises(ValueError, match=r"code"):
                open_program(packed(changed(parts, GRAPH, change), tmp_path / "x.pt2"))

    def test_strange_archives_are_refused(self, parts, tmp_path):
        (tmp_path / "text.pt2").write_text("no archive")
        with pytest.raises(ValueError, match=r"no archive"):
            open_program(tmp_path / "text.pt2")
        with pytest.raises(ValueError, match=r"compressed"):
            open_program(packed(parts, tmp_path / "small.pt2", zipfile.ZIP_DEFLATED))
        with pytest.raises(ValueError, match=r"has no models/model.json"):
            open_program(packed({"byteorder": b"little"}, tmp_path / "empty.pt2"))
        with zipfile.ZipFile(tmp_path / "twice.pt2", "w") as archive:
            archive.writestr("model/byteorder", b"little")
            archive.writestr("other/byteorder", b"big")
        with pytest.raises(ValueError, match=r"there twice"):
            open_program(tmp_path / "twice.pt2")

        def enlarge(value):
            meta = next(iter(value["config"].values()))["tensor_meta"]
            meta["sizes"] = [{"as_int": 10**6}] * 2

        with pytest.raises(ValueError, match=r"cannot be opened by torch"):
            open_program(packed(changed(parts, LIST, enlarge), tmp_path / "large.pt2"))
