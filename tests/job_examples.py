"""Work for the tests of jobs: functions of a module, so that another process finds them."""

import os
import signal
import time
from pathlib import Path

from rich.console import Console

from vitlab.files.store import replacing


def write(text: str, folder: Path) -> None:
    with replacing(folder / "result.json") as temporary:
        temporary.write_text(text)


def note(folder: Path) -> int:
    """How often this was called, this time included."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "calls").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len((folder / "calls").read_text().splitlines())


def square(asked: tuple[Path, int], console: Console) -> int:
    folder, number = asked
    note(folder)
    console.print(f"squaring {number}")
    write(str(number**2), folder)
    return 0


def die(asked: tuple[Path, int], console: Console) -> int:
    """Killed the first so many times, then done."""
    folder, deaths = asked
    if note(folder) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    write("alive", folder)
    return 0


def fail(folder: Path, console: Console) -> int:
    note(folder)
    raise ValueError("the moon is full")


def wait_for_stop(folder: Path, console: Console) -> int:
    """Until a signal comes; then what was done is kept."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: came.append(number))
    note(folder)
    while not came:
        time.sleep(0.01)
    (folder / "kept").write_text(str(came))
    return 143
