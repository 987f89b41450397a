"""The run browser in Chromium: what it shows is what the runs recorded, and it follows a run that is training."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

import crashes
from run_browsing import made_row, made_run, made_study, real_runs, served, step
from vitlab.files.store import locked
from vitlab.files.strict_json import from_json, read_json
from vitlab.page.run_browser.api import PAGE, RunBrowser
from vitlab.page.run_browser.values import read_object
from vitlab.report.answers import Answers
from vitlab.report.ledger import read
from vitlab.run_dir import RunDir, answers_file
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, above
from vitlab.studies.scales import TINY
from vitlab.studies.study import Cell, Figure, Study

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
START = {"event": "started", "time": 1.7e9, "step": 0}
PATIENCE = 60_000  # milliseconds, however busy the machine is
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(the folder of real runs, the address of their browser, the browser's own values)"""
    root = real_runs(tmp_path_factory.mktemp("lab"))
    browser = RunBrowser(root)
    with served(browser) as address:
        yield root, address, browser


@pytest.fixture
def at(page_at):
    """Open a view of an address, patiently."""

    def open_view(address, view="", **options):
        page = page_at(f"{address}runs.html#/{view}", **options)
        page.set_default_timeout(PATIENCE)
        return page

    return open_view


def id_of(browser, name):
    return next(run["id"] for run in browser.list()["runs"] if run["name"] == name)


def values(page, title, curve):
    """The numbers in the table of values of a chart, by step."""
    chart = page.locator("figure.curve", has=page.get_by_role("heading", name=title, exact=True))
    if not chart.locator("details").evaluate("d => d.open"):
        chart.locator("summary").click()
    expect(chart.locator("tbody tr").first).to_be_visible()
    rows = chart.locator("tbody tr").evaluate_all(
        "rows => rows.map(r => [r.cells[0].textContent, r.cells[1].textContent, r.cells[2].dataset.value])"
    )
    return {int(at.replace(",", "")): float(value) for name, at, value in rows if name == curve}


def readout(page, title):
    return page.locator("figure.curve", has=page.get_by_role("heading", name=title, exact=True)).locator(".readout")


def test_the_list_shows_every_run_and_finds_them(lab, at):
    root, address, browser = lab
    page = at(address)
    page.wait_for_selector("tbody tr")
    names = page.locator("tbody td.main a").all_text_contents()
    assert sorted(names) == sorted(path.parent.relative_to(root).as_posix() for path in root.rglob("run.json"))
    assert set(page.locator("tbody .badge").all_text_contents()) == {"finished"}
    first = page.locator("tr", has_text="digits/first")
    spec = RunDir(root / "digits" / "first").spec()
    assert f"{spec.recipe.schedule.total} of {spec.recipe.schedule.total}" in first.inner_text()
    best = max(RunDir(root / "digits" / "first").history("validation", "top1").values())
    assert f"{100 * best:.1f} %" in first.inner_text()
    page.get_by_label("Search runs").fill("masked")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.locator("tbody td.main a").inner_text() == "masked"
    assert "words=masked" in page.url
    page.get_by_label("Search runs").fill("")
    page.get_by_label("Order by").select_option("best")
    listed = [run["name"] for run in browser.list(order="best")["runs"]]
    expect(page.locator("tbody td.main a")).to_have_text(listed)


def test_the_curves_have_the_recorded_values(lab, at):
    root, address, browser = lab
    run = RunDir(root / "digits" / "first")
    page = at(address, f"run/{id_of(browser, 'digits/first')}")
    page.wait_for_selector("figure.curve path.line")
    assert values(page, "Loss", "training") == run.history("step", "loss")
    assert values(page, "Loss", "validation") == run.history("validation", "loss")
    assert values(page, "Learning rate", "rate") == run.history("step", "rate")
    assert values(page, "Gradient norm", "norm") == run.history("step", "gradient_norm")
    accuracy = {at: 100 * value for at, value in run.history("validation", "top1").items()}
    assert values(page, "Validation accuracy", "accuracy") == pytest.approx(accuracy)
    line = page.locator("figure.curve path.line").first.get_attribute("d")
    assert line.count("M") + line.count("L") == len(run.history("step", "loss"))


