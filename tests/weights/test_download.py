"""Released weights by name, fetched from a server of our own: whole or not at all, bounded, checked, resumed."""

import contextlib
import hashlib
import http.server
import io
import json
import re
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from agreement import randomised
from vitlab import build_model, load_model, save_model
from vitlab.cli import main
from vitlab.models.build import build_from_spec
from vitlab.paper.names import canonical
from vitlab.run_dir import RunDir
from vitlab.runs import progress as display
from vitlab.runs.progress import Bytes
from vitlab.spec import CONVENTIONS, ResNetSpec, ViTSpec
from vitlab.weights.convert import convert
from vitlab.weights.files.containers import WeightsError
from vitlab.weights.released.catalogue import (
    Release,
    beside,
    cache_folder,
    fetched,
    find_release,
    read_fetched,
    releases,
    write_fetched,
)
from vitlab.weights.released.download import check_url, download, fetch

SMALL = ViTSpec(patch=4, layers=1, width=8, mlp=8, heads=2, image=(8, 8), classes=3, head="linear")
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
        if start >= len(CONTENT):  # as RFC 9110 asks of a range behind the end
            self.send_response(416)
            if server.says_length:
                self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
            return
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
    assert facts["size"] == len(CONTENT)
    assert sorted(p.name for p in target.parent.iterdir()) == ["file.npz", "file.npz.json"]


def test_a_broken_connection_leaves_a_part_that_the_next_attempt_completes(server, tmp_path):
    server.break_after = 300_000
    with pytest.raises(ValueError, match="run the command again"):
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
    with pytest.raises(ValueError, match="run the command again"):
        get(server, tmp_path / "file.npz")
    if change == "another tag":
        server.tag = '"two"'
    else:
        server.resumes = False
    get(server, tmp_path / "file.npz")
    assert (tmp_path / "file.npz").read_bytes() == CONTENT


def leave_part(folder, content):
    """What a process leaves that is killed before its part gets the file's name."""
    (folder / "file.npz.part").write_bytes(content)
    (folder / "file.npz.part.tag").write_text('"one"')


def test_a_part_that_was_complete_is_checked_and_finished_without_a_byte(server, tmp_path):
    leave_part(tmp_path, CONTENT)
    get(server, tmp_path / "file.npz")
    assert server.sent == []
    assert (tmp_path / "file.npz").read_bytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.npz", "file.npz.json"]


def test_a_complete_part_of_another_checksum_is_thrown_away(server, tmp_path):
    leave_part(tmp_path, CONTENT[:-1] + b"x")
    with pytest.raises(ValueError, match="it was deleted"):
        get(server, tmp_path / "file.npz")
    assert not list(tmp_path.iterdir())
    get(server, tmp_path / "file.npz")
    assert (tmp_path / "file.npz").read_bytes() == CONTENT


@pytest.mark.parametrize("says_length", [True, False])
def test_a_part_longer_than_the_file_is_started_anew(server, tmp_path, says_length):
    server.says_length = says_length
    leave_part(tmp_path, CONTENT + b"more")
    get(server, tmp_path / "file.npz")
    assert server.sent == [len(CONTENT)]
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
    with pytest.raises(ValueError, match=r"instead of 2,150,400 \(the parameters\)"):
        get(server, tmp_path / "file.npz", bytes=2 * len(CONTENT))
    assert not list(tmp_path.iterdir())


def test_a_missing_file_and_a_missing_server_are_told_in_one_line(server, tmp_path):
    with pytest.raises(ValueError, match="status 404"):
        get(server, tmp_path / "file.npz", "/missing")
    gone = replace(release_at(server), url="http://127.0.0.1:9/file.npz")
    with pytest.raises(ValueError, match="check the network connection"):
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
        with pytest.raises(ValueError, match="another process is downloading"):
            get(server, tmp_path / "file.npz")


def seen(server, target, *, is_terminal):
    """What a person sees of a fetching."""
    screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, no_color=True)
    with contextlib.suppress(ValueError), Bytes(screen, "downloading", "test") as arrival:
        fetch(release_at(server), target, progress=arrival.show, loopback=True)
    return screen.file.getvalue()


