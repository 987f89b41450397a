"""The account of a training over all its ranks: each books its own share, and all know the sum when it matters."""

from collections.abc import Generator, Iterable

from vitlab.data.accounting import Account
from vitlab.data.batch import Batch
from vitlab.world.group import World


class Books:
    """`account` is that of all ranks, right after every `settle`; alone it is always right."""

    def __init__(self, account: Account, max_bad: float, world: World) -> None:
        self.account, self.max_bad, self.world = account, max_bad, world
        self.own = account if world.ranks == 1 else self._empty()

    @property
    def own_limit(self) -> float:
        """How many bad images stop this rank by itself: of several none does, because the others would wait for it."""
        return self.max_bad if self.world.ranks == 1 else 1.0

    def kept(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """The same batches; as soon as one rank meets a bad image, all judge it."""
        for batch in batches:
            if self.world.ranks > 1 and self.world.agree(bool(batch.bad)):
                self.settle()
            yield batch

    def settle(self) -> None:
        """Add up what every rank has booked; all ranks call it. Raises TooManyBadImages on all of them."""
        if self.world.ranks == 1:
            return
        for part in self.world.gather(self.own.to_json()):
            self.account.take(Account.from_json(part))
        self.own.clear()
        self.account.add((), (), self.max_bad)

    def _empty(self) -> Account:
        return Account(self.account.found, self.account.excluded.copy())
