"""Ranks that work together; alone, every exchange is the identity."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitlab.errors import LostRank, mark_raised_on_one_rank
from vitlab.require import require
from vitlab.world.device import pick_device
from vitlab.world.watch import ANSWER, Watch, answered, attempt, first_line

TIMEOUT = 60.0  # seconds that ranks wait for one that does not answer


@dataclass(frozen=True)
class World:
    """This process among `ranks`; `place` is its number on this machine, of `places`."""

    rank: int = 0
    ranks: int = 1
    place: int = 0
    places: int = 1

    @property
    def leads(self) -> bool:
        """Whether this rank prints, writes what all share, and holds the run's lock."""
        return self.rank == 0

    def counts(self, value: int) -> list[int]:
        """The number that each rank has, by rank."""
        return [value]

    def total(self, value: int) -> int:
        """The sum over all ranks of a number that each has."""
        return sum(self.counts(value))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        return value

    def fold(self, parts: list[Tensor], start: Tensor) -> Tensor:
        """`start`, which is only read, plus the parts of the first rank, one by one, plus those of the next, and so on.

        The order of the additions does not depend on which rank has which part, so neither do the bits.
        """
        total = start.clone()
        for part in parts:
            total += part
        return total

    def most(self, wishes: list[int]) -> list[int]:
        """The largest of each wish over all ranks."""
        return wishes

    def agree(self, wish: int) -> int:
        """The largest wish of any rank: what all do."""
        return self.most([wish])[0]

    def gather(self, value: object) -> list[Any]:
        """The JSON value of each rank, by rank."""
        return [value]

    def spread(self, tensor: Tensor) -> None:
        """Fill the tensor with the first rank's values."""

    def first(self, act: Callable[[], Any]) -> Any:
        """What the first rank makes by this, a JSON value below 8 MiB; the others wait for it as long as it lives."""
        return act()

    def meet(self) -> None:
        """Wait for all ranks, as long as they live: some may be writing."""


ALONE = World()


@dataclass(frozen=True)
class Ranks(World):
    """Several processes over torch.distributed; numbers travel by gloo, gradients by what the device has."""

    watch: Watch = field(kw_only=True)
    timeout: float = TIMEOUT
    _turns: list[int] = field(default_factory=lambda: [0])

    def counts(self, value: int) -> list[int]:
        found = [torch.empty(1, dtype=torch.long) for _ in range(self.ranks)]
        dist.all_gather(found, torch.tensor([value]))
        return [int(one) for one in found]

    def sum(self, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    def fold(self, parts: list[Tensor], start: Tensor) -> Tensor:
        total = start.clone()
        if self.rank > 0:
            dist.recv(total, self.rank - 1)
        for part in parts:
            total += part
        if self.rank < self.ranks - 1:
            dist.send(total, self.rank + 1)
        dist.broadcast(total, self.ranks - 1)
        return total

    def most(self, wishes: list[int]) -> list[int]:
        found = torch.tensor(wishes)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def gather(self, value: object) -> list[Any]:
        text = json.dumps(value).encode()
        sizes = self.counts(len(text))
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(found, own)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(found, sizes, strict=True)]

    def spread(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, 0)

    def first(self, act: Callable[[], Any]) -> Any:
        key = self._turn()
        if self.leads:
            made = act()
            self.watch.set(key, json.dumps(made))
            return made
        self.watch.wait_for({key: 0}, self.timeout)
        return json.loads(self.watch.get(key))

    def meet(self) -> None:
        key = self._turn()
        self.watch.set(f"{key}/{self.rank}", "here")
        if self.leads:
            self.watch.wait_for({f"{key}/{rank}": rank for rank in range(self.ranks)}, self.timeout)
            self.watch.set(key, "all")
        self.watch.wait_for({key: 0}, self.timeout)

    def _turn(self) -> str:
        self._turns[0] += 1
        return f"turn/{self._turns[0]}"


# A DDP module that lives longer than the group must not be its last owner: torch would end the group's threads while
# it holds Python's lock, and wait for ever for one that needs this lock to let go of a tensor.
_ended: list[object] = []


def is_one_of_many() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> int:
    """How often this machine's launcher has started its ranks again after one of them failed; others' may differ."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Whether the launcher starts the ranks again when they fail."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def device_of(world: World, name: str) -> torch.device:
    """The device of a name; several ranks on one machine take one accelerator each."""
    device = pick_device(name)
    if device.type != "cuda" or device.index is not None or world.ranks == 1:
        return device
    return torch.device("cuda", world.place % torch.cuda.device_count())


def _meet(limit: timedelta) -> tuple[dist.Store, int, int]:
    """The store of all ranks, this one's number and how many there are."""
    seconds = limit.total_seconds()
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        # torch waits for ever for a program that takes the connection and is no store.
        return answered(seconds + ANSWER, lambda: next(dist.rendezvous("env://", timeout=limit)))
    except (dist.DistError, TimeoutError) as error:
        cause = first_line(error) or "something answers there, but not as a rank does; is the port another program's?"
        raise LostRank(f"the ranks did not meet at {where} in {seconds:g} seconds: {cause}") from error


@contextlib.contextmanager
def join(device: str, timeout: float = TIMEOUT) -> Iterator[World]:
    """The world that the launcher's environment describes, until the block ends.

    When one rank fails, it says why and all end: the others leave quietly, by SystemExit. A rank that is gone or does
    not answer for `timeout` seconds is a LostRank, told by one of the others.
    """
    if not is_one_of_many():
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    require(not missing, f"WORLD_SIZE is set, {', '.join(missing)} is not; start ranks with torchrun")
    limit = timedelta(seconds=timeout)
    store, rank, ranks = _meet(limit)
    place = int(os.environ.get("LOCAL_RANK", rank))
    places = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    is_cuda = device.partition(":")[0] in ("auto", "cuda") and torch.cuda.is_available()
    if is_cuda:
        torch.cuda.set_device(place % torch.cuda.device_count())
    watch = Watch(store, rank, ranks)
    try:
        backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
        fresh = dist.PrefixStore(f"group/{attempt()}", store)  # addresses of ranks that have died may be in it
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=ranks, timeout=limit)
        watch.know(range(rank - place, rank - place + places))
        watch.start()
        yield Ranks(rank, ranks, place, places, watch=watch, timeout=timeout)
        watch.leave(timeout)
    except BaseException as error:
        watch.judge(error)
        mark_raised_on_one_rank(error)
        raise
    _ended[:] = [dist.group.WORLD]
    dist.destroy_process_group()
