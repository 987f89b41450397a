"""Killed runs end as if nothing had happened: bit for bit, wherever death comes."""

import os
import random
import re
import signal
import statistics
from pathlib import Path

import pytest

import crashes
from vitlab.run_dir import MODEL, RunDir
from vitlab.spec.recipe import Execution
from vitlab.train.checkpoints.files import name_of

KILLS = int(os.environ.get("VITLAB_KILLS", "10"))
A_LIFE = 10  # kills of one run at most


@pytest.fixture
def unbroken(in_memory):
    """A run that nothing disturbs."""
    path = in_memory / "unbroken"
    crashes.new_run(path, crashes.small_run())
    assert crashes.code_of(crashes.start(crashes.carry_on, path)) == 0
    return path


@pytest.mark.slow
def test_runs_killed_at_any_moment_end_bit_identical(in_memory, unbroken):
    toll, rng = crashes.Toll(), random.Random(4)
    while toll.deaths < KILLS or not toll.during_a_save:  # kills that miss every save prove little
        assert toll.deaths < KILLS + 100
        path = in_memory / f"life-{toll.lives}"
        crashes.live_and_die(path, crashes.small_run(), toll, rng, min(A_LIFE, max(KILLS - toll.deaths, 1)))
        crashes.assert_same(path, unbroken)
        assert toll.lost == 0
    assert toll.redone <= 2 * crashes.SAVE_EVERY  # since the last save, and while it was written
    print(f"\n{toll}; all {toll.lives} runs ended bit-identical to the unbroken one")  # noqa: T201


def test_a_naive_writer_does_not_survive_the_same(in_memory):
    """The control: what the tests here look at can fail."""
    path = in_memory / "run"
    crashes.new_run(path, crashes.small_run())
    assert crashes.code_of(crashes.start(crashes.carry_on, path, crashes.write_naively, 4)) == 77
    with pytest.raises(ValueError, match="damaged"):
        crashes.whole_checkpoints(path)
    with pytest.raises(AssertionError, match="ended with 1"):
        crashes.finish(path)


SHORT = crashes.small_run(
    steps=3, validate_every=2, patience=3, execution=Execution(save_every=2, keep=1, micro_batch=5)
)
WINDOW = (name_of(2), name_of(3), f".{MODEL}.tmp")  # the second save; then the model and the result


@pytest.fixture(scope="module")
def short_life(memory):
    """A short unbroken run, every point of its saves at which a process can die, and a copy of the run at each."""
    path = memory / "short" / "unbroken"
    path.parent.mkdir()
    crashes.new_run(path, SHORT)
    diary, copies = path.with_name("diary"), path.with_name("copies")
    child = crashes.start(crashes.carry_on, path, crashes.die_at, -1, diary, WINDOW, path, copies)
    assert crashes.code_of(child) == 0
    return path, diary.read_text().splitlines(), copies


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_death_at_every_operation_of_a_save_loses_nothing(in_memory, short_life, part):
    """A process that is gone leaves what is on disk, so a copy made at that moment stands for its death.

    Every tenth death is real, and leaves the same as the copy.
    """
    unbroken, points, copies = short_life
    assert len(points) > 80
    kinds = {re.sub(r"\d+ (\w+ \w+) .*", r"\1", line) for line in points}
    assert {f"{when} {what}" for when in ("before", "after") for what in ("fsync", "rename", "write")} <= kinds
    survived = set()
    half = len(points) // 2
    for number in range(len(points))[half * part : len(points) if part else half]:
        path = copies / str(number)
        left = crashes.left_on_disk(path)
        if number % 10 == 0:
            died = in_memory / f"at-{number}"
            crashes.new_run(died, SHORT)
            child = crashes.start(crashes.carry_on, died, crashes.die_at, number, died.with_suffix(".diary"), WINDOW)
            assert crashes.code_of(child) == 77
            assert crashes.left_on_disk(died) == left
        assert crashes.whole_checkpoints(path)
        if left not in survived:  # nothing lies between the end of an operation and the beginning of the next
            crashes.finish(path)
            crashes.assert_same(path, unbroken)
            survived.add(left)


@pytest.mark.slow
def test_a_long_run_with_kills_leaks_nothing(in_memory):
    path, note = in_memory / "run", in_memory / "note"
    steps, every = 1000, 25
    execution = Execution(save_every=50, workers=0)
    crashes.new_run(path, crashes.small_run(steps=steps, batch=4, validate_every=200, execution=execution))
    pids = []
    for goal in (75, 150, None):
        child = crashes.start(crashes.carry_on, path, crashes.note_memory, note, every, steps)
        pids.append(child.pid)
        if goal is not None:
            assert crashes.wait_for(lambda goal=goal: crashes.last_step(path) >= goal, child)
            child.kill()
        assert crashes.code_of(child) == (0 if goal is None else -signal.SIGKILL)
    values = [tuple(map(int, line.split())) for line in note.read_text().splitlines()]
    last = values[max(i for i, (step, _, _) in enumerate(values) if step <= 150) + 1 :]  # of the last life alone
    resident, files = [kilobytes for _, kilobytes, _ in last], [number for _, _, number in last]
    early, late = slice(len(last) // 4, len(last) // 2), slice(3 * len(last) // 4, None)
    assert statistics.median(resident[late]) - statistics.median(resident[early]) <= 512  # KB over five hundred steps
    assert min(files[late]) == min(files[early])
    assert not [entry for entry in path.rglob(".*") if entry.name != ".lock"]
    assert not [shared for pid in pids for shared in Path("/dev/shm").glob(f"torch_{pid}_*")]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert len(crashes.whole_checkpoints(path)) <= 3
    assert RunDir(path).history("step", "loss").keys() == set(range(1, steps + 1))
