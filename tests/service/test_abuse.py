"""Nothing that clients do breaks the service or hurts other clients: malformed, slow, many, gone."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from malformed import malformed
from nasty import NASTY
from run_browsing import made_run
from servers import PATIENCE, Service, answer_of, resident
from vitlab.run_dir import PICTURE
from vitlab.service.limits import LARGEST_HEADERS
from vitlab.service.refusals import CODES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
STATUSES = {status for status, _ in CODES.values()}
REQUESTS = int(os.environ.get("VITLAB_REQUESTS", "1000"))  # malformed ones
LOAD = int(os.environ.get("VITLAB_LOAD", "500"))  # requests while memory is watched
GROWTH = 24 * 2**20  # bytes that memory may grow by after the warm-up
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def right(service, files):
    """The right answer to the first picture."""
    return service.post("/predict", files[0]).body


def test_malformed_requests_get_documented_errors_and_break_nothing(service, files, right):
    seen: Counter[int] = Counter()
    pid, workers = service.process.pid, service.workers()
    for number, attack in enumerate(malformed(0, REQUESTS)):
        reply = service.raw(attack.data, is_complete=attack.is_complete)
        case = f"{number}, {attack.kind}: {attack.data[:200]!r}... -> {reply.status} {reply.body[:300]!r}"
        assert reply.status in attack.statuses, case
        assert reply.status in STATUSES | {0, 200}, case
        if reply.status >= 400 and attack.data[:5] != b"HEAD ":
            error = reply.json["error"]
            assert set(error) == {"code", "message", "field"}, case
            assert b"Traceback" not in reply.body, case
            assert len(reply.body) < 2000, case
        seen[reply.status] += 1
        if number % 100 == 99:
            assert service.post("/predict", files[0]).body == right
    assert (service.process.pid, service.workers()) == (pid, workers)  # nothing was restarted
    assert service.get("/health").status == 200
    assert {400, 403, 404, 405, 413, 415, 421, 422, 431} <= set(seen)
    sys.stdout.write(
        f"\n{REQUESTS} malformed requests: {dict(sorted(seen.items()))}, service and worker alive, answers right\n"
    )


def test_the_requests_are_malformed_and_a_good_one_is_not(service, files):
    """The check can fail: a good request is none of those that are refused."""
    attacks = list(malformed(0, 240))
    assert attacks == list(malformed(0, 240))
    assert attacks != list(malformed(1, 240))
    good = HEAD + f"Content-Length: {len(files[0])}\r\n\r\n".encode() + files[0]
    assert service.raw(good).status == 200
    assert 200 not in {status for attack in attacks if "picture" not in attack.kind for status in attack.statuses}


def test_a_body_over_the_limit_is_refused_before_it_is_read(service):
    with service.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 10000000000\r\n\r\na")
        assert answer_of(connection).status == 413
        assert connection.recv(1) == b""  # closed
    before = service.memory()
    with service.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):  # 64 MB, if it were read
            connection.sendall(b"10000\r\n" + bytes(2**16) + b"\r\n")
        pytest.fail("the service read on")
    assert service.memory() - before < 16 * 2**20


def test_headers_over_the_limit_are_refused(service):
    fits = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (LARGEST_HEADERS - 100) + b"\r\n\r\n"
    assert service.raw(fits).status == 200
    assert service.raw(fits.replace(b"X: ", b"X: " + b"a" * 200)).status == 431


def test_slow_and_silent_clients_are_let_go_and_hurt_nobody(service, files, right):
    """Of 60 clients, 20 send nothing, 20 send headers a byte at a time and 20 a body a byte at a time."""
    clients = [service.connect() for _ in range(60)]
    done = [False] * 60
    replies = [None] * 60
    try:
        for number, client in enumerate(clients):
            if number % 3 == 2:
                client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        answered = 0
        end = time.monotonic() + PATIENCE
        while not all(done):
            assert time.monotonic() < end, f"{sum(done)} of 60 were let go"
            for number, client in enumerate(clients):
                if done[number]:
                    continue
                with contextlib.suppress(ConnectionError):
                    if number % 3:
                        client.sendall(b"A" if number % 3 == 1 else b"a")  # never ends
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    done[number] = bool(client.recv(1, socket.MSG_PEEK))
                client.setblocking(True)
            assert service.post("/predict", files[0]).body == right  # others are answered meanwhile
            answered += 1
            time.sleep(0.1)
        for number, client in enumerate(clients):
            replies[number] = answer_of(client)
    finally:
        for client in clients:
            client.close()
    assert Counter(reply.status for reply in replies) == {408: 60}
    assert {reply.code for reply in replies} == {"timeout"}
    assert answered > 5


def test_work_of_clients_that_left_is_cancelled(service, files, right):
    before = service.metrics()
    with service.stopped_worker():
        clients = [service.connect() for _ in range(30)]
        for client, data in zip(clients, files, strict=False):
            client.sendall(HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 31)
        assert service.metrics()["vitlab_body_bytes"] == sum(map(len, files[:30]))
        for client in clients:
            client.close()
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 1)
        waiting = service.metrics()
        assert waiting["vitlab_waiting_requests"] == 0
        assert waiting["vitlab_body_bytes"] == 0
        assert waiting["vitlab_departed_total"] - before["vitlab_departed_total"] == 30
    assert service.post("/predict", files[0]).body == right
    batches = service.metrics()["vitlab_batch_requests_sum"] - before["vitlab_batch_requests_sum"]
    assert batches <= 8 + 1  # one batch was being computed, the others never were


def test_aborted_uploads_leave_nothing_behind(service, files, right):
    descriptors, draw = service.descriptors(), random.Random(0)
    for _ in range(300):
        with service.connect() as client:
            data = HEAD + f"Content-Length: {len(files[0])}\r\n\r\n".encode() + files[0]
            client.sendall(data[: draw.randrange(len(data))])
            if draw.random() < 0.5:  # reset instead of a clean end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == 1)
    assert service.metrics()["vitlab_body_bytes"] == 0
    service.wait_for(lambda: service.descriptors() <= descriptors + 2)
    assert service.post("/predict", files[0]).body == right


def test_too_many_requests_are_refused_and_the_service_recovers(service, files, right):
    with service.stopped_worker() as pid, ThreadPoolExecutor(100) as pool:
        sent = [pool.submit(service.post, "/predict", files[number % 40]) for number in range(100)]
        service.wait_for(lambda: sum(one.done() for one in sent) >= 100 - 32 - 8)  # 32 wait, 8 are with the worker
        refused = [one.result() for one in sent if one.done()]
        assert {reply.status for reply in refused} == {503}
        assert {reply.code for reply in refused} == {"overloaded"}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert service.get("/health").status == 200
        os.kill(pid, signal.SIGCONT)
        statuses = Counter(one.result().status for one in sent)
    assert statuses[200] >= 32
    assert statuses[200] + statuses[503] == 100
    assert service.post("/predict", files[0]).body == right


def test_bodies_together_are_bounded(models, files):
    big = files[0] + bytes(400_000)
    limits = ("--max-body", 500_000, "--max-memory", 1_000_000)
    with Service(models / "small", *limits) as own, own.stopped_worker() as pid, ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(own.post, "/predict", big) for _ in range(8)]
        own.wait_for(lambda: sum(one.done() for one in sent) >= 6)
        assert own.metrics()["vitlab_body_bytes"] <= 1_000_000
        assert {one.result().code for one in sent if one.done()} == {"overloaded"}
        os.kill(pid, signal.SIGCONT)
        assert Counter(one.result().status for one in sent)[200] == 2
        assert own.metrics()["vitlab_body_bytes"] == 0


def test_an_answer_that_is_read_too_slowly_is_given_up_and_counted_until_then(tmp_path):
    """A client that reads all the time, but too little, does not move its deadline."""
    picture = made_run(tmp_path / "run").path / PICTURE
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2**24 - 8))
    code = "from vitlab.service import connections\nconnections.UNREAD = 3.0\n"
    code += "import sys\nfrom vitlab.cli import main\nsys.exit(main(sys.argv[1:]))"
    limits = ("--max-memory", 20_000_000, "--max-body", 1_000_000)
    with Service("--runs", tmp_path, *limits, program=("-c", code)) as own, socket.socket() as client:
        (run,) = own.get("/api/runs").json["runs"]
        path = f"/api/runs/{run['id']}/pictures/0"
        assert len(own.get(path).body) == 2**24
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", own.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        own.wait_for(lambda: own.metrics()["vitlab_body_bytes"] == 2**24)
        refused = own.get(path)  # two of them are too much
        assert (refused.status, refused.code) == (503, "overloaded")
        read = 0
        with contextlib.suppress(ConnectionError):
            while data := client.recv(2**14):
                read += len(data)
                assert read < 2**24, "the whole answer was sent"
                time.sleep(0.01)
        own.wait_for(lambda: own.metrics()["vitlab_body_bytes"] == 0)
        assert len(own.get(path).body) == 2**24


def test_memory_stays_flat(service, files):
    bad = [data for data, _ in NASTY.values()]
    draw = random.Random(0)
    warm_up, statuses = max(LOAD // 4, 100), Counter()
    descriptors = service.descriptors()
    for number in range(warm_up + LOAD):
        if number == warm_up:
            before = service.memory()
        body = draw.choice(bad) if draw.random() < 0.1 else draw.choice(files)
        statuses[service.post("/predict", body).status] += 1
    grown = service.memory() - before
    sys.stdout.write(f"\n{LOAD} requests, {statuses[422]} of them refused: memory grew by {grown / 2**20:.1f} MiB\n")
    assert set(statuses) == {200, 422}
    assert grown < GROWTH
    assert service.descriptors() <= descriptors + 2


def test_memory_that_grows_is_seen():
    """The check above can fail."""
    code = "import sys\nkept = []\nfor line in sys.stdin: kept.append(b'a' * 2**20); print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        before = resident(child.pid)
        for _ in range(32):
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
        assert resident(child.pid) - before > GROWTH
        child.stdin.close()
