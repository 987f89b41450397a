"""Bytes of remote files are those of the files, whatever the servers do."""

import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faulty_servers import FAULTS, FileServer, in_turn
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.remote import files, retries, stores
from vitlab.data.remote.cache import BlockCache
from vitlab.data.remote.files import Reading, remote_file
from vitlab.data.remote.retries import Patience
from vitlab.errors import RemoteFailed, RemoteRefused

DATA = random.Random(0).randbytes(1_000_003)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Small blocks, no memory of blocks, and short pauses."""
    monkeypatch.setattr(files, "BLOCK", 4096)
    monkeypatch.setattr(files, "KEPT", 0)
    monkeypatch.setattr(retries, "PATIENCE", Patience(attempts=6, first=0.001, longest=0.01))


@pytest.fixture
def reading(tmp_path):
    return Reading(BlockCache(tmp_path / "cache", most=10_000_000))


def test_bytes_of_any_range_are_those_of_the_file(reading):
    with FileServer({"/a b/ü.tar": DATA}) as server:
        file = remote_file(f"{server.url}/a b/ü.tar", reading)
        assert file.facts.size == len(DATA)
        for _ in range(30):
            start, size = random.randrange(len(DATA) + 10), random.randrange(20_000)
            assert file.read(start, size) == DATA[start : start + size]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_changes_a_byte(reading, fault):
    with FileServer({"/f": DATA}, in_turn(fault)) as server:
        file = remote_file(f"{server.url}/f", reading)
        assert file.read(0, len(DATA)) == DATA
        assert fault in server.faults
    counts = reading.traffic.total()
    hurt = len([one for one in server.faults if one not in ("", "slow")])
    if fault != "reset":  # aiohttp repeats a request by itself if a kept connection turns out to be closed
        assert (counts.requests, counts.retries) == (len(server.requests), hurt)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32), ranges=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 20_000)), max_size=8)
)
def test_random_ranges_with_random_faults_are_those_of_the_file(tmp_path, monkeypatch, seed, ranges):
    monkeypatch.setattr(retries, "PATIENCE", Patience(attempts=50, first=0.001, longest=0.001))  # 6 may all have faults
    draw, data = random.Random(seed), DATA[:40_000]
    reading = Reading(BlockCache(tmp_path / f"{seed}", most=draw.choice([0, 9_000, 1_000_000])))
    with FileServer({"/f": data}, lambda request: draw.choice((*FAULTS[:4], *[""] * 6))) as server:
        file = remote_file(f"{server.url}/f", reading)
        for start, size in ranges:
            assert file.read(start, size) == data[start : start + size]


def test_a_server_that_stalls_is_asked_again(reading, monkeypatch):
    monkeypatch.setattr(stores, "WAIT", 0.5)
    with FileServer({"/f": DATA}, lambda request: "stall" if request.number == 1 else "") as server:
        assert remote_file(f"{server.url}/f", reading).read(0, 9000) == DATA[:9000]
    assert reading.traffic.total().retries == 1


def test_a_fault_that_does_not_pass_ends_in_an_error_and_not_in_a_bad_image(reading):
    with FileServer({"/f": DATA}) as server:
        file = remote_file(f"{server.url}/f", reading)
        server.choose = lambda request: "503"
        with pytest.raises(RemoteFailed, match=r"/f failed 6 times in .* \(last: status 503\); check the connection"):
            file.read(0, 10)
    assert reading.traffic.total().retries == 5


@pytest.mark.parametrize(("soon", "often", "reports"), [(60.0, 60.0, 0), (0.0, 60.0, 1), (0.0, 0.0, 5)])
def test_a_request_that_keeps_failing_is_reported_while_it_is_tried(reading, caplog, monkeypatch, soon, often, reports):
    monkeypatch.setattr(retries, "SOON", soon)
    monkeypatch.setattr(retries, "OFTEN", often)
    with FileServer({"/f": DATA}) as server:
        file = remote_file(f"{server.url}/f", reading)
        server.choose = lambda request: "503"
        with pytest.raises(RemoteFailed):
            file.read(0, 10)
    assert len(caplog.messages) == reports
    assert all(said.endswith("6: status 503); trying again") for said in caplog.messages)


def test_errors_that_stay_are_not_tried_again(reading):
    with FileServer({"/f": DATA}) as server:
        with pytest.raises(RemoteRefused, match=r"/nothing does not exist .status 404.; check the address"):
            remote_file(f"{server.url}/nothing", reading)
        server.choose = lambda request: "403"
        with pytest.raises(RemoteRefused, match=r"/f may not be read .status 403.; check that the file is public"):
            remote_file(f"{server.url}/f", reading)
    assert reading.traffic.total().retries == 0


def test_a_server_without_ranges_is_refused_before_its_file_is_read(reading):
    with FileServer({"/f": DATA}, ranges=False) as server, pytest.raises(RemoteRefused, match=r"range requests"):
        remote_file(f"{server.url}/f", reading)


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("size", [len(DATA), 500_000])
def test_other_bytes_under_the_same_name_are_refused(reading, size, tags):
    with FileServer({"/f": DATA}, tags=tags) as server:
        file = remote_file(f"{server.url}/f", reading)
        first = file.read(0, 10)
        server.files["/f"] = bytes(size)
        if not tags and size == len(DATA):
            return  # such a server gives no way to notice
        with pytest.raises(BadImage) as caught:
            file.read(100_000, 10)
        assert (caught.value.reason, first) == (Reason.changed, DATA[:10])


def test_a_version_without_a_tag_is_not_read_from_the_cache_of_another(tmp_path):
    with FileServer({"/f": DATA}, tags=False) as server:
        for data in (DATA, bytes(len(DATA))):
            server.files["/f"] = data
            reading = Reading(BlockCache(tmp_path, most=10_000_000))
            assert remote_file(f"{server.url}/f", reading).read(0, 100) == data[:100]


def test_what_is_in_the_cache_is_not_requested_again(reading):
    with FileServer({"/f": DATA}) as server:
        file = remote_file(f"{server.url}/f", reading)
        file.read(5000, 100)
        asked = len(server.requests)
        again = remote_file(f"{server.url}/f", Reading(reading.cache))
        assert again.read(4100, 3000) == DATA[4100:7100]
        assert len(server.requests) == asked + 1  # the one that asks for the version


def test_redirects_are_followed_to_the_same_kind_of_server_only(reading):
    with FileServer({"/f": DATA}) as server:
        server.moved = {"/a": "/f", "/b": "http://example.com/f", "/c": "file:///etc/passwd", "/d": "/d"}
        assert remote_file(f"{server.url}/a", reading).read(3, 4) == DATA[3:7]
        for path in ("/b", "/c"):
            with pytest.raises(RemoteRefused, match=r"not https; vitlab does not follow"):
                remote_file(server.url + path, reading)
        with pytest.raises(RemoteRefused, match=r"more than 5 times"):
            remote_file(f"{server.url}/d", reading)


def _child(file, start, queue):
    queue.put(file.read(start, 5000))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_the_same_file_and_count_together(reading, method):
    context = multiprocessing.get_context(method)
    with FileServer({"/f": DATA}, in_turn("500", every=3)) as server:
        file = remote_file(f"{server.url}/f", reading)
        file.read(0, 10)  # the parent has open connections
        queue = context.Queue()
        children = [context.Process(target=_child, args=(file, 90_000 * n, queue)) for n in range(3)]
        for child in children:
            child.start()
        found = {queue.get(timeout=60) for _ in children}
        for child in children:
            child.join(60)
        assert found == {DATA[90_000 * n :][:5000] for n in range(3)}
        assert reading.traffic.total().requests == len(server.requests)


def test_threads_read_the_same_file(reading):
    with FileServer({"/f": DATA}, in_turn("cut", "500", every=4)) as server:
        file = remote_file(f"{server.url}/f", reading)
        starts = [random.randrange(len(DATA)) for _ in range(40)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda s: file.read(s, 9000), starts)) == [DATA[s : s + 9000] for s in starts]


def test_an_empty_file_has_no_bytes(reading):
    with FileServer({"/f": b""}) as server:
        assert remote_file(f"{server.url}/f", reading).read(0, 10) == b""


def test_offline_nothing_is_requested(reading, monkeypatch):
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    with FileServer({"/f": DATA}) as server:
        with pytest.raises(RemoteRefused, match=r"VITLAB_OFFLINE"):
            remote_file(f"{server.url}/f", reading)
        assert server.requests == []
