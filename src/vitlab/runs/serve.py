"""Serve models over HTTP: `vitlab.serve`, `vitlab serve`. This process decodes no picture and needs no torch."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vitlab.errors import FAILED, VitlabError, printable
from vitlab.process.confinement import TOKEN
from vitlab.require import check_arguments, require
from vitlab.runs.progress import default_console, say
from vitlab.service.limits import Limits
from vitlab.spec import AttentionLike, ConventionName, EngineName
from vitlab.spec.patterns import parse_pattern

if TYPE_CHECKING:
    from vitlab.service.access import Access
    from vitlab.service.app import Service
    from vitlab.service.files import File
    from vitlab.service.messages import Message

RUNS = "runs.html"
MISSING = "serving needs FastAPI and uvicorn: pip install 'vitlab[serve]'"


class ServiceFailed(VitlabError, RuntimeError):  # noqa: N818 - says what happened
    """The models cannot be served; the message says why."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def serve(
    models: str | Path | Sequence[str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    hosts: Sequence[str] = (),
    runs: Path | None = None,
    engine: EngineName = "torch",
    max_pixels: int | None = None,
    batch: int = Limits.batch,
    wait: float = Limits.wait,
    queue: int = Limits.queue,
    max_body: int = Limits.max_body,
    max_memory: int = Limits.max_memory,
    header_seconds: float = Limits.header_seconds,
    body_seconds: float = Limits.body_seconds,
    deadline: float = Limits.deadline,
    conventions: ConventionName | None = None,
    image: int | tuple[int, int] | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    device: str = "auto",
    console: Console | None = None,
    quiet: bool = False,
) -> None:
    """Serve one or several models over HTTP, with a page to explore them, until the process gets SIGTERM or SIGINT.

    `models` are names of released weights or paths. `POST /predict` answers as `vitlab predict --json`, `POST /explain`
    with the attention rollout; `?model=` chooses one of several models. The page is at `/`.

    The service listens on this machine only. Another `host` requires a `token` (default: the variable VITLAB_TOKEN)
    that clients send as `Authorization: Bearer TOKEN`; `hosts` are further names that they may call the service by.
    `runs` is a folder whose runs the page shows, also without any model. See `vitlab.open_engine` for the `engine`,
    `ModelOptions` for how weights are loaded, and `Limits` for what one request and all of them may take. `port` 0 is
    any free port.
    """
    check_arguments(serve, locals())
    limits = Limits(batch, wait, queue, max_body, max_memory, header_seconds, body_seconds, deadline)
    names = [os.fspath(one) for one in ([models] if isinstance(models, str | Path) else models)]
    is_something = bool(names) or runs is not None
    require(is_something, "nothing to serve; give a model, by path or by a name that `vitlab download` lists, or runs=")
    try:
        from vitlab.service.server import CannotServe, bind, run_server
    except ModuleNotFoundError:
        raise ModuleNotFoundError(MISSING) from None

    from vitlab.service.access import Access

    options = {"conventions": conventions, "image": image, "device": device, "heads": heads}
    options |= {"merge": merge, "attention": None if attention is None else str(parse_pattern(attention))}
    options |= {"allow_partial": allow_partial, "allow_nonfinite": allow_nonfinite}
    setup = {"models": names, "engine": engine, "batch": batch, "max_pixels": max_pixels, "options": options}
    setup["draws_samples"] = True
    screen = default_console(console, quiet=quiet)
    access = Access(host, token or os.environ.get(TOKEN, ""), hosts)
    with bind(host, port) as bound:
        service = _service(setup, limits, access, runs, screen)
        shown = printable(", ".join(names) or f"the runs of {runs}")
        announce = partial(_announce, screen, shown, bound.getsockname(), access, service)
        service.supervisor.on_ready.append(announce)
        say(screen, f"loading {shown} ...", "dim")
        try:
            run_server(service, bound)
        except CannotServe as error:
            raise ServiceFailed(str(error), error.code) from None
    say(screen, "all accepted requests are answered; stopped", "dim")


def _service(setup: dict[str, Any], limits: Limits, access: "Access", runs: Path | None, screen: Console) -> "Service":
    """The parts of the service, joined."""
    from vitlab.service.app import Service
    from vitlab.service.files import page_files
    from vitlab.service.metrics import Metrics
    from vitlab.service.supervision import Supervisor
    from vitlab.service.waiting import Budget, Waiting

    waiting, metrics = Waiting(limits), Metrics()
    supervisor = Supervisor(setup, limits, waiting, metrics, partial(say, screen, style="yellow"))
    made = Service(limits, access, waiting, supervisor, metrics, Budget(limits.max_memory), page_files())

    def keep_samples() -> None:
        if setup["draws_samples"]:
            made.pages.update(_samples(supervisor.ready))
            setup["draws_samples"] = False  # the next worker need not draw them again

    supervisor.on_ready.append(keep_samples)
    if runs is not None:
        from vitlab.page.run_browser.api import PICTURES, RunBrowser, routes

        require(runs.is_dir(), f"runs={str(runs)!r} is not a folder; give a folder of runs")
        browser = RunBrowser(runs)
        made.routes, made.slow_routes, made.closing = routes(browser), [PICTURES], [browser.close]
    if not setup["models"]:
        made.pages[""] = made.pages[RUNS]
    return made


def _samples(ready: "Message | None") -> dict[str, "File"]:
    """The sample pictures that the worker has drawn, as files of the page."""
    from vitlab.service.files import TYPES, file_of

    header, parts = ready or ({"samples": []}, [])
    listed = [{"name": name, "url": f"api/samples/{name}.png"} for name in header["samples"]]
    files = {one["url"]: file_of(part, TYPES[".png"]) for one, part in zip(listed, parts, strict=True)}
    return files | {"api/samples": file_of(json.dumps(listed, allow_nan=False).encode(), TYPES[".json"])}


def _announce(screen: Console, names: str, address: tuple[Any, ...], access: "Access", service: "Service") -> None:
    """Say what is served, where, and how to stop it."""
    host, port = address[:2]
    shown = f"[{host}]" if ":" in host else {"0.0.0.0": "127.0.0.1"}.get(host, host)
    url = f"http://{shown}:{port}/"
    bearer = '-H "Authorization: Bearer $VITLAB_TOKEN" ' if access.needs_token else ""
    header, _ = service.supervisor.ready or ({"models": []}, [])
    ids = [printable(model["id"]) for model in header["models"]]
    say(screen, f"serving {names} at {url}")
    say(screen, f"  page     open {url}{'?token=TOKEN' if access.needs_token else ''} in a browser")
    if ids:
        say(screen, f"  predict  curl {bearer}--data-binary @cat.jpg {url}predict")
    if len(ids) > 1:
        say(screen, f"  models   {', '.join(f'?model={id}' for id in ids)}; without it, {ids[0]} answers")
    say(screen, "  Ctrl-C stops it, after the requests that it has accepted")
