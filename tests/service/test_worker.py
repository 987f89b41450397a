"""A worker that ends is replaced, and an input that ended two is refused; a service that is told to stop ends well."""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from servers import PATIENCE, Service
from vitlab.service.refusals import CODES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UPLOADING = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


def kill_while_computing(service, bodies):
    """Kill the worker while it computes these together; returns the answers."""
    with service.stopped_worker() as pid, service.connect() as arriving, ThreadPoolExecutor(len(bodies)) as pool:
        arriving.sendall(UPLOADING)  # the others wait for it
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 2)
        sent = [pool.submit(service.post, "/predict", body) for body in bodies]
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == len(bodies))
        arriving.close()
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 0)
        os.kill(pid, signal.SIGKILL)
        return [one.result() for one in sent]


def wait_until_ready(service):
    service.wait_for(lambda: service.get("/ready").status == 200)


def test_an_input_that_ends_the_worker_twice_is_refused_and_its_neighbours_are_not(models, files):
    with Service(models / "small", "--wait", 4000, "--body-seconds", 60) as service:
        right = [service.post("/predict", data).body for data in files[:3]]
        (first,) = service.workers()
        lost = kill_while_computing(service, files[:3])
        assert [(reply.status, reply.code) for reply in lost] == [(503, "worker_lost")] * 3
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in lost)
        assert service.get("/health").status == 200  # the front lives on
        wait_until_ready(service)
        (second,) = service.workers()
        assert second != first
        killer, *innocent = files[:3]
        assert [service.post("/predict", data).body for data in innocent] == right[1:]
        (again,) = kill_while_computing(service, [killer])
        assert again.code == "worker_lost"
        wait_until_ready(service)
        for _ in range(2):
            refused = service.post("/predict", killer)
            assert (refused.status, refused.code) == (422, "killed_worker")
        assert service.metrics()["vitlab_worker_restarts_total"] == 2
        lost = kill_while_computing(service, innocent)  # who were there when the first worker ended, and were cleared
        assert [reply.code for reply in lost] == ["worker_lost"] * 2
        wait_until_ready(service)
        assert [service.post("/predict", data).body for data in innocent] == right[1:]


def test_requests_that_wait_are_answered_by_the_next_worker(service, files):
    with service.stopped_worker() as pid, ThreadPoolExecutor(20) as pool:
        first = pool.submit(service.post, "/predict", files[2])
        service.wait_for(lambda: service.metrics()["vitlab_batch_requests_count"] > 0)
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 2)
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 0)
        others = [pool.submit(service.post, "/predict", data) for data in files[3:8]]
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 5)
        os.kill(pid, signal.SIGKILL)
        assert first.result().status == 503
        assert {one.result().status for one in others} == {200}


def test_an_idle_worker_that_is_killed_is_replaced(service, files):
    (before,) = service.workers()
    os.kill(before, signal.SIGKILL)
    service.wait_for(lambda: service.workers() not in ([], [before]))
    refused = service.post("/predict", files[0])
    assert refused.status == 200 or refused.code == "not_ready"
    wait_until_ready(service)
    assert service.post("/predict", files[0]).status == 200


def test_a_worker_that_does_not_answer_is_replaced_and_ends_with_the_front(models, files):
    with Service(models / "small", "--deadline", 1) as service:
        right = service.post("/predict", files[0]).body
        (before,) = service.workers()
        with service.stopped_worker():
            late = service.post("/predict", files[1])
            assert late.status == 503
            assert late.code in ("deadline", "worker_lost")
            service.wait_for(lambda: before not in service.workers())
        wait_until_ready(service)
        assert service.post("/predict", files[0]).body == right
        (worker,) = service.workers()
        service.process.kill()
        service.process.wait()
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{worker}").exists() and Path(f"/proc/{worker}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < end, "the worker outlived the front"
            time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_is_live_before_it_is_ready_and_answers_what_it_accepted_before_it_ends(models, files, number):
    with Service(models / "small", is_awaited=False) as service:
        service.wait_for(service.workers)
        (worker,) = service.workers()
        os.kill(worker, signal.SIGSTOP)  # it cannot load now
        service.wait_for(lambda: listening_port(service))
        assert service.get("/health").status == 200
        ready = service.get("/ready")
        assert ready.status == 503
        assert ready.json["error"] == {"code": "not_ready", "message": CODES["not_ready"][1], "field": ""}
        assert service.post("/predict", b"a").code == "not_ready"
        assert service.get("/api/models").code == "not_ready"
        os.kill(worker, signal.SIGCONT)
        wait_until_ready(service)
        assert service.get("/ready").json == {"status": "ready"}

        with service.stopped_worker() as pid, ThreadPoolExecutor(20) as pool, service.connect() as idle:
            sent = [pool.submit(service.post, "/predict", data) for data in files[:20]]
            service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 21)
            service.process.send_signal(number)
            service.wait_for(lambda: not accepts(service))
            os.kill(pid, signal.SIGCONT)
            assert {one.result().status for one in sent} == {200}
            assert service.process.wait(PATIENCE) == 0
            assert idle.recv(1) == b""
        service.listener.join()
        assert "stopped" in service.said[-1]


def accepts(service) -> bool:
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return False
    return True


def listening_port(service) -> bool:
    """Whether the service listens; it says where only when it is ready."""
    folder = Path(f"/proc/{service.process.pid}")
    sockets = set()
    for one in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since they were listed
            sockets.add(os.readlink(one))  # noqa: PTH115 - no file
    rows = [line.split() for line in (folder / "net" / "tcp").read_text().splitlines()[1:]]
    ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
    service.port = next(iter(ports), 0)
    return bool(ports)