def test_values_are_read_with_keys_and_pointer_and_scales_change(lab, at):
    root, address, browser = lab
    loss = RunDir(root / "digits" / "first").history("step", "loss")
    page = at(address, f"run/{id_of(browser, 'digits/first')}")
    page.wait_for_selector("figure.curve path.line")
    said, chart = readout(page, "Loss"), page.locator("svg.curves").first
    assert f"step {max(loss)}" in said.inner_text()
    chart.focus()
    page.keyboard.press("Home")
    assert f"step 1\ntraining {loss[1]:.4g}".replace("\n", "") in said.inner_text().replace("\n", "")
    page.keyboard.press("ArrowRight")
    assert "step 2" in said.inner_text()
    assert said.get_attribute("aria-live") == "polite"
    page.keyboard.press("Escape")
    assert f"step {max(loss)}" in said.inner_text()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    assert page.locator("svg.curves .cursor").count() == 1
    assert "Loss" in chart.get_attribute("aria-label")
    before = page.locator("path.line").first.get_attribute("d")
    page.get_by_role("button", name="Log scale").first.click()
    assert page.locator("path.line").first.get_attribute("d") != before
    page.get_by_label("Smoothing").fill("0.8")
    expect(page.locator("path.line.faint")).to_have_count(2)  # loss and gradient norm
    page.keyboard.press("Tab")
    page.get_by_role("button", name="by time").click()
    assert "after" in said.inner_text()


def test_a_running_training_is_followed_without_reading_it_again(tmp_path, at):
    run = made_run(tmp_path / "live", events=[START, *(step(number, 10 - number) for number in range(1, 6))])
    with served(RunBrowser(tmp_path)) as address, locked(run.path):
        page = at(address)
        page.get_by_role("link", name="live").click()
        page.wait_for_selector(".badge.running")
        expect(readout(page, "Loss")).to_contain_text("step 5")
        size = (run.path / "events.jsonl").stat().st_size
        for number in (6, 7):
            run.record("step", {"step": number, "loss": 10 - number, "gradient_norm": 1.0, "rate": 1e-3})
        with (run.path / "events.jsonl").open("a") as file:
            file.write('{"event": "step", "time": 1.8e9, "st')  # still being written
        expect(readout(page, "Loss")).to_contain_text("step 7")
        assert values(page, "Loss", "training") == {number: 10 - number for number in range(1, 8)}
        with (run.path / "events.jsonl").open("a") as file:
            file.write('ep": 8, "loss": 0.5}\n{broken\n')
        expect(readout(page, "Loss")).to_contain_text("step 8")
        page.get_by_text("1 damaged line of its log").wait_for()
        assert values(page, "Loss", "training")[8] == 0.5
        asked = [parse_qs(urlsplit(url).query) for url in page.requests if "/events" in url]
        places = [int(one["after"][0]) for one in asked]
        assert places == sorted(places)
        assert places.count(0) == 1
        assert size in places
        run.record("resumed", {"step": 6})
        run.record("step", {"step": 7, "loss": 42.0})
        expect(readout(page, "Loss")).to_contain_text("42")
        assert values(page, "Loss", "training") == {**{n: 10 - n for n in range(1, 7)}, 7: 42.0}  # a repeated step
        run.record("finished", {"step": 7})
        page.wait_for_selector(".badge.finished")


