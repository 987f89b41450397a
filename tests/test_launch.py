"""The scripts of examples/launch: several machines as torchrun agents on this one, by hand and under a small Slurm."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ranks
from crashes import PATIENCE, assert_same, last_step
from vitlab.cli import main
from vitlab.run_dir import RunDir

LAUNCH = Path(__file__).parent.parent / "examples" / "launch"
STEPS = 8
RUN = ["pretrain", "ViT-Ti/4", "--data", "digits?split=test", "--image", "8", "--batch", "8", "--held-out", "0.1"]
RUN += ["--schedule.total", str(STEPS), "--schedule.warmup", "2", "--model.layers", "1", "--model.width", "16"]
RUN += ["--model.heads", "2", "--model.mlp", "24", "--save-every", "2", "--timeout", "120", "--no-report"]

# At step 5 of a run's first life the second rank is killed, or the second machine with its torchrun, or all wait until
# one has heard of the stop: Python reads this before anything.
SITECUSTOMIZE = """
import os, signal, time
from pathlib import Path

def disturb(hurt, note):
    from vitlab.run_dir import RunDir
    from vitlab.process.interrupts import Signals
    record, hear, launcher = RunDir.record, Signals._note, os.getppid()

    def recorded(self, kind, values):
        record(self, kind, values)
        if kind != "step" or values["step"] != 5 or note.exists():
            return
        if hurt == "kill" and os.environ["RANK"] == "1":
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if hurt == "machine" and os.environ["NODE"] == "1":
            note.touch()
            os.kill(launcher, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        while hurt == "wait" and not note.exists() and os.getppid() == launcher:
            time.sleep(0.01)

    def heard(self, number, frame):
        hear(self, number, frame)
        note.touch()

    RunDir.record, Signals._note = recorded, heard

if "HURT" in os.environ and "RANK" in os.environ:
    disturb(os.environ["HURT"], Path(os.environ["NOTE"]))
"""

# What the script calls of Slurm. A signal reaches the tasks of a step and not their children, as with proctrack/cgroup.
SLURM = {
    "scontrol": """
if [[ "$1" == show ]]; then printf '127.0.0.1\\n127.0.0.1\\n'; else echo "$@" >> "$SPOOL/asked"; fi
""",
    "srun": """
while [[ "$1" == --* ]]; do shift; done
tasks=() code=0
for node in 0 1; do
    SLURM_NODEID=$node SLURMD_NODENAME=127.0.0.1 "$@" &
    tasks+=($!)
done
echo "${tasks[@]}" > "$SPOOL/tasks"
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit "$code"
""",
    "scancel": """
[[ "$1" == --signal=TERM && "$2" == "$SLURM_JOB_ID" ]]
kill -TERM $(cat "$SPOOL/tasks")
""",
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run on two ranks of one machine, with nothing in its way."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    assert ranks.run_ranks(2, main, [*RUN, "--out", str(path)]) == [0, 0]
    return path


@pytest.fixture
def surroundings(tmp_path):
    """The variables of a script: one rank a machine, and what a test disturbs it with."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    source = Path(__file__).parent.parent / "src"
    return {
        **os.environ,
        "PYTHONPATH": f"{tmp_path / 'site'}:{source}",
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "RANKS": "1",
        "NOTE": str(tmp_path / "note"),
    }


@contextlib.contextmanager
def started(command, environment, said):
    """A script in a process group of its own, of which nothing is left afterwards."""
    with said.open("a") as file:
        child = subprocess.Popen(list(map(str, command)), env=environment, stdout=file, stderr=file, process_group=0)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def on_two_machines(environment, said, *words):
    """The exit codes of node.sh on two machines, the second of which comes first."""
    common = {"NODES": "2"} | environment | {"HEAD": f"127.0.0.1:{ranks.free_port()}", "ADDRESS": "127.0.0.1"}
    command = ["bash", LAUNCH / "node.sh", *words]
    with (
        started(command, common | {"NODE": "1"}, said) as second,
        started(command, common | {"NODE": "0"}, said) as first,
    ):
        return [first.wait(PATIENCE), second.wait(PATIENCE)]


@pytest.mark.slow
def test_two_machines_train_what_one_does(tmp_path, surroundings, unbroken):
    path, said = tmp_path / "run", tmp_path / "said"
    assert on_two_machines(surroundings, said, *RUN, "--out", path) == [0, 0], said.read_text()
    (began,) = RunDir(path).events("started")
    assert began["ranks"] == "2 ddp"
    assert_same(path, unbroken)


@pytest.mark.slow
def test_a_rank_killed_on_one_machine_is_started_again_with_all_others(tmp_path, surroundings, unbroken):
    path, said = tmp_path / "run", tmp_path / "said"
    hurt = surroundings | {"HURT": "kill", "RESTARTS": "1"}
    assert on_two_machines(hurt, said, *RUN, "--out", path) == [0, 0], said.read_text()
    assert (tmp_path / "note").exists()
    (resumed,) = RunDir(path).events("resumed")
    assert 0 < resumed["step"] < STEPS
    assert resumed["changed"] == []
    assert_same(path, unbroken)


@pytest.mark.slow
def test_where_one_machine_is_enough_it_goes_on_alone_to_the_bits_of_one_process(tmp_path, surroundings):
    alone, path, said = tmp_path / "alone", tmp_path / "run", tmp_path / "said"
    words = [*RUN, "--exact-elastic"]
    assert ranks.run_ranks(1, main, [*words, "--out", str(alone)]) == [0]
    lost = surroundings | {"HURT": "machine", "NODES": "1:2", "CONF": "last_call_timeout=1,keep_alive_interval=1"}
    assert on_two_machines(lost, said, *words, "--out", path) == [0, -signal.SIGKILL], said.read_text()
    (resumed,) = RunDir(path).events("resumed")
    assert 0 < resumed["step"] < STEPS
    assert resumed["changed"] == []
    assert_same(path, alone)


@pytest.mark.slow
def test_a_slurm_job_whose_time_is_up_saves_and_the_same_script_ends_the_run(tmp_path, surroundings, unbroken):
    path, said, spool = tmp_path / "run", tmp_path / "said", tmp_path / "spool"
    spool.mkdir()
    for name, text in SLURM.items():
        (spool / name).write_text(f"#!/usr/bin/env bash\nset -euo pipefail{text}")
        (spool / name).chmod(0o755)
    job = surroundings | {"PATH": f"{spool}:{os.environ['PATH']}", "SPOOL": str(spool), "HURT": "wait"}
    job |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    job |= {"SLURM_SUBMIT_DIR": str(LAUNCH.parent.parent), "PORT": str(ranks.free_port())}
    command = ["bash", LAUNCH / "slurm.sh", path, *RUN]

    with started(command, job, said) as script:
        end = time.monotonic() + PATIENCE
        while last_step(path) < 5 and script.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        script.send_signal(signal.SIGUSR1)
        assert script.wait(PATIENCE) != 0
    (stopped,) = RunDir(path).events("stopped")
    assert (stopped["code"], stopped["step"]) == (143, 5), said.read_text()
    assert (spool / "asked").read_text() == "requeue 77\n"

    with started(command, job, said) as script:
        assert script.wait(PATIENCE) == 0, said.read_text()
    assert [event["step"] for event in RunDir(path).events("resumed")] == [5]
    assert (spool / "asked").read_text() == "requeue 77\n"
    assert_same(path, unbroken)
