"""How much the service takes: sizes, counts and times. Standard library only."""

import math
from dataclasses import dataclass, fields

from vitlab.errors import InvalidValue

LARGEST_HEADERS = 16_384  # bytes of a request line and its headers
MOST_CONNECTIONS = 512
LARGEST_ANSWER = 2**30  # bytes that the front takes from the worker in one message
DISCARDED = 65_536  # bytes of a refused body that are read and thrown away, so that the client sees the answer
LINGER = 1.0  # seconds that a refused client has to read the answer
UNREAD = 60.0  # seconds that a client has to read an answer
IDLE = 5.0  # seconds that a connection may wait for its next request
RETRY_AFTER = 1  # seconds that a client is asked to wait when the service is overloaded


@dataclass(frozen=True)
class Limits:
    """What one request may take, and all of them together.

    `batch` requests at most are computed together, after waiting `wait` milliseconds at most for others. `queue`
    requests may wait; the bodies of all requests and answers take `max_memory` bytes at most, and the body of one
    request takes `max_body`. A client has `header_seconds` to send its headers and `body_seconds` for the body, and is
    answered within `deadline` seconds after that.
    """

    batch: int = 8
    wait: float = 5.0
    queue: int = 32
    max_body: int = 20_000_000
    max_memory: int = 256_000_000
    header_seconds: float = 5.0
    body_seconds: float = 15.0
    deadline: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "wait" else 1
            is_time = isinstance(field.default, float)
            least = 0.1 if is_time and least else least
            if not (math.isfinite(value) and value >= least):
                raise InvalidValue(f"is {value!r}; expected at least {least}", field=field.name)
        if self.max_memory < self.max_body:
            raise InvalidValue(f"is {self.max_memory}; expected at least {self.max_body}, one body", field="max_memory")
