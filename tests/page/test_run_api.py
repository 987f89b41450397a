"""The run browser reads what runs wrote, follows what they write, and believes neither names nor files."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import crashes
from run_browsing import made_run, step
from servers import Service
from vitlab.files.store import write_json
from vitlab.page.run_browser import events as run_events
from vitlab.page.run_browser import folders as run_folders
from vitlab.page.run_browser import mistakes as mistake_pictures
from vitlab.page.run_browser import values as run_values
from vitlab.page.run_browser.api import PAGE, RunBrowser, routes
from vitlab.page.run_browser.events import read_events
from vitlab.page.run_browser.mistakes import Pictures, SampleOf
from vitlab.report.ledger import Entry, append
from vitlab.run_dir import RunDir, answers_file

VALIDATION = {"event": "validation", "time": 1.7e9, "step": 2, "top1": 0.5, "loss": 1.5, "count": 4}
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "=cmd|' /C calc'!A0",
    "line\nbreak",
    "\x1b[31mred",
    "gnp.\u202eexe",
    "'\"><script>alert(1)</script>",
    "-rf",
    os.fsdecode(b"broken-\xff-bytes"),
    "n" * 200,
)


@contextmanager
def browsing(root):
    browser = RunBrowser(root)
    try:
        yield browser, dict(routes(browser))
    finally:
        browser.close()


def asked(mounted, path, **given):
    answer = mounted[path](given)
    return answer.status, json.loads(answer.body)


def only(root) -> dict:
    (run,) = RunBrowser(root).list()["runs"]
    return run


# -- Following ---------------------------------------------------------------------------------------


def test_following_a_growing_file_gives_what_reading_it_whole_gives(tmp_path):
    run = made_run(tmp_path / "run")
    written = [step(number, 1 / number) for number in range(1, 60)]
    written[20:20] = [VALIDATION, {"event": "saved", "time": 1.7e9, "step": 20}]
    content = "".join(json.dumps(event) + "\n" for event in written).encode()
    followed, place, reads = [], 0, 0
    with (run.path / "events.jsonl").open("ab", buffering=0) as file:
        for start in range(0, len(content), 101):  # never at the end of a line
            file.write(content[start : start + 101])
            read = read_events(run.path, place)
            assert read.start == place
            followed += read.events
            place, reads = read.next, reads + 1
    whole = read_events(run.path)
    assert reads > 50
    assert tuple(followed) == whole.events == tuple(run.events())
    assert place == whole.next == len(content)
    assert read_events(run.path, place).events == ()


def test_following_costs_what_is_new(tmp_path, monkeypatch):
    run = made_run(tmp_path / "run", events=[step(number) for number in range(1, 2000)])
    read, plain = [], run_events.open_regular

    class Counting:
        def __init__(self, path):
            self.file = plain(path)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, size):
            read.append(size)
            return self.file.read(size)

    monkeypatch.setattr(run_events, "open_regular", Counting)
    place = 0
    while (found := read_events(run.path, place)).is_behind:
        place = found.next
    size = (run.path / "events.jsonl").stat().st_size
    read.clear()
    run.record("saved", {"step": 2000})
    assert [event["event"] for event in read_events(run.path, size).events] == ["saved"]
    assert sum(read) < 100


def test_a_long_log_comes_in_parts_that_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(run_events, "CHUNK", 1000)
    run = made_run(tmp_path / "run", events=[step(number) for number in range(1, 100)])
    found, place, is_behind = [], 0, True
    while is_behind:
        part = read_events(run.path, place)
        found += part.events
        place, is_behind = part.next, part.is_behind
    assert found == list(run.events())


DAMAGED = (
    *(b"{", b"\xff\xfe", b"[1, 2]", b'{"event": 3}', b'{"event": "step", "step": "x"}', b"[" * 100_000),
    *(b'{"event": "step", "step": NaN}', b'{"event": "a", "event": "b"}', b'{"event": "x", "step": 1e9}'),
    b'{"event": "step", "step": ' + b"9" * 30 + b"}",
)


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_counted_and_the_rest_is_read(tmp_path, line):
    run = made_run(tmp_path / "run", events=[step(1)])
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(line + b"\n" + json.dumps(step(2)).encode() + b"\n")
    read = read_events(run.path)
    assert [event["step"] for event in read.events] == [1, 2]
    assert read.damaged == 1
    assert only(tmp_path)["step"] == 2


def test_a_line_without_end_is_passed_over(tmp_path):
    run = made_run(tmp_path / "run", events=[step(1)])
    start = read_events(run.path).next
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(b"x" * (2 * run_events.CHUNK))
        file.flush()
        read = read_events(run.path, start)
        assert (read.events, read.damaged, read.is_behind) == ((), 1, False)
        file.write(b"\n" + json.dumps(step(2)).encode() + b"\n")
    assert [event["step"] for event in read_events(run.path, read.next).events] == [2]


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    run = made_run(tmp_path / "run", events=[VALIDATION, *(step(number) for number in range(1, 9))])
    browser = RunBrowser(tmp_path)
    id = browser.list()["runs"][0]["id"]
    before = browser.events(id)
    assert [browser.list()["runs"][0][name] for name in ("step", "best")] == [8, 0.5]
    (run.path / "events.jsonl").write_text("".join(json.dumps(step(n, 5.0, time=5.0 + n)) + "\n" for n in range(1, 12)))
    after = browser.events(id, before["next"])
    assert after["stream"] != before["stream"]  # then the page begins again
    assert [browser.list()["runs"][0][name] for name in ("step", "best")] == [11, None]
    (run.path / "events.jsonl").write_text(json.dumps(step(1, 5.0, time=6.0)) + "\n")
    assert browser.events(id, before["next"])["start"] == 0
    assert browser.list()["runs"][0]["step"] == 1


def test_numbers_that_json_has_not_come_as_text(tmp_path):
    made_run(tmp_path / "run", events=[step(1, loss="nan"), step(2, loss="inf")])
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "time": 1, "step": 3, "loss": 1e999}\n')
    with browsing(tmp_path) as (_, mounted):
        _, listed = asked(mounted, "api/runs")
        status, read = asked(mounted, "api/runs/{id}/events", id=listed["runs"][0]["id"])
    assert status == 200
    assert [event["loss"] for event in read["events"]] == ["nan", "inf", "inf"]
    assert listed["runs"][0]["loss"] == "inf"


# -- The list ----------------------------------------------------------------------------------------


@pytest.mark.slow  # making a thousand folders
def test_a_thousand_runs_cost_one_stat_each_once_they_are_known(tmp_path, monkeypatch):
    run = made_run(tmp_path / "0000", events=[step(1), VALIDATION, {"event": "finished", "time": 1.7e9, "step": 2}])
    text = {name: (run.path / name).read_bytes() for name in ("run.json", "data.json", "events.jsonl")}
    for number in range(1, 1000):
        folder = tmp_path / f"{number:04d}"
        folder.mkdir()
        for name, content in text.items():
            (folder / name).write_bytes(content)
    monkeypatch.setattr(run_folders, "RECENT", -1.0)  # as if the folders had not just been made
    browser = RunBrowser(tmp_path)
    first = browser.list(words="vit", order="name")
    assert (first["total"], first["found"], first["pages"], len(first["runs"])) == (1000, 1000, 1000 // PAGE, PAGE)
    calls = []

    def counted(name, plain):
        return lambda *given, **options: calls.append(name) or plain(*given, **options)

    for name in ("stat", "lstat", "open", "scandir"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    assert browser.list(words="vit", order="name") == first
    assert calls.count("stat") == 1000 + 1  # each run's events, and the folder of all
    assert set(calls) == {"stat"}
    monkeypatch.undo()
    with (tmp_path / "0500" / "events.jsonl").open("a") as file:
        file.write(json.dumps(step(7)) + "\n")
    assert browser.list()["runs"][0]["name"] == "0500"


def test_pages_words_states_and_orders(tmp_path):
    for number in range(PAGE + 5):
        found = {**VALIDATION, "top1": number / 100}
        end = [{"event": "finished", "time": 1.7e9, "step": 2}] if number % 2 else [{"event": "stopped", "time": 1.7e9}]
        made_run(tmp_path / "a" / f"run{number:03d}", events=[step(1, 100 - number), found, *end])
    made_run(tmp_path / "b" / "other", crashes.small_run(steps=9))
    browser = RunBrowser(tmp_path)
    pages = [browser.list(page, order="name")["runs"] for page in range(2)]
    assert [run["name"] for page in pages for run in page][:2] == ["a/run000", "a/run001"]
    assert [len(page) for page in pages] == [PAGE, 6]
    assert browser.list(99)["page"] == 1
    assert browser.list(order="best")["runs"][0]["name"] == f"a/run{PAGE + 4:03d}"
    assert browser.list(order="loss")["runs"][0]["name"] == f"a/run{PAGE + 4:03d}"
    assert {run["name"] for run in browser.list(words="OTHER digits")["runs"]} == {"b/other"}
    assert browser.list(state="stopped")["found"] == 28
    for wrong in ({"state": "x"}, {"order": "x"}):
        with pytest.raises(ValueError, match="allowed are"):
            browser.list(**wrong)


def test_runs_that_come_and_go_are_noticed(tmp_path):
    browser = RunBrowser(tmp_path)
    assert browser.list()["runs"] == []
    made_run(tmp_path / "deep" / "er" / "run", events=[step(1)])
    (run,) = browser.list()["runs"]
    assert run["name"] == "deep/er/run"
    (tmp_path / "deep" / "er" / "run").rename(tmp_path / "deep" / "er" / "moved")
    (moved,) = browser.list()["runs"]
    assert moved["name"] == "deep/er/moved"
    with pytest.raises(LookupError, match="there is no run"):
        browser.run(run["id"])


def test_states_say_how_a_run_is_doing(tmp_path):
    begun = {"event": "started", "time": 1.7e9, "step": 0}
    made_run(tmp_path / "killed", events=[begun, step(1)])
    made_run(tmp_path / "diverged", events=[begun, step(1, "nan", skipped=True)])
    made_run(tmp_path / "stopped", events=[begun, step(1), {"event": "stopped", "time": 1.7e9, "step": 1, "code": 130}])
    made_run(tmp_path / "done", events=[begun, step(1), {"event": "finished", "time": 1.7e9, "step": 1}])
    again = {"event": "resumed", "time": 1.7e9, "step": 1}
    made_run(tmp_path / "again", events=[begun, {"event": "finished", "time": 1.7e9, "step": 1}, again])
    made_run(tmp_path / "broken").path.joinpath("run.json").write_text("{")
    browser = RunBrowser(tmp_path)
    states = {run["name"]: (run["state"], run["why"]) for run in browser.list()["runs"]}
    assert {name: state for name, (state, _) in states.items()} == {
        "killed": "failed",
        "diverged": "failed",
        "stopped": "stopped",
        "done": "finished",
        "again": "failed",
        "broken": "unreadable",
    }
    assert "diverged" in states["diverged"][1]
    assert "run.json" in states["broken"][1]
    code = "import sys; from vitlab.files.store import *\nwith locked(Path(sys.argv[1])): print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "stopped")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "1\n"
        assert {run["name"]: run["state"] for run in browser.list()["runs"]}["stopped"] == "running"
        child.stdin.write("\n")
        child.stdin.close()
        child.wait()
    assert {run["name"]: run["state"] for run in browser.list()["runs"]}["stopped"] == "stopped"


def test_the_comparison_lists_the_settings_that_differ(tmp_path):
    made_run(tmp_path / "a", crashes.small_run(steps=24))
    made_run(tmp_path / "b", crashes.small_run(steps=48, batch=6))
    browser = RunBrowser(tmp_path)
    ids = [run["id"] for run in browser.list(order="name")["runs"]]
    found = browser.compare(ids)
    assert {one["setting"]: one["values"] for one in found["differences"]} == {
        "recipe.batch": [12, 6],
        "recipe.schedule.total": [24, 48],
    }
    assert found["same"] > 50
    with pytest.raises(ValueError, match="1 to 12"):
        browser.compare(ids * 7)


# -- What is not believed ------------------------------------------------------------------------------


def test_hostile_names_come_as_printable_text(tmp_path):
    for name in HOSTILE:
        made_run(tmp_path / name, events=[step(1)])
        (tmp_path / name / answers_file("test")).write_text("{}")
    with browsing(tmp_path) as (_, mounted):
        status, listed = asked(mounted, "api/runs")
        assert status == 200
        assert len(listed["runs"]) == len(HOSTILE)
        for run in listed["runs"]:
            assert run["name"].isprintable()
            status, detail = asked(mounted, "api/runs/{id}", id=run["id"])
            assert status == 200
            assert detail["name"] == run["name"]
            assert asked(mounted, "api/runs/{id}/events", id=run["id"])[0] == 200
    assert "<img src=x onerror=alert(1)>" in {run["name"] for run in listed["runs"]}  # text to a browser


@pytest.mark.parametrize(
    "id", ["", ".", "..", "../run", "%2e%2e%2frun", "/etc", "run", "a" * 20, "\0", "é", "x" * 10_000, "0" * 20]
)
def test_an_id_is_never_a_path(tmp_path, id):
    made_run(tmp_path / "root" / "run", events=[step(1)])
    made_run(tmp_path / "run", events=[step(1)])
    with browsing(tmp_path / "root") as (_, mounted):
        for path in mounted:
            if "{id}" in path:
                status, said = asked(mounted, path, id=id, number="0")
                assert status == 404
                assert str(tmp_path) not in said["error"]
        assert asked(mounted, "api/compare", ids=f"{id}")[0] in (400, 404)


def test_ids_are_the_same_in_every_process_and_say_nothing(tmp_path):
    made_run(tmp_path / "secret-name")
    run = only(tmp_path)
    assert run["id"] == only(tmp_path)["id"]
    assert len(run["id"]) == 20
    assert set(run["id"]) <= set("0123456789abcdef")


def test_links_out_of_the_root_are_refused(tmp_path):
    outside = made_run(tmp_path / "outside" / "run", events=[step(1)]).path
    root = tmp_path / "root"
    inside = made_run(root / "inside", events=[step(1)]).path
    (root / "linked").symlink_to(outside)
    browser = RunBrowser(root)
    (run,) = browser.list()["runs"]
    assert run["name"] == "inside"
    (inside / "events.jsonl").unlink()
    (inside / "events.jsonl").symlink_to(outside / "events.jsonl")
    with pytest.raises(OSError, match="symbolic link"):
        browser.events(run["id"])
    (inside / "masked-patches.png").symlink_to(outside / "run.json")
    with pytest.raises(LookupError):
        browser.picture(run["id"], 0)
    (inside / "run.json").unlink()
    (inside / "run.json").symlink_to(outside / "run.json")
    assert RunBrowser(root).list()["runs"] == []
    inside.rename(tmp_path / "gone")
    (root / "inside").symlink_to(outside)
    with pytest.raises(LookupError):
        browser.run(run["id"])


def test_special_and_huge_files_are_refused_at_once(tmp_path):
    folder = made_run(tmp_path / "fifo").path
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "events.jsonl")
    large = made_run(tmp_path / "large", events=[step(1)]).path
    for name in ("result.json", "masked-patches.png"):
        with (large / name).open("wb") as file:
            file.truncate(2**31)
    with browsing(tmp_path) as (_, mounted):
        fifo, huge = asked(mounted, "api/runs", order="name")[1]["runs"]
        assert (fifo["state"], "is a FIFO" in fifo["why"]) == ("unreadable", True)
        assert asked(mounted, "api/runs/{id}/events", id=fifo["id"])[0] == 400
        assert asked(mounted, "api/runs/{id}", id=huge["id"])[1]["result"] == {}
        status, said = asked(mounted, "api/runs/{id}/pictures/{number}", id=huge["id"], number="0")
        assert (status, "at most" in said["error"]) == (400, True)


DEEP = '{"a":' * 900 + "1" + "}" * 900


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"a": 1e999}', "[" * 50_000, DEEP, "\0"])
def test_damaged_files_spoil_only_what_they_hold(tmp_path, content):
    folder = made_run(tmp_path / "run", events=[step(1)]).path
    made_run(tmp_path / "sweep" / "grid" / "a=1", events=[step(1)])
    (tmp_path / "evaluation" / "progress").mkdir(parents=True)
    for name in ("result.json", "not-exact.json", "diverged.json", "data.json", answers_file("test")):
        (folder / name).write_text(content)
    for name in ("sweep/sweep.json", "sweep/choice.json", "sweep/result.json", "evaluation/results.json"):
        (tmp_path / name).write_text(content)
    (tmp_path / "ledger.jsonl").write_text(content)
    with browsing(tmp_path) as (_, mounted):
        status, listed = asked(mounted, "api/runs")
        assert (status, listed["total"]) == (200, 2)
        for path in ("api/sweeps", "api/evaluations", "api/ledger"):
            assert asked(mounted, path)[0] == 200
        for run in listed["runs"]:
            assert asked(mounted, "api/runs/{id}", id=run["id"])[0] in (200, 400)
            assert asked(mounted, "api/runs/{id}/events", id=run["id"])[0] == 200


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ('class,images,"accuracy %"\ncat,2,50\ndog,3\nant,1,10,20,30\n', ["dog", "ant", "cat"]),
        ("class\n" + "a\n" * 3000, ["a"] * 200),
        ("class\n" + "a" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_tables_of_an_evaluation_may_be_damaged_or_long(tmp_path, classes, expected, monkeypatch):
    monkeypatch.setattr(run_values, "MOST_ROWS", 1000)
    (tmp_path / "evaluation" / "progress").mkdir(parents=True)
    (tmp_path / "evaluation" / "results.json").write_text('[{"model": "m"}]')
    (tmp_path / "evaluation" / "01-classes.csv").write_text(classes)
    with browsing(tmp_path) as (browser, mounted):
        (table,) = browser.evaluations()["evaluations"]
        status, said = asked(mounted, "api/evaluations/{id}", id=table["id"])
    if isinstance(expected, str):
        assert (status, expected in said["error"]) == (400, True)
        return
    assert status == 200
    (row,) = said["rows"]
    assert [one["class"] for one in row["classes"]] == expected
    assert row["class_count"] == (3 if len(expected) == 3 else 1000)
    assert "None" not in json.dumps(row["classes"])


@pytest.mark.parametrize(("name", "value"), [("page", "-1"), ("page", "x"), ("page", "9" * 50), ("order", "<b>")])
def test_wrong_questions_get_an_answer(tmp_path, name, value):
    with browsing(tmp_path) as (_, mounted):
        status, said = asked(mounted, "api/runs", **{name: value})
    assert status == 400
    assert name in said["error"]


def test_a_folder_that_is_too_large_says_so(tmp_path, monkeypatch):
    for number in range(8):
        made_run(tmp_path / str(number))
    monkeypatch.setattr(run_folders, "MOST_FOLDERS", 5)
    found = RunBrowser(tmp_path).list()
    assert found["is_cut"]
    assert found["total"] == 4  # and the root itself


def test_nothing_imports_torch():
    code = "import sys, vitlab.page.run_browser.api; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- Ledgers and pictures ------------------------------------------------------------------------------


def test_ledgers_come_with_remarks_on_bad_lines(tmp_path):
    entry = Entry(model="ViT-B/16", data="cifar10:x", metric="top-1 %", got=98.0, n=100, command="c", task="CIFAR-10")
    append(tmp_path / "deep" / "ledger.jsonl", [entry])
    with (tmp_path / "deep" / "ledger.jsonl").open("a") as file:
        file.write("{broken\n")
    (table,) = RunBrowser(tmp_path).ledger()["ledgers"]
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert (row["model"], row["got"], table["name"]) == ("ViT-B/16", 98.0, "deep")
    assert "table 5" in row["published"]
    assert table["remarks"][0].startswith("ledger.jsonl, line 2 is skipped")


@pytest.fixture(scope="module")
def pictures():
    made = Pictures()
    yield made
    made.close()


def photographs(folder: Path) -> str:
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (900, 600), colour).save(folder / name / "1.png")
    return f"folder:{folder}"


@pytest.mark.slow  # the process that decodes imports torch
def test_thumbnails_are_those_of_recorded_samples(tmp_path, pictures):
    data = photographs(tmp_path / "photos")
    made = tmp_path / "thumbnail.png"
    made.write_bytes(pictures.get(SampleOf(data, 1, "dog/1.png")))
    with Image.open(made) as image:
        assert (image.size, image.getpixel((5, 5))) == ((320, 213), (0, 0, 255))
    with pytest.raises(LookupError, match="the data has changed"):
        pictures.get(SampleOf(data, 0, "dog/1.png"))
    with pytest.raises(LookupError, match="the data has changed"):
        pictures.get(SampleOf(data, 7, "dog/1.png"))
    with pytest.raises(LookupError, match="no data is named"):
        pictures.get(SampleOf("nothing:at-all", 0, "0"))
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(LookupError, match="BadImage"):
        pictures.get(SampleOf(data, 0, "cat/1.png"))


@pytest.mark.slow
def test_the_process_that_decodes_runs_no_module_of_the_current_folder_and_gets_no_token(tmp_path, monkeypatch):
    data = photographs(tmp_path / "photos")
    (tmp_path / "PIL.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLAB_TOKEN", "a token of twenty characters")
    made = Pictures()
    try:
        assert made.get(SampleOf(data, 0, "cat/1.png"))[:4] == b"\x89PNG"
        process = Path(f"/proc/{made._child.pid}")
        if process.exists():
            assert b"VITLAB_TOKEN" not in (process / "environ").read_bytes()
    finally:
        made.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_the_process_that_decodes_may_open_no_socket_and_start_no_program():
    code = (
        "from vitlab.page.run_browser.mistakes import main\nimport socket, subprocess, sys\nmain()\n"
        "for attempt in (lambda: socket.socket(), lambda: subprocess.run(['true']), lambda: bytearray(2**36)):\n"
        "    try: attempt()\n"
        "    except (PermissionError, MemoryError) as error: sys.stderr.write(f'{type(error).__name__}\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stderr.split() == [b"PermissionError", b"PermissionError", b"MemoryError"]


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_started_again(tmp_path, pictures, monkeypatch):
    data = photographs(tmp_path / "photos")
    pictures.get(SampleOf(data, 0, "cat/1.png"))
    pictures._child.kill()
    pictures._child.wait()
    assert pictures.get(SampleOf(data, 1, "dog/1.png"))
    first = pictures._child
    monkeypatch.setattr(mistake_pictures, "PATIENCE", 0.0)
    with pytest.raises(LookupError, match="longer than"):
        pictures.get(SampleOf(data + "?split=", 0, "cat/1.png"))
    assert first.poll() is not None
    monkeypatch.undo()
    assert pictures.get(SampleOf(data + "?split=", 1, "dog/1.png"))
    pictures._child.kill()
    pictures._child.wait()
    with pytest.raises(LookupError, match="longer than"):  # remembered: no process is started for it
        pictures.get(SampleOf(data + "?split=", 0, "cat/1.png"))
    assert pictures._child.poll() is not None


@pytest.mark.slow
def test_closing_does_not_wait_for_a_picture(tmp_path):
    data = photographs(tmp_path / "photos")
    made = Pictures()
    made.get(SampleOf(data, 0, "cat/1.png"))
    os.kill(made._child.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(made.get, SampleOf(data, 1, id)) for id in ("dog/1.png", "dog/2.png")]
        while not made._lock.locked():
            time.sleep(0.01)
        made.close()
        for one in waiting:
            with pytest.raises(LookupError):
                one.result()


@pytest.mark.slow
def test_pictures_that_take_long_stop_neither_the_other_routes_nor_the_end(tmp_path):
    data = photographs(tmp_path / "photos")
    folder = made_run(tmp_path / "runs" / "run", replace(crashes.small_run(), test=data)).path
    one = {"number": 0, "id": "cat/1.png", "label": 1, "answer": 0, "probability": 0.9, "loss": 3.0}
    listed = [one, {**one, "number": 1, "id": "dog/1.png"}]
    write_json(folder / answers_file("test"), {"numbers": {}, "classes": [], "confusion": [], "mistakes": listed})
    with Service("--runs", tmp_path / "runs", "--deadline", 10) as service, ThreadPoolExecutor(40) as pool:
        (run,) = service.get("/api/runs").json["runs"]
        service.wait_for(lambda: service.get(f"/api/runs/{run['id']}/pictures/0").status == 200)
        lists = [file.read_text() for file in Path(f"/proc/{service.process.pid}/task").glob("*/children")]
        (decoder,) = {int(pid) for pids in lists for pid in pids.split()} - set(service.workers())
        os.kill(decoder, signal.SIGSTOP)
        sent = [pool.submit(service.get, f"/api/runs/{run['id']}/pictures/1") for _ in range(40)]
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 41)
        assert service.get("/api/runs").status == 200
        assert not any(reply.done() for reply in sent)
        assert {(reply.result().status, reply.result().code) for reply in sent} == {(503, "deadline")}
        assert service.stop() == 0


@pytest.mark.slow
def test_a_run_whose_answers_name_a_sample_that_is_not_theirs_shows_no_picture(tmp_path):
    data = photographs(tmp_path / "photos")
    folder = made_run(tmp_path / "runs" / "run", replace(crashes.small_run(), test=data)).path
    one = {"number": 1, "id": "dog/1.png", "label": 1, "answer": 0, "probability": 0.9, "loss": 3.0}
    listed = [one, {**one, "number": 0, "id": "../../etc/passwd"}]
    write_json(folder / answers_file("test"), {"numbers": {}, "classes": [], "confusion": [], "mistakes": listed})
    with browsing(tmp_path / "runs") as (browser, mounted):
        (run,) = browser.list()["runs"]
        shown = browser.run(run["id"])["sets"][0]["mistakes"]
        assert [mistake["picture"] for mistake in shown] == [0, 1]
        answer = mounted["api/runs/{id}/pictures/{number}"]({"id": run["id"], "number": "0"})
        assert (answer.status, answer.media_type, answer.body[:4]) == (200, "image/png", b"\x89PNG")
        status, said = asked(mounted, "api/runs/{id}/pictures/{number}", id=run["id"], number="1")
        assert (status, "changed" in said["error"]) == (404, True)
        assert asked(mounted, "api/runs/{id}/pictures/{number}", id=run["id"], number="2")[0] == 404
        assert asked(mounted, "api/runs/{id}/pictures/{number}", id=run["id"], number="-1")[0] == 400


def test_the_list_of_a_live_run_costs_no_second_reading(tmp_path):
    """What was read stays read: a tally goes on where it was."""
    run = made_run(tmp_path / "run", events=[step(number) for number in range(1, 50)])
    browser = RunBrowser(tmp_path)
    browser.list()
    place = browser._known[only(tmp_path)["id"]].tally.place
    assert place == (run.path / "events.jsonl").stat().st_size
    run.record("step", {"step": 50, "loss": 0.25})
    assert browser.list()["runs"][0]["loss"] == 0.25
    assert browser._known[only(tmp_path)["id"]].tally.place > place


def test_a_run_dir_reads_the_same_numbers(tmp_path):
    run = made_run(tmp_path / "run", events=[step(number, 1 / number) for number in range(1, 9)])
    read = read_events(run.path)
    assert {event["step"]: event["loss"] for event in read.events} == RunDir(run.path).history("step", "loss")
