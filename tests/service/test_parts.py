"""The parts of the service by themselves: forms, waiting requests, suspects, messages, metrics, hosts."""

import asyncio
import json
import re
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_type_hints

import pytest

from servers import multipart
from vitlab.commands import serving
from vitlab.service import messages, supervision, worker
from vitlab.service.access import Access
from vitlab.service.limits import Limits
from vitlab.service.metrics import Histogram, Metrics
from vitlab.service.refusals import CODES, Refused
from vitlab.service.server import bind
from vitlab.service.uploads import check_headers, read_body, upload_of
from vitlab.service.waiting import Budget, Job, Suspects, Waiting

FORM = "multipart/form-data; boundary=XX"


def finished(coroutine):
    """The result of a coroutine, in a thread of its own: in this one, the browser of other tests may run a loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


# -- Uploads ---------------------------------------------------------------------------------------


def test_a_body_is_a_picture_or_the_one_file_of_a_form():
    data = b"\r\n--X\r\n\0\xff"
    assert upload_of("image/png", data) == ("-", data)
    assert upload_of("", data) == ("-", data)
    assert upload_of(FORM, multipart(data, filename="a.png")) == ("a.png", data)
    assert upload_of('Multipart/Form-Data; charset=x; boundary="X X"', multipart(data, mark="X X")) == ("a.jpg", data)
    assert upload_of(FORM, b"ignored\r\n" + multipart(data)) == ("a.jpg", data)
    assert upload_of(FORM, multipart(b"")) == ("a.jpg", b"")


@pytest.mark.parametrize(
    ("given", "name"), [("../../x.jpg", "x.jpg"), ("a\\b", "b"), ('a\\"b', 'a"b'), ("/", "-"), ("é.png", "é.png")]
)
def test_a_file_name_is_a_name_and_never_a_path(given, name):
    assert upload_of(FORM, multipart(b"a", filename=given)).name == name


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", multipart(b"a")),
        ("multipart/form-data; boundary=YY", multipart(b"a")),
        (FORM, multipart(b"a", b"b")),
        (FORM, multipart()),
        (FORM, multipart(b"a", filename=None)),
        (FORM, multipart(b"a")[:-8]),
        (FORM, b"--XX\r\n\r\na\r\n--XX--\r\n"),
        (FORM, b"--XX\r\nContent-Disposition: form-data; filename=a\r\n\r\na\r\n--XX--\r\n"),
        (FORM, b'--XX\r\nContent-Disposition: form-data; filename="a\r\n\r\na\r\n--XX--\r\n'),
    ],
)
def test_another_form_is_refused(kind, body):
    with pytest.raises(Refused) as refused:
        upload_of(kind, body)
    assert refused.value.status == 400


def test_a_body_is_counted_until_it_is_given_back():
    async def chunks(*parts):
        for part in parts:
            yield part

    async def read(*parts, limit=10):
        limits, budget = Limits(max_body=limit, max_memory=limit), Budget(8)
        try:
            return await read_body(chunks(*parts), limits, budget), budget.used
        except Refused as refused:
            return refused.code, budget.used

    assert finished(read(b"abc", b"de")) == (b"abcde", 5)
    assert finished(read(b"abcde", b"fghi")) == ("overloaded", 0)
    assert finished(read(b"abcde", b"fghi", limit=8)) == ("too_large", 0)


def test_a_body_that_takes_too_long_is_refused():
    async def chunks():
        yield b"a"
        await asyncio.sleep(60)

    async def read():
        budget = Budget(8)
        with pytest.raises(Refused, match="did not arrive within") as refused:
            await read_body(chunks(), Limits(body_seconds=0.1), budget)
        return refused.value.status, budget.used

    assert finished(read()) == (408, 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-length": "11"}, 413),
        ({"content-encoding": "GZip"}, 415),
        ({"content-length": "1", "transfer-encoding": "chunked"}, 400),
    ],
)
def test_headers_are_enough_to_refuse_a_body(headers, status):
    with pytest.raises(Refused) as refused:
        check_headers(headers, Limits(max_body=10))
    assert refused.value.status == status
    check_headers({"content-length": "10", "content-encoding": "identity"}, Limits(max_body=10))


# -- Waiting ---------------------------------------------------------------------------------------


def jobs_of(*names, kind="predict", model="a"):
    return [Job(kind, model, {}, name.encode()) for name in names]


def test_predictions_of_one_model_are_taken_together_and_all_else_alone():
    async def run():
        waiting = Waiting(Limits(batch=3))
        one, two, three, four = jobs_of("1", "2", "3", "4")
        (other,), (explained,) = jobs_of("5", model="b"), jobs_of("6", kind="explain")
        for job in (one, other, two, explained, three, four):
            waiting.add(job)
        return [[job.body for job in waiting.take()] for _ in range(5)]

    assert finished(run()) == [[b"1", b"2", b"3"], [b"5"], [b"6"], [b"4"], []]


def test_jobs_of_clients_that_left_are_not_taken_and_make_room():
    async def run():
        waiting = Waiting(Limits(queue=2))
        one, two, three, four = jobs_of("1", "2", "3", "4")
        waiting.add(one)
        waiting.add(two)
        with pytest.raises(Refused) as refused:
            waiting.add(three)
        assert refused.value.code == "overloaded"
        one.answer.cancel()
        waiting.add(four)
        assert len(waiting) == 2
        return [job.body for job in waiting.take()]

    assert finished(run()) == [b"2", b"4"]


def test_a_batch_waits_only_for_requests_that_are_arriving():
    async def run():
        waiting = Waiting(Limits(wait=60_000))
        one, two = jobs_of("1", "2")
        waiting.add(one)
        await waiting.gather()  # at once: nothing is arriving
        waiting.arriving = 1
        gathering = asyncio.ensure_future(waiting.gather())
        await asyncio.sleep(0.05)
        assert not gathering.done()
        waiting.add(two)
        waiting.arriving = 0
        waiting.note_arrival()
        await gathering
        return [job.body for job in waiting.take()]

    assert finished(run()) == [b"1", b"2"]


def test_after_a_batch_the_next_one_waits_for_as_many():
    async def run():
        waiting = Waiting(Limits(wait=60_000))
        for job in jobs_of("1", "2", "3"):
            waiting.add(job)
        assert len(waiting.take()) == 3
        waiting.add(*jobs_of("4"))
        gathering = asyncio.ensure_future(waiting.gather())
        await asyncio.sleep(0.05)
        assert not gathering.done()
        for job in jobs_of("5", "6"):
            waiting.add(job)
        await gathering
        return [job.body for job in waiting.take()]

    assert finished(run()) == [b"4", b"5", b"6"]


def test_an_input_that_was_there_when_a_worker_ended_is_computed_alone_then_cleared_or_refused():
    async def run():
        waiting = Waiting(Limits())
        killer, innocent, other = jobs_of("killer", "innocent", "other")
        waiting.suspects.blame([killer, innocent])
        for job in (other, *jobs_of("killer", "innocent", "more")):
            waiting.add(job)
        batches = [[job.body for job in waiting.take()] for _ in range(3)]
        waiting.suspects.blame([killer])
        waiting.suspects.clear([innocent])
        for job in jobs_of("innocent", "more"):
            waiting.add(job)
        batches.append([job.body for job in waiting.take()])
        with pytest.raises(Refused) as refused:
            waiting.add(*jobs_of("killer"))
        waiting.add(*jobs_of("killer", kind="explain"))  # another question
        return batches, refused.value.code

    together = [[b"other", b"more"], [b"killer"], [b"innocent"], [b"innocent", b"more"]]
    assert finished(run()) == (together, "killed_worker")


def test_a_job_that_is_discarded_no_longer_waits():
    async def run():
        waiting = Waiting(Limits())
        first, second = jobs_of("1", "2")
        waiting.add(first)
        waiting.add(second)
        waiting.discard(first)
        waiting.discard(first)
        return waiting._jobs == [second]

    assert finished(run())


def test_answers_are_counted_and_one_alone_is_always_allowed():
    budget = Budget(10)
    budget.take_answer(15)
    with pytest.raises(Refused):
        budget.take_answer(1)
    with pytest.raises(Refused):
        budget.take(1)
    budget.give(15)
    budget.take(6)
    with pytest.raises(Refused):
        budget.take_answer(6)
    assert budget.used == 6


def test_suspects_are_forgotten_in_the_end():
    async def run():
        suspects = Suspects(most=2)
        jobs = jobs_of("1", "2", "3")
        suspects.blame(jobs)
        return [suspects.suspects(job) for job in jobs]

    assert finished(run()) == [False, True, True]


# -- Supervision -----------------------------------------------------------------------------------


SAYS = "import socket, sys, time\nsocket.socket(fileno=int(sys.argv[1])).sendall({!r})\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("/no/such/program",), "No such file"),
        ((sys.executable, "-I", "-c", SAYS.format(messages.LENGTH.pack(12) + b'{"sizes":[]}')), "exit code"),
        ((sys.executable, "-I", "-c", SAYS.format(messages.LENGTH.pack(2) + b"{]")), "exit code"),
    ],
)
def test_a_worker_that_cannot_be_started_or_talks_nonsense_is_reported(command, problem, monkeypatch):
    monkeypatch.setattr(supervision, "COMMAND", command)
    monkeypatch.setattr(supervision, "PAUSES", (0.0,))

    async def run():
        supervisor = supervision.Supervisor({}, Limits(), Waiting(Limits()), Metrics(), lambda line: None)
        with pytest.raises(supervision.CannotServe, match=problem):
            await supervisor.run()

    opened = len(list(Path("/proc/self/fd").iterdir()))
    finished(run())
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened


def test_too_little_memory_for_a_request_is_told_from_other_failures(capsys):
    short = RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")
    for error, expected in ((short, (503, "out_of_memory")), (RuntimeError("wrong shape"), (500, "internal"))):
        status, _, body = worker._failure(error)
        assert (status, json.loads(body)["error"]["code"]) == expected
    assert "wrong shape" in capsys.readouterr().err


# -- Messages, metrics, hosts, codes -----------------------------------------------------------------


def test_messages_arrive_as_they_were_sent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = messages.Channel(theirs)

        async def talk():
            reader, writer = await asyncio.open_connection(sock=ours)
            await messages.send(writer, {"kind": "predict"}, [b"", b"a" * 300_000])
            answer = await messages.receive(reader)
            writer.close()
            return answer

        def answer():
            header, parts = worker.receive()
            worker.send({"had": [header["kind"], *map(len, parts)]}, parts[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        header, parts = finished(talk())
        thread.join()
        assert header == {"had": ["predict", 0, 300_000], "sizes": [300_000, 0]}
        assert parts == [b"a" * 300_000, b""]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        messages.LENGTH.pack(2) + b"{}",
        messages.LENGTH.pack(2) + b"{]",
        messages.LENGTH.pack(2) + b"\xff\xff",
        messages.LENGTH.pack(9000) + b"[" * 9000,
        messages.LENGTH.pack(13) + b'{"sizes":[1]}',
        messages.LENGTH.pack(14) + b'{"sizes":[-1]}',
        messages.LENGTH.pack(16) + b'{"sizes":[1e12]}',
    ],
)
def test_what_is_no_message_is_refused(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(messages.BrokenMessage):
            messages.Channel(ours).receive()


def test_metrics_are_prometheus_text():
    metrics = Metrics()
    metrics.requests.add("/predict", "200")
    metrics.batches.observe(3)
    text = metrics.text()
    assert 'vitlab_requests_total{path="/predict",status="200"} 1\n' in text
    assert 'vitlab_batch_requests_bucket{le="2"} 0\nvitlab_batch_requests_bucket{le="4"} 1\n' in text
    line = re.compile(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.e+-]+')
    assert all(line.fullmatch(one) for one in text.splitlines())


def test_a_histogram_counts_what_is_over_all_bounds():
    found = Histogram("a", "b", (1, 2))
    for amount in (0.5, 1, 5):
        found.observe(amount)
    assert found.lines()[2:] == [
        'a_bucket{le="1"} 2',
        'a_bucket{le="2"} 2',
        'a_bucket{le="+Inf"} 3',
        "a_sum 6.5",
        "a_count 3",
    ]


@pytest.mark.parametrize(
    "host", ["", "localhost:port", "localhost:123456", "a@localhost", "[localhost]", "::1", "local host"]
)
def test_a_strange_host_is_unknown(host):
    with pytest.raises(Refused):
        Access("127.0.0.1", "").check_host(host)


def test_every_code_has_a_status_and_a_meaning():
    assert all(400 <= status < 600 and meaning for status, meaning in CODES.values())
    assert Refused("too_large", "x" * 5000).body.count(b"x") == 1000


def test_the_tables_of_the_page_are_those_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "serve.md").read_text()
    codes = [f"| `{code}` | {status} | {meaning} |" for code, (status, meaning) in CODES.items()]
    flags = [
        f"| `--{name.replace('_', '-')}` | {getattr(serving.USUAL, name):,.15g} | {kind.__metadata__[0].help} |"
        for name, kind in get_type_hints(serving.Bounds, include_extras=True).items()
    ]
    assert "\n".join(["|---|---|---|", *codes, "", "503"]) in page
    assert "\n".join(["|---|---|---|", *flags, "", "Request"]) in page


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_first_part():
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
