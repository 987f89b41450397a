"""What a person sees of long work: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Self, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

QUIET = 15.0  # seconds between lines where there is no terminal


class _Counted:
    """So many of so many, while the block runs: a bar on a terminal, else nothing."""

    count: type[ProgressColumn] = MofNCompleteColumn

    def __init__(
        self, console: Console, what: str, total: int, done: int, *more: ProgressColumn, has_bar: bool
    ) -> None:
        self.console, self.total = console, total
        self._bar: Progress | None = None
        if console.is_terminal and has_bar:
            columns = (TextColumn(what), BarColumn(), self.count(), TextColumn("{task.fields[now]}"))
            self._bar = Progress(*columns, *more, console=console)
            self._task = self._bar.add_task("", total=total, completed=done, now="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Display(_Counted):
    """Shows events of a run; an output that went away never stops the run."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, "training", total, done, TimeRemainingColumn(), has_bar=True)
        self._started, self._images, self._spoke = time.monotonic(), 0, time.monotonic()

    def show(self, kind: str, values: Mapping[str, object]) -> None:
        """An event as it happens."""
        if kind == "step":
            self._show_step(cast(dict[str, Any], values))
        elif kind == "validation":
            self.say(f"step {values['step']:,}: {describe(cast(dict[str, Any], values))}")

    def say(self, line: str) -> None:
        """A line of its own."""
        say(self.console, line)

    def _show_step(self, values: dict[str, Any]) -> None:
        self._images += values["images"]
        elapsed = max(time.monotonic() - self._started, 1e-9)
        speed = self._images / elapsed
        now = f"loss {values['loss']:.4f}  {speed:,.1f} images/s"
        step = values["step"]
        if values["skipped"]:
            self.say(f"step {step:,}: loss {values['loss']}, gradient norm {values['gradient_norm']}: skipped")
        if self._bar is not None:
            self._bar.update(self._task, completed=step, now=now)
        elif time.monotonic() - self._spoke > QUIET or step == self.total:
            self._spoke = time.monotonic()
            left = (self.total - step) * (values["images"] / speed)
            self.say(f"step {step:,} of {self.total:,}  {now}  {duration(left)} left")


def say(console: Console, line: str) -> None:
    """Print a line; an output that went away is no reason to stop a run."""
    with contextlib.suppress(OSError, SystemExit):  # rich leaves the program when a pipe is closed
        console.print(Text(line), soft_wrap=True)


def describe(numbers: Mapping[str, float]) -> str:
    """The numbers of a validation in a few words, with what could not be evaluated."""
    patches = f"{numbers['patches']:,} corrupted patches in " if "patches" in numbers else ""
    said = f"{numbers['top1']:.2%} right of {patches}{numbers['count']:,} images, loss {numbers['loss']:.4f}"
    unseen = numbers.get("not_evaluated", 0)
    return f"{said}; {unseen:,} of {numbers['count'] + unseen:,} not evaluated" if unseen else said


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class Tally(_Counted):
    """How many of several runs are done: a bar on a terminal, and a line for whatever happens to one."""

    def __init__(self, console: Console, total: int, done: int, *, has_bar: bool) -> None:
        if done:
            say(console, f"{done} of {total} runs are finished already")
        super().__init__(console, "runs", total, done, has_bar=has_bar)
        self.done = done

    def tell(self, name: str, event: str, words: str) -> None:
        """Something that happened to a run: started, finished, killed, failed."""
        self.done += event == "finished"
        said = f"{name} {event}" + (f": {words}" if words else "")
        say(self.console, f"{self.done} of {self.total} runs  {said}")
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, now=said)


class Arrival(_Counted):
    """The bytes of a file as they arrive; one that is there already is not told of."""

    count = DownloadColumn

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, "fetching", 0, 0, TimeRemainingColumn(), has_bar=True)
        self.name = name
        self._began: tuple[float, int] | None = None  # when, and with how many bytes

    def __enter__(self) -> Self:
        return self  # the bar waits for the first bytes

    def show(self, done: int, total: int) -> None:
        """So many bytes are there, of so many or of nobody knows how many (0); first told before one arrives."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._spoke = (now, done), now
            said = f"goes on after {_megabytes(done)}" if done else "is fetched"
            of = f", {_megabytes(total)} in all" if total else ""
            if self._bar is None:
                say(self.console, f"{self.name} {said}{of}")
            else:
                self._bar.start()
        started, had = self._began
        speed = (done - had) / max(now - started, 1e-9)
        told = f"{speed / 1e6:,.1f} MB/s" if done > had else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, now=told)
        elif done > had and (now - self._spoke > QUIET or done == total):
            self._spoke = now
            of, left = (f" of {_megabytes(total)}", f"  {duration((total - done) / speed)} left") if total else ("", "")
            say(self.console, f"{_megabytes(done)}{of}  {told}{left}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
