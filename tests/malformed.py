"""Malformed requests from a seed: broken HTTP, forms, values, paths and pictures, each with what may answer it."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from nasty import NASTY
from pictures import jpeg
from servers import multipart

HOST = b"Host: localhost\r\n"
GOOD = jpeg()
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "get", "POSTS")
PATHS = (
    *("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/..%5c..%5cetc%5cpasswd"),
    *("/static/../../../../etc/passwd", "/%00", "/index.html%00.png", "//etc/passwd", "/etc/passwd", "/~root"),
    *("/.git/config", "/api/runs/../../../etc/passwd", "/api/samples/../../x", "/api/models/../../../etc/shadow"),
    *("file:///etc/passwd", "http://169.254.169.254/latest/meta-data/", "//evil.example/x", "/%ff%fe", "/%", "/%zz"),
    *("/api/runs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/predict/../../etc/passwd", "/inspect?f=../../etc/passwd", "*"),
)
QUERIES = (
    *("top=-1", "top=0", "top=1e9", "top=1000000000", "top=x", "top=", "top=1.5", "top=NaN", "top=%00", "top[]=1"),
    *("top=" + "9" * 400, "model=nothing", "model=../../etc/passwd", "model=" + "x" * 300, "model=%00", "top=0x10"),
    *("top=5%0d%0aX-Injected:%201", "model=http://169.254.169.254/", "topp=5", "top=5&top=5", "url=http://localhost/"),
)
FORMATS = ("format=exe", "format=", "format=PNG", "format=png%00", "format=../../x", "format=" + "a" * 200)
SIZES = ("size=0x0", "size=-1x4", "size=16", "size=99999x99999", "size=16x16x16", "size=x", "size=1e3x1e3")


class Attack(NamedTuple):
    """The bytes of a request, the statuses that may answer it, and whether it is complete.

    0 is a connection that is closed without an answer, which only an incomplete request may get.
    """

    kind: str
    data: bytes
    statuses: frozenset[int]
    is_complete: bool = True


def malformed(seed: int, number: int) -> Iterator[Attack]:
    """Yield as many malformed requests, each kind in turn."""
    draw = random.Random(seed)
    for place in range(number):
        yield KINDS[place % len(KINDS)](draw)


def request(line: str, *headers: str, body: bytes = b"", is_sized: bool = True) -> bytes:
    """A request with these headers; its length is added."""
    lines = [line, "Host: localhost", *headers, *([f"Content-Length: {len(body)}"] if is_sized else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def attack(kind: str, data: bytes, *statuses: int, is_complete: bool = True) -> Attack:
    return Attack(kind, data, frozenset(statuses), is_complete)


def _junk(draw: random.Random, most: int = 200) -> bytes:
    return draw.randbytes(draw.randrange(1, most))


def random_bytes(draw: random.Random) -> Attack:
    return attack("random bytes", _junk(draw, 2000) + b"\r\n\r\n", 400, 431, 505, 0, is_complete=False)


def bad_start(draw: random.Random) -> Attack:
    lines = (
        "GET",
        "GET /",
        "GET / HTTP/9.9",
        "GET  / HTTP/1.1",
        "/ GET HTTP/1.1",
        "GET / HTTP/1.1 x",
        "GET /\x01 HTTP/1.1",
    )
    line = draw.choice([*lines, "POST /predict HTTP/2.0", "GET / FTP/1.1", "\x16\x03\x01\x02", "GET /\xe9 HTTP/1.1"])
    return attack("start line", request(line), 400, 505)


def bad_header(draw: random.Random) -> Attack:
    lines = ("no colon", ": no name", "A b: space", "X: \x00", "Content-Length: -1", "Content-Length: x", "X\x7f: 1")
    more = ("Content-Length: 5, 6", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, gzip", "Host: other")
    line = draw.choice([*lines, *more, "Content-Length: 99999999999999999999999999"])
    return attack("header", request("POST /predict HTTP/1.1", line, body=b"", is_sized=False), 400, 413, 501)


def two_lengths(draw: random.Random) -> Attack:
    both = ["Transfer-Encoding: chunked", f"Content-Length: {draw.randrange(100)}"]
    draw.shuffle(both)
    return attack("both lengths", request("POST /predict HTTP/1.1", *both, body=b"0\r\n\r\n", is_sized=False), 400)


def conflicting_lengths(draw: random.Random) -> Attack:
    lengths = [f"Content-Length: {draw.randrange(10)}", f"Content-Length: {draw.randrange(10, 20)}"]
    return attack("two lengths", request("POST /predict HTTP/1.1", *lengths, is_sized=False), 400)


def huge_header(draw: random.Random) -> Attack:
    if draw.random() < 0.5:
        headers = ["X: " + "a" * draw.randrange(20_000, 200_000)]
    else:
        headers = [f"X-{number}: 1" for number in range(draw.randrange(2_000, 10_000))]
    return attack("huge headers", request("GET /health HTTP/1.1", *headers), 431)


def huge_path(draw: random.Random) -> Attack:
    return attack("huge path", request(f"GET /{'a' * draw.randrange(20_000, 100_000)} HTTP/1.1"), 431)


def wrong_method(draw: random.Random) -> Attack:
    path = draw.choice(("/predict", "/explain", "/api/trace"))
    return attack("method", request(f"{draw.choice(METHODS)} {path} HTTP/1.1"), 404, 405)


def foreign_host(draw: random.Random) -> Attack:
    host = draw.choice(
        ("evil.example", "127.0.0.1.evil.example", "localhost@evil", "[::1", "", "169.254.169.254", "a b")
    )
    return attack("host", f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 400, 421)


def no_host(draw: random.Random) -> Attack:
    return attack("no host", f"GET / HTTP/1.{draw.randrange(2)}\r\nX: 1\r\n\r\n".encode(), 400, 421)


def traversal(draw: random.Random) -> Attack:
    return attack("path", request(f"GET {draw.choice(PATHS)} HTTP/1.1"), 400, 404, 405)


def bad_query(draw: random.Random) -> Attack:
    path, choices = draw.choice((("/predict", QUERIES), ("/explain", (*FORMATS, "top=5")), ("/api/trace", SIZES)))
    line = f"POST {path}?{draw.choice(choices)} HTTP/1.1"
    return attack("query", request(line, body=GOOD), 400, 404)


def too_large(draw: random.Random) -> Attack:
    length = draw.choice((10**7, 10**10, 2**63, 10**18))
    return attack("length", request("POST /predict HTTP/1.1", f"Content-Length: {length}", is_sized=False), 413)


def endless_chunks(draw: random.Random) -> Attack:
    size = 2**16
    chunk = f"{size:x}\r\n".encode() + bytes(size) + b"\r\n"
    start = request("POST /predict HTTP/1.1", "Transfer-Encoding: chunked", is_sized=False)
    return attack("chunks over the limit", start + chunk * 24, 413)


def bad_chunks(draw: random.Random) -> Attack:
    start = request("POST /predict HTTP/1.1", "Transfer-Encoding: chunked", is_sized=False)
    broken = draw.choice(
        (b"zz\r\nab\r\n", b"-1\r\n\r\n", b"5\r\nabcdefgh\r\n", b"5;\x00\r\nabcde\r\n", b"f" * 30 + b"\r\n")
    )
    return attack("chunks", start + broken + b"0\r\n\r\n", 400, 413, 422, 431)


def encoded(draw: random.Random) -> Attack:
    name = draw.choice(("gzip", "br", "deflate", "zstd", "gzip, gzip", "x"))
    return attack("encoding", request("POST /predict HTTP/1.1", f"Content-Encoding: {name}", body=_junk(draw)), 415)


def bad_form(draw: random.Random) -> Attack:
    forms = (
        ("multipart/form-data", multipart(GOOD)),
        ("multipart/form-data; boundary=", multipart(GOOD)),
        (f"multipart/form-data; boundary={'a' * 100}", multipart(GOOD)),
        ("multipart/form-data; boundary=YY", multipart(GOOD)),
        ("multipart/form-data; boundary=XX", multipart(GOOD, GOOD)),
        ("multipart/form-data; boundary=XX", multipart(*[b"a"] * 5000)),
        ("multipart/form-data; boundary=XX", multipart(GOOD, filename=None)),
        ("multipart/form-data; boundary=XX", multipart(GOOD)[:-12]),
        ("multipart/form-data; boundary=XX", b"--XX\r\n\r\n--XX--\r\n"),
        ("multipart/form-data; boundary=XX", b"--XX--\r\n"),
        ("multipart/form-data; boundary=XX", b""),
        ("multipart/form-data; boundary=XX", _junk(draw)),
        ("multipart/form-data; boundary=XX", b"--XX\r\nContent-Disposition: attachment\r\n\r\nab\r\n--XX--\r\n"),
        ("multipart/form-data; boundary=XX", b"--XX\r\n" + b"A: b\r\n" * 2000 + b"\r\nab\r\n--XX--\r\n"),
    )
    kind, body = draw.choice(forms)
    return attack("form", request("POST /predict HTTP/1.1", f"Content-Type: {kind}", body=body), 400)


def nasty_form(draw: random.Random) -> Attack:
    name = draw.choice(("../../x", "/etc/passwd", "..\\..\\x", "<script>", "a" * 2000, "\x01.jpg", "=cmd.png"))
    body = multipart(b"" if draw.random() < 0.5 else _junk(draw), filename=name)
    return attack(
        "form file", request("POST /predict HTTP/1.1", "Content-Type: multipart/form-data; boundary=XX", body=body), 422
    )


def nasty_picture(draw: random.Random) -> Attack:
    body, reason = draw.choice(list(NASTY.values()))
    path = draw.choice(("/predict", "/explain?format=json"))
    return attack("picture", request(f"POST {path} HTTP/1.1", body=body), 422 if reason else 200)


def damaged_picture(draw: random.Random) -> Attack:
    data = bytearray(GOOD)
    for _ in range(draw.randrange(1, 30)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return attack("damaged picture", request("POST /predict HTTP/1.1", body=bytes(data)), 200, 422)


def bad_trace(draw: random.Random) -> Attack:
    size = draw.choice(("", "?size=16x16", "?size=24x24"))
    return attack("trace", request(f"POST /api/trace{size} HTTP/1.1", body=_junk(draw, 4000)), 400)


def json_body(draw: random.Random) -> Attack:
    bodies = (b"[" * 100_000, b'{"image": "AAAA"}', b"NaN", b'{"url": "http://169.254.169.254/"}', b'{"top": 1e999}')
    line = "POST /predict HTTP/1.1"
    return attack("JSON", request(line, "Content-Type: application/json", body=draw.choice(bodies)), 422)


def cut_short(draw: random.Random) -> Attack:
    whole = request("POST /predict HTTP/1.1", body=GOOD)
    return attack("cut short", whole[: draw.randrange(1, len(whole))], 0, 400, is_complete=False)


def foreign_page(draw: random.Random) -> Attack:
    origin = draw.choice(("https://evil.example", "null", "http://localhost.evil.example", "x", "http://[::1"))
    return attack("origin", request("POST /predict HTTP/1.1", f"Origin: {origin}", body=GOOD), 403)


KINDS = (
    *(random_bytes, bad_start, bad_header, two_lengths, conflicting_lengths, huge_header, huge_path, wrong_method),
    *(foreign_host, no_host, traversal, bad_query, too_large, endless_chunks, bad_chunks, encoded, bad_form),
    *(nasty_form, nasty_picture, damaged_picture, bad_trace, json_body, cut_short, foreign_page),
)
