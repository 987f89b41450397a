"""What a signal does: before a run has begun one line and exit code 130, never a traceback; in a run, save and stop."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from vitlab.process.interrupts import Signals, undisturbed

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
        "rich.table",
        "vitlab.commands.data",
        "vitlab.runs.training.request",
        pytest.param("vitlab.runs.training.start", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_while_parts_are_imported_is_one_line(module, tmp_path):
    """The signal comes when this module is looked for: by the command line itself, or for what training needs."""
    words = [sys.executable, "-c", INTERRUPTED, module, *ASK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.removeprefix("loading PyTorch ...\n") == "vitlab: stopped; nothing was started\n"
    assert done.stdout == ""
    assert done.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_signal_is_noted_and_the_handlers_of_the_caller_come_back():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with undisturbed(), Signals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop == 143
        assert signals.take_save()
        assert not signals.take_save()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == handlers


def test_a_run_in_another_thread_does_without_signal_handlers():
    """Python refuses handlers there; Ctrl-C is then the main thread's, and the run in the thread goes on."""
    handler, found = signal.getsignal(signal.SIGINT), []

    def run():
        with undisturbed(), Signals() as signals:
            found.append((signals.stop, signals.take_save(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(0, False, handler)]
