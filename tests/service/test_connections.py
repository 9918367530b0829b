"""Connections: how they are dealt out, their headers, idle ones, their number, trailers."""

import asyncio
import json
import socket
import time
from contextlib import ExitStack, closing

import httpx
import pytest

from georesolve.service.http.connections import Acceptor
from tests.conftest import NO_CLUSTER, roles_of, running_service
from tests.service.test_keys import new_key

HEAD_BYTES = 64 << 10
MOST = 20


@pytest.fixture(scope="module")
def hurried(tmp_path_factory):
    """A service with a key that waits for little, and has no cluster; yields client and key."""
    data_dir = tmp_path_factory.mktemp("hurried") / "data"
    key = new_key(data_dir, "ann")
    flags = [*NO_CLUSTER, "--connections", MOST]
    flags += ["--header-seconds", 0.5, "--idle-seconds", 1, "--body-seconds", 1]
    with running_service(data_dir, *flags, ready=False) as client:
        yield client, key


def opened(client):
    """A plain connection to a service."""
    address = client.base_url.host, client.base_url.port
    return closing(socket.create_connection(address, 30))


def exchanged(client, *pieces):
    """What a service says to some bytes, until it closes."""
    with opened(client) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return connection.makefile("rb").read()


def send_all(connection, *pieces, pause=0.0):
    """Send some bytes after the other; fails when the service closes."""
    for piece in pieces:
        connection.sendall(piece)
        time.sleep(pause)


