"""Attacks without a key, in their size: endless headers, unfinished bodies, too many sockets."""

import contextlib
import functools
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import (
    finished,
    look_up,
    points,
    roles_of,
    run_nearest,
    running_service,
    wait_until,
)
from tests.service.test_connections import head, opened
from tests.service.test_jobs import PARQUET, parquet

SETS = {name: {"lat": [1.0], "lon": [2.0]} for name in ("observations", "references")}
LATER = {"Prefer": "respond-async"}
DESCRIPTORS = 1024
MEMORY_BYTES = 6 << 30
"""Of a process: the attacks took the service 2 to 3 GB, and the machine has more to do."""


@pytest.fixture
def attacked(tmp_path, device, monkeypatch):
    """A service with few descriptors and bounded memory; yields its client."""

    def bound():
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, preexec_fn=bound))
        service = running_service(tmp_path / "data", "--device", device)
        client = service.__enter__()
    try:
        look_up(client, SETS).raise_for_status()
        yield client
    finally:
        service.__exit__(None, None, None)


def peak(client):
    """The most memory that what answers for a service ever had, in MB."""
    fronts = roles_of(client.process, "front")
    told = [Path(f"/proc/{front.pid}/status").read_text() for front in fronts]
    return sum(int(status.partition("VmHWM:")[2].split()[0]) for status in told) >> 10


def send(connection, content):
    """Send some bytes, or as many as are taken; returns what is answered to a refusal."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(content)
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection.settimeout(1)
        return connection.recv(1000)
    return b""


@pytest.mark.parametrize("piece", [b"a" * 6, b"a: b\r\n"], ids=["one header", "many headers"])
def test_headers_without_end(attacked, piece):
    before = peak(attacked)
    start = head("X-A: ")[:-4] if b":" not in piece else head()[:-2]
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        connections = [stack.enter_context(opened(attacked)) for _ in range(8)]
        content = start + piece * (150_000_000 // 8 // len(piece))
        sent = [threads.submit(send, connection, content) for connection in connections]
        while not all(one.done() for one in sent):
            assert attacked.get("/livez").status_code == 200
    assert peak(attacked) - before < 50


def test_bodies_that_nobody_finishes(attacked):
    before = peak(attacked)
    size = 16 << 20
    start = head(
        "Content-Type: application/json",
        "Prefer: respond-async",
        f"Content-Length: {size}",
        start="POST /nearest",
    )
    with ExitStack() as stack, ThreadPoolExecutor(30) as threads:
        connections = [stack.enter_context(opened(attacked)) for _ in range(150)]
        content = start + b" " * (size - 1000)
        answers = list(threads.map(functools.partial(send, content=content), connections))
        refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
        # Some of the others were cut off before they could read why.
        assert refused
        assert peak(attacked) - before < 600
    wait_until(lambda: look_up(attacked, SETS).status_code == 200)


def test_more_sockets_than_descriptors_and_no_job_fails(attacked):
    dataset = {}
    for name, rows in (("observations", 200_000), ("references", 20_000)):
        content = parquet(points(rows, len(name)))
        made = attacked.post("/datasets", content=content, headers={"Content-Type": PARQUET})
        dataset[name] = f"dataset:{made.raise_for_status().json()['id']}"
    with ExitStack() as stack:
        jobs = []
        for n in range(2 * DESCRIPTORS):
            connection = stack.enter_context(opened(attacked))
            with contextlib.suppress(ConnectionError):
                connection.sendall(head()[:-2] if n % 2 else head())
            if n % 256 == 0:
                answer = run_nearest(attacked, dataset, LATER)
                jobs.append(answer.raise_for_status().headers["location"])
        assert [finished(attacked, job)["status"] for job in jobs] == ["successful"] * 8
    assert "Too many open files" not in attacked.log.read_text()
