"""What commands print: results on standard output, errors on standard error, untrusted text escaped."""

import json as json_text
import os
import re
import shlex
import sys

from rich.console import Console
from rich.text import Text

from vitlab.errors import InvalidValue

# `name=` or `name='value'` in the text of an error, but not in a data spec such as folder:photos?split=val.
ARGUMENT = re.compile(r"(?<![\w.?&'\"=-])([a-z]\w*(?:\.\w+)*)=(?:'([^']*)'|(?=[\s,;.)]|$))")


def printable(text: str) -> str:
    """Untrusted text with control characters, direction marks and broken bytes as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(error: BaseException) -> str:
    """An error as one printable line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return printable(text)


def explained(error: Exception) -> str:
    """The line that reports an error which ends a command.

    Errors name arguments as Python has them, `held_out=` or `recipe='pets'`; here they become flags.
    """
    line = one_line(error)
    if isinstance(error, InvalidValue) and error.field and not error.of:
        line = one_line(ValueError(error.told(flag(error.field), error.meant and flag(error.meant))))
    hint = "; vitlab doctor lists what is missing" if isinstance(error, ModuleNotFoundError) else ""
    return ARGUMENT.sub(lambda found: f"{flag(found[1])} {found[2] or ''}".rstrip(), line) + hint


def flag(field: str) -> str:
    """`optimizer.weight_decay` as a user types it."""
    return "--" + field.replace("_", "-")


def print_json(value: object) -> None:
    """Print JSON in plain ASCII on standard output; raises for NaN and infinity."""
    sys.stdout.write(json_text.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def console(*, is_error: bool = False) -> Console:
    """Standard output or error, without folding lines unless it is a terminal. Of several ranks only rank 0 prints."""
    is_quiet = os.environ.get("RANK", "0") != "0"
    found = Console(stderr=is_error, quiet=is_quiet)
    return found if found.is_terminal else Console(stderr=is_error, width=1000, quiet=is_quiet)


def complain(message: str, style: str = "") -> None:
    """Print a line on standard error, not wrapped."""
    Console(stderr=True).print(Text(message, style=style), soft_wrap=True)


def load_torch() -> None:
    """Import torch, which takes seconds, and print a line meanwhile; silent if it is imported already."""
    from vitlab.runs.progress import announced

    if "torch" not in sys.modules:
        is_first = os.environ.get("RANK", "0") == "0"
        with announced(Console(stderr=True, quiet=not is_first), "loading PyTorch ..."):
            import torch  # noqa: F401 - what the commands use


def command_line() -> str:
    """The command that is running, as it could be typed."""
    return shlex.join(["vitlab", *sys.argv[1:]])
