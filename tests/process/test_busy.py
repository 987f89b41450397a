"""Threads sleep where other programs are busy: decided from readings, before torch is loaded, and said."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from vitlab.process import busy
from vitlab.process.busy import BeforeTorch, Crowding, Place, Reading, busy_ticks, choose, is_decided, others_between

TWO = Place(processors=2, quota=2.0, threads=2)
STAT = """cpu  900 900 900 9000 900 90 90 90 0 0
cpu0 100 10 20 5000 300 3 4 5 50 0
cpu1 200 0 30 4000 0 0 0 0
cpu2 999 999 999 0 0 0 0 0 0 0
intr 12345 1 2 3
procs_running 3
"""


def test_busy_time_is_what_the_kernel_counts_for_the_processors_of_this_process():
    assert busy_ticks(STAT.splitlines(), frozenset({0, 1})) == (100 + 10 + 20 + 3 + 4 + 5) + (200 + 30)
    assert busy_ticks(STAT.splitlines(), frozenset({2})) == 3 * 999


def test_others_use_what_is_not_our_own():
    before, after = Reading(clock=10.0, own=1.0, everyone=50.0), Reading(clock=12.0, own=2.0, everyone=54.0)
    assert others_between(before, after) == 1.5  # of 4 seconds in 2, 1 is ours
    assert others_between(before, Reading(12.0, 3.0, 51.0)) == 0.0  # counted in hundredths, ours in less


@pytest.mark.parametrize(
    ("here", "others", "expected"),
    [
        (TWO, 0.0, ""),
        (TWO, 0.4, ""),
        (TWO, 0.5, "other programs use 0.5 of 2 processors"),
        (TWO, 1.96, "other programs use 2.0 of 2 processors"),
        (Place(64, 64.0, 64), 2.0, ""),  # of 64 threads two wait a little
        (Place(64, 64.0, 64), 30.0, "other programs use 30.0 of 64 processors"),
        (Place(64, 64.0, 8), 30.0, ""),  # 34 are free for 8
        (Place(64, 2.0, 64), 0.0, "64 threads share 2 processors"),  # of a container
        (Place(2, 2.0, 4), 0.0, "4 threads share 2 processors"),
        (Place(2, 2.0, 1), 2.0, ""),  # one thread waits for nobody
    ],
)
def test_threads_are_crowded_when_a_quarter_of_them_has_no_processor(here, others, expected):
    assert here.crowd(others) == expected


@pytest.fixture
def unchosen(monkeypatch):
    monkeypatch.setattr(busy, "chosen", [])


@pytest.mark.usefixtures("unchosen")
def test_a_busy_machine_makes_threads_sleep_for_a_reason_that_doctor_shows(capsys):
    environment = {}
    choose(TWO, 1.7, environment)
    assert environment == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert capsys.readouterr() == ("", "")
    assert busy.chosen == ["other programs use 1.7 of 2 processors"]


@pytest.mark.usefixtures("unchosen")
@pytest.mark.parametrize(
    "given",
    [
        {"OMP_WAIT_POLICY": "ACTIVE"},
        {"GOMP_SPINCOUNT": "1000"},
        {"KMP_BLOCKTIME": "0"},
        {"WORLD_SIZE": "2"},
        {"OMP_NUM_THREADS": "1"},
    ],
)
def test_what_the_user_or_a_launcher_decided_stays(given, capsys):
    environment = dict(given)
    choose(TWO, 2.0, environment)
    assert environment == given
    assert is_decided(given)
    assert Crowding(environment=given, here=TWO, look=lambda: pytest.fail("not looked at")).notice() == ""
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("unchosen")
def test_an_idle_machine_is_left_alone(capsys):
    environment = {"OMP_NUM_THREADS": "2", "WORLD_SIZE": "1"}
    choose(TWO, 0.1, environment)
    assert environment == {"OMP_NUM_THREADS": "2", "WORLD_SIZE": "1"}
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("unchosen")
def test_the_choice_is_made_when_torch_is_imported_and_once(monkeypatch):
    environment = {"OMP_NUM_THREADS": "2"}
    looks = Counter()

    def look():
        looks["at others"] += 1
        return Reading(clock=1.0, own=0.5, everyone=1e6)

    finder = BeforeTorch(Reading(clock=-1.0, own=0.0, everyone=9.0), look, environment)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("vitlab") is not None
    assert importlib.util.find_spec("torch.nn") is not None
    assert environment == {"OMP_NUM_THREADS": "2"}
    assert finder.find_spec("torch", None) is None
    assert environment == {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    assert finder.find_spec("torch", None) is None
    assert looks == {"at others": 1}


def readings(*each):
    """A clock and readings that go on by (seconds, own, everyone) at a time."""
    now = [Reading(0.0, 0.0, 0.0)]
    waiting = list(each)

    def go_on():
        seconds, own, everyone = waiting.pop(0)
        last = now[0]
        now[0] = Reading(last.clock + seconds, last.own + own, last.everyone + everyone)

    return go_on, lambda: now[0], lambda: now[0].clock


def crowding(*each, helpers=0):
    go_on, look, clock = readings(*each)
    watch = Crowding(helpers, environment={}, here=TWO, look=look, clock=clock)
    said = []
    for _ in each:
        go_on()
        said.append(watch.notice())
    return said


def test_others_that_come_during_a_run_are_noticed_once():
    idle, crowded = (20.0, 39.0, 40.0), (20.0, 12.0, 40.0)
    assert crowding(idle, crowded, crowded, idle, crowded) == ["", "other programs use 1.4 of 2 processors", "", "", ""]


def test_a_look_is_taken_every_fifteen_seconds_at_most():
    short = (10.0, 1.0, 20.0)
    assert crowding(short, short, short) == ["", "other programs use 1.9 of 2 processors", ""]


def test_data_workers_of_our_own_are_no_other_programs():
    beside_a_worker = (20.0, 20.0, 40.0)
    assert crowding(beside_a_worker, helpers=1) == [""]
    assert crowding(beside_a_worker) == ["other programs use 1.0 of 2 processors"]


def test_a_system_that_does_not_tell_is_left_alone():
    assert Crowding(environment={}, here=TWO, look=lambda: None).notice() == ""


def started(arguments, **environment):
    """The command line in a process of its own, with readings that say that others use everything."""
    code = (
        "import functools, os, sys, vitlab.__main__ as program\n"
        "from vitlab.process.busy import Reading, choose_before_torch\n"
        "looks = iter([Reading(-9.0, 0.0, 0.0), Reading(1.0, 0.0, 1e6)])\n"
        "def look():\n"
        "    sys.stderr.write('looked ')\n"
        "    return next(looks)\n"
        "program.choose_before_torch = functools.partial(choose_before_torch, look)\n"
        "sys.argv = ['vitlab', *sys.argv[1:]]\n"
        "try: sys.exit(program.start())\n"
        "finally: sys.stderr.write(str(os.environ.get('OMP_WAIT_POLICY')))\n"
    )
    own = {name: value for name, value in os.environ.items() if name not in busy.SETTINGS} | {"OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=own | environment, capture_output=True, text=True, check=False
    )


def test_commands_without_torch_take_one_look_and_choose_nothing():
    assert started(["--version"]).stderr == "looked None"
    assert started(["--version"], OMP_WAIT_POLICY="ACTIVE").stderr == "ACTIVE"


@pytest.mark.slow
def test_commands_with_torch_choose_before_it_is_loaded():
    done = started(["doctor"])
    assert done.stderr == "looked loading PyTorch ...\nlooked PASSIVE"  # the choice is not announced,
    reason = r"OMP_WAIT_POLICY=PASSIVE, chosen at the start because other programs use [\d.]+ of \d+ processors"
    assert re.search(reason, done.stdout)  # but shown
