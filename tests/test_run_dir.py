"""The run folder: made once, added to, and readable after any death."""

import json

import pytest

import crashes
from vitlab.files.store import Locked, locked
from vitlab.run_dir import EVENTS, RUN, RunDir, check_new

SPEC = crashes.small_run()


@pytest.fixture
def run(in_memory):
    return RunDir.create(in_memory / "run", SPEC, {"classes": 10})


def test_what_was_asked_for_comes_back(run):
    assert RunDir.open(run.path).spec() == SPEC
    assert run.card() == {"classes": 10}


def test_a_folder_is_made_once(run):
    with pytest.raises(ValueError, match=r"holds a run already; continue it with: vitlab resume"):
        RunDir.create(run.path, SPEC, {})
    with locked(run.path), pytest.raises(Locked):
        RunDir.create(run.path, SPEC, {})


def test_the_command_that_continues_a_run_can_be_pasted(in_memory):
    run = RunDir.create(in_memory / "my run", SPEC, {"classes": 10})
    with pytest.raises(ValueError, match=r"continue it with: vitlab resume '.*/my run'$"):
        RunDir.create(run.path, SPEC, {})


def test_a_new_run_leaves_the_data_json_of_others_alone(in_memory):
    """A crash may leave only that file of a run; anybody may have one of that name."""
    card = {"spec": "digits", "samples": 3, "class_names": ["a"], "fingerprint": "f"}
    (in_memory / "data.json").write_text(json.dumps(card))
    check_new(in_memory)
    (in_memory / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="contains other files"):
        check_new(in_memory)
    (in_memory / "thesis.txt").unlink()
    (in_memory / "data.json").write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match="contains other files"):
        check_new(in_memory)


def test_a_folder_without_a_run_is_refused(in_memory):
    with pytest.raises(ValueError, match="holds no run"):
        RunDir.open(in_memory)


def test_a_run_of_another_version_is_refused(run):
    values = json.loads((run.path / RUN).read_text())
    (run.path / RUN).write_text(json.dumps(values | {"version": 2}))
    with pytest.raises(ValueError, match="format version 2, this vitlab reads 1"):
        RunDir.open(run.path).spec()


def test_events_come_back_in_order_and_numbers_that_are_none_too(run):
    run.record("step", {"step": 1, "loss": 0.5})
    run.record("step", {"step": 2, "loss": float("nan")})
    run.record("saved", {"step": 2})
    run.record("step", {"step": 1, "loss": float("inf")})
    assert [event["event"] for event in run.events()] == ["step", "step", "saved", "step"]
    losses = run.history("step", "loss")
    assert losses[1] == float("inf")  # a step that was repeated counts as it was repeated
    assert losses[2] != losses[2]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_is_left_out_and_taken_off(run, cut):
    run.record("step", {"step": 1, "loss": 0.5})
    whole = (run.path / EVENTS).read_bytes()
    run.record("step", {"step": 2, "loss": 0.25})
    content = (run.path / EVENTS).read_bytes()
    (run.path / EVENTS).write_bytes(content[:-cut])
    if cut > 1:  # without its end of line it can still be read
        assert run.history("step", "loss") == {1: 0.5}
    run.mend()
    assert (run.path / EVENTS).read_bytes() == whole
    run.record("step", {"step": 2, "loss": 0.125})
    assert run.history("step", "loss") == {1: 0.5, 2: 0.125}


@pytest.mark.parametrize("length", [0, 100, 4095, 4096, 4097, 9000])
def test_mending_finds_the_last_end_of_line_wherever_it_is(run, length):
    (run.path / EVENTS).write_bytes(b"a\n" + b"x" * length)
    run.mend()
    assert (run.path / EVENTS).read_bytes() == b"a\n"
    (run.path / EVENTS).write_bytes(b"x" * length)
    run.mend()
    assert (run.path / EVENTS).read_bytes() == b""


def test_looking_at_a_run_changes_nothing(run):
    """Whoever opens it does not hold the lock: the last line may be one that is being written."""
    run.record("step", {"step": 1, "loss": 0.5})
    with (run.path / EVENTS).open("a") as file:
        file.write('{"event": "st')
    before = (run.path / EVENTS).read_bytes()
    assert list(RunDir.open(run.path).events("step"))
    assert (run.path / EVENTS).read_bytes() == before


def test_a_log_that_cannot_be_written_is_counted(run):
    (run.path / EVENTS).symlink_to("/dev/full")
    run.record("step", {"step": 1})
    assert run.dropped == 1
    run.sync()
    run.mend()
