"""Released weights by name, fetched from a server of our own: whole or not at all, bounded, checked, resumed."""

import contextlib
import hashlib
import http.server
import json
import threading
from dataclasses import replace

import pytest

from vitlab.cli import main
from vitlab.paper.models import canonical
from vitlab.weights.catalogue import Release, find_release, releases
from vitlab.weights.download import cache_folder, check_url, download, fetch

CONTENT = bytes(range(256)) * 4200  # a little over 1 MiB


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        server.seen.append(dict(self.headers))
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", server.targets[self.path[4:]])
            self.end_headers()
            return
        start = 0
        asked = self.headers.get("Range", "")
        if asked and self.headers.get("If-Range") == server.tag and server.resumes:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(CONTENT) - start))
        self.send_header("ETag", server.tag)
        self.end_headers()
        body = CONTENT[start:]
        if server.break_after is not None:
            body, server.break_after = body[: server.break_after], None
        server.sent.append(len(body))
        with contextlib.suppress(ConnectionError):  # a client that has seen enough
            self.wfile.write(body)


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen, running.sent, running.targets, running.tag = [], [], {}, '"one"'
        running.resumes, running.break_after, running.says_length = True, None, True
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def release_at(server, path="/file.npz", **changes):
    url = f"http://127.0.0.1:{server.server_port}{path}"
    digest = hashlib.sha256(CONTENT).hexdigest()
    return replace(Release("test", url, "ViT-Ti/16", "a test", len(CONTENT) - 100, sha256=digest), **changes)


def get(server, target, path="/file.npz", **changes):
    fetch(release_at(server, path, **changes), target, progress=lambda done, total: None, loopback=True)


def test_a_file_arrives_whole_with_its_facts_beside_it(server, tmp_path):
    target = tmp_path / "cache" / "file.npz"
    get(server, target)
    assert target.read_bytes() == CONTENT
    facts = json.loads((tmp_path / "cache" / "file.npz.json").read_text())
    assert facts["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert facts["bytes"] == len(CONTENT)
    assert sorted(p.name for p in target.parent.iterdir()) == ["file.npz", "file.npz.json"]


def test_a_broken_connection_leaves_a_part_that_the_next_attempt_completes(server, tmp_path):
    server.break_after = 300_000
    with pytest.raises(ValueError, match="run it again"):
        get(server, tmp_path / "file.npz")
    assert not (tmp_path / "file.npz").exists()
    part = (tmp_path / "file.npz.part").stat().st_size
    assert 0 < part <= 300_000
    get(server, tmp_path / "file.npz")
    assert server.sent == [300_000, len(CONTENT) - part]  # only what was missing
    assert (tmp_path / "file.npz").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["another tag", "no resuming"])
def test_a_part_of_another_content_is_started_anew(server, tmp_path, change):
    server.break_after = 300_000
    with pytest.raises(ValueError, match="run it again"):
        get(server, tmp_path / "file.npz")
    if change == "another tag":
        server.tag = '"two"'
    else:
        server.resumes = False
    get(server, tmp_path / "file.npz")
    assert (tmp_path / "file.npz").read_bytes() == CONTENT


def test_another_checksum_is_thrown_away(server, tmp_path):
    with pytest.raises(ValueError, match=r"has SHA-256 .* not abcdef"):
        get(server, tmp_path / "file.npz", sha256="abcdef12")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("says_length", [True, False])
def test_what_is_larger_than_its_model_can_be_is_refused(server, tmp_path, says_length):
    server.says_length = says_length
    with pytest.raises(ValueError, match="at most 1,048,681"):
        get(server, tmp_path / "file.npz", bytes=100)
    assert not (tmp_path / "file.npz").exists()
    assert (tmp_path / "file.npz.part").stat().st_size == 0


def test_what_is_smaller_than_its_parameters_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="less than the"):
        get(server, tmp_path / "file.npz", bytes=2 * len(CONTENT))
    assert not list(tmp_path.iterdir())


def test_a_missing_file_and_a_missing_server_are_told_in_one_line(server, tmp_path):
    with pytest.raises(ValueError, match="status 404"):
        get(server, tmp_path / "file.npz", "/missing")
    gone = replace(release_at(server), url="http://127.0.0.1:9/file.npz")
    with pytest.raises(ValueError, match="is there a network"):
        fetch(gone, tmp_path / "file.npz", progress=lambda done, total: None, loopback=True)


