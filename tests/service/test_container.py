"""The lines of the Dockerfile, read from it and run in a fresh virtual environment: what it installs and starts works.

There is no Docker here, so the image itself is not built. What differs: the model's path, the address (loopback), the
user, and torch, which is linked from the environment of the tests instead of being downloaded.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from servers import Service

ROOT = Path(__file__).parents[2]
INSTRUCTION = re.compile(r"^([A-Z]+) (.+)$", re.MULTILINE)
TOKEN = "the token of the container"


def instructions(kind: str) -> list[str]:
    return [words for name, words in INSTRUCTION.findall((ROOT / "Dockerfile").read_text()) if name == kind]


def test_it_runs_as_an_ordinary_user_and_copies_what_exists():
    assert instructions("FROM") == ["python:3.11-slim"]
    assert instructions("USER") == ["vitlab"]
    copied = [source for words in instructions("COPY") for source in words.split()[:-1]]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
    kept = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(kept)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment that the Dockerfile's RUN line makes of the files that its COPY lines copy."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the Dockerfile is for Python 3.11")
    app, home = tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("fresh")
    for words in instructions("COPY"):
        *sources, target = words.split()
        for source in sources:
            place = app / (source if target == "./" else target)
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    venv.create(home, with_pip=True, symlinks=True)
    (packages,) = (home / "lib").glob("python*/site-packages")
    torch = importlib.metadata.distribution("torch")
    for name in {Path(file).parts[0] for file in torch.files} - {"..", "__pycache__"}:
        (packages / name).symlink_to(torch.locate_file(name))
    (install,) = [line for line in instructions("RUN") if line.startswith("pip ")]
    program, *words = shlex.split(install)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PIP_NO_COMPILE"] = "1"  # only what is imported is compiled, later
    command = [home / "bin" / program, "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_it_installs_and_starts_answers(installed, models, files, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (start,) = instructions("CMD")
    words = json.loads(start)
    assert words[:2] == ["vitlab", "serve"]
    assert words[3:5] == ["--host", "0.0.0.0"]  # with a token, which the next line gives
    replaced = {"/model": str(models / "small"), "0.0.0.0": "127.0.0.1", "8000": "0"}
    command = [str(installed / "bin" / words[0]), *(replaced.get(word, word) for word in words[1:])]
    with Service(command=command, environment={"VITLAB_TOKEN": TOKEN}) as service:
        assert service.post("/predict", files[0]).status == 401
        answer = service.post("/predict", files[0], authorization=f"Bearer {TOKEN}")
        assert answer.status == 200
        assert service.get("/").status == 200  # the page's files are in the wheel
        assert service.get("/ready").status == 200
        assert service.stop() == 0


@pytest.mark.slow
def test_without_a_token_its_command_ends_with_the_reason(installed, models):
    (start,) = instructions("CMD")
    words = [str(models / "small") if word == "/model" else word for word in json.loads(start)]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VITLAB_TOKEN")}
    command = [installed / "bin" / words[0], *words[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "give a token" in done.stderr
