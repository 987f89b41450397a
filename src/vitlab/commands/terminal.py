"""What commands print: results on standard output, errors on standard error, untrusted text escaped."""

import json as json_text
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitlab.errors import InvalidValue, flag, printable, spelled


def explained(error: Exception) -> str:
    """The line that reports an error which ends a command."""
    text = str(error)
    if isinstance(error, InvalidValue) and error.field and not error.of:
        text = error.told(flag(error.field), error.meant and flag(error.meant))
    hint = "; vitlab doctor lists what is missing" if isinstance(error, ModuleNotFoundError) else ""
    return printable(" ".join(text.split()) or type(error).__name__) + hint


def print_json(value: object) -> None:
    """Print JSON in plain ASCII on standard output; raises for NaN and infinity."""
    sys.stdout.write(json_text.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def print_rows(rows: Iterable[Mapping[str, object]], title: str = "") -> None:
    """Print rows with the same keys as a table; columns of numbers are aligned on the right, and None is a dash."""
    lines = [{name: _cell(value) for name, value in row.items()} for row in rows]
    table = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    for name in lines[0]:
        is_number = all(re.fullmatch(r"[\d.,e-]+", line[name]) for line in lines)
        no_wrap = is_number or name == "flag"
        table.add_column(name.replace("_", " "), justify="right" if is_number else "left", no_wrap=no_wrap)
    for line in lines:
        table.add_row(*map(Text, line.values()))
    console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 10 else f"{value:g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def console(*, is_error: bool = False) -> Console:
    """Standard output or error, without folding lines unless it is a terminal. Of several ranks only rank 0 prints."""
    is_quiet = os.environ.get("RANK", "0") != "0"
    found = Console(stderr=is_error, quiet=is_quiet)
    return found if found.is_terminal else Console(stderr=is_error, width=1000, quiet=is_quiet)


def complain(message: str, style: str = "") -> None:
    """Print a line on standard error, not wrapped; arguments that it names are spelled as flags."""
    Console(stderr=True).print(Text(spelled(message), style=style), soft_wrap=True)


def load_torch() -> None:
    """Import torch, which takes seconds, and print a line meanwhile; silent if it is imported already."""
    from vitlab.runs.progress import announced

    if "torch" not in sys.modules:
        with announced(console(is_error=True), "loading PyTorch ..."):
            import torch  # noqa: F401 - what the commands use


def command_line() -> str:
    """The command that is running, as it could be typed."""
    return shlex.join(["vitlab", *sys.argv[1:]])
