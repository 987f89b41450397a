"""A map over jobs: done once, tried again when a worker is killed, stopped politely, wherever it runs."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import job_examples
from vitlab.errors import JobsFailed
from vitlab.jobs.job import LOG, Here, Job, Processes
from vitlab.jobs.mapping import Crew


def mapped(jobs, workers):
    told = []
    with Crew(workers) as crew:
        code = crew.map(jobs, Console(file=io.StringIO()), lambda job, event, words: told.append((job.name, event)))
    return code, told


def squares(folder, numbers):
    return [
        Job(f"job {n}", job_examples.square, (folder / str(n), n), folder / str(n), results=("result.json",))
        for n in numbers
    ]


def calls(folder):
    return len((folder / "calls").read_text().splitlines())


def test_what_is_done_is_not_done_again(tmp_path):
    jobs = squares(tmp_path, [2, 3])
    code, told = mapped(jobs[:1], Here())
    assert (code, told) == (0, [("job 2", "started"), ("job 2", "finished")])
    code, told = mapped(jobs, Here())
    assert (code, told) == (0, [("job 3", "started"), ("job 3", "finished")])
    assert [(tmp_path / n / "result.json").read_text() for n in "23"] == ["4", "9"]
    assert [calls(tmp_path / n) for n in "23"] == [1, 1]


def test_work_without_a_result_is_a_failure_here_too(tmp_path):
    job = Job("nothing", job_examples.square, (tmp_path / "a", 1), tmp_path / "b")
    with pytest.raises(JobsFailed, match="without a result"):
        mapped([job], Here())


@pytest.mark.slow
def test_a_killed_worker_is_replaced_twice_and_errors_are_told_with_the_log(in_memory):
    survivor = Job("survivor", job_examples.die, (in_memory / "a", 2), in_memory / "a")
    mortal = Job("mortal", job_examples.die, (in_memory / "b", 99), in_memory / "b")
    wrong = Job("wrong", job_examples.fail, in_memory / "c", in_memory / "c")
    jobs = [survivor, mortal, wrong, *squares(in_memory, [5, 6])]
    with pytest.raises(JobsFailed) as failure:
        mapped(jobs, Processes(2))
    said = str(failure.value)
    assert "mortal failed: killed by SIGKILL 3 times; its log is" in said
    assert "wrong failed: ValueError: the moon is full; its log is" in said
    assert "Traceback" in (in_memory / "c" / LOG).read_text()
    assert "squaring 5" in (in_memory / "5" / LOG).read_text()
    assert [calls(in_memory / name) for name in "abc56"] == [3, 3, 1, 1, 1]  # an error is not tried again
    assert (in_memory / "a" / "result.json").read_text() == "alive"
    mappers = {pid for name in "56" for pid in (in_memory / name / "calls").read_text().split()}
    assert str(os.getpid()) not in mappers


MAPPING = """
import sys
from pathlib import Path
from rich.console import Console
import job_examples
from vitlab.jobs.job import Job, Processes
from vitlab.jobs.mapping import Crew
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    jobs = [Job(n, job_examples.wait_for_stop, folder / n, folder / n) for n in "abc"]
    with Crew(Processes(2)) as crew:
        sys.exit(crew.map(jobs, Console(), lambda *_: None))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", 143), ("SIGKILL", -9)])
def test_workers_save_and_end_when_the_map_is_stopped_or_killed(in_memory, sent, code):
    script = in_memory / "mapping.py"
    script.write_text(MAPPING)
    search = os.pathsep.join(sys.path)
    child = subprocess.Popen([sys.executable, str(script), str(in_memory)], env={**os.environ, "PYTHONPATH": search})
    try:
        eventually(lambda: all((in_memory / name / "calls").exists() for name in "ab"), child)
        child.send_signal(getattr(signal, sent))
        assert child.wait(300) == code
        eventually(lambda: all((in_memory / name / "kept").exists() for name in "ab"))
        workers = [int((in_memory / name / "calls").read_text()) for name in "ab"]
        eventually(lambda: not any(is_alive(pid) for pid in workers))
        assert not (in_memory / "c").exists()  # nothing new was begun
    finally:
        child.kill()
        child.wait()


def eventually(claim, child=None):
    end = time.monotonic() + 300
    while not claim():
        assert child is None or child.poll() is None, "the map ended"
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
