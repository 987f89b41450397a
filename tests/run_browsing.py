"""What tests of the run browser share: real runs of seconds, synthetic ones by the thousand, a server of the standard
library that mounts the routes and the static files."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from rich.console import Console

import crashes
import vitlab
from vitlab.files.store import write_json
from vitlab.files.strict_json import to_json
from vitlab.page.run_browser.api import RunBrowser, routes
from vitlab.run_dir import RunDir, RunSpec
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import Execution, Masking
from vitlab.studies.claims import Row
from vitlab.studies.scales import TINY
from vitlab.studies.study import Study
from vitlab.studies.study_file import CELLS, ROW, STUDY, study_file

STATIC = Path(vitlab.__file__).parent / "page" / "static"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@contextlib.contextmanager
def served(browser: RunBrowser) -> Iterator[str]:
    """Serve the page and the routes on the loopback interface; yields the address."""
    mounted: list[tuple[re.Pattern[str], Callable]] = [
        (re.compile("/" + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), function) for path, function in routes(browser)
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            for pattern, function in mounted:
                if found := pattern.fullmatch(url.path):
                    given = dict(parse_qsl(url.query)) | {n: unquote(v) for n, v in found.groupdict().items()}
                    answer = function(given)
                    self.answer(answer.status, answer.body, answer.media_type)
                    return
            file = STATIC / url.path.removeprefix("/")
            if url.path == "/api/models":
                self.answer(200, b'{"models": [], "has_runs": true}', "application/json")
            elif file.is_file():
                self.answer(200, file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))
            else:
                self.answer(404, b"{}", "application/json")

        def answer(self, status: int, body: bytes, media_type: str) -> None:
            self.send_response(status)
            for name, value in (
                ("Content-Type", media_type),
                ("Content-Length", str(len(body))),
                ("Content-Security-Policy", POLICY),
                ("X-Content-Type-Options", "nosniff"),
                ("Cache-Control", "no-store"),
            ):
                self.send_header(name, value)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the browser has gone on
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        browser.close()


def made_run(path: Path, spec: RunSpec | None = None, events: list[dict] | None = None) -> RunDir:
    """A run folder without training: what was asked for, a card, and events."""
    card = {"spec": "digits", "samples": 9, "class_names": [str(n) for n in range(10)], "fingerprint": "f"}
    run = RunDir.create(path, spec or crashes.small_run(), card)
    lines = "".join(json.dumps(event) + "\n" for event in events or [])
    (path / "events.jsonl").write_text(lines)
    return run


def made_study(out: Path, study: Study, seeds: Sequence[int] = (0, 1, 2)) -> Path:
    """The folder of a study at the scale `tiny` that has just begun; returns it."""
    write_json(out / study.name / STUDY, to_json(study_file(study, TINY, study.cells(TINY), seeds)))
    return out / study.name


def made_row(folder: Path, study: Study, cell: int, seed: int, value: float | None) -> Path:
    """The row of a measured cell, by its place in the grid, without a value if its run diverged; returns its file."""
    one = tuple(study.cells(TINY))[cell]
    measured = {} if value is None else {one.measurement.value: value}
    row = Row(study.name, TINY.name, dict(one.levels), seed, one.measurement.value, measured, published=one.published)
    file = folder / CELLS / one.name / f"seed-{seed}" / ROW
    write_json(file, to_json(row))
    return file


def step(number: int, loss: float = 1.0, time: float | None = None, **more: object) -> dict:
    when = 1.7e9 + number if time is None else time
    return {"event": "step", "time": when, "step": number, "loss": loss, "gradient_norm": 2.0, "rate": 1e-3} | {
        "images": 12,
        "skipped": False,
        **more,
    }


def trained(path: Path, spec: RunSpec) -> Path:
    """A run, trained to its end in this process."""
    crashes.new_run(path, spec)
    assert train_run(RunDir.open(path), Console(quiet=True)) == 0
    return path


def real_runs(root: Path) -> Path:
    """Two runs on the built-in digits, one of masked patches, a sweep, an evaluation and a ledger; seconds in all."""
    spec = replace(crashes.small_run(execution=Execution(report=True)), test="digits?split=train")
    trained(root / "digits" / "first", spec)
    schedule = replace(spec.recipe.schedule, peak=1e-2)
    trained(root / "digits" / "faster", replace(spec, seed=1, recipe=replace(spec.recipe, schedule=schedule)))
    masked = crashes.small_run(masking=Masking("mean-colour", 0.5, 0.8, 0.1, 0.1))
    trained(root / "masked", replace(masked, model=replace(masked.model, patch=2, classes=0)))
    model, short = root / "digits" / "first" / "model", {"schedule.total": 6, "schedule.warmup": 1, "batch": 8}
    vitlab.sweep(
        model,
        "shapes?classes=3&images=40&size=16",
        "shapes?classes=3&images=30&size=16&seed=1",
        root / "sweep",
        recipe="pets",
        grid={"schedule.peak": (0.03, 0.3), "dropout": (0.0, 0.1)},
        seeds=2,
        image=8,
        changes=short,
        ledger=root / "ledger.jsonl",
        quiet=True,
    )
    vitlab.evaluate(model, "digits?split=train", root / "evaluation", ledger=root / "ledger.jsonl", quiet=True)
    return root
