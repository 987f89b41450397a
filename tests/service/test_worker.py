"""A worker that ends is replaced: its requests are refused, the others answered, and an input that ended two is known."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from servers import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def kill_while_computing(service, bodies):
    """Kill the worker while it computes these; returns the answers."""
    with service.stopped_worker() as pid, ThreadPoolExecutor(len(bodies)) as pool:
        sent = [pool.submit(service.post, "/predict", body) for body in bodies]
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == len(bodies) + 1)
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 0)
        os.kill(pid, signal.SIGKILL)
        return [one.result() for one in sent]


def wait_until_ready(service):
    service.wait_for(lambda: service.get("/ready").status == 200)


def test_a_killed_worker_is_replaced(service, files):
    right = service.post("/predict", files[0]).body
    (before,) = service.workers()
    (lost,) = kill_while_computing(service, [files[1]])
    assert (lost.status, lost.code) == (503, "worker_lost")
    assert int(lost.headers["retry-after"]) >= 1
    assert service.get("/health").status == 200  # the front lives on
    wait_until_ready(service)
    (after,) = service.workers()
    assert after != before
    assert service.post("/predict", files[0]).body == right
    assert service.post("/predict", files[1]).status == 200


def test_an_idle_worker_that_is_killed_is_replaced(service, files):
    (before,) = service.workers()
    os.kill(before, signal.SIGKILL)
    service.wait_for(lambda: service.workers() not in ([], [before]))
    refused = service.post("/predict", files[0])
    assert refused.status == 200 or refused.code == "not_ready"
    wait_until_ready(service)
    assert service.post("/predict", files[0]).status == 200


def test_requests_that_wait_are_answered_by_the_next_worker(service, files):
    with service.stopped_worker() as pid, ThreadPoolExecutor(20) as pool:
        first = pool.submit(service.post, "/predict", files[2])
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 2)
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 0)
        others = [pool.submit(service.post, "/predict", data) for data in files[3:8]]
        service.wait_for(lambda: service.metrics()["vitlab_waiting_requests"] == 5)
        os.kill(pid, signal.SIGKILL)
        assert first.result().status == 503
        assert {one.result().status for one in others} == {200}


def test_an_input_that_ends_the_worker_twice_is_refused_and_its_neighbours_are_not(models, files):
    with Service(models / "small", "--wait", 2000) as service:
        killer, *innocent = files[:3]
        lost = kill_while_computing(service, [killer, *innocent])
        assert {reply.status for reply in lost} == {503}
        wait_until_ready(service)
        assert {service.post("/predict", data).status for data in innocent} == {200}
        (again,) = kill_while_computing(service, [killer])
        assert again.code == "worker_lost"
        wait_until_ready(service)
        for _ in range(2):
            refused = service.post("/predict", killer)
            assert (refused.status, refused.code) == (422, "killed_worker")
        assert {service.post("/predict", data).status for data in innocent} == {200}
        assert service.metrics()["vitlab_worker_restarts_total"] == 2


def test_a_worker_that_does_not_answer_is_replaced(models, files):
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


def test_the_worker_ends_with_the_front(models):
    with Service(models / "small") as service:
        (worker,) = service.workers()
        service.process.kill()
        service.process.wait()
        end = open(f"/proc/{worker}/stat") if os.path.exists(f"/proc/{worker}/stat") else None
        if end:
            with end:
                pass
        import time

        for _ in range(1000):
            if not os.path.exists(f"/proc/{worker}"):
                return
            time.sleep(0.05)
        pytest.fail("the worker outlived the front")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_requests_finish(models, files, number):
    with Service(models / "small") as service:
        idle = service.connect()
        with service.stopped_worker() as pid, ThreadPoolExecutor(20) as pool:
            sent = [pool.submit(service.post, "/predict", data) for data in files[:20]]
            service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 21)
            service.process.send_signal(number)
            service.wait_for(lambda: not accepts(service))
            os.kill(pid, signal.SIGCONT)
            assert {one.result().status for one in sent} == {200}
        assert service.process.wait(60) == 0
        assert idle.recv(1) == b""
        idle.close()
        service._listener.join()
        assert "stopped" in service.said[-1]


def accepts(service) -> bool:
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_service_is_live_before_it_is_ready(models):
    with Service(models / "small", is_awaited=False) as service:
        service.wait_for(lambda: service.workers())
        (worker,) = service.workers()
        os.kill(worker, signal.SIGSTOP)  # it cannot load now
        service.port = port_of(service.process.pid)
        assert service.get("/health").status == 200
        ready = service.get("/ready")
        assert (ready.status, ready.code) == (503, "not_ready")
        assert service.post("/predict", b"a").code == "not_ready"
        assert service.get("/api/models").code == "not_ready"
        os.kill(worker, signal.SIGCONT)
        wait_until_ready(service)
        assert service.get("/ready").json == {"status": "ready", "models": [{"id": "small", "name": "small"}]}


def port_of(pid: int) -> int:
    """The port that a process listens on."""
    inodes = {os.readlink(f"/proc/{pid}/fd/{one}") for one in os.listdir(f"/proc/{pid}/fd")}
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    (port,) = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}
    return port
