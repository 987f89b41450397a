"""Ctrl-C before a run has begun: one line and exit code 130, never a traceback."""

import subprocess
import sys

import pytest

ASK = ["pretrain", "ViT-Ti/4", "--data", "digits", "--image", "8", "--batch", "32"]
INTERRUPTED = """
import os, signal, sys
from importlib import abc

module = sys.argv.pop(1)

class Interrupt(abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

def swallowing(importing=__import__):
    # some libraries take an interrupt of an import for a part that is missing
    def found(*words, **more):
        try:
            return importing(*words, **more)
        except KeyboardInterrupt:
            return importing("types")
    return found

sys.meta_path.insert(0, Interrupt())
from vitlab.__main__ import start
__builtins__.__import__ = swallowing()
sys.exit(start())
"""


@pytest.mark.parametrize(
    "module",
    [
        "tyro",
        "vitlab.commands.data",
        "vitlab.runs.training.request",
        pytest.param("vitlab.runs.training.launch", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_while_parts_are_imported_is_one_line(module, tmp_path):
    """The signal comes when this module is looked for: by the command line itself, or for what training needs."""
    words = [sys.executable, "-c", INTERRUPTED, module, *ASK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.removeprefix("loading PyTorch ...\n") == "vitlab: stopped; nothing was begun\n"
    assert done.stdout == ""
    assert done.returncode == 130
    assert list(tmp_path.iterdir()) == []
