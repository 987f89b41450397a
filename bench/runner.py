"""Measure contestants against a baseline: interleaved in shuffled order, with a null twin.

Machines are shared and drift, so a contestant is compared only with what ran in the same round. Every round measures
all contestants once, in an order shuffled anew, because a fixed order penalises whoever comes first. The baseline runs
twice in every round: what differs from it by no more than its twin's quartiles do is no difference.
"""

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from bench.results import CaseResult, Row, Unit

SETTLE = 0.02  # seconds between two contestants: threads of the last one may still be spinning
LIMIT = "the limit"
AGAIN = "again"
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"  # until its parent has gone
Call = Callable[[], object]


class Limit(Protocol):
    """What the machine could reach, measured in the same rounds as the contestants."""

    def measure(self) -> None: ...

    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Contestant:
    """A named way to do the work of a case.

    `make` prepares it, which is not timed, and returns the call that is. If `is_compared`, a tensor that the call
    returns is compared with the baseline's: logits, class numbers, or any other values.
    """

    name: str
    make: Callable[[], Call]
    is_compared: bool = True


@dataclass(frozen=True)
class Case:
    """Contestants that do the same work; the first is the baseline.

    `images` is the work of one call and `calls` the number of calls that one measurement times together. If
    `is_reported`, a call returns the amount itself, in `unit`, instead of being timed, usually because other processes
    do the work; processor time is not recorded then. `beside` is the number of busy loops that run at the same time,
    `most_rounds` the largest number of rounds of a case whose calls take long, `difference` which difference of the
    outputs is shown.
    """

    title: str
    contestants: Sequence[Contestant]
    images: int = 1
    calls: int = 1
    unit: Unit = "s"
    is_reported: bool = False
    limit: Callable[[], Limit] | None = None
    beside: int = 0
    most_rounds: int | None = None
    difference: Literal["largest", "mean"] = "largest"


@dataclass
class _Taken:
    """What one contestant took, a number for each round."""

    amounts: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def run_case(case: Case, rounds: int, seed: int = 0) -> CaseResult:
    """Measure every contestant `rounds` times, or as often as the case allows; one that fails says why in its row."""
    rounds = min(rounds, case.most_rounds or rounds)
    baseline = case.contestants[0].name
    names = [baseline, f"{baseline} {AGAIN}", *(one.name for one in case.contestants[1:])]
    calls, outputs, failures = _prepared(case)
    if baseline in calls:
        calls[names[1]] = calls[baseline]
    else:
        failures[names[1]] = failures[baseline]
    limit = case.limit() if case.limit else None
    with busy_loops(case.beside):
        taken = _rounds(case, calls, failures, limit, rounds, seed)
    compared = {one.name for one in case.contestants if one.is_compared}
    truth = outputs.get(baseline)
    rows = []
    for name in names:
        difference, same = (
            _agreement(outputs.get(name), truth, case.difference) if name in compared - {baseline} else (None, None)
        )
        own = taken.get(name, _Taken())
        rows.append(Row(name, tuple(own.amounts), tuple(own.cpu), difference, same, failures.get(name, "")))
    return CaseResult(
        title=case.title,
        unit=case.unit,
        images=case.images,
        beside=case.beside,
        limit=limit.seconds() if limit else None,
        rows=tuple(rows),
    )


def order(names: Sequence[str], seed: int, number: int) -> list[str]:
    """Return the order of the contestants in a round."""
    return random.Random(f"{seed}/{number}").sample(list(names), len(names))


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Run `number` programs that do nothing but use a processor."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _prepared(case: Case) -> tuple[dict[str, Call], dict[str, object], dict[str, str]]:
    """Make every contestant and call it once: (calls, first outputs, reasons of failures).

    The first call warms up. One that reports its amount itself warms up itself, and is called only in the rounds.
    """
    calls: dict[str, Call] = {}
    outputs: dict[str, object] = {}
    failures: dict[str, str] = {}
    for contestant in case.contestants:
        try:
            call = contestant.make()
            outputs[contestant.name] = None if case.is_reported else call()
            calls[contestant.name] = call
        except Exception as error:
            failures[contestant.name] = reason(error)
    return calls, outputs, failures


def _rounds(
    case: Case, calls: dict[str, Call], failures: dict[str, str], limit: Limit | None, rounds: int, seed: int
) -> dict[str, _Taken]:
    taken = {name: _Taken() for name in calls}
    for number in range(rounds):
        for name in order([*calls, LIMIT] if limit else [*calls], seed, number):
            time.sleep(SETTLE)
            if name == LIMIT:
                limit.measure()
                continue
            try:
                amount, cpu = _measured(case, calls[name])
            except Exception as error:
                failures[name] = f"in round {number + 1}: {reason(error)}"
                del calls[name], taken[name]
            else:
                taken[name].amounts.append(amount)
                taken[name].cpu += [] if case.is_reported else [cpu]
    return taken


def _measured(case: Case, call: Call) -> tuple[float, float]:
    """Return (the amount of one call, its seconds of processor time in this process and those that it waited for)."""
    start, start_cpu = time.perf_counter(), _cpu()
    for _ in range(case.calls):
        value = call()
    seconds, cpu = time.perf_counter() - start, _cpu() - start_cpu
    amount = float(value) if case.is_reported else seconds / case.calls
    return amount, cpu / case.calls


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def reason(error: Exception) -> str:
    """Return why a contestant has no numbers, in one line."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {text}"
    return f"{type(error).__name__}: {text}"


def _agreement(output: object, truth: object, kind: str = "largest") -> tuple[float | None, float | None]:
    """Return (largest or mean difference relative to the largest value, share of images with the same top class).

    The outputs are (B, K) logits, (B,) class numbers, or a row of other values, which have no class.
    """
    if not all(hasattr(one, "is_floating_point") and one.dim() for one in (output, truth)):
        return None, None
    if output.shape != truth.shape:
        return None, 0.0
    if not truth.is_floating_point():
        return None, (output == truth).double().mean().item()
    off = (output - truth).abs()
    difference = ((off.mean() if kind == "mean" else off.max()) / truth.abs().max()).item()
    same = (output.argmax(-1) == truth.argmax(-1)).double().mean().item() if truth.dim() == 2 else None
    return difference, same
