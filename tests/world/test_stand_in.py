"""Ready for an accelerator: every model and a step of training on a stand-in device, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("on_stand_in.py")


@pytest.mark.slow
def test_models_and_training_stay_on_their_device():
    """The stand-in must be registered before the first backward pass of a process; other tests come before it here."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", str(CHECKS)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, capture_output=True, text=True, env=alone, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
