"""The command line: a table of commands, each of which imports what it needs when it is called."""

import contextlib
import difflib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from vitlab import __version__
from vitlab.commands.command_line import arguments_of, as_shown, read_words
from vitlab.commands.data import DATA_COMMANDS, data
from vitlab.commands.evaluation import EVALUATION
from vitlab.commands.exporting import EXPORTING
from vitlab.commands.looking import LOOKING
from vitlab.commands.serving import SERVING
from vitlab.commands.studying import STUDYING
from vitlab.commands.sweeping import SWEEPING
from vitlab.commands.terminal import complain, console, explained, load_torch
from vitlab.commands.training import TRAINING_COMMANDS
from vitlab.commands.weights import WEIGHTS
from vitlab.errors import (
    FAILED,
    FLAGS,
    INVALID,
    NotForRanks,
    Stopped,
    VitlabError,
    WeightsWarning,
    did_you_mean,
    is_raised_on_one_rank,
    printable,
)
from vitlab.process.interrupts import raise_when_interrupted


def demo(out: Path = Path("demo-out")) -> None:
    """Pre-train a small Vision Transformer on printed letters, fine-tune it on handwritten digits and write a report:
    minutes on a CPU.

    It is fine-tuned with few labels and with many, and trained from scratch as well, so that the report compares them.

    Args:
        out: Folder for the trainings, the report and a few digit pictures; a number is added if it exists.
    """
    from vitlab.runs.demo import run_demo

    program = sys.argv[0] if Path(sys.argv[0]).name == "vitlab" else "vitlab"
    run_demo(out, console(), program)


def doctor() -> None:
    """Show versions, device, threads and which extras are installed."""
    from vitlab.doctor import findings

    table = Table(box=None, show_header=False)
    for what, how in findings():
        table.add_row(Text(what, style="bold"), Text(how))
    console().print(table)


