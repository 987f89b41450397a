"""Counters, gauges and histograms in the text format of Prometheus. Standard library only."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Count:
    """A number that grows, for each value of its labels."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def add(self, *values: str) -> None:
        """Count one."""
        self.counts[values] += 1

    def lines(self) -> list[str]:
        """The lines of the text format."""
        said = [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} counter"]
        if not self.labels:
            return [*said, f"{self.name} {self.counts[()]}"]
        for values, count in sorted(self.counts.items()):
            labels = ",".join(f'{label}="{value}"' for label, value in zip(self.labels, values, strict=True))
            said.append(f"{self.name}{{{labels}}} {count}")
        return said


@dataclass
class Gauge:
    """A number that is read when the metrics are requested."""

    name: str
    about: str
    value: Callable[[], float] = lambda: 0

    def lines(self) -> list[str]:
        """The lines of the text format."""
        return [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} gauge", f"{self.name} {self.value():.15g}"]


@dataclass
class Histogram:
    """How often an amount was at most each of some bounds."""

    name: str
    about: str
    bounds: Sequence[float]
    counts: Counter[float] = field(default_factory=Counter)
    number: int = 0
    total: float = 0.0

    def observe(self, amount: float) -> None:
        """Count an amount."""
        self.number += 1
        self.total += amount
        self.counts[next((bound for bound in self.bounds if amount <= bound), float("inf"))] += 1

    def lines(self) -> list[str]:
        """The lines of the text format."""
        said, seen = [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} histogram"], 0
        for bound in self.bounds:
            seen += self.counts[bound]
            said.append(f'{self.name}_bucket{{le="{bound:g}"}} {seen}')
        said.append(f'{self.name}_bucket{{le="+Inf"}} {self.number}')
        return [*said, f"{self.name}_sum {self.total:g}", f"{self.name}_count {self.number}"]


class Metrics:
    """All that the service counts."""

    def __init__(self) -> None:
        self.requests = Count("vitlab_requests_total", "Answers by path and status.", ("path", "status"))
        self.departed = Count("vitlab_departed_total", "Requests whose clients left before the answer.")
        self.restarts = Count("vitlab_worker_restarts_total", "Workers that ended and were started again.")
        self.seconds = Histogram("vitlab_request_seconds", "Seconds from the headers to the answer.", SECONDS)
        self.batches = Histogram("vitlab_batch_requests", "Requests computed together.", SIZES)
        self.ready = Gauge("vitlab_ready", "1 if predictions are answered.")
        self.waiting = Gauge("vitlab_waiting_requests", "Requests that no worker has yet.")
        self.open = Gauge("vitlab_open_requests", "Requests that have not been answered.")
        self.bytes = Gauge("vitlab_body_bytes", "Bytes of request bodies in memory.")

    def text(self) -> str:
        """Everything, in the text format."""
        return "\n".join(line for one in vars(self).values() for line in one.lines()) + "\n"
