"""A training ends with a page to look at; whatever becomes of the page, the training has ended well."""

import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import crashes
from vitlab.data.sources.digits import DigitsSource
from vitlab.files.strict_json import from_json, read_json
from vitlab.report.answers import Answers, ClassResult
from vitlab.run_dir import MODEL, REPORT, RESULT, RunDir, answers_file
from vitlab.runs.progress import describe
from vitlab.runs.training import finishing
from vitlab.runs.training import report as run_report
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import AUTOMATIC, Execution

pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytestmark = pytest.mark.usefixtures("charts")
SPEC = replace(crashes.small_run(), test="digits?split=train", execution=Execution(report=True))


def trained(path, spec):
    """What was said; the run has ended well."""
    crashes.new_run(path, spec)
    said = io.StringIO()
    assert train_run(RunDir.open(path), Console(file=said, width=1000)) == 0
    assert (path / RESULT).is_file()
    return said.getvalue()


def answers(path, name):
    return from_json(Answers, read_json(path / answers_file(name)))


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.sources = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        self.sources += [value for name, value in attributes if name in ("src", "href")]


@pytest.fixture(scope="module")
def finished(memory):
    """(folder, what was said, how often each set was scored)"""
    path, scored = memory / "reported", []
    with pytest.MonkeyPatch.context() as patch:
        own = finishing.score_set
        patch.setattr(finishing, "score_set", lambda *given: scored.append(given) or own(*given))
        said = trained(path, SPEC)
    return path, said, [name for given in scored for name in given if name in ("validation", "test")]


def test_a_training_of_the_command_line_ends_with_a_report():
    assert AUTOMATIC.report


def test_the_last_line_says_where_the_report_is(finished):
    path, said, _ = finished
    assert said.splitlines()[-1] == f"the report is in {path / REPORT}: open it in a browser"


def test_the_report_is_one_small_file_with_every_section_and_the_numbers_of_the_result(finished):
    path, _, _ = finished
    text = (path / REPORT).read_text()
    titles = ["Results", "Loss", "Validation", "Confusion matrix", "Classes"]
    assert re.findall("<h2>(.*?)</h2>", text) == [*titles, "Worst mistakes", "Attention rollout"]
    result = json.loads((path / RESULT).read_text())
    for name in ("validation", "test"):
        assert f"<td>{describe(result[name])}</td>" in text
    assert len(text) < 1_500_000
    tags = Tags(text)
    assert "script" not in tags.found
    assert all(source.startswith("data:image/") for source in tags.sources)
    assert len(tags.sources) == 3 + 1 + 12 + 3 * run_report.LOOKED_AT  # figures, scale, mistakes, rollouts


def test_the_mistakes_are_images_of_the_test_that_the_kept_model_gets_wrong(finished):
    path, _, _ = finished
    text, found = (path / REPORT).read_text(), answers(path, "test").mistakes
    source = DigitsSource("train")
    assert len(found) == 12
    for mistake in found:
        assert source.label(mistake.number) == (mistake.label,)
        assert source.id(mistake.number) == mistake.id
        said = f"is {mistake.label}, taken for {mistake.answer} ({mistake.probability:.1%})"
        assert f"{mistake.id}<br>{said}" in text


def test_the_test_images_are_scored_once(finished):
    assert finished[2].count("test") == 1
    assert len(list(RunDir(finished[0]).events("test"))) == 1


def test_the_answers_are_those_of_the_weights_that_are_kept(in_memory):
    """The last validation of an early stop judges later weights than the best."""
    path = in_memory / "run"
    trained(
        path, replace(SPEC, recipe=replace(SPEC.recipe, patience=5, schedule=replace(SPEC.recipe.schedule, peak=1.0)))
    )
    result = json.loads((path / RESULT).read_text())
    last = max(RunDir(path).history("validation", "loss"))
    assert result["step"] < last
    assert answers(path, "validation").numbers == result["validation"]


def test_without_matplotlib_one_line_says_how_to_get_it(in_memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = trained(in_memory / "run", SPEC)
    assert said.splitlines()[-1] == "no report was written: figures need matplotlib: pip install 'vitlab[plot]'"
    assert (in_memory / "run" / MODEL).is_dir()


def test_a_report_that_cannot_be_written_is_one_line(in_memory):
    path = in_memory / "run"
    (path / REPORT).mkdir(parents=True)
    said = trained(path, SPEC)
    assert said.splitlines()[-1].startswith("the report could not be written (")
    assert said.splitlines()[-1].endswith("the run is complete")


def test_an_execution_may_ask_for_none(in_memory):
    said = trained(in_memory / "run", replace(SPEC, execution=Execution()))
    assert "report" not in said
    assert not (in_memory / "run" / REPORT).exists()


def test_without_images_to_judge_by_the_report_says_so(in_memory):
    recipe = replace(SPEC.recipe, validate_every=0, patience=0)
    trained(in_memory / "run", replace(SPEC, recipe=recipe, held_out=0.0, test=""))
    text = (in_memory / "run" / REPORT).read_text()
    assert "This run had no images to validate or test on" in text
    assert re.findall("<h2>(.*?)</h2>", text) == ["Results", "Loss"]


NASTY = ("<script>alert(1)</script>", "$\\frac{1}", "gr\u00fcn \u6f22", "evil\x1b[2J\u202ename")


def test_names_of_classes_and_files_are_text(in_memory):
    rng = np.random.default_rng(0)
    for name in NASTY:
        (in_memory / "photos" / name.replace("/", "\u2215")).mkdir(parents=True)
        for number in range(6):
            file = in_memory / "photos" / name.replace("/", "\u2215") / f"<img src=x onerror=alert({number})>.png"
            Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(file)
    spec = replace(
        SPEC,
        model=replace(SPEC.model, classes=4),
        data=f"folder:{in_memory}/photos",
        test=f"folder:{in_memory}/photos",
        held_out=0.0,
        recipe=replace(SPEC.recipe, validate_every=0, patience=0, schedule=replace(SPEC.recipe.schedule, peak=1e-5)),
    )
    said = trained(in_memory / "run", spec)
    assert said.splitlines()[-1].startswith("the report is in")
    text = (in_memory / "run" / REPORT).read_text()
    assert Tags(text).found.isdisjoint({"script", "a", "iframe"})
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<img src=x" not in text


def test_a_thousand_classes_make_a_bounded_page():
    classes = tuple(ClassResult(number, 10, number % 11) for number in range(1000))
    cells = tuple((label, (label * 7 + 1) % 1000, 1 + label % 5) for label in range(1000))
    found = Answers({"top1": 0.5}, classes, cells, ())
    confusion, table = run_report._classes("test", found, [f"class {number}" for number in range(1000)])
    assert "The 20 classes that were confused most often are shown, of 1000" in confusion.text
    assert len(confusion.figures[0][1]) < 400_000
    assert len(table.table) == 1 + run_report.LISTED
    assert "50 of 1,000 are listed" in table.text
    shares = [float(re.search(r"\(([\d.]+)%\)", row[2])[1]) for row in table.table[1:]]
    assert shares == sorted(shares)


def test_classes_of_several_labels_are_listed_by_average_precision():
    classes = (ClassResult(0, 4, None, 0.9, 0.8), ClassResult(1, 6, None, 0.25, 0.5))
    (table,) = run_report._classes("validation", Answers({"map": 0.5}, classes, (), ()), ["day", "night"])
    assert table.table == [
        ("class", "images", "average precision", "F1"),
        ("night", "6", "25.0%", "50.0%"),
        ("day", "4", "90.0%", "80.0%"),
    ]
