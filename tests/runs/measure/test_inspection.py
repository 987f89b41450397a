"""`vitlab inspect`: what it writes, what it says, and names that want to be more than names."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import vitlab
from agreement import randomised
from families import FAMILIES
from pictures import photo
from vitlab.cli import main
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.drawing.canvas import coloured
from vitlab.files.store import verify_folder
from vitlab.inspection import captions
from vitlab.inspection.attention import attention_distance
from vitlab.inspection.rollout import rollout
from vitlab.inspection.weights import Likeness
from vitlab.models.build import build_from_spec
from vitlab.runs.measure import inspection as run
from vitlab.spec import Backbone, ViTSpec
from vitlab.spec.pixels import Preprocessing

pytest.importorskip("matplotlib", reason="figures need matplotlib")

HOSTILE = '<script>alert(1)<|script> "$\\frac{" & \n\x1b[31m\u202egnp.exe\'[red].png'
WEIGHTS_ALONE = {"filters.svg", "filters.png", "positions.svg", "positions.png", "report.html", "inspection.json"}


def made(pool="class"):
    spec = ViTSpec(4, 2, 24, 40, 3, (12, 20), 3, head="linear", pool=pool)
    model = randomised(build_from_spec(spec))
    model.class_names = ("<b>bee</b>", "cat & \x1b[2J mouse", "$\\frac{ dog")
    return model


@pytest.fixture
def model():
    return made()


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "one.png", tmp_path / "two.png", tmp_path / HOSTILE]
    for number, path in enumerate(paths):
        photo(30 + 7 * number, 40).save(path, "PNG")
    return paths


def inspected(model, files, out, maps=1):
    return run.inspect(model, files, out, maps=maps, console=Console(file=io.StringIO()))


class Page(HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_folder_holds_figures_numbers_and_the_report(pool, files, tmp_path):
    model = made(pool)
    done = inspected(model, files, tmp_path / "out", maps=2)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {f"{n}.{k}" for n in ("rollout", "distance", "heads-001", "heads-002") for k in ("svg", "png")}
    assert names == WEIGHTS_ALONE | figures | {"manifest.json"}
    assert set(done.files) == names - {"manifest.json"}
    verify_folder(tmp_path / "out", done.files)
    assert (done.images, done.bad) == (3, ())
    numbers = json.loads((tmp_path / "out" / "inspection.json").read_text())
    expected = attention_distance(model, vitlab.preprocess(model, files))
    np.testing.assert_allclose(numbers["attention_distance"], expected, rtol=1e-5)
    assert [picture["image"] for picture in numbers["pictures"]] == [path.name for path in files]


def test_progress_ends_with_the_last_picture(model, files, monkeypatch):
    shown = []
    monkeypatch.setattr(run.Images, "show", lambda _, done, total: shown.append((done, total)))
    vitlab.inspect(model, files, quiet=True)
    assert shown == [(0, 3), (3, 3)]


def test_cards_show_the_picture_its_rollout_and_its_answer(model, files):
    found = run.examine(model, files, maps=1)
    assert found.images == 3
    how = model.spec.conventions.preprocessing
    images = vitlab.preprocess(model, files)
    masks = vitlab.explain(model, images).numpy()
    with torch.no_grad():
        best = model(images).argmax(dim=-1)
    for card, path, mask, index in zip(found.cards, files, masks, best, strict=True):
        pixels = evaluation_pixels(Image.open(path), (12, 20), how).permute(1, 2, 0).numpy()
        assert np.array_equal(card.pixels, pixels)
        assert np.abs(card.seen - pixels * mask[..., None]).max() <= 0.51
        assert np.array_equal(card.attention, coloured(mask))
        assert card.answer.startswith(model.class_names[index])
    assert len(found.maps) == 1
    for path, card, rolled in zip(files, found.cards, rollout(model, images).numpy(), strict=True):
        least, most = rolled.min() / rolled.mean(), rolled.max() / rolled.mean()
        assert f"{least:.2f} to {most:.2f} times the mean" in card.notes[1]
        with Image.open(path) as image:
            size = f"{image.height}x{image.width}"
        assert card.notes[0].startswith(f"{size} pixels (height x width), stretched")
        assert card.notes[0].endswith("to 12x20")


def test_what_was_done_to_a_picture_is_said_with_both_sizes(model):
    spec = model.spec
    assert run._resizing((24, 40), spec) == "24x40 pixels (height x width), resized to 12x20"
    assert run._resizing((40, 40), spec).endswith("stretched (aspect ratio changed) to 12x20")
    shorter = Preprocessing(resize="shorter", fraction=0.875)
    kept = replace(spec, conventions=replace(spec.conventions, preprocessing=shorter))
    assert run._resizing((40, 40), kept).endswith("without distortion, then centre-cropped to 12x20")


def test_captions_say_what_was_measured_and_call_no_model_untrained(model, files):
    titles = {section.title: section.text for section in run.sections_of(model, files)}
    distances = attention_distance(model, vitlab.preprocess(model, files))
    far = titles["Attention distance"]
    assert f"{distances[0].min():.1f} to {distances[0].max():.1f} px in layer 1" in far
    assert f"{distances[1].min():.1f} to {distances[1].max():.1f} px in layer 2, the last" in far
    assert "23 of 23 components explain 100% of the variance" in titles["Embedding filters"]
    table = torch.nn.functional.normalize(model.positions.table.detach()[0, 1:].double(), dim=1).unflatten(0, (3, 5))
    across, down = (table[:, 1:] * table[:, :-1]).sum(dim=-1), (table[1:] * table[:-1]).sum(dim=-1)
    beside = torch.cat([across.flatten(), down.flatten()]).mean()
    assert f"{beside:.2f} for adjacent patches" in titles["Position embeddings"]
    assert all("the paper's" in titles[title] for title in titles if title != "Attention maps of all heads")
    assert not any("trained" in text or "fresh" in text for text in titles.values())


def test_captions_of_the_smallest_models_leave_out_what_there_is_not():
    assert "layer 1; uniform attention" in captions.distance_caption(np.ones((1, 1)), 1.0)
    assert "Here" not in captions.positions_caption(Likeness(None, None, None))
    assert captions.filters_caption([1.0], 1, None).endswith("single pixels without neighbours.")


def test_without_pictures_the_weights_alone_are_drawn(model, tmp_path):
    model.reset_head(0)
    done = inspected(model, [], tmp_path / "out")
    assert set(done.files) == WEIGHTS_ALONE
    assert "Attention rollout" not in (tmp_path / "out" / "report.html").read_text()


def test_a_model_that_only_makes_features_is_looked_at_all_the_same(model, files):
    model.reset_head(0)
    found = run.examine(model, files, maps=0)
    assert found.images == 3
    assert [card.answer for card in found.cards] == ["", "", ""]


def test_more_pictures_than_are_shown_count_for_the_distance(model, files, monkeypatch):
    monkeypatch.setattr(run, "SHOWN", 2)
    found = run.examine(model, files * 4, maps=4)
    assert (found.images, len(found.cards), len(found.maps)) == (12, 2, 2)
    expected = attention_distance(model, vitlab.preprocess(model, files))
    np.testing.assert_allclose(found.distance / 12, expected, rtol=1e-5)
    assert "12 pictures were used; the first 2 are shown" in run._about(model, found)


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """Of pictures whose names want to be markup, control characters or no text at all; two cannot be read."""
    folder = tmp_path_factory.mktemp("hostile")
    names = [HOSTILE.encode(), b"bytes\xff.png", b"bad<img src=x onerror=alert(1)>.png", "pipe\u202e.png".encode()]
    paths = [os.fsencode(folder) + b"/" + name for name in names]
    for path in paths[:2]:
        with open(path, "wb") as file:  # noqa: PTH123 - Path cannot hold these bytes portably
            photo().save(file, "PNG")
    os.mkfifo(paths[3])
    done = inspected(made(), list(map(os.fsdecode, paths)), folder / "out")
    assert (done.images, len(done.bad)) == (2, 2)
    return (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_the_report_is_one_file_that_asks_nobody_for_anything(html):
    page = Page(html)
    pictures = [a["src"] for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 1 + 3 * 2 + 1 + 1 + 2  # scale, cards, heads, distance, filters and positions
    assert all(source.startswith("data:image/") for source in pictures)
    assert all(a.get("alt") for tag, a in page.tags if tag == "img")
    assert "http:" not in html
    assert "https:" not in html


def test_hostile_names_of_files_and_classes_stay_text(html):
    page = Page(html)
    ours = "html head meta title style body h1 h2 p div section figure figcaption img b br ul li"
    assert {tag for tag, _ in page.tags} <= set(ours.split(" "))
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert sum(tag == "b" for tag, _ in page.tags) == 2  # the numbers of the cards, no class's own
    assert all(c == "\n" or c.isprintable() for c in html)
    assert '<script>alert(1)<|script> "$\\frac{" &' in page.text
    assert "onerror=alert(1)>.png" in page.text
    assert "bytes\\udcff.png" in page.text


@pytest.mark.slow
def test_two_runs_write_the_same_bytes(model, files, tmp_path):
    """One run in this process, one in a new one."""
    vitlab.save_model(model, tmp_path / "model")
    words = ["inspect", str(tmp_path / "model"), *map(str, files), "--out"]
    assert main([*words, str(tmp_path / "a")]) == 0
    command = [sys.executable, "-m", "vitlab.cli", *words, str(tmp_path / "b")]
    subprocess.run(command, check=True, capture_output=True)
    assert len(list((tmp_path / "a").iterdir())) == len(list((tmp_path / "b").iterdir()))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


class TestCommand:
    @pytest.fixture
    def folder(self, model, tmp_path):
        vitlab.save_model(model, tmp_path / "model")
        return tmp_path / "model"

    def test_a_folder_that_cannot_be_made_is_told_before_anything_is_looked_at(self, folder, tmp_path, capsys):
        (tmp_path / "file").touch()
        assert main(["inspect", str(folder), "no-such.png", "--out", str(tmp_path / "file" / "x")]) == 2
        printed = capsys.readouterr()
        assert "is a file; choose another folder" in printed.err
        assert "no-such.png" not in printed.err

    def test_it_says_what_it_wrote_and_what_to_open(self, folder, files, tmp_path, capsys):
        out = tmp_path / "out"
        assert main(["inspect", str(folder), str(files[0]), "--out", str(out), "--image", "16x8"]) == 0
        printed = capsys.readouterr().out
        assert "rollout, distance, heads-001, filters, positions: each as SVG and PNG" in printed
        assert printed.strip().splitlines()[-1].strip() == str(out / "report.html")
        page = (out / "report.html").read_text()
        assert "16x8 pixels as 4x2 patches of 4x4" in page
        assert f"<h1>Inside {folder}</h1>" in page

    def test_a_bad_picture_is_named_and_the_others_are_used(self, folder, files, tmp_path, capsys):
        out = tmp_path / "out"
        assert main(["inspect", str(folder), str(tmp_path / "gone.png"), str(files[0]), "--out", str(out)]) == 1
        captured = capsys.readouterr()
        assert "gone.png does not exist" in captured.err
        assert "1 of 2 pictures could not be read" in captured.err
        assert "rollout" in captured.out
        assert "gone.png does not exist" in (out / "report.html").read_text()

    def test_pictures_that_are_all_bad_leave_nothing_so_that_the_mended_command_runs(
        self, folder, files, tmp_path, capsys
    ):
        out = tmp_path / "out"
        assert main(["inspect", str(folder), str(tmp_path / "gone.png"), "--out", str(out)]) == 2
        captured = capsys.readouterr()
        assert "gone.png does not exist" in captured.err
        assert "none of 1 pictures could be read" in captured.err
        assert "Open this" not in captured.out
        assert not out.exists()
        assert main(["inspect", str(folder), str(files[0]), "--out", str(out)]) == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent"], "absent: no such file or folder"),
            (["MODEL", "--out", "."], "exists already"),
            (["MODEL", "--maps", "-1", "--out", "OUT"], "maps -1"),
            (["MODEL", "--image", "15", "--out", "OUT"], "nearest sizes"),
        ],
    )
    def test_mistakes_are_one_line_and_leave_nothing_behind(self, folder, tmp_path, arguments, message, capsys):
        names = {"MODEL": str(folder), "OUT": str(tmp_path / "out")}
        assert main(["inspect", *(names.get(a, a) for a in arguments)]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_without_matplotlib_one_line_names_the_extra(self, folder, tmp_path):
        code = "import sys; sys.modules['matplotlib'] = None; from vitlab.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "inspect", str(folder), "--out", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        told = done.stderr.removeprefix("loading PyTorch ...\n")
        assert re.fullmatch(r"vitlab: figures need matplotlib: pip install 'vitlab\[plot\]'.*\n", told)


@pytest.mark.parametrize("change", [{"positions": "relative"}, {"patch": 2, "backbone": Backbone((1,), 8)}])
def test_what_a_model_has_not_is_said_in_its_section_and_the_rest_is_drawn(tmp_path, change):
    size = {"patch": 8, "layers": 1, "width": 24, "mlp": 24, "heads": 3, "image": (32, 32), "classes": 4}
    model = randomised(build_from_spec(ViTSpec(**(size | change))))
    photo().save(tmp_path / "photo.png")
    done = run.inspect(model, [tmp_path / "photo.png"], tmp_path / "out", maps=1, console=Console(file=io.StringIO()))
    assert "rollout.svg" in done.files
    assert "Not available: " in (tmp_path / "out" / run.REPORT).read_text()


# -- Swins ---------------------------------------------------------------------------------------


@pytest.fixture
def swin():
    return randomised(build_from_spec(FAMILIES["Swin"]))


def test_a_swin_shows_where_a_pixel_looks_in_every_layer(swin, files, tmp_path):
    done = inspected(swin, files, tmp_path / "out", maps=2)
    assert list(done.figures) == ["windows-001", "windows-002", "filters"]
    numbers = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert (numbers["images"], numbers["at"], numbers["layer"]) == (3, [16, 20], None)
    assert [picture["image"] for picture in numbers["pictures"]] == [path.name for path in files]
    text = Page(done.page).text
    assert "where the pixel in row 16 and column 20 (red) looks" in text
    assert "maps of 8x10, 4x5 cells, cut into windows of 3x3, 3x3" in text
    assert "32x40" in text


@pytest.mark.parametrize("layer", [None, 2, 4])
def test_tiles_are_dark_outside_of_the_window_and_coloured_by_its_attention(swin, files, layer):
    at = (9, 31)
    found = run.examine(swin, files[:1], maps=1, place=run.Place(at, layer))
    image = vitlab.preprocess(swin, files[0])
    heads = [vitlab.window_attention(swin, image, layer=n, at=at)[0] for n in range(1, 5)]
    expected = [one.mean(dim=0) for one in heads] if layer is None else [*heads[layer - 1]]
    picture = found.cards[0].pixels.astype(float)
    assert found.maps[0].shape == (len(expected), 32, 40, 3)
    for tile, seen in zip(found.maps[0], expected, strict=True):
        seen = seen.numpy()
        assert tile[at].tolist() == [255, 64, 64]
        others = np.ones((32, 40), bool)
        others[at] = False
        outside, inside = others & (seen <= 1e-20), others & (seen > 1e-20)
        assert outside.any()
        assert np.abs(tile - 0.35 * picture)[outside].max() <= 0.51
        assert np.abs(tile - 0.45 * picture - 0.55 * coloured(seen / seen.max()))[inside].max() <= 0.51


def test_windows_that_are_not_there_are_refused(swin, model, files):
    for options, problem in (
        ({"layer": 5}, r"layer 5 is outside 1\.\.4"),
        ({"at": (32, 0)}, "pixel .32, 0. is outside of the image of 32x40"),
    ):
        with pytest.raises(ValueError, match=problem):
            vitlab.inspect(swin, files, quiet=True, **options)
    with pytest.raises(ValueError, match="at and layer choose windows on pictures; give at least one picture"):
        vitlab.inspect(swin, at=(1, 1), quiet=True)
    with pytest.raises(ValueError, match="at and layer choose windows of a Swin, and have no effect on this model"):
        vitlab.inspect(model, files, layer=1, quiet=True)
    assert list(vitlab.inspect(swin, quiet=True).figures) == ["filters"]
