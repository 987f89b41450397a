"""Which processes are ended as frozen ranks: stopped siblings that were told of, and nobody else."""

import json
import os
import signal
import subprocess
import sys

import pytest

from vitlab.world.frozen import end_frozen, own_process

CHILD = "import json, sys, time; from vitlab.world.frozen import own_process; "
TELL = "print(json.dumps(own_process()), flush=True); time.sleep(600)"
# A sibling of the child that it is asked to end, as ranks are of each other.
ENDING = "import json, sys; from vitlab.world.frozen import end_frozen; "
ASK = "print(end_frozen(json.loads(sys.argv[1])), flush=True)"


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", CHILD + TELL], stdout=subprocess.PIPE, text=True)
    yield process, json.loads(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


def asked_to_end(told):
    words = [sys.executable, "-c", ENDING + ASK, json.dumps(told)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "True"


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_a_stopped_sibling_is_ended(child):
    process, told = child
    stop(process)
    assert asked_to_end(told)
    assert process.wait(60) == -signal.SIGKILL


def test_one_that_runs_is_left_alone(child):
    process, told = child
    assert not asked_to_end(told)
    assert process.poll() is None


@pytest.mark.parametrize("place", range(5))
def test_whoever_is_not_the_one_that_was_told_of_is_left_alone(child, place):
    """Another machine, other containers, another launcher, another number, a number that was given again."""
    process, told = child
    stop(process)
    other = [*told[:place], "1", *told[place + 1 :]]
    assert not asked_to_end(other)
    assert process.poll() is None


def test_a_process_that_is_no_sibling_ends_nobody(child):
    process, told = child
    stop(process)
    assert not end_frozen(told)  # by its parent
    assert not end_frozen(own_process())
    assert not end_frozen([])
    assert process.poll() is None
