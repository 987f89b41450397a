"""Who can reach the service, and what they can see: token, Host, pages of other sites, headers, no path of a client."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab
from malformed import PATHS, QUERIES
from servers import FORM, Service, multipart
from vitlab.cli import main

SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TOKEN = "a token of twenty characters"
AUDITED = """
import sys
seen = open(sys.argv.pop(1), "a", buffering=1)
def note(event, arguments):
    if event in ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.listdir", "os.scandir"):
        seen.write(f"{event} {arguments!r}\\n")
sys.addaudithook(note)
from vitlab.__main__ import start
sys.exit(start())
"""


@pytest.fixture(scope="module")
def guarded(models):
    with Service(models / "small", "--hosts", "my.machine", environment={"VITLAB_TOKEN": TOKEN}) as started:
        yield started


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "my.machine"])
def test_other_addresses_than_loopback_need_a_token(host, models, capsys):
    assert main(["serve", str(models / "small"), "--host", host]) == 2
    assert re.search(
        r"--host .* can be reached from other machines; give a token, with --token", capsys.readouterr().err
    )


@pytest.mark.parametrize("token", ["short", "twenty characters \x07\x07\x07", "zwanzig Zeichen äöü."])
def test_a_weak_token_is_refused(token, models, capsys):
    assert main(["serve", str(models / "small"), "--token", token]) == 2
    assert "16 printable ASCII characters" in capsys.readouterr().err


def test_a_port_in_use_is_reported(models, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(models / "small"), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is in use; choose another with --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--batch", "0"), ("--deadline", "nan"), ("--wait", "-1"), ("--queue", "0")]
)
def test_limits_are_checked(flag, value, models, capsys):
    assert main(["serve", str(models / "small"), flag, value]) == 2
    assert f"{flag} is {value}" in capsys.readouterr().err


class TestToken:
    pytestmark = SLOW

    def test_without_it_nothing_is_told(self, guarded, files):
        for method, path in (("POST", "/predict"), ("POST", "/explain"), ("GET", "/metrics"), ("GET", "/api/models")):
            for given in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": TOKEN},
                {"cookie": "vitlab-token=x"},
            ):
                refused = guarded.request(method, path, files[0] if method == "POST" else None, **given)
                assert (refused.status, refused.code) == (401, "unauthorized")
                assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/openapi.json", "/nothing", "/api/runs"):
            assert guarded.get(path).status == 401
        assert guarded.get("/health").json == {"status": "live"}
        assert guarded.get("/ready").json == {"status": "ready"}

    def test_with_it_everything_is_answered(self, guarded, files):
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert guarded.request("POST", "/predict", files[0], **bearer).status == 200
        assert guarded.request("GET", "/metrics", **bearer).status == 200

    def test_the_page_shows_it_by_a_cookie(self, guarded):
        opened = guarded.get(f"/?token={TOKEN.replace(' ', '%20')}")
        assert (opened.status, opened.headers["location"]) == (303, "./")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert guarded.get("/api/models", cookie=cookie.partition(";")[0]).status == 200
        assert "set-cookie" not in guarded.get("/?token=wrong").headers
        assert guarded.get("/").status == 200  # the page itself is no secret

    def test_the_token_is_not_printed(self, guarded):
        assert TOKEN not in " ".join(guarded.said)
        assert "?token=TOKEN" in " ".join(guarded.said)

    def test_a_name_that_was_given_is_known(self, guarded):
        assert guarded.get("/health", host="my.machine:8000").status == 200
        assert guarded.get("/health", host="your.machine").status == 421


class TestReach:
    pytestmark = SLOW

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:8000"])
    def test_loopback_names_are_known(self, service, host):
        assert service.get("/health", host=host).status == 200

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "localhost.", "2130706433"])
    def test_other_names_are_not(self, service, host):
        refused = service.get("/health", host=host)
        assert (refused.status, refused.code) == (421, "unknown_host")

    def test_it_listens_on_loopback_only(self, service):
        rows = [line.split() for line in Path(f"/proc/{service.process.pid}/net/tcp").read_text().splitlines()[1:]]
        assert {
            row[1].split(":")[0] for row in rows if int(row[1].split(":")[1], 16) == service.port and row[3] == "0A"
        } == {"0100007F"}

    def test_pages_of_other_sites_are_refused_and_never_allowed(self, service, files):
        assert service.post("/predict", files[0], origin=f"http://127.0.0.1:{service.port}").status == 200
        refused = service.post("/predict", files[0], origin="https://evil.example")
        assert (refused.status, refused.code) == (403, "foreign_origin")
        asked = service.request("OPTIONS", "/predict", origin="http://localhost", access_control_request_method="POST")
        assert asked.status == 405
        assert not [name for name in (*refused.headers, *asked.headers) if name.startswith("access-control")]

    @pytest.mark.parametrize("path", ["/", "/inside/app.js", "/health", "/nothing", "/api/models", "/api/samples"])
    def test_every_answer_has_the_headers_that_protect_the_page(self, service, path):
        headers = service.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers

    def test_the_page_and_its_samples_are_served(self, service):
        index = service.get("/")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        assert index.body == service.get("/index.html").body
        assert service.get("/inside/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert service.get("/inside/app.js", if_none_match=service.get("/inside/app.js").headers["etag"]).status == 304
        samples = service.get("/api/samples").json
        assert len(samples) > 2
        for sample in samples:
            assert service.post("/predict", service.get("/" + sample["url"]).body).status == 200

    def test_there_is_no_route_that_changes_the_service(self, service):
        described = service.get("/openapi.json").json["paths"]
        changing = {(path, method) for path, ways in described.items() for method in ways if method != "get"}
        assert changing == {("/predict", "post"), ("/explain", "post"), ("/api/trace", "post")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_path_and_no_address_of_a_client_is_opened(models, files, tmp_path):
    """An audit hook in the front notes every file, socket and program; the control shows that it does."""
    log = tmp_path / "audit"
    canary = tmp_path / "canary.jpg"
    canary.write_bytes(files[0])
    with Service(models / "small", program=["-c", AUDITED, str(log)]) as service:
        assert "open " in log.read_text()  # the page's files, at the start
        service.post("/predict", files[0])
        before = len(log.read_text())
        for path in (*PATHS, f"/{canary}", f"/api/samples/{canary}", f"/api/samples/..{canary}"):
            assert service.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).status in (400, 404)
        for query in (*QUERIES, f"model={canary}", "model=file:///etc/passwd"):
            line = f"POST /predict?{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(files[0])}\r\n\r\n"
            assert service.raw(line.encode() + files[0]).status in (400, 404)
        for name in (str(canary), "../../../../etc/passwd", "http://127.0.0.1:1/x.jpg"):
            reply = service.post("/predict", multipart(files[0], filename=name), content_type=FORM)
            assert reply.json["answers"][0]["image"] == re.split(r"/", name)[-1]
            assert service.post("/predict", name.encode()).status == 422
            assert service.post("/predict", json.dumps({"url": name}).encode()).status == 422
        assert service.get("/health").status == 200
        assert log.read_text()[before:] == ""


@pytest.mark.slow
def test_the_worker_may_open_no_socket_and_start_no_program():
    code = (
        "from vitlab.process.confinement import confine\nimport socket, subprocess, sys\n"
        "confine()\n"
        "for attempt in (lambda: socket.socket(), lambda: subprocess.run(['true']), lambda: bytearray(2**36)):\n"
        "    try: attempt()\n"
        "    except (PermissionError, MemoryError) as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PermissionError", "PermissionError", "MemoryError"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/predict", "/explain", "/api/trace"])
def test_an_address_that_takes_pictures_says_so_to_a_browser(service, path):
    reply = service.get(path)
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", "POST")


@pytest.mark.slow
def test_runs_are_served_without_a_model(tmp_path):
    with Service("--runs", tmp_path) as service:
        page = service.request("GET", "/")
        assert page.status == 200
        assert b"<h1>Runs</h1>" in page.body
        assert service.request("GET", "/api/models").json == {"models": [], "has_runs": True}
        assert service.request("GET", "/api/runs").status == 200
        refused = service.request("POST", "/predict", b"x")
        assert (refused.status, refused.code) == (404, "unknown_model")
        assert service.stop() == 0


def test_nothing_to_serve_is_an_error():
    with pytest.raises(ValueError, match=r"nothing to serve; give a model.* or runs="):
        vitlab.serve()
