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

from vitlab.errors import spelled

QUIET = 15.0  # seconds between lines where there is no terminal


class _Bar:
    """A progress bar while the block runs, if the console is a terminal."""

    def __init__(
        self,
        console: Console,
        what: str,
        total: int = 0,
        done: int = 0,
        *,
        count: type[ProgressColumn] = MofNCompleteColumn,
        has_bar: bool = True,
    ) -> None:
        self.console, self.total = console, total
        self._bar: Progress | None = None
        if console.is_terminal and has_bar:
            columns = (TextColumn(what), BarColumn(), count(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=total, completed=done, now="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line, above the bar."""
        say(self.console, line)


class Display(_Bar):
    """Shows the events of a training run."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, "training", total, done)
        self._started, self._images, self._spoke = time.monotonic(), 0, time.monotonic()

    def show(self, kind: str, values: Mapping[str, object]) -> None:
        """Show an event as it happens."""
        if kind == "step":
            self._show_step(cast(dict[str, Any], values))
        elif kind == "validation":
            self.say(f"step {values['step']:,}: {describe(cast(dict[str, Any], values))}")
        elif kind == "settled":
            settled = f"the training loss has settled at {values['loss']:.4f}, so the run stops here"
            self.say(f"step {values['step']:,} of {self.total:,}: {settled}")

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


class Images(_Bar):
    """Shows how many images of a set are done, how fast they are processed, and how long the rest takes."""

    count: type[ProgressColumn] = MofNCompleteColumn

    def __init__(self, console: Console, what: str, name: str = "") -> None:
        super().__init__(console, what, count=self.count)
        self.what, self.name = what, name  # with a name, the first and the last amount are always printed
        self._began: tuple[float, int] | None = None  # when, and with how much
        self._spoke = 0.0

    def __enter__(self) -> Self:
        return self  # the bar starts with the first `show`

    def show(self, done: int, total: int) -> None:
        """Show how much is done, of `total` or of an unknown total (0); call it once before the work begins."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._spoke = (now, done), now
            self._begin(done, total)
        started, had = self._began
        speed = (done - had) / max(now - started, 1e-9)
        rate = f"{self._speed(speed)}/s" if done > had else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, now=rate)
        elif done > had and (now - self._spoke > QUIET or (done == total and self.name)):
            self._spoke = now
            of = f" of {self._amount(total)}" if total else ""
            left = f"  {duration((total - done) / speed)} left" if total else ""
            self.say(f"{self.what} {self._amount(done)}{of}  {rate}{left}")

    def _begin(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.start()
        elif self.name:
            of = f", {self._amount(total)} in total" if total else ""
            self.say(f"{self.what} {self.name}{of}{f', continuing after {self._amount(done)}' if done else ''}")

    def _amount(self, number: int) -> str:
        return f"{number:,}"

    def _speed(self, number: float) -> str:
        return f"{number:,.1f} images"


class Bytes(Images):
    """Shows how many bytes are read or downloaded."""

    count = DownloadColumn

    def _amount(self, number: float) -> str:
        return f"{number / 1e6:,.1f} MB"

    _speed = _amount


class Tally(_Bar):
    """Shows how many of several runs are finished, and a line for each event of a run."""

    def __init__(self, console: Console, total: int, done: int, *, has_bar: bool) -> None:
        if done:
            say(console, f"{done} of {total} runs are finished already")
        super().__init__(console, "runs", total, done, has_bar=has_bar)
        self.done = done

    def tell(self, name: str, event: str, words: str) -> None:
        """Show what happened to a run: started, finished, killed, failed."""
        self.done += event == "finished"
        said = f"{name} {event}" + (f": {words}" if words else "")
        self.say(f"{self.done} of {self.total} runs  {said}")
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, now=said)


class Points(_Bar):
    """Shows which of several measurements is running, and a line for each result."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "measuring", total)
        self.done = 0

    def show(self, now: str) -> None:
        """Show on a terminal what is measured now."""
        if self._bar is not None:
            self._bar.update(self._task, now=now)

    def finish(self, line: str) -> None:
        """Print the line of a result."""
        self.done += 1
        self.say(line)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, now="")


def default_console(console: Console | None = None, *, quiet: bool = False) -> Console:
    """The console for progress: the caller's, or standard error; silent if `quiet`."""
    if quiet:
        return Console(quiet=True)
    return Console(stderr=True) if console is None else console


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line without wrapping it; a closed output never stops the work."""
    with contextlib.suppress(OSError, SystemExit):  # rich exits when a pipe is closed
        console.print(Text(spelled(line), style=style), soft_wrap=True)


@contextlib.contextmanager
def announced(console: Console, what: str, *, is_brief: bool = False) -> Iterator[None]:
    """Print what is being done: on a terminal a line that is erased at the end, elsewhere a plain line.

    What is usually brief is printed on a terminal only.
    """
    if not console.is_terminal:
        if not is_brief:
            say(console, what)
        yield
        return
    # Not a live display: an interrupt would leave the cursor hidden.
    console.print(Text(what, style="dim"), end="", no_wrap=True, overflow="ellipsis")
    try:
        yield
    finally:
        console.control(Control((ControlType.CURSOR_MOVE_TO_COLUMN, 0), (ControlType.ERASE_IN_LINE, 2)))


def describe(numbers: Mapping[str, float]) -> str:
    """The numbers of a validation as one line, with the images that could not be evaluated."""
    count, unseen = numbers["count"], numbers.get("not_evaluated", 0)
    if not count:
        return f"none of {unseen:,} images could be evaluated"
    if "threshold" in numbers:  # of a multi-label model
        mean, micro, macro = (float(numbers.get(name, "nan")) for name in ("map", "f1_micro", "f1_macro"))
        f1 = f"F1 {micro:.1%} micro, {macro:.1%} macro at {numbers['threshold']:g}"
        said = f"mAP {mean:.2%}, {f1}, {count:,} images"
    else:
        right = f"{round(numbers['top1'] * count):,} of"
        of = f"{numbers['patches']:,} corrupted patches in" if "patches" in numbers else right
        said = f"accuracy {100 * numbers['top1']:.1f} % ({of} {count:,} images)"
    unseen = f"; {unseen:,} of {count + unseen:,} not evaluated" if unseen else ""
    return f"{said}, loss {numbers['loss']:.4f}{unseen}"


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts, such as `1 class` and `1,000 classes`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Seconds as text in a readable unit; what takes a thousand years or more has two significant digits."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("h", 3_600), ("min", 60)):
        count = seconds / size
        if count >= 2:
            return f"{count:.1f} {unit}" if count < 1000 else f"{float(f'{count:.2g}'):,.0f} {unit}"
    return f"{seconds:.0f} s"
