"""What the documents say is what the code does: tables, links, flags, commands, Python."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import vitlab
from bench import results as speed
from bench.experiments import scale
from test_house import LAZY, MAY_IMPORT
from vitlab.cli import COMMANDS, DATA_COMMANDS
from vitlab.commands.command_line import RECIPE_FIELDS, parameters_of
from vitlab.data.sources.catalogue import open_source
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS
from vitlab.spec.recipe import Execution
from vitlab.weights.released.catalogue import find_release
from web_runtime import fetched_runtime

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md")])
DOCUMENTS = sorted([*ROOT.glob("*.md"), *PAGES])
OF_TORCHRUN = {"nproc-per-node", "max-restarts", "nodes"}
OF_CURL = {"data-binary", "form", "output", "header"}
OF_DOCKER = {"tag", "publish", "volume", "env", "build-arg"}
OF_OTHERS = {"lr", "sched", "warmup-epochs", "grad-accum-steps", "amp", "amp-dtype", "grad-checkpointing"} | {
    "model-ema",
    "resume",
    "reprob",
}  # timm's, on the page for its users


def script(name: str):
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outputs = script("outputs")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# -- Words, links and tables ----------------------------------------------------------------------


def test_the_readme_is_short():
    assert len(README.read_text().split()) <= 1500


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_test_files_exist(document):
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        if not link.startswith(("generated/", "../generated/")):  # made by `make docs`
            assert (document.parent / link).exists(), link
    for name in re.findall(r"`((?:tests|evidence|bench|results)/[\w/.]+\.\w+)", text):
        assert (ROOT / name).exists(), name


def test_every_page_is_in_the_index():
    listed = re.findall(r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in PAGES} - {"index"}
    assert pages <= set(listed)
    assert all((ROOT / "docs" / f"{page}.md").exists() for page in set(listed) - {"generated/api"} if "gen" not in page)


@pytest.mark.parametrize("page", script("results").pages(), ids=name_of)
def test_the_tables_of_results_are_those_of_the_evidence(page):
    text = page.read_text()
    assert text == script("results").with_tables(text), "run: python docs/results.py"
    assert "| --- |" in text


def test_the_page_of_findings_and_its_figures_are_those_of_the_ledger_byte_for_byte():
    made = script("findings").pages()
    assert ROOT / "docs" / "findings.md" in made
    for path, content in made.items():
        assert path.read_bytes() == content, f"{path.name} is outdated; run: python docs/findings.py"
    figures = {path for path in made if path.suffix == ".svg"}
    kept = ROOT / "docs" / "figures"
    assert {*kept.glob("study-*.svg"), kept / "findings.svg"} == figures


def speeds(folder: Path, names: list[str], amounts: list[float], unit="s") -> None:
    """Write a result of one case."""
    rows = tuple(speed.Row(name, (amount,)) for name, amount in zip(names, amounts, strict=True))
    case = speed.CaseResult("ViT-B/16, batch 8", unit, 8, 0, None, rows)
    machine = {"processor": "a processor", "cores": 2, "commit": "abc", "date": "2026-11-18"}
    suite = "inference" if unit == "s" else "memory"
    speed.save(speed.SuiteResult(suite, "About.", "python -m bench run", 1, machine, (case,)), folder)


NAMES = ["timm", "timm again", "ONNX Runtime", "OpenVINO", "vitlab, the module", "vitlab, engine torch"]


def test_the_table_of_speed_has_declared_engines_and_the_best_of_the_others(tmp_path):
    ours = ["vitlab, engine openvino", "vitlab, engine auto", "vitlab, engine onnxruntime-int8"]
    speeds(tmp_path, [*NAMES, *ours, "ONNX Runtime, int8"], [1.0, 1.0, 0.8, 0.5, 1.0, 0.4, 0.1, 0.98, 0.2, 0.25])
    speeds(tmp_path, NAMES[:5], [100, 111, 80, 90, 70], unit="MB")
    lines = script("results").speed_table(tmp_path).splitlines()
    assert lines[0] == (
        "| timm = 1.00 | `torch` | `auto` | `onnxruntime-int8` | best other | best other, int8 | no difference |"
    )
    assert lines[2:] == [
        "| inference: ViT-B/16, batch 8 | 2.50 | 1.02 = | 5.00 | 2.00 (OpenVINO) | 4.00 (ONNX Runtime) | ±5 % |"
    ]


def test_a_contestant_that_failed_has_no_number(tmp_path):
    rows = (speed.Row("timm", (1.0,)), speed.Row("timm again", (1.0,)), speed.Row("Hugging Face", (), failure="broken"))
    torch, auto = speed.Row("vitlab, engine torch", (0.5,)), speed.Row("vitlab, engine auto", (), failure="broken")
    case = speed.CaseResult("a case", "s", 8, 0, None, (*rows, torch, auto))
    machine = {"processor": "", "cores": 2, "commit": ""}
    speed.save(speed.SuiteResult("inference", "", "", 1, machine, (case,)), tmp_path)
    table = script("results").speed_table(tmp_path)
    assert "| inference: a case | 2.00 | none | none | none | none | ±5 % |" in table
    assert "| Hugging Face | broken |" in script("results").speed_tables(tmp_path)


def test_the_page_says_where_each_suite_was_measured_and_which_was_not(tmp_path):
    speeds(tmp_path, NAMES, [1.0, 1.0, 0.8, 0.5, 1.0, 0.4])
    table = script("results").suite_table(tmp_path)
    assert "| inference | a processor | 2026-11-18 | abc | 1 |" in table
    assert "| waiting |  |  |  | no committed result |" in table


@pytest.mark.parametrize("path", sorted(speed.RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_committed_tables_of_a_suite_are_those_of_its_rounds(path):
    found = speed.load(path)
    assert path.with_suffix(".md").read_text() == speed.markdown(found), "run: python -m bench render"
    for case in found.cases:
        for row in (row for row in case.rows if row.amounts):
            low, high = case.quartiles(row)
            assert low <= case.ratio(row) <= high


def test_without_results_the_documents_say_how_to_make_them(tmp_path):
    assert "make bench" in script("results").speed_table(tmp_path)
    assert "make bench" in script("results").speed_tables(tmp_path)


def test_all_rows_of_every_suite_are_on_the_page_of_results(tmp_path):
    speeds(tmp_path, NAMES, [1.0, 1.0, 0.8, 0.5, 1.0, 0.4])
    text = script("results").speed_tables(tmp_path)
    assert all(f"| {name} |" in text for name in NAMES)
    assert "a processor, 2 cores, commit abc" in text


def test_accuracies_name_the_conventions_they_were_measured_with():
    page = (README.parent / "docs" / "results.md").read_text()
    rows = {row[2:6]: row for row in page.splitlines() if "200 ImageNet" in row}
    for row, how in ((rows["ViT-"], CONVENTIONS["timm"]), (rows["DeiT"], CONVENTIONS["deit"])):
        side = f"shorter side to {int(224 / how.preprocessing.fraction)} {how.preprocessing.interpolation}"
        for said in (side, "crop 224", f"{how.gelu} GELU"):
            assert said in row


def test_the_tables_of_the_page_on_scale_are_those_of_the_model():
    page = (ROOT / "docs" / "scale.md").read_text()
    printed = re.search(r"<!-- tables -->\n(.*?)<!-- /tables -->", page, re.DOTALL)[1]
    assert printed.strip() == "\n".join(scale.tables()).strip()


def test_the_memory_of_fake_ranks_is_that_of_the_evidence():
    page = (ROOT / "docs" / "scale.md").read_text()
    printed = re.search(r"<!-- fake ranks -->\n(.*?)<!-- /fake ranks -->", page, re.DOTALL)[1]
    assert printed == (ROOT / "evidence" / "fake_ranks.txt").read_text()


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


# -- References that `make docs` generates ---------------------------------------------------------


def test_the_reference_names_every_command_recipe_model_and_public_name(tmp_path):
    reference = script("reference")
    reference.write_references(tmp_path)
    text = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    for command in {*COMMANDS, *(f"data {name}" for name in DATA_COMMANDS)} - {"data"}:
        assert f"## vitlab {command}\n\n```text\nusage: vitlab {command}" in text["commands"]
    assert "`ViT-B/16@imagenet21k`" in text["recipes"]
    assert "| `--schedule.peak` |" in text["recipes"]
    assert all(f"| {name} |" in text["models"] for name in vitlab.list_models())
    assert "| ViT-B/16 | 12 | 768 | 12 | 86,567,656 / 87,158,248 | 17.56 |" in text["models"]
    assert "`folder:PATH" in text["data-kinds"]
    assert sorted(re.findall(r":: vitlab\.(\w+)$", text["api"], re.MULTILINE)) == sorted(vitlab.__all__)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo", reason="make docs installs Sphinx, furo and myst-parser")
    pytest.importorskip("myst_parser", reason="make docs installs Sphinx, furo and myst-parser")
    folders = ("-d", str(tmp_path / "trees"), str(ROOT / "docs"), str(tmp_path / "html"))
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vitlab.explain" in (tmp_path / "html" / "generated" / "api.html").read_text()
    assert "usage: vitlab finetune" in (tmp_path / "html" / "generated" / "commands.html").read_text()


# -- Commands and Python ---------------------------------------------------------------------------


@pytest.mark.parametrize("document", [README, *PAGES], ids=name_of)
def test_every_flag_exists(document):
    commands = [*COMMANDS.values(), *DATA_COMMANDS.values()]
    known = {one.name for command in commands for one in parameters_of(command)}
    known |= RECIPE_FIELDS | set(Execution.__annotations__) | {"help", "version"}
    for flag in re.findall(r"(?<![\w-])--([a-z][\w.-]*[\w])", document.read_text()):
        name = flag.replace("-", "_").partition(".")[0]
        assert name in known or flag in OF_TORCHRUN | OF_OTHERS | OF_CURL | OF_DOCKER, flag


@pytest.mark.parametrize("document", [README, *PAGES], ids=name_of)
def test_what_is_made_or_installed_exists(document):
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target
    for extra in re.findall(r"vitlab\[(\w+)\]", document.read_text()):
        assert extra in extras, extra


@pytest.fixture(scope="module")
def after_the_tutorial(tmp_path_factory):
    """The folder that the tutorial leaves: scans of digits by class, a small trained model."""
    folder = tmp_path_factory.mktemp("tutorial")
    shutil.copytree(ROOT / "results", folder / "results")  # the ledger that `vitlab report` reads
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("VITLAB_OFFLINE", "1")
        ran = list(outputs.run_blocks(outputs.TUTORIAL.read_text()))
    assert len(ran) >= 6
    return folder


RUNNABLE = [page for page in PAGES if any(b.language in ("sh", "python") for b in outputs.blocks(page.read_text()))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUNNABLE if page != outputs.TUTORIAL], ids=name_of)
def test_the_commands_and_the_python_of_the_page_run(page, after_the_tutorial, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(shutil.copytree(after_the_tutorial, tmp_path / "work"))
    if page.stem == "page":
        name_the_web_runtime(tmp_path_factory, monkeypatch)
    if page.stem == "remote-data":  # it speaks to a server of its own on this machine
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            monkeypatch.setenv(name, "")  # the page sets it; put back afterwards
        monkeypatch.setenv("VITLAB_REMOTE_CACHE", str(tmp_path / "cache"))
    else:
        monkeypatch.setenv("VITLAB_OFFLINE", "1")
    assert list(outputs.run_blocks(page.read_text()))


def name_the_web_runtime(tmp_path_factory, monkeypatch):
    """Where a document that exports a page for browsers finds onnxruntime-web; skips without one."""
    try:
        monkeypatch.setenv("VITLAB_WEB_RUNTIME", str(fetched_runtime(tmp_path_factory)))
    except ValueError as error:
        if os.environ.get("VITLAB_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip(f"onnxruntime-web cannot be fetched: {error}")


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_readme_run(tmp_path, tmp_path_factory, tiny_spec, monkeypatch):
    """With small things by the names of the README: released weights, photographs, what the demo leaves."""
    name_the_web_runtime(tmp_path_factory, monkeypatch)
    start = build_from_spec(replace(tiny_spec, image=(32, 32), patch=16))
    vitlab.save_model(start, tmp_path / "cache" / find_release("augreg-Ti_16-i1k-224").file, "google-npz")
    shapes = open_source("shapes?classes=2&images=24&size=40")
    for number in range(24):
        sample = shapes.item(number)
        folder = tmp_path / ("photos" if number < 12 else "test-photos") / ("cat", "dog")[sample.labels[0]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.data).save(folder / f"{number}.png")
    Image.fromarray(shapes.item(0).data).save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLAB_CACHE", "cache")
    assert len(list(outputs.run_blocks(README.read_text()))) >= 3
    assert vitlab.load_model("runs/photos/model").class_names == ("cat", "dog")
    assert Path("inside/report.html").exists()
    assert Path("site/index.html").exists()


def test_the_names_of_the_page_on_the_paper_exist():
    page = (ROOT / "docs" / "paper.md").read_text()
    names = set(re.findall(r"`((?:counting|data|inspection|metrics|models|paper|runs|train)\.[\w.]+)", page))
    assert len(names) > 30
    for name in names:
        assert resolves(f"vitlab.{name}"), name


def test_the_modules_of_the_tour_exist():
    modules = {path.name for path in (ROOT / "src" / "vitlab").rglob("*.py")}
    mentioned = re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", (ROOT / "docs" / "tour.md").read_text())
    assert {name for name in mentioned if not name.startswith("test_")} <= modules


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return bool(parent) and resolves(parent) and hasattr(importlib.import_module(parent), last)
    return True
