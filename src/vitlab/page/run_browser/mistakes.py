"""Thumbnails of samples of recorded data sets, decoded by the image gate in a process of their own.

`Pictures` starts `python -m vitlab.page.run_browser.mistakes` when the first one is wanted. Data sets and samples come
from files of runs and evaluations, never from a browser; a sample is shown only if it has the id that was recorded for
it.
"""

import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from vitlab.errors import WorkerDied
from vitlab.files.strict_json import from_json, parse_json
from vitlab.process.confinement import child_environment, confine

if TYPE_CHECKING:
    from vitlab.data.source import Source

SIDE = 320  # pixels of the longer side, at most
PATIENCE = 120.0  # seconds for one picture; the first of a large data set has to open it
KEPT, LARGEST = 256, 2**22  # thumbnails kept; bytes of one
REMEMBERED = 60.0  # seconds that a failure is not tried again
OPEN = 4  # data sets kept open
COMMAND = (sys.executable, "-P", "-m", "vitlab.page.run_browser.mistakes")  # -P: no modules from the current folder


@dataclass(frozen=True)
class SampleOf:
    """A sample of a data set, or of the share `held_out` of it, with the id it must have."""

    data: str
    number: int
    id: str
    held_out: float = 0.0


class Pictures:
    """Thumbnails as PNG, from a child process that is started when needed and again after it died."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # held while a thumbnail is made
        self._door = threading.Lock()  # held while the child is started, or ended for good
        self._is_closed = False
        self._kept: OrderedDict[SampleOf, bytes] = OrderedDict()
        self._failed: OrderedDict[SampleOf, tuple[float, str]] = OrderedDict()  # until when, and why

    def get(self, sample: SampleOf) -> bytes:
        """The thumbnail of a sample; raises LookupError with the reason if there is none."""
        with self._lock:
            if sample in self._kept:
                self._kept.move_to_end(sample)
                return self._kept[sample]
            until, why = self._failed.pop(sample, (0.0, ""))
            if time.monotonic() < until:
                self._failed[sample] = until, why
                raise LookupError(why)
            try:
                made = self._ask(sample)
            except LookupError as error:
                self._failed[sample] = time.monotonic() + REMEMBERED, str(error)
                if len(self._failed) > KEPT:
                    self._failed.popitem(last=False)
                raise
            self._kept[sample] = made
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return made

    def close(self) -> None:
        """End the child process, also while it is decoding; no other is started."""
        with self._door:
            self._is_closed = True
            child = self._child
            if child is not None:
                child.kill()
        with self._lock:  # whoever waited for the child has seen its end
            self._end()

    def _ask(self, sample: SampleOf) -> bytes:
        if self._child is None or self._child.poll() is not None:
            self._end()
            with self._door:
                if self._is_closed:
                    raise LookupError("the service is ending")
                self._child = subprocess.Popen(
                    COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
                )
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(asdict(sample), allow_nan=False).encode() + b"\n")
            self._child.stdin.flush()
            deadline = time.monotonic() + PATIENCE
            sign, *size = self._receive(5, deadline)
            length = int.from_bytes(bytes(size), "little")
            if length > LARGEST:
                raise WorkerDied("the process that decodes pictures sent too much")
            body = self._receive(length, deadline)
        except (OSError, WorkerDied) as error:
            self._end()
            raise LookupError(f"the picture could not be decoded: {error}") from None
        if sign != ord("+"):
            raise LookupError(body.decode(errors="replace"))
        return body

    def _receive(self, length: int, deadline: float) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        stream, got = self._child.stdout.fileno(), b""
        while len(got) < length:
            ready, _, _ = select.select([stream], [], [], max(deadline - time.monotonic(), 0.0))
            part = os.read(stream, length - len(got)) if ready else b""
            if not part:
                raise WorkerDied("its process ended" if ready else f"it took longer than {PATIENCE:.0f} seconds")
            got += part
        return got

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with suppress(OSError):
                child.communicate()


# -- In the child process --------------------------------------------------------------------------


def main() -> None:
    """Answer requests on standard input until it ends: `+` or `-`, a length, and a PNG or the reason for none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this process
    import vitlab.data.source
    import vitlab.data.sources.catalogue
    import vitlab.data.splits  # noqa: F401 - imported before the process is confined

    confine()
    opened: OrderedDict[tuple[str, float], Source] = OrderedDict()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing else may be written between the answers
    for line in sys.stdin.buffer:
        try:
            sign, body = b"+", _thumbnail(from_json(SampleOf, parse_json(line, "the request")), opened)
        except Exception as error:  # a damaged data set may provoke anything
            sign, body = b"-", f"{type(error).__name__}: {error!s:.500}".encode(errors="replace")
        answers.write(sign + len(body).to_bytes(4, "little") + body)
        answers.flush()


def _thumbnail(sample: SampleOf, opened: "OrderedDict[tuple[str, float], Source]") -> bytes:
    from vitlab.data.source import decode

    key = sample.data, sample.held_out
    if key not in opened:
        opened[key] = _open(*key)
        if len(opened) > OPEN:
            opened.popitem(last=False)
    source = opened[key]
    if not 0 <= sample.number < len(source) or source.id(sample.number) != sample.id:
        raise LookupError("the data has changed: it has another sample in this place")
    image = decode(source.item(sample.number), source.max_pixels).image
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _open(data: str, held_out: float) -> "Source":
    from vitlab.data.sources.catalogue import is_remote, open_source
    from vitlab.data.splits import development_split

    if is_remote(data):
        raise LookupError("the data is in a remote store, which is not read to show a run")
    source = open_source(data)
    return development_split(source, held_out)[1] if held_out else source


if __name__ == "__main__":
    main()
