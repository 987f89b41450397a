"""Ranks that die, freeze, fail or are told to stop: all end with the cause, and the run goes on bit for bit."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

import crashes
import ranks
from vitlab.spec.recipe import Execution

TRIALS = int(os.environ.get("VITLAB_TRIALS", "2"))
STEPS = 10
NUMBER = 2


def small():
    return crashes.small_run(steps=STEPS, execution=Execution(save_every=2, micro_batch=3, parallel="ddp"))


@pytest.fixture(scope="module")
def unbroken(memory):
    """The run on two ranks that nothing disturbs."""
    path = memory / "unbroken-on-two"
    crashes.new_run(path, small())
    assert ranks.run_ranks(NUMBER, ranks.resume_command, path) == [0] * NUMBER
    return path


def go_on_and_compare(path, unbroken, children):
    """After a fault: nobody is left, nothing lies about, and the run ends as if nothing had happened."""
    pids = [child.pid for child in children]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not [shared for pid in pids for shared in Path("/dev/shm").glob(f"torch_{pid}_*")]
    assert ranks.run_ranks(NUMBER, ranks.resume_command, path) == [0] * NUMBER
    assert not [entry for entry in path.rglob(".*") if entry.name != ".lock"]
    crashes.assert_same(path, unbroken)


def disturbed(path, said, timeout, rank, step, act, *arguments):
    how = (ranks.on_rank_and_step, rank, step, act, *arguments)
    return ranks.start_ranks(NUMBER, ranks.disturbed_command, path, timeout, *how, said=said)


def trials(in_memory, seed):
    """(folder, file of complaints, victim, step) of every trial."""
    rng = random.Random(seed)
    for trial in range(TRIALS):
        path = in_memory / f"run-{trial}"
        crashes.new_run(path, small())
        yield path, in_memory / f"said-{trial}", rng.randrange(NUMBER), rng.randrange(1, STEPS)


@pytest.mark.slow
def test_when_a_rank_is_killed_the_others_name_it_and_end(in_memory, unbroken, capsys):
    for path, said, victim, step in trials(in_memory, 1):
        children = disturbed(path, said, ranks.TIMEOUT, victim, step, ranks.signal_self, signal.SIGKILL)
        codes = ranks.codes_of(children)
        assert codes.pop(victim) == -signal.SIGKILL
        assert codes == [3]
        assert re.search(rf"vitlab: rank {victim} is dead or not responding", said.read_text())
        go_on_and_compare(path, unbroken, children)
    with capsys.disabled():
        tell(f"{TRIALS} trials of a killed rank")


@pytest.mark.slow
def test_when_a_rank_freezes_the_others_show_where_they_waited_and_end(in_memory, unbroken, capsys):
    for path, said, victim, step in trials(in_memory, 2):
        children = disturbed(path, said, 8.0, victim, step, ranks.signal_self, signal.SIGSTOP)
        other = children[1 - victim]
        assert crashes.code_of(other) == 3  # long before anybody's patience ends
        assert crashes.code_of(children[victim]) == -signal.SIGKILL  # a launcher has nobody to wait for
        assert f"rank {victim} is dead or not responding" in said.read_text()
        assert re.search(r"Current thread .*\n(  File .*\n)+", said.read_text())
        go_on_and_compare(path, unbroken, children)
    with capsys.disabled():
        tell(f"{TRIALS} trials of a frozen rank")


@pytest.mark.slow
def test_when_a_rank_fails_all_end_and_its_error_is_told_once(in_memory, unbroken, capsys):
    for path, said, victim, step in trials(in_memory, 3):
        children = disturbed(path, said, ranks.TIMEOUT, victim, step, ranks.fail, "of all ranks this one fell")
        codes = ranks.codes_of(children)
        assert codes.pop(victim) == 2
        assert codes == [1]
        assert said.read_text().count("of all ranks this one fell") == 1
        assert "gone" not in said.read_text()
        go_on_and_compare(path, unbroken, children)
    with capsys.disabled():
        tell(f"{TRIALS} trials of an error on one rank")


@pytest.mark.slow
def test_when_ranks_are_told_to_stop_all_save_the_same_step(in_memory, unbroken, capsys):
    rng = random.Random(4)
    for path, said, victim, step in trials(in_memory, 5):
        act, number = ranks.start_ranks, NUMBER
        children = act(number, ranks.disturbed_command, path, ranks.TIMEOUT, slow_down, 0.02, said=said)
        assert crashes.wait_for(lambda p=path, s=step: crashes.last_step(p) >= min(s, STEPS - 3), children[0])
        for child in children if rng.random() < 0.5 else children[victim:] + children[:victim]:
            os.kill(child.pid, signal.SIGTERM)
            time.sleep(rng.random() * 0.03)
        assert ranks.codes_of(children) == [143] * NUMBER
        whole = crashes.whole_checkpoints(path)
        assert crashes.last_step(path) == whole[-1]
        go_on_and_compare(path, unbroken, children)
    with capsys.disabled():
        tell(f"{TRIALS} trials of SIGTERM on two ranks")


def slow_down(world, seconds):
    """Let every step of a rank take a little longer, so that a signal finds it at work."""
    for step in range(1, STEPS + 1):
        crashes.on_step(step, time.sleep, seconds)


@pytest.mark.slow
def test_a_killed_rank_takes_its_workers_along(in_memory):
    """They have inherited its connections: as long as one lives, the others do not see that the rank is gone."""
    path, said = in_memory / "run", in_memory / "said"
    spec = crashes.small_run(steps=STEPS, execution=Execution(save_every=2, workers=1, parallel="ddp"))
    crashes.new_run(path, spec)
    children = disturbed(path, said, 60.0, 1, 3, freeze_workers_and_die, in_memory / "workers")
    codes = ranks.codes_of(children)
    workers = [int(pid) for pid in (in_memory / "workers").read_text().split()]
    assert workers
    assert codes == [3, -signal.SIGKILL]
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert ranks.run_ranks(NUMBER, ranks.resume_command, path) == [0] * NUMBER


def freeze_workers_and_die(note):
    """Workers are forks; what else is a child is a program of its own, without the rank's connections.

    They are frozen, or they would soon notice by themselves.
    """
    own = Path("/proc/self/cmdline").read_bytes()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    workers = [pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes() == own]
    note.write_text(" ".join(workers))
    for pid in workers:
        os.kill(int(pid), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_three_ranks_continue_bit_for_bit_too(in_memory):
    """Sums of three depend on the order of the additions."""
    unbroken, path = in_memory / "unbroken", in_memory / "run"
    for folder in (unbroken, path):
        crashes.new_run(folder, small())
    assert ranks.run_ranks(3, ranks.resume_command, unbroken) == [0] * 3
    how = (ranks.on_rank_and_step, 1, 5, ranks.signal_self, signal.SIGKILL)
    said = in_memory / "said"
    codes = ranks.run_ranks(3, ranks.disturbed_command, path, ranks.TIMEOUT, *how, said=said)
    assert codes.pop(1) == -signal.SIGKILL
    assert sorted(codes) == [1, 3]
    assert said.read_text().count("rank 1 is dead or not responding") == 1
    assert ranks.run_ranks(3, ranks.resume_command, path) == [0] * 3
    crashes.assert_same(path, unbroken)


def tell(what):
    print(f"\n{what}: all ranks ended with the cause, the run went on and ended bit-identical")  # noqa: T201
