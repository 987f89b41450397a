"""What the documents say is what the code does."""

import importlib.util
import inspect
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import vitlab
from test_house import LAZY, MAY_IMPORT
from vitlab.cli import COMMANDS, DATA_COMMANDS, main
from vitlab.commands.flags import RECIPE_FIELDS
from vitlab.data.sources.catalogue import open_source
from vitlab.models.build import build_from_spec
from vitlab.paper.models import model_spec
from vitlab.recipe import Execution
from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.weights.released.catalogue import find_release

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_models_of_the_readme_are_those_of_the_code():
    expected = []
    for name in vitlab.list_models():
        spec = model_spec(name)
        layers = spec.layers if isinstance(spec, ViTSpec) else sum(spec.stages)
        heads = getattr(spec, "heads", "-")
        linear = vitlab.count(name, head="linear")
        parameters = f"{linear.parameters:,}"
        if isinstance(spec, ViTSpec) and not spec.distilled and "DeiT" not in name:
            parameters += f" / {vitlab.count(name, head='mlp').parameters:,}"
        expected.append(f"| {name} | {layers} | {spec.width} | {heads} | {parameters} | {linear.macs / 1e9:,.2f} |")
    readme = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- models -->\n(.*?)<!-- /models -->", readme, re.DOTALL)[1]
    assert table.strip().splitlines()[2:] == expected


def test_the_tables_of_the_page_on_scale_are_those_of_the_model():
    spec = importlib.util.spec_from_file_location("scale", ROOT / "bench" / "scale.py")
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    page = (ROOT / "docs" / "scale.md").read_text()
    printed = re.search(r"<!-- tables -->\n(.*?)<!-- /tables -->", page, re.DOTALL)[1]
    assert printed.strip() == "\n".join(scale.tables()).strip()


def test_the_accuracy_of_the_readme_names_the_conventions_it_was_measured_with():
    (row,) = [line for line in (ROOT / "README.md").read_text().splitlines() if "(77.0 %)" in line]
    timm, deit = CONVENTIONS["timm"], CONVENTIONS["deit"]
    for how in (timm, deit):
        assert f"{int(224 / how.preprocessing.fraction)}" in row
    for said in ("200 ImageNet", timm.preprocessing.interpolation, "shorter side", "crop 224", f"{timm.gelu} GELU"):
        assert said in row


def test_the_readme_names_every_command():
    readme = (ROOT / "README.md").read_text()
    assert all(f"`vitlab {command}" in readme for command in COMMANDS)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vitlab.save_model(vitlab.build_model("ViT-Ti/16", image=64), "B_16.npz", "google-npz")
    for code in re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(code, {})  # our own README
    assert vitlab.load_model("out/").spec.image == (384, 384)


OF_TORCHRUN = {"nproc-per-node", "max-restarts"}


def test_every_flag_of_the_readme_exists():
    commands = [*COMMANDS.values(), *DATA_COMMANDS.values()]
    known = {name for command in commands for name in inspect.signature(command).parameters}
    flags = re.findall(r"(?<![\w-])--([a-z][\w.-]*)", (ROOT / "README.md").read_text())
    assert "max-bad" in flags
    for flag in flags:
        name = flag.replace("-", "_").partition(".")[0]
        assert name in known | RECIPE_FIELDS | set(Execution.__annotations__) or flag in OF_TORCHRUN, flag


def readme_commands() -> list[list[str]]:
    """The words of every line of a ```sh block, without the comments."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture
def what_the_readme_has(tmp_path, tiny_spec):
    """Small things by the names of the README: weights, folders of photographs, a cat, what the demo leaves."""
    start = build_from_spec(replace(tiny_spec, image=(32, 32), patch=16))
    vitlab.save_model(start, tmp_path / "B_16.npz", "google-npz")
    vitlab.save_model(start, tmp_path / "cache" / find_release("augreg-Ti_16-i1k-224").file, "google-npz")
    shapes = open_source("shapes?classes=2&images=24&size=40")
    for number in range(24):
        sample = shapes.item(number)
        folder = tmp_path / ("photos" if number < 12 else "test-photos") / ("cat", "dog")[sample.labels[0]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.data).save(folder / f"{number}.png")
    Image.fromarray(shapes.item(0).data).save(tmp_path / "cat.jpg")
    vitlab.save_model(start, tmp_path / "demo-out" / "2-fine-tuned" / "model")
    Image.fromarray(shapes.item(0).data).save(tmp_path / "demo-out" / "digit-0-is-5.png")
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_readme_run(what_the_readme_has, monkeypatch):
    monkeypatch.chdir(what_the_readme_has)
    monkeypatch.setenv("VITLAB_CACHE", "cache")
    for program, *words in readme_commands():
        if program == "make":  # CI runs these; here they only have to exist
            assert re.search(rf"^{words[0]}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        else:
            assert program.removeprefix(".venv/bin/") == "vitlab"
            assert main(words) == 0, shlex.join(words)
    assert vitlab.load_model("runs/photos/model").class_names == ("cat", "dog")
    assert Path("inside/report.html").exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_and_test_files_exist(document):
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (document.parent / link).exists(), link
    for name in re.findall(r"`(tests/[\w/]+\.py)", text):
        assert (ROOT / name).exists(), name


def test_the_import_table_of_the_tour_is_the_one_that_is_enforced():
    rows = re.findall(
        r"^\| `([\w./]+)`(?:, `[\w.]+`)? \| [^|]* \| ([^|]*) \|$", (ROOT / "docs" / "tour.md").read_text(), re.M
    )
    table = {part.removesuffix("/").removesuffix(".py"): allowed for part, allowed in rows}
    assert set(table) == set(MAY_IMPORT) - {"__init__"}
    for part, allowed in table.items():
        if allowed in ("all above", "nothing of ours", "standard library"):
            continue
        assert set(allowed.split(", ")) == MAY_IMPORT[part] | LAZY.get(part, set()), part
