"""Time batches of one model in a process of its own: `python -P -m vitlab.costing`.

A `Task` comes as a line of JSON on standard input, and every `Report` goes as a line of JSON to standard output. After
its task the process waits for requests, lines with a batch to run. When standard input closes, because the parent
has ended in whatever way, this process ends too. `children.py` is the other side.
"""

import gc
import json
import os
import queue
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, TextIO

import torch

from vitlab.costing.memory import be_killed_first, own_peak, reset_own_peak
from vitlab.costing.search import expected_seconds, next_batch
from vitlab.costing.work import Mode, Step, work
from vitlab.files.strict_json import from_json, parse_json
from vitlab.spec import EngineName, ModelSpec
from vitlab.world.device import is_out_of_memory, products_in

REPEATS = 3  # timed runs of a batch at least, if there is time
MOST_REPEATS = 30
ENOUGH = 0.5  # seconds of timed runs, if there are enough of them
TRIES = 2  # runs of a requested batch: the second also has AdamW's averages, and memory that the first left behind
PRODUCT = 0.02  # seconds that a matrix product takes before its speed counts as the limit
LARGEST_SIDE = 16_384
OPEN_AT_ONCE: tuple[EngineName, ...] = ("torch", "plain")  # engines that convert and compile nothing
WARM_UP = (1, 2)  # batches: one is computed by all cores, two by streams, and a compiled model sees that they differ


@dataclass(frozen=True)
class Task:
    """What to time: `batches` in this order, or powers of two while it pays.

    With `only_requests` nothing is timed before the first request.
    """

    spec: ModelSpec
    mode: Mode
    device: str
    threads: int
    seconds: float
    batches: tuple[int, ...] = ()
    device_limit: int | None = None  # bytes on a GPU; None for what is free there
    only_requests: bool = False
    engine: EngineName = "torch"


@dataclass(frozen=True)
class Report:
    """What happened: the process has started or is ready, a batch has run or was too large, it waits for a request.

    `held` is the memory held so far at most, `limit` that of a GPU, `flops` the speed of a large matrix product,
    `engine` what computed the batch.
    """

    event: Literal["started", "ready", "batch", "too-large", "waiting", "failed"]
    batch: int = 0
    seconds: float = 0.0  # median of the timed runs
    held: int | None = None
    limit: int | None = None
    flops: float | None = None
    engine: str = ""
    words: str = ""  # of a failure


def main() -> None:
    """Carry out the task of standard input, then its requests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this process silently; the parent reports it
    be_killed_first()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no report
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    task = from_json(Task, parse_json(lines.get(), "the task"))
    torch.set_num_threads(task.threads)
    requests = (int(line) for line in iter(lines.get, b""))
    device = torch.device(task.device)
    try:
        with products_in("fp32", device):
            for report in reports(task, device, requests):
                _send(report, output)
    except (ValueError, NotImplementedError) as error:
        _send(Report("failed", words=str(error)), output)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _send(Report("too-large"), output)


def reports(task: Task, device: torch.device, requests: Iterable[int]) -> Iterator[Report]:
    """Carry out a task and requests, one report after the other."""
    yield Report("started", held=own_peak(), limit=_limit_device(task, device))
    flops = None if task.only_requests else matmul_flops(device)
    step_of = work(task.mode, task.spec, device, task.engine)
    if task.mode == "inference" and task.engine not in OPEN_AT_ONCE:
        _warm_up(step_of, device)
    yield Report("ready", flops=flops)
    if not task.only_requests:
        deadline = time.monotonic() + task.seconds
        seconds: dict[int, float] = {}
        for batch in _batches(task, seconds, lambda: deadline - time.monotonic()):
            step = step_of(batch)
            seconds[batch] = _timed(step, device, deadline - time.monotonic())
            yield Report("batch", batch, seconds[batch], _peak(device), engine=step.engine)
            del step  # with its images, before the next ones are made
    yield Report("waiting")
    for batch in requests:
        step = step_of(batch)
        times = [_seconds(step.run, device) for _ in range(TRIES)]
        yield Report("batch", batch, times[-1], _peak(device), engine=step.engine)
        del step
        yield Report("waiting")


def _warm_up(step_of: Callable[[int], Step], device: torch.device) -> None:
    """Build what an engine computes with, for all cores and for one, so that it is not measured with the batches."""
    for batch in WARM_UP:
        step_of(batch).run()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    reset_own_peak()


def matmul_flops(device: torch.device) -> float:
    """FLOPs per second of a square fp32 matrix product: the best of several, large enough to fill the device."""
    side, best = 256, 0.0
    while True:
        a = torch.ones(side, side, device=device)
        times = [_seconds(lambda a=a: a @ a, device) for _ in range(5)]
        best = max(best, 2 * side**3 / min(times))
        if min(times) >= PRODUCT or side >= LARGEST_SIDE:
            return best
        side *= 2


def _batches(task: Task, seconds: dict[int, float], left: Callable[[], float]) -> Iterator[int]:
    """The batches of a task; `seconds` grows between them."""
    if not task.batches:
        while batch := next_batch(seconds, left()):
            yield batch
        return
    for batch in task.batches:
        if not seconds or 2 * expected_seconds(batch, seconds) <= left():
            yield batch


def _timed(step: Step, device: torch.device, left: float) -> float:
    """The median time of a step, after one that is not timed; if that takes the time `left`, it is the result."""
    first = _seconds(step.run, device)
    times: list[float] = []
    while sum(times) < ENOUGH or len(times) < REPEATS:
        if first + sum(times) + max(times, default=first) > left or len(times) == MOST_REPEATS:
            break
        times.append(_seconds(step.run, device))
    return statistics.median(times) if times else first


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - began, 1e-9)


def _limit_device(task: Task, device: torch.device) -> int | None:
    """Limit the memory of a GPU to that of the task; returns the limit, or None on a CPU, which the parent watches."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    limit = min(task.device_limit or free, total)
    torch.cuda.set_per_process_memory_fraction(limit / total, device)
    return limit


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else own_peak()


def _listen(lines: "queue.SimpleQueue[bytes]") -> None:
    """Put the lines of standard input into a queue; when it closes, end the process."""
    waiting = b""
    while more := os.read(0, 65_536):  # not sys.stdin, whose lock this thread would hold when Python ends
        *whole, waiting = (waiting + more).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(1)


def _send(report: Report, output: TextIO) -> None:
    output.write(json.dumps(asdict(report), allow_nan=False) + "\n")
    output.flush()
