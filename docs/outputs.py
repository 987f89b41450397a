"""Run the commands and the Python of the pages, and write what the commands print below them.

A block of commands (```sh) may be followed by a block ```text that starts with the mark `<!-- output -->` above it.
`vitlab serve` runs until the page ends, on a free port that the page calls 8000; `curl` asks it.
`python docs/outputs.py` runs the tutorial and then every how-to page in a temporary folder and fills those blocks in.
tests/test_documents.py runs the same blocks.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitlab.cli import main

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
MARK = "<!-- output -->\n"
PASSING = ("loading ", "opening ", "looking ")  # lines that a terminal overwrites
PORT = "VITLAB_DOCUMENTED_PORT"  # of the service that a page has started
LONGEST = 24  # lines of output that a page shows
ELSEWHERE = ("make", "pip")  # programs that are not run here; tests check that what they name exists


class Block(NamedTuple):
    """A fenced block of a page: its language and its text."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Every fenced block, in order."""
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]


def commands(block: Block) -> list[list[str]]:
    """The words of every command of a block, without comments; a backslash continues a line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_blocks(page: str) -> Iterator[tuple[Block, str]]:
    """Run every command and Python block in the current folder; yields each with what it printed.

    Raises AssertionError with the output if a command fails.
    """
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.ExitStack() as services:
        for block in blocks(page):
            printed = io.StringIO()
            if block.language == "python":
                with contextlib.redirect_stdout(printed):
                    exec(compile(block.text, "a Python block", "exec"), names)  # our own pages
            elif block.language == "sh":
                for words in commands(block):
                    _run(words, printed, services)
            else:
                continue
            yield block, printed.getvalue()


def _run(words: list[str], printed: io.StringIO, services: contextlib.ExitStack) -> None:
    program, *rest = words
    if program in ELSEWHERE:
        return
    if words[:2] == ["vitlab", "serve"]:
        services.enter_context(_serving(rest, printed))
        return
    if program == "curl":
        port = os.environ[PORT]
        command = ["curl", "--silent", "--show-error", *(word.replace(":8000", f":{port}") for word in rest)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        printed.write(done.stdout.replace(f":{port}", ":8000"))
        assert done.returncode == 0, f"{shlex.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return
    if program == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", *rest]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"})
        printed.write(done.stdout)
        code = done.returncode
        assert code == 0, f"{shlex.join(words)}: {code}\n{done.stdout}{done.stderr}"
        return
    assert program.removeprefix(".venv/bin/") == "vitlab", words
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(rest)
    assert code == 0, f"{shlex.join(words)}: {code}\n{printed.getvalue()}"


@contextlib.contextmanager
def _serving(words: list[str], printed: io.StringIO) -> Iterator[None]:
    """Run `vitlab serve` while the block runs, and let it end by SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "vitlab", *words, "--port", port]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                printed.write(line.replace(f":{port}", ":8000"))
                if "Ctrl-C" in line:
                    break
            else:
                raise AssertionError(printed.getvalue())
            os.environ[PORT] = port
            yield
        finally:
            process.terminate()
            process.stderr.read()
    assert process.returncode == 0, printed.getvalue()


def with_outputs(page: str) -> str:
    """The page with what its commands print, run in the current folder."""
    for block, printed in run_blocks(page):
        if block.language != "sh" or not printed:
            continue
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed)
        kept = [line.rstrip() for line in shown.splitlines() if not line.startswith(PASSING)]
        kept = kept if len(kept) <= LONGEST else [*kept[: LONGEST // 2], "[...]", *kept[-LONGEST // 2 :]]
        filled = f"```sh\n{block.text}```\n\n{MARK}```text\n" + "\n".join(kept).strip("\n") + "\n```\n"
        old = rf"{re.escape(f'```sh{chr(10)}{block.text}```{chr(10)}')}\n{re.escape(MARK)}```text\n.*?^```\n"
        page = re.sub(old, lambda _, new=filled: new, page, count=1, flags=re.DOTALL | re.MULTILINE)
    return page


def fill_in(pages: list[Path]) -> None:
    """Run the tutorial, then each page in a copy of the folder that the tutorial leaves."""
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary, "base")
        base.mkdir()
        for page in (TUTORIAL, *pages):
            folder = base if page == TUTORIAL else Path(shutil.copytree(base, Path(temporary, page.stem)))
            with contextlib.chdir(folder):
                text = with_outputs(page.read_text("utf-8"))
            page.write_text(text, "utf-8")


if __name__ == "__main__":
    fill_in([*sorted((ROOT / "docs" / "howto").glob("*.md")), ROOT / "docs" / "paper.md"])
