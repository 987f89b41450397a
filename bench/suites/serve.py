"""Requests per second and latency over HTTP, as a multiple of a plain FastAPI service.

Every service runs in processes of its own on the loopback interface and has the same ViT-Ti/16: the released AugReg
weights and photographs where VITLAB_REFERENCE names them, random weights and drawn pictures elsewhere. The plain one is
the usual service: a FastAPI route in uvicorn that decodes a picture and calls the module, a thread for each request.
LitServe has batches of at most 8 that wait 5 ms, vitlab's defaults, and takes pictures as base64 in JSON, as its own
examples do; a second one computes with vitlab's engine. Clients keep their connections and send the next request when
they have the answer. A service stands still while others are measured. A latency is a percentile over the requests of a
round.
"""

import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import vitlab
from bench import libraries
from bench.runner import Call, Case, Contestant
from bench.suites.inference import spec_of

ROUNDS = 7
CLIENTS = (1, 8, 32)
PATIENCE = 300.0  # seconds for a service to start
Loads = dict[str, list[list[float]]]  # by service: the latencies of every load

COMMON = """
import io, sys
import torch
from PIL import Image
import vitlab
model = vitlab.load_model(sys.argv[1])
def answer(logits, top=5):
    best = logits.softmax(-1).topk(top)
    guesses = zip(best.indices.tolist(), best.values.tolist())
    return {"guesses": [{"index": i, "name": str(i), "probability": p} for i, p in guesses]}
"""
PLAIN = (
    COMMON
    + """
import uvicorn
from fastapi import Body, FastAPI
app = FastAPI()
@app.post("/predict")
def predict(data: bytes = Body(media_type="application/octet-stream")):
    with torch.inference_mode():
        return answer(model(vitlab.preprocess(model, data))[0])
@app.get("/health")
def health():
    return "ok"
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""
)
LITSERVE = (
    COMMON
    + """
import base64
import litserve
class Api(litserve.LitAPI):
    def setup(self, device):
        self.forward = vitlab.open_engine(model, sys.argv[3], batch=8)
    def decode_request(self, request):
        return vitlab.preprocess(model, base64.b64decode(request["image"]))[0]
    def batch(self, inputs):
        return torch.stack(inputs)
    def predict(self, images):
        with torch.inference_mode():
            return self.forward(images)
    def unbatch(self, logits):
        return list(logits)
    def encode_response(self, logits):
        return answer(logits)
if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=8, batch_timeout=0.005), accelerator="cpu", timeout=300)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
"""
)


def cases(is_quick: bool) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as services:
        files, what = prepare_files(Path(folder), 16 if is_quick else 200)
        started = [(name, cache(partial(make, Path(folder), services))) for name, make in SERVICES.items()]
        clients = CLIENTS[1:2] if is_quick else CLIENTS
        for number in clients:
            together = f"{number} client{'s' if number > 1 else ''}, {what}"
            loads: Loads = {name: [] for name, _ in started}
            measured = contestants(started, files, number, loads)
            yield Case(f"{len(files)} requests of {together}", measured, images=len(files))
            for share, name in ((50, "median"), (99, "99th percentile")):
                yield Case(f"latency of {together}, {name}", percentiles(loads, share), is_reported=True)


def prepare_files(folder: Path, number: int) -> tuple[list[bytes], str]:
    """Save the model in `folder`; returns the pictures and what they are."""
    if libraries.reference():
        vitlab.save_model(libraries.real_model(), folder / "model")
        photographs = sorted(libraries.photographs().glob("*.JPEG"))[:number]
        return [path.read_bytes() for path in photographs], "photographs, ViT-Ti/16, AugReg weights"
    from PIL import Image

    vitlab.save_model(libraries.random_model(spec_of("ViT-Ti/16")), folder / "model")
    generator, files = torch.Generator().manual_seed(0), []
    for _ in range(number):
        coarse = torch.randint(0, 256, (24, 32, 3), generator=generator, dtype=torch.uint8).numpy()
        file = io.BytesIO()
        Image.fromarray(coarse).resize((500, 375)).save(file, "JPEG")
        files.append(file.getvalue())
    return files, "drawn pictures, ViT-Ti/16, random weights"


# -- Services -----------------------------------------------------------------------------------------


class Started(NamedTuple):
    """A service that runs: its process, its port, and how it takes a picture and gives the best class."""

    process: subprocess.Popen
    port: int
    body: Callable[[bytes], bytes]
    best: Callable[[dict], int]
    headers: dict[str, str]


def vitlab_service(folder: Path, services: contextlib.ExitStack, engine: str = "torch") -> Started:
    def best(said: dict) -> int:
        return said["answers"][0]["guesses"][0]["index"]

    words = ["-m", "vitlab", "serve", str(folder / "model"), "--engine", engine, "--queue", "64"]
    port = free_port()
    process = start([*words, "--port", str(port)], port, "/ready", services)
    return Started(process, port, bytes, best, {})


def plain_service(folder: Path, services: contextlib.ExitStack) -> Started:
    port = free_port()
    process = start(["-c", PLAIN, str(folder / "model"), str(port)], port, "/health", services)
    return Started(process, port, bytes, _first, {"content-type": "application/octet-stream"})


def litserve_service(folder: Path, services: contextlib.ExitStack, engine: str = "plain") -> Started:
    import litserve  # noqa: F401 - a row says so if it is not installed

    port, script = free_port(), folder / f"litserve_{engine}.py"  # its workers import the script again
    script.write_text(LITSERVE)
    process = start([str(script), str(folder / "model"), str(port), engine], port, "/health", services)

    def body(data: bytes) -> bytes:
        return json.dumps({"image": base64.b64encode(data).decode()}).encode()

    return Started(process, port, body, _first, {"content-type": "application/json"})


def _first(said: dict) -> int:
    return said["guesses"][0]["index"]


SERVICES: dict[str, Callable[[Path, contextlib.ExitStack], Started]] = {
    "FastAPI, one request at a time": plain_service,
    "LitServe": litserve_service,
    "LitServe, vitlab's engine torch": partial(litserve_service, engine="torch"),
    "vitlab serve": vitlab_service,
    "vitlab serve, engine onnxruntime": partial(vitlab_service, engine="onnxruntime"),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def start(words: Sequence[str], port: int, path: str, services: contextlib.ExitStack) -> subprocess.Popen:
    """Start a Python program and wait until it answers; it ends with the services, and so do its children."""
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    services.callback(_end, process)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            is_ready = connection.getresponse().status == 200
            connection.close()
            if is_ready:
                return process
        time.sleep(0.1)
    raise RuntimeError("it did not start")


def _end(process: subprocess.Popen) -> None:
    processes = family(process.pid)
    signalled(processes, signal.SIGCONT)
    signalled(processes, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    signalled(processes, signal.SIGKILL)  # LitServe leaves some of its own
    process.wait()


@contextlib.contextmanager
def awake(service: Started) -> Iterator[None]:
    """Let a service run in the block only: idle ones poll, and would use the processors of the others."""
    processes = family(service.process.pid)
    signalled(processes, signal.SIGCONT)
    try:
        yield
    finally:
        signalled(processes, signal.SIGSTOP)


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def signalled(processes: Sequence[int], number: int) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


# -- Clients ------------------------------------------------------------------------------------------


def contestants(
    started: list[tuple[str, Callable[[], Started]]], files: list[bytes], clients: int, loads: Loads
) -> list[Contestant]:
    """The services; a call returns the best classes, and adds the latencies of all requests to `loads`."""

    def prepared(name: str, make: Callable[[], Started]) -> Call:
        service = make()  # the first time; one that cannot start is a row with the reason
        bodies = [service.body(data) for data in files]
        with awake(service):
            answered(service, bodies[:clients], clients)  # every thread and batch size is warm

        def call() -> Tensor:
            with awake(service):
                classes, latencies = answered(service, bodies, clients)
            loads[name].append(latencies)
            return torch.tensor(classes)

        return call

    return [Contestant(name, partial(prepared, name, make)) for name, make in started]


def percentiles(loads: Loads, share: int) -> list[Contestant]:
    """A percentile of the latencies of the case before, load by load; the first load is a warm-up."""

    def prepared(name: str) -> Call:
        if len(loads[name]) < 2:
            raise RuntimeError("it has answered no load")
        found = itertools.cycle(loads[name][1:])
        return lambda: statistics.quantiles(next(found), n=100, method="inclusive")[share - 1]

    return [Contestant(name, partial(prepared, name)) for name in loads]


def answered(service: Started, bodies: list[bytes], clients: int) -> tuple[list[int], list[float]]:
    """Let so many clients send all bodies; returns the best class for each, and the seconds that it took."""
    classes, seconds = [0] * len(bodies), [0.0] * len(bodies)
    waiting = iter(range(len(bodies)))

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
        for number in waiting:
            begin = time.perf_counter()
            connection.request("POST", "/predict", bodies[number], service.headers)
            answer = connection.getresponse()
            body = answer.read()
            seconds[number] = time.perf_counter() - begin
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {body[:200]!r}")
            classes[number] = service.best(json.loads(body))
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client) for _ in range(clients)]:
            done.result()
    return classes, seconds