def test_two_runs_are_compared(lab, at):
    root, address, _ = lab
    page = at(address)
    page.get_by_label("Compare digits/first").check()
    page.get_by_label("Compare digits/faster").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector("figure.curve path.line.c1")
    for name in ("first", "faster"):
        run = RunDir(root / "digits" / name)
        assert values(page, "Loss", f"digits/{name}") == run.history("step", "loss")
    table = page.locator("section", has_text="Settings that differ").locator("tbody tr")
    rows = [row.split("\t") for row in table.all_inner_texts()]
    assert sorted(rows) == [["schedule.peak", "0.003", "0.01"], ["seed", "0", "1"]]
    assert re.search(r"compare/[0-9a-f]{20},[0-9a-f]{20}$", page.url)
    page.reload()  # a link to a comparison
    page.wait_for_selector("figure.curve path.line.c1")


def test_a_sweep_shows_its_points_and_its_choice(lab, at):
    root, address, _ = lab
    page = at(address, "sweeps")
    choice = read_object(root / "sweep" / "choice.json")
    picked = page.locator("tr", has=page.locator(".badge.picked"))
    picked.wait_for()
    assert choice["pick"] in picked.inner_text()
    shown = page.locator("table").first.locator("tbody tr")
    assert shown.count() == len(choice["points"]) == 4
    for point in choice["points"]:
        assert f"{point['development top-1 %']:.1f} %" in shown.filter(has_text=point["point"]).inner_text()
    assert page.locator("path.way").count() == 4
    page.get_by_role("button", name="Scatter").click()
    assert page.locator("circle.dot").count() == 4
    page.get_by_label("Setting on the horizontal axis").select_option(label="dropout")
    page.locator("circle.dot.chosen").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("figure.curve path.line")
    assert choice["pick"] in page.locator("h2.run-name").inner_text()


def test_a_study_fills_up_while_it_is_watched(tmp_path, at):
    study = STUDIES["table8"]
    folder, cells = made_study(tmp_path, study), tuple(study.cells(TINY))
    for seed in (0, 1):
        made_row(folder, study, 0, seed, 30.0 + seed)
        made_row(folder, study, 1, seed, 60.0 + 2 * seed)
    made_run(tmp_path / "trained" / cells[0].training.name / "seed-0").path.joinpath("result.json").write_text("{}")
    with served(RunBrowser(tmp_path)) as address, locked(folder):
        page = at(address)
        page.get_by_role("link", name="Studies").click()
        page.wait_for_selector(".study .badge.running")
        facts = page.locator(".study .facts")
        for words in ("Table 8: position embeddings", "tiny", "1 of 24 trainings", "4 of 24 runs"):
            expect(facts).to_contain_text(words)
        bars = facts.locator("progress").evaluate_all("all => all.map(one => one.value)")
        assert bars == pytest.approx([1 / 24, 4 / 24])
        claims, table = page.locator(".study table").all()
        rows = table.locator("tbody tr").all_inner_texts()
        shown = [[text.strip() for text in row.split("\t")] for row in rows]
        assert shown[0] == ["none", "stem", "30.5 ± 0.71", "2 of 3", "61.38"]
        assert shown[2] == ["1d", "every-layer", "pending", "0 of 3", "63.96"]
        assert len(shown) == len(cells)
        needed = claims.locator("tr", has_text=study.claims_at(TINY)[0].name)
        expect(needed).to_contain_text("not enough seeds yet")
        expect(needed).to_contain_text("2 of 3")
        made_row(folder, study, 0, 2, 32.0)
        made_row(folder, study, 1, 2, 64.0)
        expect(facts).to_contain_text("6 of 24 runs")
        expect(needed.locator(".badge")).to_have_text("confirmed")
        expect(needed).to_contain_text("+31.00 [")
        made_row(folder, study, 2, 0, None)
        expect(table.locator("tbody tr").nth(2)).to_contain_text("diverged")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_study_of_ones_own_fits_a_narrow_screen_and_its_words_are_text(tmp_path, at, scheme):
    claim = Claim(HOSTILE, HOSTILE, "", (above("few-shot %", {HOSTILE: "2"}, {HOSTILE: "1"}),))
    cells = [Cell({HOSTILE: level}, TINY.few_shot(), TINY.pretrained("ViT-B/16"), published=50.0) for level in "12"]
    study = Study("own", HOSTILE * 9, "", lambda lab: cells, Figure(HOSTILE), (claim,))
    folder = made_study(tmp_path, study)
    made_row(folder, study, 0, 0, 1234.5678)
    made_row(folder, study, 1, 0, 1.0).write_text(HOSTILE)
    made_study(tmp_path / "other", study).joinpath("study.json").write_text(HOSTILE)
    with served(RunBrowser(tmp_path)) as address:
        page = at(address, "studies", viewport={"width": 360, "height": 740}, color_scheme=scheme)
        page.on("dialog", lambda _: pytest.fail("a script of a name ran"))
        page.wait_for_selector("tbody tr")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("img").count() == 0
        assert page.locator(".study .badge").all_inner_texts() == ["unreadable", "stopped", "not enough seeds yet"]
        assert page.locator(".study .why").count() == 2
        assert "<img src=x onerror=alert(1)>\\u202e" in page.locator(".study .facts").inner_text()