COMMANDS: dict[str, Any] = {
    "demo": demo,
    **WEIGHTS,
    **EXPORTING,
    **LOOKING,
    **SERVING,
    **TRAINING_COMMANDS,
    **SWEEPING,
    **STUDYING,
    "data": data,
    **EVALUATION,
    "doctor": doctor,
}
ALSO_CALLED = {  # what other programs call a command
    "train": ("finetune", "pretrain"),
    "fit": ("finetune", "pretrain"),
    "tune": ("finetune",),
    "classify": ("predict",),
    "infer": ("predict",),
    "test": ("evaluate",),
    "val": ("evaluate",),
    "eval": ("evaluate",),
    "explain": ("inspect",),
    "bench": ("cost",),
    "benchmark": ("cost",),
    "list": ("models",),
}
WITHOUT_TORCH = {"models", "recipes", "report", "data", "serve"}
# Commands that run on several ranks, under torchrun.
ON_RANKS = {"pretrain", "finetune", "resume", "evaluate", "features", "fewshot"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; a user error is one line on standard error and code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for names that the terminal cannot show
    if arguments == ["--version"]:
        console().print(f"vitlab {__version__}", highlight=False)
        return 0
    is_first = os.environ.get("RANK", "0") == "0"  # of several ranks, one reports what all raise
    commands, program = COMMANDS, "vitlab"
    about = "The Vision Transformer paper as a working laboratory. --version prints the version."
    if arguments[:1] == ["data"]:
        commands, program, about, arguments = (
            DATA_COMMANDS,
            "vitlab data",
            " ".join((data.__doc__ or "").split()),
            arguments[1:],
        )
        if " ".join(arguments[:2]) in commands:  # a command of two words
            arguments = [" ".join(arguments[:2]), *arguments[2:]]
    is_start_of_run = arguments[:1] in (["pretrain"], ["finetune"])
    if not is_start_of_run:
        raise_when_interrupted()
    try:
        _check_ranks(arguments)
        with _ignoring_a_closed_pipe(arguments), _warnings_as_lines(is_printing=is_first):
            return _run(commands, program, about, arguments, is_printing=is_first) or 0
    except Stopped as stop:
        if stop.path is not None:
            complain(stop.args[0])
        return stop.exit_code
    except KeyboardInterrupt as error:
        if is_first:
            unstarted = "stopped; nothing was started" if is_start_of_run else "stopped"
            complain(f"vitlab: {next((word for word in error.args if isinstance(word, str)), unstarted)}")
        return 130
    except (VitlabError, ValueError, OSError, ModuleNotFoundError, ArithmeticError, MemoryError) as error:
        is_failure = isinstance(error, ArithmeticError | MemoryError)
        code = error.exit_code if isinstance(error, VitlabError) else FAILED if is_failure else INVALID
        if is_first or code != INVALID or is_raised_on_one_rank(error):
            complain(f"vitlab: {explained(error)}")
        return code
    finally:
        FLAGS.set(frozenset())


def _run(commands: dict[str, Any], program: str, about: str, arguments: list[str], *, is_printing: bool) -> int | None:
    name, *words = arguments or [""]
    if name not in commands:
        _check_command(commands, program, arguments)
        _list_commands(commands, program, about)
        raise SystemExit(0)  # as the help of one command ends
    FLAGS.set(arguments_of(commands[name]))
    if not {"-h", "--help"}.isdisjoint(takewhile(lambda word: word != "--", words)):
        import tyro  # here, because only help needs it

        command = as_shown(commands[name])
        return tyro.cli(command, prog=f"{program} {name}", args=["--help"], console_outputs=is_printing)
    given = read_words(f"{program} {name}", commands[name], words)
    if name not in WITHOUT_TORCH:
        load_torch()
    return commands[name](**given)


def _list_commands(commands: dict[str, Any], program: str, about: str) -> None:
    """Print what every command does, in the first sentence of its documentation."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, command in commands.items():
        first, *_ = " ".join((command.__doc__ or "").split()).split(". ")
        table.add_row(Text(name, style="bold"), Text(first.removesuffix(".")))
    more = f"{program} COMMAND --help lists the flags of a command."
    for part in (f"usage: {program} COMMAND ...", about, table, more):
        console().print(part, "", sep="\n", highlight=False, markup=False)


def _check_command(commands: dict[str, Any], program: str, words: list[str]) -> None:
    """Raise if the first word is not a command, with the commands that may have been meant."""
    listed = f"its commands are {', '.join(commands)}"
    given = next((word for word in words if not word.startswith("-")), "")
    before = takewhile(lambda word: word.startswith("-"), words)
    strange = next((word for word in before if word not in ("-h", "--help")), "")
    if not words or strange:
        problem = f"has no flag {strange}" if strange else "needs a command"
        raise ValueError(f"{program} {problem}; {listed}")
    if not given or given in commands:
        return
    full = {name: f"vitlab {name}" for name in COMMANDS} | {name: f"vitlab data {name}" for name in DATA_COMMANDS}
    full |= {name: f"{program} {name}" for name in commands}
    near = ALSO_CALLED.get(given.lower()) or difflib.get_close_matches(given, full, n=2, cutoff=0.65)
    meant = did_you_mean([full[name] for name in near])
    raise ValueError(f"{program} has no command {given!r:.80}; {meant}{listed}")


@contextlib.contextmanager
def _ignoring_a_closed_pipe(arguments: list[str]) -> Iterator[None]:
    """Ignore a closed pipe while help is printed, as in `vitlab finetune --help | head`."""
    if {"-h", "--help"}.isdisjoint(arguments):
        yield
        return
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for output that Python flushes at exit
        raise SystemExit(0) from None


@contextlib.contextmanager
def _warnings_as_lines(*, is_printing: bool) -> Iterator[None]:
    """Print a WeightsWarning as one line, and once; other warnings as Python does."""
    told: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, WeightsWarning):
                usual(message, category, *where, **more)
            elif is_printing and str(message) not in told:
                complain(f"vitlab: warning: {printable(str(message))}")
                told.add(str(message))

        warnings.showwarning = show
        yield


def _check_ranks(arguments: list[str]) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1 and arguments and arguments[0] in {*COMMANDS, *DATA_COMMANDS} - ON_RANKS:
        known = ", ".join(sorted(ON_RANKS))
        raise NotForRanks(
            f"{arguments[0]} runs in one process, not on {ranks} ranks; commands for several ranks are {known}"
        )


if __name__ == "__main__":
    sys.exit(main())
