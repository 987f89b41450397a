"""The process that holds the models and decodes untrusted pictures: `python -m vitlab.service.worker DESCRIPTOR`.

It takes messages from one inherited socket and ends when the front closes it. After the models are loaded it may
open no other socket and start no program, and its memory is limited.
"""

import contextlib
import resource
import signal
import socket
import sys
import warnings
from pathlib import Path

from vitlab.errors import FAILED, INVALID, VitlabError
from vitlab.service.messages import JSON, Answered, Channel
from vitlab.service.refusals import error_body
from vitlab.weights.files.unpickle import FORBIDDEN, PROGRAMS

GIB = 2**30
STARTS_PROGRAMS = ("compiled", "auto")  # engines that may call a compiler for a new size of batch


def main() -> None:
    """Load the models, then answer batch after batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    message = channel.receive()
    if message is None:
        return
    setup, _ = message
    from vitlab.runs.served import open_served

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_, **__: channel.send({"event": "note", "text": f"warning: {text}"})
            served = open_served(setup, lambda line: channel.send({"event": "note", "text": line}))
    except (VitlabError, ValueError, OSError, ModuleNotFoundError, ArithmeticError, MemoryError) as error:
        is_failure = isinstance(error, ArithmeticError | MemoryError)
        code = error.exit_code if isinstance(error, VitlabError) else FAILED if is_failure else INVALID
        text = " ".join(str(error).split()) or type(error).__name__
        channel.send({"event": "failed", "text": text, "code": code})
        return
    confine(served.is_on_cpu, may_start_programs=setup["engine"] in STARTS_PROGRAMS)
    names, pictures = served.samples() if setup["draws_samples"] else ([], [])
    channel.send({"event": "ready", "models": served.described(), "samples": names}, pictures)
    while (message := channel.receive()) is not None:
        header, parts = message
        try:
            answers = served.answer(header["kind"], header["model"], header["items"], parts)
        except MemoryError:
            answers = [_failed(503, "out_of_memory", "the worker has not enough memory for this request")] * len(parts)
        except Exception as error:  # of the model or the engine: the service answers the next request all the same
            sys.excepthook(type(error), error, error.__traceback__)
            answers = [_failed(500, "internal", "the model failed; the service's log says why")] * len(parts)
        channel.send({"answers": [answer[:2] for answer in answers]}, [answer[2] for answer in answers])
        del message, parts, answers  # before the next one is read


def _failed(status: int, code: str, message: str) -> Answered:
    return status, JSON, error_body(code, message)


def confine(is_on_cpu: bool, *, may_start_programs: bool) -> None:
    """Forbid sockets and programs, and limit memory, from here on.

    The limit is on the address space, of which torch reserves much at the start: now most of that is done. A GPU
    maps far more, so there is no limit with one.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if is_on_cpu and pages.exists():
        reserved, resident = (int(number) * resource.getpagesize() for number in pages.read_text().split()[:2])
        limit = reserved + 2 * GIB + 2 * resident
        with contextlib.suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    forbidden = tuple(set(FORBIDDEN) - set(PROGRAMS)) if may_start_programs else FORBIDDEN

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(forbidden):
            raise PermissionError(f"{event} is not allowed in the worker")

    sys.addaudithook(refuse)


if __name__ == "__main__":
    main()