def test_redirects_follow_to_the_same_kind_of_place_only(server, tmp_path):
    server.targets = {
        "good": f"http://127.0.0.1:{server.server_port}/file.npz",
        "plain": "http://example.com/file.npz",
        "file": "file:///etc/passwd",
        "ftp": "ftp://127.0.0.1/file.npz",
        "circle": "/to/circle",
    }
    get(server, tmp_path / "file.npz", "/to/good")
    assert (tmp_path / "file.npz").read_bytes() == CONTENT
    for bad in ("plain", "ftp"):
        with pytest.raises(ValueError, match=r"/file\.npz' is not https"):
            get(server, tmp_path / "other.npz", f"/to/{bad}")
    for bad in ("file", "circle"):
        with pytest.raises(ValueError, match="status 302"):
            get(server, tmp_path / "other.npz", f"/to/{bad}")
    assert not (tmp_path / "other.npz").exists()


def test_without_the_tests_permission_http_is_refused_even_to_this_machine(server, tmp_path):
    with pytest.raises(ValueError, match="not https"):
        fetch(release_at(server), tmp_path / "file.npz", progress=lambda done, total: None)
    assert server.seen == []
    with pytest.raises(ValueError, match="not https"):
        check_url("http://127.0.0.1/file")
    check_url("https://example.com/file")


def test_two_processes_do_not_write_one_part(server, tmp_path):
    import fcntl

    with (tmp_path / "file.npz.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is fetching"):
            get(server, tmp_path / "file.npz")


class TestCache:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("VITLAB_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_offline_says_what_to_do(self, folder, monkeypatch, capsys):
        with pytest.raises(ValueError, match=r"offline; fetch https://storage.*BiT-M-R50x1\.npz where .* put it at"):
            download("BiT-M-R50x1", offline=True)
        monkeypatch.setenv("VITLAB_OFFLINE", "1")
        assert main(["download", "BiT-M-R50x1"]) == 2
        assert "vitlab is offline" in capsys.readouterr().err
        assert not folder.exists()

    def test_what_is_in_the_cache_is_used_without_a_network(self, folder, capsys):
        folder.mkdir()
        (folder / "BiT-M-R50x1.npz").write_bytes(b"by hand")
        assert download("BiT-M-R50x1", offline=True) == folder / "BiT-M-R50x1.npz"
        assert main(["download", "BiT-M-R50x1", "--offline"]) == 0
        assert capsys.readouterr().out.strip() == str(folder / "BiT-M-R50x1.npz")

    def test_a_file_that_changed_since_it_came_is_told(self, folder, server):
        target = folder / "BiT-M-R50x1.npz"
        get(server, target)
        assert download("BiT-M-R50x1", offline=True) == target
        target.write_bytes(CONTENT[:-1] + b"x")
        with pytest.raises(ValueError, match="is damaged; remove it"):
            download("BiT-M-R50x1", offline=True)

    def test_the_users_cache_is_the_default(self, monkeypatch, tmp_path):
        monkeypatch.delenv("VITLAB_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_folder() == tmp_path / "vitlab" / "weights"


class TestCatalogue:
    def test_every_release_is_https_of_a_model_that_builds_under_a_name_of_its_own(self):
        files = set()
        for name, release in releases().items():
            check_url(release.url)
            assert canonical(release.model)
            assert release.licence
            assert release.bytes > 10**6
            assert release.file.endswith((".npz", ".pth", ".safetensors")), name
            assert "/" not in release.file
            files.add(release.file.lower())
        assert len(files) == len(releases())
        assert {"ViT-B_16-i21k", "augreg-Ti_16-i1k-224", "R50+ViT-B_16-i21k", "BiT-M-R152x4"} <= set(releases())

    def test_sizes_are_those_of_the_parameters(self):
        assert find_release("ViT-B_16-i21k").bytes == 4 * 103_186_515
        assert find_release("BiT-M-R50x1").bytes == 4 * 68_256_659
        assert find_release("augreg-R50_L_32-i1k-224").bytes == 4 * 328_994_856

    def test_a_wrong_name_gets_proposals(self):
        with pytest.raises(ValueError, match="did you mean BiT-M-R50x1"):
            find_release("BiT-M-R50x11")

    def test_the_list_is_printed_without_a_name(self, capsys):
        assert main(["download"]) == 0
        printed = capsys.readouterr().out
        assert "augreg-Ti_16-i1k-224" in printed
        assert "Apache-2.0" in printed
