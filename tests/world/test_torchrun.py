"""Under torchrun: a killed rank is started again with all others, and the run goes on from its last checkpoint."""

import os
import subprocess
import sys

import pytest

import ranks
from crashes import remains
from vitlab.cli import main
from vitlab.run_dir import RunDir

KILLED_ONCE = """
import os, signal, sys
from vitlab.cli import main
from vitlab.run_dir import RunDir

record = RunDir.record

def recorded(self, kind, values):
    record(self, kind, values)
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if kind == "step" and values["step"] == 5 and os.environ["RANK"] == "1" and is_first_life:
        os.kill(os.getpid(), signal.SIGKILL)

RunDir.record = recorded
sys.exit(main(sys.argv[1:]))
"""
RUN = ["pretrain", "ViT-Ti/16", "--data", "digits?split=test", "--image", "16", "--batch", "8", "--held-out", "0.1"]
RUN += ["--schedule.total", "8", "--schedule.warmup", "2", "--model.layers", "1", "--model.width", "24"]
RUN += ["--model.heads", "2", "--model.mlp", "32", "--save-every", "2", "--timeout", "120", "--no-report"]


def torchrun(*arguments, restarts=0, has_own_store="1"):
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": has_own_store, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1000, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("has_own_store", ["1", "0"])
def test_torchrun_restarts_continue_bit_for_bit(tmp_path, has_own_store):
    unbroken, path, script = tmp_path / "unbroken", tmp_path / "run", tmp_path / "killed_once.py"
    assert ranks.run_ranks(2, main, [*RUN, "--out", str(unbroken)]) == [0, 0]
    script.write_text(KILLED_ONCE)
    done = torchrun(script, *RUN, "--out", path, restarts=2, has_own_store=has_own_store)
    assert done.returncode == 0, done.stderr
    assert "the ranks were restarted; the run in" in done.stdout
    (resumed,) = RunDir(path).events("resumed")
    assert 0 < resumed["step"] < 8
    assert remains(path) == remains(unbroken)


def test_ranks_that_are_restarted_ask_for_a_folder_that_they_find_again(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert main(RUN) == 2
    assert "ranks that are restarted must find their run: give --out" in capsys.readouterr().err


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "vitlab", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("vitlab ")
