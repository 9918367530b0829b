"""A scheduler and a worker that are stopped where they are: nothing of theirs is waited for."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.conftest import free_port, running_service, scheduler_on, wait_until
from tests.service.test_estimate import estimate
from tests.service.test_small_requests import ask, register, workers_of

AT_ONCE = 60
"""More than the service has threads."""
SOON = 60.0
"""Seconds: on a busy machine so many requests take some, and the scheduler would never answer."""


@contextmanager
def suspended(process):
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.fixture
def existing(tmp_path, device):
    """A service with a scheduler that it does not own; yields client and scheduler."""
    port = free_port()
    flags = ["--device", device, "--scheduler", f"tcp://127.0.0.1:{port}"]
    with (
        scheduler_on(port) as (scheduler, _),
        running_service(tmp_path / "data", *flags) as client,
    ):
        yield client, psutil.Process(scheduler.pid)


def test_no_request_waits_for_a_hung_scheduler(existing):
    client, scheduler = existing
    references = register(client)

    def answered(path):
        start = time.monotonic()
        answer = client.get(path)
        assert time.monotonic() - start < SOON, path
        return answer

    with suspended(scheduler), ThreadPoolExecutor(AT_ONCE) as threads:
        seconds = time.monotonic() + 4
        while time.monotonic() < seconds:
            paths = ["/readyz", "/metrics", "/datasets", "/livez"] * (AT_ONCE // 4)
            for answer in threads.map(answered, paths):
                assert answer.status_code in (200, 503)
        wait_until(lambda: client.get("/readyz").status_code == 503)
        [check] = (c for c in client.get("/readyz").json()["checks"] if not c["ok"])
        told = r"the scheduler has not answered for \d+ s; it had 1 workers"
        assert re.fullmatch(told, check["detail"]), check["detail"]
        assert "georesolve_cluster_up 0.0" in answered("/metrics").text
        assert ask(client, references, 1).status_code == 503
        job = ask(client, references, 1, prefer="respond-async")
        assert job.status_code == 201
        assert "the scheduler has not answered" in job.json()["message"]
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert ask(client, references, 1).status_code == 200
    location = job.headers["location"]
    wait_until(lambda: client.get(location).json()["status"] == "successful")


def test_workers_that_do_not_answer_make_nobody_else_wait(tmp_path, device):
    """More estimates than the pool of threads holds: what asks the store goes on."""
    with running_service(tmp_path / "data", "--device", device, "--workers", 1) as client:
        workers = workers_of(client)
        with ExitStack() as stack:
            for worker in workers:
                stack.enter_context(suspended(worker))
            body = {"observations": 1000, "references": 1000}
            with ThreadPoolExecutor(40) as threads:
                asked = [threads.submit(client.post, "/estimate", json=body) for _ in range(40)]
                time.sleep(1)
                start = time.monotonic()
                assert client.get("/jobs").status_code == 200
                assert time.monotonic() - start < 3
            answers = [one.result() for one in asked]
        assert {answer.status_code for answer in answers} == {200}, "they ask no worker"
        assert estimate(client, body)["fits"] is True
