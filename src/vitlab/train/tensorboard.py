"""Log events for TensorBoard; needs the extra `log`."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class TensorBoardLog:
    """Write every number of an event as a scalar; failed writes are counted and do not stop the run."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.dropped = 0

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Log one event."""
        step = values.get("step")
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
                try:
                    self.writer.add_scalar(f"{kind}/{name}", value, step)
                except OSError:
                    self.dropped += 1


@contextlib.contextmanager
def tensorboard_writer(folder: Path) -> Iterator[TensorBoardLog]:
    """Open a log in `folder`/tensorboard; raises ModuleNotFoundError without the extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ModuleNotFoundError("TensorBoard logs need an extra: pip install 'vitlab[log]'") from None
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:
        yield TensorBoardLog(writer)
    finally:
        writer.close()
