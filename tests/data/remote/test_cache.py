"""The cache of blocks: bounded, checked, shared by processes, and whole after any death."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from faulty_servers import FileServer
from vitlab.data.remote import cache as caching
from vitlab.data.remote import files
from vitlab.data.remote.cache import DIGEST, BlockCache, cache_size
from vitlab.data.remote.files import Reading, remote_file

DATA = random.Random(1).randbytes(300_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 4096)
    monkeypatch.setattr(files, "KEPT", 0)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*") if path.is_file())


def test_a_block_comes_back_as_it_was(tmp_path):
    cache = BlockCache(tmp_path, most=100_000)
    assert cache.get("key", 3) == (None, False)
    cache.put("key", 3, b"block")
    assert cache.get("key", 3) == (b"block", False)
    assert cache.get("key", 4) == (None, False)


def test_every_damaged_byte_is_noticed(tmp_path):
    cache = BlockCache(tmp_path, most=100_000)
    for place in range(DIGEST + 5):
        cache.put("key", 0, b"block")
        path = tmp_path / "key" / "0"
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert cache.get("key", 0) == (None, True)
        assert not path.exists()


@pytest.mark.parametrize("length", [0, 1, DIGEST, DIGEST + 4])
def test_a_cut_block_is_noticed(tmp_path, length):
    cache = BlockCache(tmp_path, most=100_000)
    cache.put("key", 0, b"block")
    os.truncate(tmp_path / "key" / "0", length)
    assert cache.get("key", 0) == (None, True)


def test_a_block_in_the_place_of_another_is_noticed(tmp_path):
    cache = BlockCache(tmp_path, most=100_000)
    cache.put("key", 0, b"block")
    (tmp_path / "key" / "0").rename(tmp_path / "key" / "1")
    assert cache.get("key", 1) == (None, True)


def test_damaged_blocks_are_fetched_again_and_counted(tmp_path):
    reading = Reading(BlockCache(tmp_path, most=10**7))
    with FileServer({"/f": DATA}) as server:
        file = remote_file(f"{server.url}/f", reading)
        assert file.read(0, len(DATA)) == DATA
        for path in (tmp_path / file.key).iterdir():
            *most, last = path.read_bytes()
            path.write_bytes(bytes([*most, last ^ 1]))
        assert file.read(0, len(DATA)) == DATA
    assert reading.traffic.total().damaged == -(-len(DATA) // 4096)


def test_the_bound_holds_and_the_last_used_blocks_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "FRESH", 0.0)
    cache, block = BlockCache(tmp_path, most=50_000), bytes(1000)
    for number in range(200):
        cache.put("key", number, block)
        os.utime(tmp_path / "key" / f"{number}", (1e9 + number, 1e9 + number))
        assert cache.get("key", 0)[0] == block  # always in use
        assert used(tmp_path) <= 50_000
    assert used(tmp_path) > 40_000


def test_a_block_larger_than_the_bound_is_not_kept(tmp_path):
    cache = BlockCache(tmp_path, most=100)
    cache.put("key", 0, bytes(200))
    assert used(tmp_path) == 0


def payload(number: int) -> bytes:
    return b"%02d" % number * 400


def _fill(folder, seed, most):
    cache, draw = BlockCache(folder, most), random.Random(seed)
    for _ in range(300):
        number = draw.randrange(100)
        data, is_damaged = cache.get("key", number)
        assert not is_damaged
        assert data in (None, payload(number))
        cache.put("key", number, payload(number))


def test_processes_share_the_bound(tmp_path):
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_fill, args=(tmp_path, seed, 20_000)) for seed in range(4)]
    for child in children:
        child.start()
    largest, cache = 0, BlockCache(tmp_path, most=20_000)
    while any(child.is_alive() for child in children):
        with cache._locked():  # nothing is being renamed
            largest = max(largest, used(tmp_path))
        time.sleep(0.005)
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert 0 < largest <= 20_000


def _write_forever(folder):
    cache = BlockCache(folder, most=200_000)
    for number in range(10**9):
        cache.put("key", number % 100, payload(number % 100))


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_good_blocks(tmp_path):
    context = multiprocessing.get_context("fork")
    draw = random.Random(0)
    for _ in range(20):
        child = context.Process(target=_write_forever, args=(tmp_path,))
        child.start()
        time.sleep(0.05 + draw.random() * 0.05)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        cache = BlockCache(tmp_path, most=200_000)
        found = [cache.get("key", number) for number in range(100)]
        assert not any(is_damaged for _, is_damaged in found)
        assert all(data in (None, payload(n)) for n, (data, _) in enumerate(found))
    _fill(tmp_path, 0, 200_000)  # the cache still works, and has its bound
    assert used(tmp_path) <= 200_000


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    cache = BlockCache(tmp_path, most=20_000)
    cache.put("key", 0, bytes(1000))
    left = tmp_path / "key" / ".1.tmp-99999999"
    left.write_bytes(bytes(15_000))
    os.utime(left, (1e9, 1e9))
    for number in range(30):
        cache.put("key", number, bytes(1000))
    assert not left.exists()


def test_a_damaged_count_is_made_again(tmp_path):
    cache = BlockCache(tmp_path, most=20_000)
    cache.put("key", 0, bytes(1000))
    (tmp_path / "used").write_bytes(b"nonsense")
    cache.put("key", 1, bytes(1000))
    assert int((tmp_path / "used").read_bytes()) == used(tmp_path)


def test_a_whole_file_is_fetched_once_and_again_if_damaged(tmp_path):
    cache, fetched = BlockCache(tmp_path, most=20_000), []

    def fetch(path):
        fetched.append(path)
        path.write_bytes(b"index")

    path = cache.whole("key", "an.index", 5, fetch)
    assert (path.read_bytes(), cache.whole("key", "an.index", 5, fetch)) == (b"index", path)
    assert len(fetched) == 1
    path.write_bytes(b"indeX")
    assert cache.whole("key", "an.index", 5, fetch).read_bytes() == b"index"
    assert len(fetched) == 2
    with pytest.raises(ValueError, match=r"an.index needs 30,000 bytes in .* which may hold 20,000; set VITLAB_REMOTE"):
        cache.whole("key", "an.index", 30_000, fetch)


def test_a_full_disk_does_not_stop_the_reading(tmp_path, monkeypatch):
    reading = Reading(BlockCache(tmp_path, most=10**7))

    def full(self, data):
        raise OSError(28, "No space left on device")

    with FileServer({"/f": DATA}) as server:
        file = remote_file(f"{server.url}/f", reading)
        monkeypatch.setattr(Path, "write_bytes", full)
        assert file.read(0, 50_000) == DATA[:50_000]


@pytest.mark.parametrize(("text", "size"), [("", 20 * 10**9), ("5e9", 5 * 10**9), ("0", 0)])
def test_the_bound_comes_from_the_environment(monkeypatch, text, size):
    monkeypatch.setenv("VITLAB_REMOTE_CACHE_SIZE", text)
    assert cache_size() == size


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf"])
def test_a_bound_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("VITLAB_REMOTE_CACHE_SIZE", text)
    with pytest.raises(ValueError, match=r"VITLAB_REMOTE_CACHE_SIZE is .* give a number of bytes, such as 50e9"):
        cache_size()
