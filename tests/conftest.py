import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

# Before torch is loaded, and for the commands that tests start: several test processes share the cores, so each takes
# one thread, which sleeps while it waits.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from agreement import randomised
from vitlab.data import contents
from vitlab.drawing import charts as drawing
from vitlab.drawing.canvas import Drawn
from vitlab.models.build import build_from_spec
from vitlab.runs.training import report
from vitlab.spec import ViTSpec

# Many processes import the package: compile it once, whatever the shell asks for. Shells ignore interrupts in commands
# that they start in the background, and so would the commands that tests interrupt.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Use one thread per test process: several share the cores."""
    torch.set_num_threads(1)


CHARTS = ("draw_curves", "draw_confusion")


@pytest.fixture(scope="session", autouse=True)
def empty_charts():
    """Leave the charts of training reports empty: drawing them takes longer than training a small model."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CHARTS:
            patch.setattr(report, name, lambda *_, **__: Drawn(b"<svg></svg>", b""))
        yield


@pytest.fixture(scope="module")
def charts():
    """Draw the charts of training reports after all."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CHARTS:
            patch.setattr(report, name, getattr(drawing, name))
        yield


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of real weights and reference outputs."""
    folder = os.environ.get("VITLAB_REFERENCE", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("VITLAB_REFERENCE does not name the folder of reference files")
    return Path(folder).resolve()


@pytest.fixture
def tiny_spec() -> ViTSpec:
    return ViTSpec(patch=4, layers=3, width=24, mlp=40, heads=3, image=(16, 16), classes=5)


@pytest.fixture
def tiny(tiny_spec):
    """A small model with every parameter random: a zero head would prove nothing."""
    return randomised(build_from_spec(tiny_spec))


@pytest.fixture(scope="module")  # a worker that takes over tests of others may set up a module's fixtures again
def memory(tmp_path_factory):
    """A folder in memory where there is one, else on disk: a killed process leaves the page cache as it is, and a busy
    disk takes long to sync what no such test looks at."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(dir=shared, prefix="vitlab-test-") as folder:
        yield Path(folder)


@pytest.fixture
def in_memory(memory):
    """A new folder in memory."""
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def reads(monkeypatch):
    """The files that are hashed."""
    found, plain = [], contents._hash_file

    def hash_file(path, reading):
        found.append(path)
        return plain(path, reading)

    monkeypatch.setattr(contents, "_hash_file", hash_file)
    return found
