"""The command that answers over HTTP: serve."""

from dataclasses import dataclass
from typing import Annotated, Any

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.looking import AS_STORED, Loading
from vitlab.commands.terminal import console
from vitlab.service.limits import Limits

DEFAULT = Limits()
_TOKEN = "Token that clients send, needed unless --host is loopback; set VITLAB_TOKEN instead to hide it from `ps`."


@dataclass(frozen=True)
class Bounds:
    """What one request and all of them may take."""

    batch: Annotated[int, Flag("INT", "Largest batch.")] = DEFAULT.batch
    wait: Annotated[float, Flag("FLOAT", "Longest wait for more requests, in milliseconds.")] = DEFAULT.wait
    queue: Annotated[int, Flag("INT", "Most requests that wait; more are answered with 503.")] = DEFAULT.queue
    max_body: Annotated[int, Flag("INT", "Bytes of the largest body.")] = DEFAULT.max_body
    max_memory: Annotated[int, Flag("INT", "Bytes of all requests and answers in memory.")] = DEFAULT.max_memory
    header_seconds: Annotated[float, Flag("FLOAT", "Seconds for a request's headers.")] = DEFAULT.header_seconds
    body_seconds: Annotated[float, Flag("FLOAT", "Seconds for its body.")] = DEFAULT.body_seconds
    deadline: Annotated[float, Flag("FLOAT", "Seconds for its answer.")] = DEFAULT.deadline


USUAL = Bounds()


def serve(
    models: flags.Models = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str, Flag("STR", _TOKEN)] = "",
    hosts: Annotated[tuple[str, ...], Flag("NAME ...", "Further names by which clients may call the service.")] = (),
    runs: flags.MaybePath = None,
    engine: flags.Engine = "torch",
    max_pixels: flags.MaxPixels = None,
    bounds: Bounds = USUAL,
    loading: Loading = AS_STORED,
) -> int:
    """Serve models over HTTP, with a page that shows them from inside: POST /predict, POST /explain.

    Args:
        host: Address to listen on; only this machine can reach the default.
        port: Port to listen on; 0 is any free one.
        runs: Folder of runs that the page shows; no model is needed then.
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.serve import serve as run

    run(**given)
    return 0


SERVING: dict[str, Any] = {"serve": serve}