def test_the_ledger_is_a_table_that_can_be_searched(lab, at):
    root, address, _ = lab
    entries, _ = read(root / "ledger.jsonl")
    page = at(address, "ledger")
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").count() == len(entries) == 2
    page.get_by_label("Search the ledger").fill("fine-tuned")
    (row,) = page.locator("tbody tr").all_inner_texts()
    assert f"{entries[0].got:.4g}" in row


def test_the_worst_mistakes_of_an_evaluation_are_shown(lab, at):
    root, address, _ = lab
    page = at(address, "evaluations")
    page.get_by_role("link", name="Classes and worst mistakes").click()
    kept = read_object(root / "evaluation" / "01-mistakes.json")["mistakes"]
    page.locator(".mistake img").first.wait_for()
    expect(page.locator(".mistake img")).to_have_count(len(kept))
    assert page.locator(".mistake img").evaluate_all("all => all.map(one => one.naturalWidth)") == [8] * len(kept)
    for mistake, words in zip(kept, page.locator(".mistake figcaption").all_inner_texts(), strict=True):
        assert f"{mistake['label']} taken for {mistake['answer']} ({100 * mistake['probability']:.1f} %)" in words
    page.get_by_text("Classes, the worst first (10 of 10)").click()
    assert page.locator("details[open] tbody tr").count() == 10


def test_a_run_shows_the_mistakes_of_its_test_and_a_masked_run_its_patches(lab, at):
    root, address, browser = lab
    page = at(address, f"run/{id_of(browser, 'digits/first')}")
    found = from_json(Answers, read_json(root / "digits" / "first" / answers_file("test")))
    tested = page.locator("section", has=page.get_by_role("heading", name="test images"))
    tested.locator(".mistake").last.scroll_into_view_if_needed()
    expect(tested.locator(".mistake img")).to_have_count(len(found.mistakes))
    assert f"sample {found.mistakes[0].id}" == tested.locator(".mistake img").first.get_attribute("alt")
    assert f"{100 * found.numbers['top1']:.1f} %" in tested.inner_text()
    page.goto(f"{address}runs.html#/run/{id_of(browser, 'masked')}")
    expect(page.locator("img.masked")).to_be_visible()
    assert page.locator("img.masked").evaluate("one => one.decode().then(() => one.naturalWidth)") > 100


def test_hostile_names_are_text(tmp_path, at):
    made_run(tmp_path / HOSTILE, events=[START, step(1), {"event": HOSTILE, "time": 1, "step": 1, HOSTILE: HOSTILE}])
    (tmp_path / HOSTILE / "not-exact.json").write_text(json.dumps([HOSTILE]))
    with served(RunBrowser(tmp_path)) as address:
        page = at(address)
        page.on("dialog", lambda _: pytest.fail("a script of a name ran"))
        page.locator("tbody td.main a").click()
        page.get_by_text("This run is not exact").wait_for()
        page.wait_for_selector("tbody tr")
        assert page.locator("h2.run-name").inner_text() == "<img src=x onerror=alert(1)>\\u202e"
        assert page.locator("img").count() == 0


