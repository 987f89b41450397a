"""evaluate, features, few-shot, predict and inspect from Python: any data, objects that a notebook displays."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import vitlab
from agreement import randomised
from vitlab.cli import main
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec

HOSTILE = "<script>alert(1)</script>"
CLASSES = ("ape", HOSTILE, "cat")


def picture(number):
    noise = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    return Image.fromarray(noise)


class Photos(Dataset):
    """A torch Dataset of the user's own: (PIL image, label)."""

    classes = CLASSES

    def __len__(self):
        return 9

    def __getitem__(self, number):
        return picture(number), number % 3


@pytest.fixture
def model():
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=3, head="linear")
    made = randomised(build_from_spec(spec))
    made.class_names = CLASSES
    return made


@pytest.fixture
def folder(tmp_path):
    """The same pictures as files; no file can have the hostile name."""
    for number in range(9):
        path = tmp_path / "photos" / ("ape", "bee", "cat")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return tmp_path / "photos"


def tags(html):
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append(tag)
    parser.feed(html)
    return set(found)


def test_a_torch_dataset_is_evaluated_and_the_result_displays_itself(model, tmp_path, capsys):
    found = vitlab.evaluate(model, Photos(), quiet=True)
    assert capsys.readouterr() == ("", "")
    (row,) = found.rows
    images = vitlab.preprocess(model, [picture(number) for number in range(9)])
    with torch.inference_mode():
        answers = model(images).argmax(-1).tolist()
    right = sum(answer == number % 3 for number, answer in enumerate(answers))
    assert (row.scores.top1, row.scores.count) == (right, 9)
    assert found.numbers["top1"] == right / 9
    assert {mistake.number for mistake in row.mistakes} == {n for n, answer in enumerate(answers) if answer != n % 3}
    assert sum(line[2] for line in row.classes.rows) == right
    assert sum(line[-1] for line in row.confusion.rows) == 9
    assert f"{100 * right / 9:.2f}" in repr(found)
    assert tags(found._repr_html_()) == {"table", "tr", "th", "td"}
    assert tags(row.classes._repr_html_()) == {"table", "tr", "th", "td"}
    assert "&lt;script&gt;" in row.classes._repr_html_()
    found.save(tmp_path / "out")
    assert (tmp_path / "out" / "01-confusion.csv").read_text() == row.confusion.to_csv()


def test_an_evaluation_of_a_dataset_continues_in_its_folder(model, tmp_path):
    first = vitlab.evaluate(model, Photos(), tmp_path / "out", batch=2, quiet=True)
    (saved,) = (tmp_path / "out" / "progress").iterdir()
    again = vitlab.evaluate(model, Photos(), tmp_path / "out", batch=2, quiet=True)
    assert again.rows[0].scores == first.rows[0].scores
    assert again.rows[0].mistakes == first.rows[0].mistakes
    assert [saved] == list((tmp_path / "out" / "progress").iterdir())


def test_the_command_prints_the_numbers_of_the_function(model, folder, tmp_path, capsys):
    model.class_names = ("ape", "bee", "cat")
    vitlab.save_model(model, tmp_path / "model")
    spec = f"folder:{folder}"
    found = vitlab.evaluate(tmp_path / "model", spec, quiet=True)
    command = ["evaluate", str(tmp_path / "model"), "--data", spec, "--workers", "0", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in repr(found).splitlines())
    assert (tmp_path / "out" / "results.csv").read_text() == found.table.to_csv()


def test_several_models_and_sets_make_one_table(model, folder, capsys):
    model.class_names = ("ape", "bee", "cat")
    found = vitlab.evaluate([model, model], [f"folder:{folder}", vitlab.open_data(f"folder:{folder}")])
    said = capsys.readouterr()
    assert said.out == ""
    assert "9 samples" in said.err
    assert len(found.rows) == 4
    with pytest.raises(ValueError, match="there are 4 rows"):
        found.numbers  # noqa: B018
    with pytest.raises(ValueError, match="apply to weights"):
        vitlab.evaluate(model, f"folder:{folder}", image=32, quiet=True)
    with pytest.raises(ValueError, match="no data was given"):
        vitlab.evaluate(model, [], quiet=True)


