"""What the documents say is what the code does."""

import re
from pathlib import Path

import pytest

import vitlab
from test_house import LAZY, MAY_IMPORT
from vitlab.cli import COMMANDS
from vitlab.paper.models import model_spec
from vitlab.spec import ViTSpec

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


def test_the_readme_names_every_command():
    readme = (ROOT / "README.md").read_text()
    assert all(f"`vitlab {command}" in readme for command in COMMANDS)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vitlab.save_model(vitlab.build_model("ViT-Ti/16", image=64), "B_16.npz", "google-npz")
    for code in re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(code, {})  # our own README
    assert vitlab.load_model("out/").spec.image == (384, 384)


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
