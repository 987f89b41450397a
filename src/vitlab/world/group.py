"""The ranks of a run and what they exchange; in a single process every exchange is the identity."""

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

from vitlab.errors import LostRank, Stopped, mark_raised_on_one_rank
from vitlab.require import require
from vitlab.world.device import pick_device
from vitlab.world.watch import ANSWER, Watch, answered, attempt, first_line

TIMEOUT = 60.0  # seconds that ranks wait for one that does not respond


@dataclass(frozen=True)
class World:
    """This process as one of `ranks`; `place` is its local rank, of `places` on this machine."""

    rank: int = 0
    ranks: int = 1
    place: int = 0
    places: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints, writes shared files and holds the run's lock."""
        return self.rank == 0

    def counts(self, value: int) -> list[int]:
        """One number from each rank, in the order of ranks."""
        return [value]

    def total(self, value: int) -> int:
        """The sum over all ranks of one number from each."""
        return sum(self.counts(value))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        return value

    def fold(self, parts: list[Tensor], start: Tensor) -> Tensor:
        """Add to a copy of `start` the parts of rank 0 one by one, then those of rank 1, and so on.

        The order of the additions does not depend on which rank has which part, so neither do the bits.
        """
        total = start.clone()
        for part in parts:
            total += part
        return total

    def most(self, wishes: list[int]) -> list[int]:
        """The largest value of each entry over all ranks."""
        return wishes

    def agree(self, wish: int) -> int:
        """The largest value of any rank, so that all do the same."""
        return self.most([wish])[0]

    def gather(self, value: object) -> list[Any]:
        """A JSON value from each rank, in the order of ranks."""
        return [value]

    def spread(self, tensor: Tensor) -> None:
        """Fill the tensor with the values of rank 0."""

    def first(self, act: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call `act` on rank 0 only and return its result, a JSON value below 8 MiB, on every rank.

        The others wait for as long as rank 0 is alive.
        """
        return act(*args, **options)

    def meet(self) -> None:
        """Wait for all ranks, for as long as they are alive: some may be writing."""


ALONE = World()


@dataclass(frozen=True)
class Ranks(World):
    """Several processes over torch.distributed: numbers over gloo, gradients over the device's own backend."""

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

    def first(self, act: Callable[..., Any], *args: object, **options: object) -> Any:
        key = self._turn()
        if self.leads:
            made = act(*args, **options)
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


# A DDP module that outlives the group must not be its last owner. Torch would then end the group's threads while it
# holds the GIL, and deadlock with a thread that needs the GIL to release a tensor.
_ended: list[object] = []


def is_one_of_many() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> int:
    """How often this machine's launcher has restarted its ranks after a failure; other machines may differ."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Whether the launcher restarts the ranks when they fail."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def device_of(world: World, name: str) -> torch.device:
    """The device with this name; several ranks on one machine take one GPU each."""
    device = pick_device(name)
    if device.type != "cuda" or device.index is not None or world.ranks == 1:
        return device
    return torch.device("cuda", world.place % torch.cuda.device_count())


def _meet(limit: timedelta) -> tuple[dist.Store, int, int]:
    """Connect to the store of all ranks; returns it with this rank and the number of ranks."""
    seconds = limit.total_seconds()
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        # Torch waits forever if another program accepts the connection.
        return answered(seconds + ANSWER, lambda: next(dist.rendezvous("env://", timeout=limit)))
    except (dist.DistError, TimeoutError) as error:
        cause = first_line(error) or "another program seems to use this port; choose another --master-port"
        raise LostRank(f"the ranks did not connect at {where} within {seconds:g} seconds: {cause}") from error


@contextlib.contextmanager
def join(device: str, timeout: float = TIMEOUT) -> Iterator[World]:
    """Join the ranks that the launcher's environment variables describe, until the block ends.

    When a rank fails, it reports the error and all others exit silently, by SystemExit. When a rank dies or does not
    respond for `timeout` seconds, one of the others raises LostRank.
    """
    if not is_one_of_many():
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    require(not missing, f"WORLD_SIZE is set but {', '.join(missing)} is not; start the ranks with torchrun")
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
        fresh = dist.PrefixStore(f"group/{attempt()}", store)  # the store may hold addresses of dead ranks
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=ranks, timeout=limit)
        watch.know(range(rank - place, rank - place + places))
        watch.start()
        stopped = None
        try:
            yield Ranks(rank, ranks, place, places, watch=watch, timeout=timeout)
        except Stopped as error:
            if not error.is_agreed:
                raise
            stopped = error
        watch.leave(timeout)
    except BaseException as error:
        watch.judge(error)
        mark_raised_on_one_rank(error)
        raise
    _ended[:] = [dist.group.WORLD]
    dist.destroy_process_group()
    if stopped is not None:
        raise stopped
