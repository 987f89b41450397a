"""Reading of sample ranges, in this process or in workers; an error names the samples it concerns."""

import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitlab.data.images.refusals import BadImage
from vitlab.data.loading.accounting import Quarantined
from vitlab.data.source import Sample, Source
from vitlab.errors import RemoteFailed, RemoteRefused, WorkerDied
from vitlab.require import require

GRACE = 0.5  # seconds
FAREWELL = 30  # seconds that a worker lives after SIGTERM
PR_SET_PDEATHSIG = 1
PER_CORE = 8  # workers at most: more only wait for each other, and each takes memory
AHEAD = 2  # batches that each worker prefetches, which bounds the memory


def check_workers(workers: int) -> None:
    """Raise a ValueError if this machine has too few cores for this many worker processes."""
    require(workers >= 0, f"workers {workers} must not be negative")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = f"give at most {PER_CORE * cores}, such as {cores}"
    require(workers <= PER_CORE * cores, f"workers= {workers:,} is too many for {cores} cores; {allowed}")


class Sound(NamedTuple):
    """A sample that could be read, and what the reader keeps of it."""

    kept: Any
    sample: Sample
    epoch: int
    number: int
    position: int


class RangeReader(Dataset):
    """Reads a range of positions of a source, and notes the current one, so that a crash can be explained."""

    def __init__(self, source: Source, workers: int) -> None:
        check_workers(workers)
        self.source = source
        self.current = torch.full((max(workers, 1),), -1, dtype=torch.long)
        if workers:
            self.current = _in_shared_memory(self.current)

    def locate(self, position: int) -> tuple[int, int]:
        """Return (epoch, sample number) of a position."""
        return 0, position

    def use(self, sample: Sample, epoch: int, position: int) -> object:
        """Decode a sample and return what is kept of it; raises BadImage."""
        raise NotImplementedError

    def __getitem__(self, index: range) -> Any:
        worker = get_worker_info()
        slot = worker.id if worker else 0
        good, bad = [], []
        for position in index:
            self.current[slot] = position
            epoch, number = self.locate(position)
            data: object = b""
            try:
                sample = self.source.item(number)
                data = sample.data
                good.append(Sound(self.use(sample, epoch, position), sample, epoch, number, position))
            except BadImage as refusal:
                digest = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) and data else ""
                bad.append((epoch, Quarantined(self.source.id(number), str(refusal.reason), refusal.detail, digest)))
        self.current[slot] = -1
        return self.collected(good, bad)

    def collected(self, good: list[Sound], bad: list[tuple[int, Quarantined]]) -> object:
        """Return what a whole range becomes."""
        return [sound.kept for sound in good], bad

    def in_flight(self) -> list[str]:
        """Return the ids of the samples that workers are reading, or were reading when they died."""
        positions = [int(position) for position in self.current if position >= 0]
        return [self.source.id(self.locate(position)[1]) for position in positions]


def read_ranges(reader: RangeReader, wanted: Iterable[range], workers: int) -> Iterator[Any]:
    """Yield what the reader makes of each range, in order, read in this process or in workers."""
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=cast(Any, wanted),  # any iterable of what __getitem__ takes
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_prepare_worker if workers else None,
    )
    try:
        yield from _unbroken(loader)
    except (RemoteFailed, RemoteRefused) as error:  # of a worker, with its traceback
        raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        if "shared memory" in str(error) and workers:
            raise WorkerDied(str(error).rpartition("WorkerDied: ")[2].strip()) from None
        if "exited unexpectedly" not in said and "killed by signal" not in said:
            raise
        named = ", ".join(map(repr, reader.in_flight())) or "none"
        raise WorkerDied(f"a worker process died; samples in flight: {named} ({said})") from error


def _unbroken(loader: DataLoader) -> Iterator[Any]:
    """Yield from the loader; a connection that breaks because a worker died is reported as its death."""
    try:
        yield from _begun(loader)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if loader.num_workers == 0 or "in DataLoader worker process" in str(error):
            raise  # the source's own error
        time.sleep(GRACE)  # torch reports the death by a signal, which must arrive here and not later
        raise RuntimeError(f"DataLoader worker exited unexpectedly, {type(error).__name__}") from error


def _begun(loader: DataLoader) -> Iterator[Any]:
    """Start the workers of a loader."""
    try:
        return iter(loader)
    except (OSError, MemoryError) as error:
        if loader.num_workers == 0:
            raise
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        failed = f"{loader.num_workers} worker processes could not be started ({why})"
        raise WorkerDied(f"{failed}; give fewer with workers=, 0 for none") from error


def _prepare_worker(worker: int) -> None:
    """Set up a worker: one thread; SIGTERM to the whole job leaves the main process time to save with workers alive."""
    torch.set_num_threads(1)
    if sys.platform == "linux":  # die with the parent: a worker has inherited the connections that other ranks watch
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(FAREWELL))


def shared(tensor: Tensor) -> Tensor:
    """In a worker, move a tensor to shared memory; a lack of it raises here, torch's sending thread would just die."""
    return tensor if get_worker_info() is None else _in_shared_memory(tensor)


def _in_shared_memory(tensor: Tensor) -> Tensor:
    try:
        return tensor.share_memory_()
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        failed = f"{tensor.nbytes:,} bytes do not fit in shared memory ({said})"
        raise WorkerDied(f"{failed}; use fewer workers or smaller batches, or enlarge /dev/shm") from None