def test_connections_go_to_the_fronts_that_have_fewest():
    """Three fronts in one event loop: if that is late, it is late for all of them."""

    async def dealt():
        counts = [0, 5, 0]
        with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
            fronts = []
            for own in range(len(counts)):
                # As a process of its own has it.
                listens = stack.enter_context(listening.dup())
                fronts.append(Acceptor([listens], counts, own))
                fronts[-1].start(asyncio.Protocol)
            for taken in range(sum(counts) + 1, 31):
                # By then those that left the last one to another wait for the next.
                await asyncio.sleep(0.02)
                stack.enter_context(socket.create_connection(listening.getsockname()))
                while sum(counts) < taken:
                    await asyncio.sleep(0)
                assert max(counts) <= max(5, taken // 3 + 1), counts
            for front in fronts:
                front.stop()
            await asyncio.sleep(0)
        return counts

    assert asyncio.run(dealt()) == [10, 10, 10]


def test_all_that_wait_are_taken_in_a_few_turns_of_the_event_loop():
    """A turn takes long while others are answered; one by one, the last waited for all of them."""

    async def turns():
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listening, ExitStack() as stack:
            for _ in range(64):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            front, made, turns = Acceptor([listening], [0], 0), [], 0

            class Taken(asyncio.Protocol):
                def connection_made(self, transport):
                    made.append(transport)

            front.start(Taken)
            while len(made) < 64:
                turns += 1
                await asyncio.sleep(0)
            front.stop()
            await asyncio.sleep(0)
            for transport in made:
                transport.close()
        return turns

    assert asyncio.run(turns()) < 16


def head(*lines, start="GET /livez"):
    return "\r\n".join([f"{start} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def problem_in(answer):
    """The status and the problem of an answer."""
    lines, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in lines, answer
    return int(lines.split()[1]), json.loads(body)


CHUNKED = head("Transfer-Encoding: chunked", start="POST /livez")
TOO_LARGE = {
    "one header": lambda size: head("X-A: " + size * "a"),
    "many headers": lambda size: head(*["a: b"] * (size // 34)),
    "the address": lambda size: head(start=f"GET /{size * 'a'}"),
    "a second request": lambda size: head() + head("X-A: " + size * "a"),
}
ENDLESS = {
    "a header": head("X-A: ")[:-4],
    "headers": head()[:-2],
    "an address": b"GET /",
    "a trailer": CHUNKED + b"0\r\nX-A: ",
    "the extension of a chunk": CHUNKED + b"1;",
    "requests": b"",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_size_of_headers_has_a_bound(hurried, name):
    client, _ = hurried
    *_, answer = exchanged(client, TOO_LARGE[name](HEAD_BYTES)).split(b"HTTP/1.1 ")
    status, problem = problem_in(b"HTTP/1.1 " + answer)
    assert (status, problem["type"]) == (431, "urn:georesolve:problem:head-too-large")
    assert f"{HEAD_BYTES} bytes" in problem["detail"]


def test_headers_within_the_bound_are_read(hurried):
    client, key = hurried
    for headers in ({"X-A": (HEAD_BYTES - 2000) * "a"}, {f"X-{n}": "a" for n in range(1000)}):
        assert client.get("/jobs", headers={"X-API-Key": key, **headers}).status_code == 200


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_not_read_to_its_end(hurried, name):
    client, _ = hurried
    piece = {"headers": b"a: b\r\n", "requests": head()}.get(name, b"aaaaaa")
    with opened(client) as connection, pytest.raises(ConnectionError):
        send_all(connection, ENDLESS[name], *[piece * 20_000] * 1000)
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"GET /liv", 408),
        (head("X-A: b")[:-2], 408),
        (head(), 200),
        (head() + b"\r\n", 200),
        (head() + b"GET /liv", 408),
        # The answer to half a body is there at once; the rest is waited for, and no longer.
        (head("Content-Length: 1000", start="POST /jobs") + b"half", 401),
    ],
    ids=["nothing", "a line", "headers", "idle", "idle still", "half a second one", "a body"],
)
def test_a_client_that_sends_no_more_is_given_up(hurried, sent, status):
    client, _ = hurried
    answer = exchanged(client, sent)
    assert [int(one[:3]) for one in answer.split(b"HTTP/1.1 ")[1:]][-1:] == [status][: bool(status)]
    if status == 408:
        assert b"urn:georesolve:problem:head-timeout" in answer


def test_headers_that_drip_are_given_up(hurried):
    client, _ = hurried
    with opened(client) as connection, pytest.raises(ConnectionError):
        send_all(connection, b"GET /", *[b"a"] * 100, pause=0.05)


def test_a_client_that_does_not_read_is_given_up(hurried):
    client, key = hurried
    request = head(f"X-API-Key: {key}", start="GET /docs/swagger-ui-bundle.js")
    with opened(client) as connection, pytest.raises(ConnectionError):
        send_all(connection, *[request] * 200, pause=0.05)


def test_a_connection_serves_one_request_after_the_other(hurried):
    client, key = hurried
    with opened(client) as connection:
        answer = connection.makefile("rb")
        for _ in range(5):
            connection.sendall(head(f"X-API-Key: {key}", start="GET /processes/nearest"))
            assert b" 200 " in answer.readline()
            while (line := answer.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    length = int(line.split()[1])
            answer.read(length)
            time.sleep(0.3)


def statuses_of(answers):
    return [int(one[:3]) for one in answers.split(b"HTTP/1.1 ")[1:]]


PIPELINED = 17
"""Requests of one connection that may wait: one that is being answered, and 16 behind it."""


@pytest.mark.parametrize("path", ["/livez", "/processes/nearest"])
@pytest.mark.parametrize("n", [1, PIPELINED, PIPELINED + 1, 20, 100])
def test_pipelined_requests_are_answered_or_refused(hurried, n, path):
    client, key = hurried
    answers = exchanged(client, n * head(f"X-API-Key: {key}", start=f"GET {path}"))
    refused = [400] if n > PIPELINED else []
    assert statuses_of(answers) == [200] * min(n, PIPELINED) + refused
    if refused:
        _, problem = problem_in(b"HTTP/1.1 " + answers.split(b"HTTP/1.1 ")[-1])
        assert "16 requests of this connection wait for their answers" in problem["detail"]


@pytest.mark.parametrize(
    ("broken", "status"),
    [(b"\x16\x03\x01 hello\r\n\r\n", 400), (head("X-A: " + HEAD_BYTES * "a"), 431)],
    ids=["no HTTP", "too large"],
)
@pytest.mark.parametrize("n", [1, 3, 16])
def test_answers_come_in_the_order_of_their_requests(hurried, n, broken, status):
    """A broken request is refused behind the answers to the requests before, in any pieces."""
    client, key = hurried
    content = n * head(f"X-API-Key: {key}", start="GET /processes/nearest") + broken
    for size in (len(content), 1000, 77):
        # The kernel resets a connection with unread bytes: the refusal may be lost.
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        if status == 400 or size == len(content):
            assert statuses_of(exchanged(client, *pieces)) == [200] * n + [status]


def test_new_connections_take_the_place_of_idle_ones(hurried):
    client, _ = hurried
    address = client.base_url.port
    with ExitStack() as stack:
        for _ in range(5 * MOST):
            connection = stack.enter_context(opened(client))
            connection.sendall(b"GET /")
        assert httpx.get(client.base_url.join("/livez")).status_code == 200
        mine = [
            one
            for front in roles_of(client.process, "front")
            for one in front.net_connections("tcp")
            if one.laddr.port == address and one.status == "ESTABLISHED"
        ]
        assert len(mine) <= MOST + 1


def test_there_are_no_more_connections_than_are_answered(hurried):
    client, key = hurried
    start = head(
        "Content-Length: 1000",
        "Content-Type: application/json",
        f"X-API-Key: {key}",
        "Prefer: respond-async",
        start="POST /processes/nearest/execution",
    )
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(opened(client)).sendall(start + b"{")
        refused = stack.enter_context(opened(client))
        status, problem = problem_in(refused.makefile("rb").read())
        assert (status, problem["type"]) == (503, "urn:georesolve:problem:too-many-connections")
        assert f"has {MOST} connections" in problem["detail"]


def test_a_trailer_is_no_header(hurried):
    client, key = hurried
    body = b"2\r\n{}\r\n0\r\n"
    for trailer in (f"Authorization: Bearer {key}", f"X-API-Key: {key}"):
        start = head("Transfer-Encoding: chunked", "Trailer: X-API-Key", start="POST /jobs")
        answer = exchanged(client, start + body + trailer.encode() + b"\r\n\r\n")
        assert int(answer.split()[1]) == 401, answer
    start = head("Transfer-Encoding: chunked", f"X-API-Key: {key}", start="POST /jobs")
    assert int(exchanged(client, start + body + b"X-A: b\r\n\r\n").split()[1]) == 405


def test_what_is_no_http_is_told_as_a_problem(hurried):
    client, _ = hurried
    status, problem = problem_in(exchanged(client, b"\x16\x03\x01 hello\r\n\r\n"))
    assert (status, problem["type"]) == (400, "urn:georesolve:problem:invalid-request")
    status, problem = problem_in(exchanged(client, head(start="GET /jobs?status=fünf")))
    assert (status, "'ü' is '%C3%BC'" in problem["detail"]) == (400, True)


def test_a_request_does_not_touch_the_data_folder_unless_it_needs_it(hurried):
    client, key = hurried
    folder = client.log.with_suffix("") / "datasets"
    folder.rmdir()
    try:
        assert client.get("/processes", headers={"X-API-Key": key}).status_code == 200
        assert client.get("/jobs", headers={"X-API-Key": key}).status_code == 200
        assert not folder.exists()
    finally:
        folder.mkdir(exist_ok=True)


def test_a_body_that_nobody_reads_has_no_limit(hurried):
    client, key = hurried
    for length in (f"Content-Length: {1 << 60}", "Transfer-Encoding: chunked"):
        lines = head(f"X-API-Key: {key}", "Accept: text/event-stream", length, start="GET /jobs")
        assert int(exchanged(client, lines + b"1\r\na\r\n").split()[1]) == 200


@pytest.mark.parametrize("path", ["/livez", "/docs", "/nowhere", "/a%00b", "/jobs/%00", "/%ff"])
def test_every_answer_has_the_headers_that_browsers_need(hurried, path):
    client, key = hurried
    answer = client.get(path, headers={"X-API-Key": key})
    assert answer.status_code == 200 if path in ("/livez", "/docs") else 404
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"
