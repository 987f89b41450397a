"""Progress of long operations: a bar on a terminal, occasional lines elsewhere."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

from rich.console import Console
from rich.control import Control
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import ControlType
from rich.text import Text

QUIET = 15.0  # seconds between lines where there is no terminal


class _Counted:
    """A progress bar while the block runs; nothing where there is no terminal."""

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
    """Show the events of a run; a closed output never stops it."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, "training", total, done, TimeRemainingColumn(), has_bar=True)
        self._started, self._images, self._spoke = time.monotonic(), 0, time.monotonic()

    def show(self, kind: str, values: Mapping[str, object]) -> None:
        """An event as it happens."""
        if kind == "step":
            self._show_step(cast(dict[str, Any], values))
        elif kind == "validation":
            self.say(f"step {values['step']:,}: {describe(cast(dict[str, Any], values))}")
        elif kind == "settled":
            self.say(
                f"step {values['step']:,} of {self.total:,}: the training loss has settled at {values['loss']:.4f}, so "
                "the run stops here"
            )

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        say(self.console, line)

    def _show_step(self, values: dict[str, Any]) -> None:
        self._images += values["images"]
        elapsed = max(time.monotonic() - self._started, 1e-9)
        speed = self._images / elapsed
        now = f"loss {values['loss']:.4f}  {speed:,.1f} images/s"
        step = values["step"]
        if not values["images"]:
            self.say(f"step {step:,}: skipped, none of its images could be read")
        elif values["skipped"]:
            self.say(f"step {step:,}: loss {values['loss']}, gradient norm {values['gradient_norm']}: skipped")
        if self._bar is not None:
            self._bar.update(self._task, completed=step, now=now)
        elif time.monotonic() - self._spoke > QUIET or step == self.total:
            self._spoke = time.monotonic()
            left = f"  {duration((self.total - step) * (values['images'] / speed))} left" if values["images"] else ""
            self.say(f"step {step:,} of {self.total:,}  {now}{left}")


def default_console(console: Console | None = None, *, quiet: bool = False) -> Console:
    """The console that a call from Python prints its progress to: standard error, unless the caller has one."""
    if quiet:
        return Console(quiet=True)
    return Console(stderr=True) if console is None else console


def say(console: Console, line: str) -> None:
    """Print a line; an output that went away is no reason to stop a run."""
    with contextlib.suppress(OSError, SystemExit):  # rich leaves the program when a pipe is closed
        console.print(Text(line), soft_wrap=True)


@contextlib.contextmanager
def announced(console: Console, what: str, *, is_brief: bool = False) -> Iterator[None]:
    """Say at once what takes its time: on a terminal a line that goes away again, elsewhere a plain one.

    What is brief as a rule is said on a terminal only.
    """
    if not console.is_terminal:
        if not is_brief:
            say(console, what)
        yield
        return
    # No live display: a process that is stopped here by an interrupt would leave the cursor hidden.
    console.print(Text(what, style="dim"), end="", no_wrap=True, overflow="ellipsis")
    try:
        yield
    finally:
        console.control(Control((ControlType.CURSOR_MOVE_TO_COLUMN, 0), (ControlType.ERASE_IN_LINE, 2)))


def describe(numbers: Mapping[str, float]) -> str:
    """The numbers of a validation as one line, with the images that could not be evaluated."""
    if not numbers["count"]:
        return f"none of {numbers.get('not_evaluated', 0):,} images could be evaluated"
    if "threshold" in numbers:  # of a multi-label model
        mean, micro, macro = (float(numbers.get(name, "nan")) for name in ("map", "f1_micro", "f1_macro"))
        f1 = f"F1 {micro:.1%} micro, {macro:.1%} macro at {numbers['threshold']:g}"
        said = f"mAP {mean:.2%}, {f1}, {numbers['count']:,} images, loss {numbers['loss']:.4f}"
        return f"{said}{_unseen(numbers)}"
    right = round(numbers["top1"] * numbers["count"])
    of = f"{numbers['patches']:,} corrupted patches in" if "patches" in numbers else f"{right:,} of"
    said = f"accuracy {100 * numbers['top1']:.1f} % ({of} {numbers['count']:,} images), loss {numbers['loss']:.4f}"
    return f"{said}{_unseen(numbers)}"


def _unseen(numbers: Mapping[str, float]) -> str:
    unseen = numbers.get("not_evaluated", 0)
    return f"; {unseen:,} of {numbers['count'] + unseen:,} not evaluated" if unseen else ""


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class _Coming(_Counted):
    """What comes steadily: how much is there, how fast it comes, for how long still."""

    tells_the_end = False

    def __init__(self, console: Console, what: str) -> None:
        super().__init__(console, what, 0, 0, TimeRemainingColumn(), has_bar=True)
        self.what = what
        self._began: tuple[float, int] | None = None  # when, and with how much
        self._spoke = 0.0

    def __enter__(self) -> Self:
        return self  # the bar starts with the first `show`

    def show(self, done: int, total: int) -> None:
        """So much is there, of so much or of nobody knows how much (0); first told before anything comes."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._spoke = (now, done), now
            self._begin(done, total)
        started, had = self._began
        speed = (done - had) / max(now - started, 1e-9)
        told = f"{self._amount(speed)}/s" if done > had else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, now=told)
        elif done > had and (now - self._spoke > QUIET or (done == total and self.tells_the_end)):
            self._spoke = now
            of = f" of {self._amount(total)}" if total else ""
            left = f"  {duration((total - done) / speed)} left" if total else ""
            say(self.console, f"{self.what} {self._amount(done)}{of}  {told}{left}")

    def _begin(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.start()

    def _amount(self, number: float) -> str:
        raise NotImplementedError


class Images(_Coming):
    """The images of a set that are done."""

    def _amount(self, number: float) -> str:
        return f"{number:,}" if isinstance(number, int) else f"{number:,.1f} images"


class Bytes(_Coming):
    """The bytes of files as they are read."""

    count = DownloadColumn

    def _amount(self, number: float) -> str:
        return f"{number / 1e6:,.1f} MB"


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


class Arrival(Bytes):
    """The bytes of a file as they arrive; one that is there already is not told of."""

    tells_the_end = True

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, "fetching")
        self.name = name

    def _begin(self, done: int, total: int) -> None:
        super()._begin(done, total)
        if self._bar is None:
            said = f"goes on after {self._amount(done)}" if done else "is fetched"
            of = f", {self._amount(total)} in all" if total else ""
            say(self.console, f"{self.name} {said}{of}")