def test_features_of_a_dataset_are_arrays_and_feed_few_shot(model, tmp_path):
    found = vitlab.features(model, Photos(), quiet=True)
    assert (found.samples, found.width, found.bad) == (9, 24, ())
    images = vitlab.preprocess(model, [picture(number) for number in range(9)])
    with torch.inference_mode():
        expected = model.features(images).numpy()
    np.testing.assert_allclose(found.vectors.x, expected, atol=1e-5)
    assert found.vectors.y.tolist() == [number % 3 for number in range(9)]
    kept = vitlab.features(model, Photos(), tmp_path / "kept", quiet=True)
    table = vitlab.fewshot_table(str(kept.path), str(kept.path), out=tmp_path / "few", shots=[1], l2=1.0, quiet=True)
    own = vitlab.fewshot(found.vectors.x, found.vectors.y, found.vectors.x, found.vectors.y, shots=1, l2=1.0)
    assert table.rows[0][3] == 100 * own.accuracy
    for shown in (found, kept, own):
        assert tags(shown._repr_html_()) == {"table", "tr", "th", "td"}
    assert f"{100 * own.accuracy:.2f}" in str(own)
    assert "by_l2" not in repr(own)


def test_the_cost_of_a_model_displays_as_a_table():
    assert "<td>86,567,656</td>" in vitlab.count("ViT-B/16", head="linear")._repr_html_()


def test_inspecting_pictures_none_of_which_can_be_read_is_an_error(model, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    with pytest.raises(ValueError, match=r"none of 1 pictures could be read: .*no\.png does not exist"):
        vitlab.inspect(model, str(tmp_path / "no.png"), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()
    found = vitlab.inspect(model, [picture(0), b"junk"], maps=0, quiet=True)
    assert (found.images, len(found.bad)) == (1, 1)


def test_the_paper_s_choice_of_l2_is_called_optimistic(model, tmp_path, capsys):
    kept = str(vitlab.features(model, Photos(), tmp_path / "kept", quiet=True).path)
    vitlab.fewshot_table(kept, kept, out=tmp_path / "few", shots=[2])
    assert re.search("l2 is chosen by accuracy on the test set.*optimistic", capsys.readouterr().err.replace("\n", " "))
    vitlab.fewshot_table(kept, kept, out=tmp_path / "few", shots=[2], l2="held-out")
    assert "optimistic" not in capsys.readouterr().err


def test_answers_display_as_a_table_with_names_and_probabilities(model, tmp_path):
    vitlab.save_model(model, tmp_path / "model")
    found = vitlab.predict(tmp_path / "model", [picture(0), b"junk"], top=2, quiet=True)
    assert found == vitlab.predict(model, [picture(0), b"junk"], top=2, quiet=True)
    assert found.failed == 1
    assert [row[1] for row in found.table.rows[:2]] == [guess.name for guess in found[0].guesses]
    html = vitlab.predict(model, picture(0))._repr_html_()
    assert tags(html) == {"table", "tr", "th", "td"}
    assert "&lt;script&gt;" in html
    assert f"{100 * found[0].guesses[0].probability:.2f}" in html
    assert "&lt;script&gt;" in found[0]._repr_html_()
    assert "not_an_image" not in str(found)


def test_inspection_returns_figures_that_display_and_can_be_saved(model, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    found = vitlab.inspect(model, [picture(0), picture(1)], maps=1, quiet=True)
    assert list(found.figures) == ["rollout", "distance", "heads-001", "filters", "positions"]
    figure = found.figures["distance"]
    assert figure._repr_svg_().startswith("<?xml")
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.save(tmp_path / "distance.svg")
    assert (tmp_path / "distance.svg").read_bytes() == figure.svg
    with pytest.raises(ValueError, match=r"ends in \.svg or \.png"):
        figure.save(tmp_path / "distance.pdf")
    assert tags(found._repr_html_()) == {"iframe"}
    written = vitlab.inspect(model, [picture(0), picture(1)], tmp_path / "out", maps=1, quiet=True)
    found.save(tmp_path / "again")
    for name in written.files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_report_displays_itself(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("torn\n")
    found = vitlab.read_report(tmp_path / "ledger.jsonl", tmp_path / "out")
    assert len(found.remarks) == 1
    assert "ledger.jsonl, line 1" in found._repr_html_()
    assert (tmp_path / "out" / "report.html").is_file()