def test_pages_of_a_long_list(tmp_path, at):
    for number in range(PAGE + 3):
        made_run(tmp_path / f"run{number:03d}", events=[START, step(1)])
    with served(RunBrowser(tmp_path)) as address:
        page = at(address)
        page.wait_for_selector("tbody tr")
        assert page.locator("tbody tr").count() == PAGE
        page.get_by_role("button", name="Older").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        assert page.get_by_text("page 2 of 2").is_visible()


def test_an_empty_folder_and_an_unknown_run_say_what_is_the_matter(tmp_path, at):
    with served(RunBrowser(tmp_path)) as address:
        page = at(address)
        page.get_by_text("There are no runs in this folder yet").wait_for()
        empty = {"sweeps": "sweeps", "studies": "studies", "evaluations": "evaluations", "ledger": "ledger.jsonl"}
        for view, words in empty.items():
            page.goto(f"{address}runs.html#/{view}")
            page.get_by_text(f"There {'is' if view == 'ledger' else 'are'} no {words}").wait_for()
        page.goto(f"{address}runs.html#/run/00000000000000000000")
        page.get_by_role("alert").get_by_text("there is no run with the id").wait_for()
        page.complaints.clear()  # the browser reports the answer 404


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_everything_without_scrolling_sideways(lab, at, scheme):
    _, address, browser = lab
    first, faster = id_of(browser, "digits/first"), id_of(browser, "digits/faster")
    evaluation = browser.evaluations()["evaluations"][0]["id"]
    page = at(address, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    runs = (f"run/{first}", f"compare/{first},{faster}")
    for view in ("", *runs, "sweeps", "evaluations", f"evaluation/{evaluation}", "ledger"):
        page.goto(f"{address}runs.html#/{view}")
        page.wait_for_selector("tbody tr, figure.curve path.line")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 200) == (scheme == "dark")


def test_everything_is_reached_with_the_keyboard(lab, at):
    _, address, _ = lab
    page = at(address)
    page.wait_for_selector("tbody tr")
    page.get_by_role("link", name="sweep/final/seed-0").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("figure.curve path.line")
    nameless = "one => one.checkVisibility() && !(one.textContent.trim() || one.ariaLabel || one.labels?.length)"
    found = f"all => all.filter({nameless}).map(one => one.outerHTML)"
    names = page.locator("button, a, input, select, summary, svg.curves").evaluate_all(found)
    assert names == []


def test_a_run_that_is_replaced_is_read_again(tmp_path, at):
    run = made_run(tmp_path / "run", events=[START, *(step(number) for number in range(1, 6))])
    with served(RunBrowser(tmp_path)) as address, locked(run.path):
        page = at(address)
        page.get_by_role("link", name="run", exact=True).click()
        expect(readout(page, "Loss")).to_contain_text("step 5")
        again = [{**START, "time": 5.0}, *(step(number, 0.25, time=5.0 + number) for number in range(1, 9))]
        (run.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in again))
        expect(readout(page, "Loss")).to_contain_text("step 8")
        assert values(page, "Loss", "training") == dict.fromkeys(range(1, 9), 0.25)


def test_a_damaged_run_is_listed_with_its_reason(tmp_path, at):
    made_run(tmp_path / "broken", crashes.small_run()).path.joinpath("run.json").write_text("{")
    with served(RunBrowser(tmp_path)) as address:
        page = at(address)
        assert "run.json is not readable JSON" in page.locator("tbody tr").inner_text()
        page.get_by_role("link", name="broken").click()
        page.locator(".why", has_text="run.json").wait_for()
