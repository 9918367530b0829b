"""One key sends all that it can, and another one hardly notices."""

import json
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from georesolve.benchmarks.small_requests import body_of
from tests.conftest import ROOT, finished, points, running_service
from tests.service.test_jobs import start_job
from tests.service.test_keys import as_holder, new_key
from tests.service.test_small_requests import register

SECONDS = 8


@pytest.fixture(scope="module")
def keys(tmp_path_factory, device):
    """A service with two keys; yields a client of each."""
    data_dir = tmp_path_factory.mktemp("fairness") / "data"
    made = [new_key(data_dir, name) for name in ("ann", "ben")]
    with (
        running_service(data_dir, "--device", device) as client,
        as_holder(client, made[0]) as ann,
        as_holder(client, made[1]) as ben,
    ):
        yield ann, ben


@contextmanager
def flooding(holder, clients, body, tmp_path):
    """A process that floods the service with a key from now on; yields what it saw, in the end."""
    path = tmp_path / "body"
    path.write_bytes(body)
    key = holder.headers["authorization"].removeprefix("Bearer ")
    arguments = [str(holder.base_url), key, str(clients), str(path)]
    command = [sys.executable, "-m", "tests.faults.flood", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seen = {}
    try:
        # Its first answer: to start takes seconds on a busy machine.
        assert process.stdout.readline() == "\n"
        yield seen
        process.send_signal(signal.SIGTERM)
        seen |= json.loads(process.communicate(timeout=60)[0])
    finally:
        process.kill()
        process.wait()


def ask_one_by_one(holder):
    """One observation, again and again; returns how long each answer took."""
    body = body_of(1, 1, register(holder))
    seconds, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end or len(seconds) < 5:
        start = time.monotonic()
        headers = {"Content-Type": "application/json"}
        answer = holder.post("/nearest", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        seconds.append(time.monotonic() - start)
    return seconds


def show(capsys, what, seconds):
    with capsys.disabled():
        sys.stdout.write(
            f"\n{what}: {len(seconds)} requests of the other key, median "
            f"{statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s\n"
        )


def test_a_flood_of_small_requests(keys, tmp_path, capsys):
    ann, ben = keys
    body = body_of(1_000, 2, register(ann))
    with flooding(ann, 300, body, tmp_path) as seen:
        seconds = ask_one_by_one(ben)
    show(capsys, "300 clients with small requests", seconds)
    assert set(seen["statuses"]) <= {"200", "429"}
    served = [one for one in seen["seconds"] if one > statistics.median(seconds)]
    # In one line for all, a request would wait as long as each of the flood.
    assert statistics.median(seconds) < statistics.median(served) / 4


def test_bodies_of_16_megabytes(keys, tmp_path, capsys):
    ann, ben = keys
    body = body_of(400_000, 2, register(ann))
    assert 14 << 20 < len(body) < 16 << 20
    with flooding(ann, 20, body, tmp_path) as seen:
        seconds = ask_one_by_one(ben)
    show(capsys, "20 clients with bodies of 16 MB", seconds)
    # They have too many observations for an answer without a job, which shows when they are read.
    assert set(seen["statuses"]) <= {"413", "503"}
    # Those that were refused for want of memory took no time.
    served = [one for one in seen["seconds"] if one > statistics.median(seconds)]
    assert statistics.median(seconds) < statistics.median(served or [60]) / 2


def test_many_large_jobs(keys, capsys):
    ann, ben = keys
    large = points(200_000, 1), points(50_000, 2)
    jobs = [start_job(ann, *large, algorithm="brute") for _ in range(25)]
    seconds = ask_one_by_one(ben)
    show(capsys, "25 large jobs", seconds)
    own = start_job(ben, points(10, 3), points(10, 4))
    assert finished(ben, own)["status"] == "successful"
    states = [ann.get(job).json()["status"] for job in jobs]
    # Two had begun. A place became free for the other key, or two did.
    assert states.count("accepted") >= 10
    for job in jobs:
        ann.delete(job)
