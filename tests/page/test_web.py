"""The static export: a folder that says what is in it, keeps what is private, and is never half written."""

import json

import pytest
import torch

from page.conftest import small_model
from page.serving import POLICY
from vitlab.models.build import build_model
from vitlab.page.policy import policy
from vitlab.page.runtime import HASHES
from vitlab.page.web import LARGEST_FILE, NamedModel, write_web
from vitlab.runs.export_web import export_web, public_name
from vitlab.weights.save import save_model


def test_the_policy_is_that_of_the_contract():
    assert policy() == POLICY
    assert policy(is_header=False) == POLICY.removesuffix("; frame-ancestors 'none'")


@pytest.mark.slow
def test_every_file_of_the_page_is_there(exported):
    folder, page = exported[0] / "one", exported[1]
    listed = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(page.sizes) | {"manifest.json", "empty.html", "smooth.jpg"} == listed
    assert {f"runtime/{name}" for name in HASHES} | {"runtime/LICENSE.txt"} == {
        n for n in listed if n[:8] == "runtime/"
    }
    assert 'where = "browser"' in (folder / "backends" / "place.js").read_text()
    assert POLICY in (folder / "_headers").read_text()
    assert POLICY in (folder / "README.txt").read_text()
    html = (folder / "index.html").read_text()
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy(is_header=False)}">' in html
    assert max(page.sizes.values()) < 25_000_000
    assert page.total == sum((folder / name).stat().st_size for name in page.sizes)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest) == set(page.sizes)


@pytest.mark.slow
def test_the_cards_name_the_graphs_and_pieces_of_weights(exported):
    folder = exported[0] / "one"
    (card,) = json.loads((folder / "api" / "models.json").read_text())["models"]
    assert set(card["graphs"]) == {"32x40", "48x40"}
    pieces = card["weights"]["pieces"]
    assert len(pieces) == 2
    for file in [*card["graphs"].values(), *pieces]:
        assert (folder / file["url"]).stat().st_size == file["bytes"]
    samples = json.loads((folder / "api" / "samples.json").read_text())
    assert samples[-1] == {"name": "noise", "url": "api/samples/noise.png"}
    assert all((folder / sample["url"]).is_file() for sample in samples)


@pytest.mark.slow
def test_the_whole_page_answers(exported, models, served, page_at):
    """From the address alone to the classes on the screen."""
    page = page_at(served(exported[0] / "one") + "/")
    page.wait_for_function("() => document.getElementById('answers').textContent.includes('class')")
    assert "Nothing is uploaded" in page.locator("#where").text_content()
    assert any(url.endswith("weights.bin.1") for url in page.requests)


def test_nothing_is_written_where_something_is(tmp_path):
    (tmp_path / "web").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        write_web([NamedModel("a", small_model("ViT"))], tmp_path / "web")
    with pytest.raises(FileExistsError, match="exists already"):
        export_web("no such model", tmp_path / "web", quiet=True)


def test_what_a_browser_cannot_run_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    monkeypatch.delenv("VITLAB_WEB_RUNTIME", raising=False)
    with torch.device("meta"):
        huge = build_model("ViT-H/14")
    with pytest.raises(ValueError, match=r"huge has 2\.5 GB of weights; a browser can load 1\.5 GB.*vitlab serve"):
        write_web([NamedModel("huge", huge)], tmp_path / "web")
    headless = small_model("ViT")
    headless.reset_head(0)
    with pytest.raises(ValueError, match="has no classes, only features"):
        write_web([NamedModel("a", headless)], tmp_path / "web")
    with pytest.raises(ValueError, match="the nearest sizes are"):
        write_web([NamedModel("a", small_model("ViT"))], tmp_path / "web", sizes=[(30, 30)])
    with pytest.raises(ValueError, match="no model was given"):
        write_web([], tmp_path / "web")
    with pytest.raises(ValueError, match="VITLAB_OFFLINE is set"):
        write_web([NamedModel("a", small_model("ViT"))], tmp_path / "web")
    assert not list(tmp_path.iterdir())


def test_visitors_do_not_see_where_a_model_is(tmp_path):
    model = small_model("ViT")
    save_model(model, tmp_path / "private" / "cats.v2")
    assert public_name(tmp_path / "private" / "cats.v2", model) == "cats.v2"
    (tmp_path / "weights.npz").touch()
    assert public_name(str(tmp_path / "weights.npz"), model) == "weights"
    assert public_name("google/vit-base-patch16-224", model) == "google/vit-base-patch16-224"
    assert public_name(model, model) == "ViT (L=2, D=24, MLP=48, h=3)/8"


@pytest.mark.slow
def test_one_call_exports_a_saved_model(tmp_path, runtime, capsys):
    pytest.importorskip("onnxruntime")
    model = small_model("ViT")
    model.class_names = ("ant", "bee", "cat", "dog")
    save_model(model, tmp_path / "private" / "insects")
    page = export_web(tmp_path / "private" / "insects", tmp_path / "web", runtime=runtime, attention="window:2")
    assert "Its attention is window:2." in page.cards[0]["text"]
    assert (page.cards[0]["name"], page.cards[0]["class_names"]) == ("insects", ["ant", "bee", "cat", "dog"])
    assert "writing" in capsys.readouterr().err
    for file in (tmp_path / "web").rglob("*"):
        assert file.is_dir() or b"private" not in file.read_bytes() or file.suffix in (".mjs", ".wasm", ".js", ".html")
    assert LARGEST_FILE < 25_000_000
