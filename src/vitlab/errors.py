"""The errors that vitlab raises on purpose, each with the exit code of a command that ends with it.

Every class also has the built-in base that callers expect, such as ValueError. Standard library only: the command line
handles these errors before torch is imported.
"""

import re
import shlex
import signal
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

# ruff: noqa: N818 - a class says what is wrong or what happened, as in `except Diverged`
INVALID, FAILED = 2, 3  # exit codes: the request is wrong; the request was right and the work failed
SIGNAL_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}  # exit codes, as a shell reports them
# An argument in a message: `held_out=`, `recipe='pets'`, `teacher=MODEL`, `image=(H, W)` or `yes=True`. Not in a data
# spec such as folder:photos?split=val, nor in a point of a sweep such as schedule.peak=0.1. A call matches as a whole.
ARGUMENT = re.compile(
    r"\w\([^()]*\)|(?<![\w./?&'\"=-])([a-z]\w*(?:\.\w+)*)="
    r"(?:('[^']*'(?: or '[^']*')*|\(\w+, \w+\)|[A-Z]{2,}\b)|True\b|(?=[\s,;:)]|\.?$|\.\s))"
)
FLAGS: ContextVar[frozenset[str]] = ContextVar("FLAGS", default=frozenset())  # of the command that is running


class VitlabError(Exception):
    """Base class; `exit_code` is that of a command that ends with the error."""

    exit_code = INVALID


class InvalidValue(VitlabError, ValueError):
    """A setting with a wrong value: `field` is its dotted name, `problem` what is wrong with it.

    The message is "FIELD PROBLEM", as in "schedule.peak is 'x'; expected a number". `of` names what the field belongs
    to where that is a file or a class, such as run.json; without it the field is one that the user has set, and the
    command line names its flag. `meant` is a field that the user may have meant.
    """

    def __init__(self, problem: str, *, field: str = "", of: str = "", meant: str = "") -> None:
        self.problem, self.field, self.of, self.meant = problem, field, of, meant
        super().__init__(self.told(".".join(filter(None, (of, field))), meant))

    def told(self, field: str, meant: str) -> str:
        """The message with other spellings of the fields, such as those of flags."""
        hint = f"; did you mean {meant}?" if meant else ""
        return f"{field} {self.problem}{hint}".lstrip()


class TooManyBadImages(VitlabError, ValueError):
    """More images are unreadable than the run allows; the message names them."""


class NotForRanks(VitlabError, ValueError):
    """A launcher started several processes of a command that runs in one."""


class WorkerDied(VitlabError, RuntimeError):
    """A worker process that decodes images died or could not start; the message says why, or names its samples."""

    exit_code = FAILED


class JobsFailed(VitlabError, RuntimeError):
    """Jobs ended without a result; the message names them and their logs. All others are done."""

    exit_code = FAILED


class RemoteFailed(VitlabError, RuntimeError):
    """A store or server of remote data did not answer in many attempts; what is saved is kept."""

    exit_code = FAILED


class RemoteRefused(VitlabError, RuntimeError):
    """Remote data cannot be read, and trying again does not help; the message says what to do.

    Like RemoteFailed it is neither an OSError nor a ValueError, which would be taken for one bad image: a store that
    cannot be reached must stop a run, not shrink its data.
    """


class LostRank(VitlabError, RuntimeError):
    """A rank died or does not respond; the message names it if possible."""

    exit_code = FAILED


class Diverged(VitlabError, ArithmeticError):
    """The loss or its gradient was not finite too often; the message says when, and what to change."""

    exit_code = FAILED


class Stopped(KeyboardInterrupt):
    """A signal stopped a run after its state was saved in `path`; `exit_code` is 130 for INT and 143 for TERM.

    On several ranks only rank 0 knows the path. `command` says how to continue on the command line; `is_agreed` tells
    that all ranks stopped after the same step.
    """

    def __init__(
        self, exit_code: int = 130, path: Path | None = None, command: str = "", *, is_agreed: bool = False
    ) -> None:
        self.exit_code, self.path, self.is_agreed = exit_code, path, is_agreed
        self.command = command or ("" if path is None else f"vitlab resume {shlex.quote(str(path))}")
        where = "" if path is None else f" in {path}; continue with: {self.command}"
        super().__init__(f"stopped and saved{where}")


class WeightsWarning(UserWarning):
    """A weights file does not state something that changes the answers; the message says what is assumed."""


def first_few(items: Sequence[str], most: int) -> str:
    """The first `most` items, and how many more there are: "a, b and 3 more"."""
    return ", ".join(items[:most]) + (f" and {len(items) - most:,} more" if len(items) > most else "")


def printable(text: str) -> str:
    """Untrusted text with control characters, direction marks and broken bytes as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def did_you_mean(names: Sequence[str]) -> str:
    """A question for an error, such as "did you mean A, B or C? "; empty without names."""
    return f"did you mean {either(names)}? " if names else ""


def either(names: Sequence[str]) -> str:
    """The names as a choice: "A", "A or B", "A, B or C"."""
    return f"{', '.join(names[:-1])}{' or ' * (len(names) > 1)}{names[-1]}"


def spelled(message: str) -> str:
    """A message for the user: its `held_out=` is `--held-out` if that is a flag of the command that is running."""

    def spell(found: re.Match[str]) -> str:
        if not found[1] or found[1].partition(".")[0] not in FLAGS.get():
            return found[0]
        return f"{flag(found[1])} {(found[2] or '').strip('()').replace(', ', 'x')}".replace("'", "").rstrip()

    return ARGUMENT.sub(spell, message)


def flag(field: str) -> str:
    """`optimizer.weight_decay` as a user types it."""
    return "--" + field.replace("_", "-")


def mark_raised_on_one_rank(error: BaseException) -> None:
    """Note that no other rank raises this error, so this rank has to report it."""
    error.is_raised_on_one_rank = True  # pyrefly: ignore[missing-attribute] - any exception may carry it


def is_raised_on_one_rank(error: BaseException) -> bool:
    """Whether `mark_raised_on_one_rank` has marked the error."""
    return getattr(error, "is_raised_on_one_rank", False)
