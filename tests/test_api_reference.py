"""`make docs`: the reference names what the package offers, and docstrings are text to it, not markup."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab

ROOT = Path(__file__).parent.parent


def test_the_reference_opens_with_every_public_name():
    listed = re.findall(r"^\.\. autofunction:: vitlab\.(\w+)$", (ROOT / "docs/api/index.rst").read_text(), re.M)
    assert sorted(listed) == sorted(vitlab.__all__)


@pytest.mark.slow
def test_the_reference_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo", reason="make docs installs Sphinx and furo")
    (tmp_path / "api").mkdir()
    for name in ("conf.py", "index.rst"):
        text = (ROOT / "docs/api" / name).read_text()
        (tmp_path / "api" / name).write_text(text.replace("../../src/vitlab", str(ROOT / "src/vitlab")))
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        str(tmp_path / "api"),
        str(tmp_path / "html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vitlab.explain" in (tmp_path / "html" / "index.html").read_text()