class TestProgress:
    def test_bytes_are_told_before_the_first_and_after_every_piece(self, server, tmp_path):
        told = []
        fetch(release_at(server), tmp_path / "a", progress=lambda *numbers: told.append(numbers), loopback=True)
        assert told[0] == (0, len(CONTENT))
        assert told[-1] == (len(CONTENT), len(CONTENT))
        assert [done for done, _ in told] == sorted(done for done, _ in told)

    @pytest.mark.parametrize("says_length", [True, False])
    def test_a_resumed_one_begins_with_what_is_there(self, server, tmp_path, says_length):
        server.says_length = says_length
        leave_part(tmp_path, CONTENT[:300_000])
        told = []
        fetch(release_at(server), tmp_path / "file.npz", progress=lambda *numbers: told.append(numbers), loopback=True)
        assert told[0] == (300_000, len(CONTENT) if says_length else 0)
        assert told[-1] == (len(CONTENT), len(CONTENT) if says_length else 0)

    def test_a_terminal_shows_a_bar_of_bytes_with_speed_and_time_left(self, server, tmp_path):
        printed = seen(server, tmp_path / "file.npz", is_terminal=True)
        assert "downloading" in printed
        assert re.search(r"1\.1/1\.1 MB [\d,.]+ MB/s 0:00:00", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", printed))

    def test_elsewhere_lines_say_where_it_begins_and_how_far_it_is(self, server, tmp_path):
        leave_part(tmp_path, CONTENT[:300_000])
        lines = seen(server, tmp_path / "file.npz", is_terminal=False).splitlines()
        assert lines[0] == "downloading test, 1.1 MB in total, continuing after 0.3 MB"
        assert re.fullmatch(r"downloading 1\.1 MB of 1\.1 MB  [\d,.]+ MB/s  0 s left", lines[-1])

    def test_a_line_comes_now_and_then_also_of_a_length_nobody_says(self, server, tmp_path, monkeypatch):
        server.says_length = False
        assert len(seen(server, tmp_path / "one.npz", is_terminal=False).splitlines()) == 1
        monkeypatch.setattr(display, "QUIET", -1.0)
        first, *others = seen(server, tmp_path / "two.npz", is_terminal=False).splitlines()
        assert first == "downloading test"
        assert others
        assert all(re.fullmatch(r"downloading 1\.\d MB  [\d,.]+ MB/s", line) for line in others)

    def test_speed_is_that_of_the_bytes_that_came(self, monkeypatch):
        clock = [100.0]
        monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
        screen = Console(file=io.StringIO(), width=100)
        arrival = Bytes(screen, "downloading", "test")
        arrival.show(500_000_000, 1_000_000_000)
        clock[0] += 10
        arrival.show(510_000_000, 1_000_000_000)
        clock[0] += 10
        arrival.show(520_000_000, 1_000_000_000)
        first, second = screen.file.getvalue().splitlines()  # nothing after ten seconds
        assert first == "downloading test, 1,000.0 MB in total, continuing after 500.0 MB"
        assert second == "downloading 520.0 MB of 1,000.0 MB  1.0 MB/s  8.0 min left"  # 20 MB in 20 s, 480 to come

    def test_the_command_prints_the_path_alone_and_the_rest_as_complaints(self, server, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr("vitlab.weights.released.download.find_release", lambda name: release_at(server))
        monkeypatch.setattr("vitlab.weights.released.download.fetch", partial(fetch, loopback=True))
        assert main(["download", "BiT-M-R50x1", "--cache", str(tmp_path)]) == 0
        printed = capsys.readouterr()
        assert printed.out.strip() == str(tmp_path / "test.npz")
        assert "downloading BiT-M-R50x1, 1.1 MB in total" in printed.err
        assert main(["download", "BiT-M-R50x1", "--cache", str(tmp_path)]) == 0
        assert "downloading" not in capsys.readouterr().err  # it is there


class TestCache:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("VITLAB_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_offline_says_what_to_do(self, folder, monkeypatch, capsys):
        url, copy = r"download https://storage.*BiT-M-R50x1\.npz", r"copy it to .*BiT-M-R50x1\.npz"
        with pytest.raises(ValueError, match=f"offline; {url} on a machine with a network and {copy}"):
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

    def test_a_file_put_there_by_hand_gets_its_facts(self, folder):
        folder.mkdir()
        (folder / "BiT-M-R50x1.npz").write_bytes(b"by hand")
        (folder / "BiT-M-R50x1.npz.json").write_text('{"name": "facts of an older vitlab"}')
        download("BiT-M-R50x1", offline=True)
        facts = read_fetched(folder / "BiT-M-R50x1.npz")
        assert (facts.size, facts.sha256) == (7, hashlib.sha256(b"by hand").hexdigest())
        (folder / "BiT-M-R50x1.npz").write_bytes(b"by hand, another day")
        with pytest.raises(ValueError, match="is damaged"):
            download("BiT-M-R50x1", offline=True)

    def test_the_command_says_how_pictures_are_prepared_and_what_to_do_with_a_pickle(self, folder, capsys):
        folder.mkdir()
        (folder / "timm-deit_tiny_patch16_224.fb_in1k.safetensors").write_bytes(b"by hand")
        assert main(["download", "timm/deit_tiny_patch16_224.fb_in1k", "--offline"]) == 0
        printed = capsys.readouterr()
        assert printed.out.strip() == str(folder / "timm-deit_tiny_patch16_224.fb_in1k.safetensors")
        assert "mean 0.485/0.456/0.406" in printed.err
        release = find_release("facebook/deit_tiny_patch16_224")
        (folder / release.file).write_bytes(b"by hand")
        with pytest.raises(ValueError, match="is damaged"):  # its first eight digits are known
            download(release.name, offline=True)
        write_fetched(folder / release.file, fetched(release, folder / release.file))
        assert main(["download", release.name, "--offline"]) == 0
        assert f"vitlab convert {folder / release.file} OUT" in capsys.readouterr().err.replace("\n", "")

    def test_the_users_cache_is_the_default(self, monkeypatch, tmp_path):
        monkeypatch.delenv("VITLAB_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_folder() == tmp_path / "vitlab" / "weights"


DEIT_MEAN, DEIT_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TestConventions:
    """What a released file does not say is applied when it is loaded from the cache."""

    @pytest.fixture
    def in_cache(self, tmp_path):
        def put(name, model):
            """A small model in the place of a released one, as `download` leaves it."""
            release = find_release(name)
            path = tmp_path / release.file
            save_model(model, path, "timm")
            write_fetched(path, fetched(release, path))
            return path

        return put

    def small(self, **changes):
        return randomised(build_from_spec(replace(SMALL, **changes)))

    def test_deits_normalisation_is_known(self, in_cache):
        path = in_cache("timm/deit_tiny_patch16_224.fb_in1k", self.small(conventions=CONVENTIONS["timm"]))
        how = load_model(path).spec.conventions
        assert (how.preprocessing.mean, how.preprocessing.std) == (DEIT_MEAN, DEIT_STD)
        assert (how.preprocessing.fraction, how.preprocessing.interpolation) == (0.9, "bicubic")
        assert load_model(path, conventions="timm").spec.conventions == CONVENTIONS["timm"]
        beside(path).unlink()
        assert load_model(path).spec.conventions.preprocessing.mean == (0.5, 0.5, 0.5)

    def test_so_is_the_image_size_of_a_bit(self, in_cache):
        spec = ResNetSpec((1, 1, 1, 1), 32, (64, 64), 3, conventions=CONVENTIONS["timm"])
        path = in_cache("timm/resnetv2_50x1_bit.goog_in21k_ft_in1k", randomised(build_from_spec(spec)))
        save_file(load_file(path), path)  # as timm writes it, without our metadata
        write_fetched(path, fetched(find_release("timm/resnetv2_50x1_bit.goog_in21k_ft_in1k"), path))
        assert load_model(path).spec.image == (448, 448)
        assert load_model(path).spec.conventions.preprocessing.fraction == 1.0
        assert load_model(path, image=64).spec.image == (64, 64)

    def test_a_file_that_is_not_the_fetched_one_is_told(self, in_cache):
        path = in_cache("timm/deit_tiny_patch16_224.fb_in1k", self.small(conventions=CONVENTIONS["timm"]))
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(WeightsError, match="is damaged"):
            load_model(path)
        path.write_bytes(good[:-4])
        with pytest.raises(WeightsError, match="is damaged"):
            load_model(path)
        path.write_bytes(good)
        beside(path).write_text('{"format": "vitlab-fetched"}')
        with pytest.raises(WeightsError, match="vitlab download writes it again"):
            load_model(path)

    @pytest.mark.slow
    def test_a_fetched_pickle_is_converted_with_them(self, tmp_path):
        release = find_release("facebook/deit_tiny_patch16_224")
        save_model(self.small(conventions=CONVENTIONS["timm"]), tmp_path / "plain.safetensors", "timm")
        torch.save(load_file(tmp_path / "plain.safetensors"), tmp_path / release.file)  # no entry that tells of DeiT
        write_fetched(tmp_path / release.file, fetched(release, tmp_path / release.file))
        model, notes = convert(tmp_path / release.file, tmp_path / "out", heads=2)
        assert model.spec.conventions == CONVENTIONS["deit"]
        assert any("facebook/deit_tiny_patch16_224" in note for note in notes)

    def test_the_catalogue_normalises_as_each_family_was_trained(self):
        for release in releases().values():
            deit = "deit" in release.name
            how = release.conventions.preprocessing
            assert (how.mean, how.std) == ((DEIT_MEAN, DEIT_STD) if deit else ((0.5,) * 3, (0.5,) * 3)), release.name
            assert release.image == (448 if "resnetv2" in release.name else 384 if "384" in release.name else 224)

    @pytest.mark.slow
    def test_timms_releases_are_prepared_as_timm_says(self):
        peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
        names = [name for name in releases() if name.startswith("timm/")]
        assert len(names) == 15
        for name in names:
            theirs, ours = peers.timm.models.get_pretrained_cfg(name.removeprefix("timm/")), find_release(name)
            how = ours.conventions.preprocessing
            assert (how.fraction, how.interpolation) == (theirs.crop_pct, theirs.interpolation), name
            assert (how.mean, how.std) == (theirs.mean, theirs.std), name
            assert (3, ours.image, ours.image) == theirs.input_size, name
            assert theirs.crop_mode == "center"
            assert how.resize == "shorter"


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


def test_released_weights_go_by_their_name_once_they_are_here(tmp_path, monkeypatch, capsys):
    """In Python and in every command that takes a model."""
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path))
    name = "augreg-Ti_16-i1k-224"
    with pytest.raises(WeightsError, match=f"not downloaded yet; fetch the 23 MB: vitlab download {name}"):
        load_model(name)
    model = randomised(build_model("ViT-Ti/16", image=32, classes=5))
    save_model(model, tmp_path / find_release(name).file, "google-npz")
    assert torch.equal(load_model(name, image=32).head.logits.weight, model.head.logits.weight)
    monkeypatch.chdir(tmp_path)
    assert main(["convert", name, "out"]) == 0
    words = ["--data", "digits", "--out", "run", "--image", "16", "--schedule.total", "1", "--batch", "2"]
    assert main(["finetune", name, *words, "--held-out", "0", "--schedule.warmup", "0"]) == 0
    assert RunDir(tmp_path / "run").spec().start == str(tmp_path / find_release(name).file)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ViT-B/16", "it names a model, which vitlab pretrain ViT-B/16 trains; did you mean ViT-B_16-i21k, "),
        (
            "B_16.npz",
            "B_16.npz: no such file or folder, and no released weights have this name; .*vitlab download",
        ),
    ],
)
def test_weights_that_are_nowhere_say_what_to_give(name, said):
    with pytest.raises(WeightsError, match=said):
        load_model(name)
