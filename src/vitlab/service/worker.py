"""The process that holds the models and decodes untrusted pictures: `python -m vitlab.service.worker DESCRIPTOR`.

It takes messages from one inherited socket and ends when the front closes it. After the models are loaded it may
open no other socket and start no program, and its memory is limited.
"""

import signal
import socket
import sys
import warnings

from vitlab.errors import FAILED, INVALID, VitlabError
from vitlab.process.busy import choose_before_torch
from vitlab.process.confinement import confine
from vitlab.service.messages import JSON, Answered, Channel
from vitlab.service.refusals import error_body

STARTS_PROGRAMS = ("compiled", "auto")  # engines that may call a compiler for a new size of batch


def main() -> None:
    """Load the models, then answer batch after batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    choose_before_torch()
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
    confine(limits_memory=served.is_on_cpu, may_start_programs=setup["engine"] in STARTS_PROGRAMS)
    names, pictures = served.samples() if setup["draws_samples"] else ([], [])
    channel.send({"event": "ready", "models": served.described(), "samples": names}, pictures)
    while (message := channel.receive()) is not None:
        header, parts = message
        try:
            answers = served.answer(header["kind"], header["model"], header["items"], parts)
        except Exception as error:  # of the model or the engine: the service answers the next request all the same
            answers = [_failure(error)] * len(parts)
        channel.send({"answers": [answer[:2] for answer in answers]}, [answer[2] for answer in answers])
        del message, parts, answers  # before the next one is read


def _failure(error: Exception) -> Answered:
    """The answer to a request that the model failed on."""
    from vitlab.world.device import is_out_of_memory

    if is_out_of_memory(error):
        return 503, JSON, error_body("out_of_memory", "the worker has not enough memory for this request")
    sys.excepthook(type(error), error, error.__traceback__)
    return 500, JSON, error_body("internal", "the model failed; the service's log says why")


if __name__ == "__main__":
    main()
