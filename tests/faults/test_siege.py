"""Everything at once: jobs and small requests of two keys, kills, hostile files, slow clients."""

import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field

import httpx
import numpy as np
import psutil
import pytest

from tests.conftest import finished, points, running_service, wait_until
from tests.faults.stage import Stage
from tests.faults.test_kills import make_work, sha256
from tests.service.test_hostile import BOMBS, REFUSED
from tests.service.test_keys import new_key
from tests.service.test_resolve import PARQUET, parquet

SECONDS = int(os.environ.get("GEORESOLVE_SIEGE_SECONDS", "90"))
SEED = int(os.environ.get("GEORESOLVE_FAULT_SEED", "2022"))
WORKS = 8
"""Different jobs; they are sent again and again."""
MOST_JOBS = min(400, SECONDS)
"""Jobs of a key at most, however long it takes."""
KILL_SECONDS = 20.0
FLOODS = 4
SLOW_CLIENTS = 60
BODY_BYTES = 15 << 20
STARVED_SECONDS = 10.0
"""A request of one row that takes longer, among a hundred, means that its key is starved."""
SILENT_SECONDS = 90.0
"""A service that was killed answers again within this time, also on a busy machine."""
GROWTH_MB = 400
LATER = {"Prefer": "respond-async"}


class Besieged(Stage):
    """A service that closes slow connections sooner than it would, so that more of them come."""

    cluster_flags = ("--workers", "2", "--key-jobs", "25", "--body-seconds", "5")


@dataclass
class Siege:
    """What all who take part share.

    Attributes
    ----------
    works, expected
        Jobs to send, and the checksum of the result of each.
    rows, answer
        The body with one row, for each key, and the bytes that answer it.
    accepted
        Number of the work by the id of the accepted job, for each key.
    seconds
        How long each answered request of one row of the good key took.
    """

    stage: Besieged
    keys: dict
    works: list
    expected: list
    rows: dict = field(default_factory=dict)
    answer: bytes = b""
    stop: threading.Event = field(default_factory=threading.Event)
    accepted: dict = field(default_factory=lambda: {"good": {}, "greedy": {}})
    seconds: list = field(default_factory=list)
    longest_silence: float = 0.0
    memory: list = field(default_factory=list)
    tally: Counter = field(default_factory=Counter)

    def client(self, key, timeout=60):
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        return httpx.Client(base_url=self.stage.url, headers=headers, timeout=timeout)

    def count(self, what, answer, allowed):
        """Count an answer, which must be one of those that this request may have."""
        assert answer.status_code in allowed, f"{what}: {answer.status_code} {answer.text[:500]}"
        self.tally[f"{what} {answer.status_code}"] += 1
        return answer


def row_requests(siege, draw):
    """The good key asks for one row, again and again, and gets the same bytes.

    The first answer after a kill waited for the service, not for its turn: that is the silence.
    """
    last, known_kills = time.monotonic(), 0
    with siege.client("good") as client:
        while not siege.stop.wait(draw.uniform(0, 0.4)):
            start = time.monotonic()
            with suppress(httpx.TransportError):
                answer = siege.count(
                    "row", client.post("/nearest", json=siege.rows["good"]), {200, 503}
                )
                if answer.status_code == 200:
                    assert answer.content == siege.answer
                    n_kills = sum(siege.stage.kills.values())
                    if n_kills == known_kills:
                        siege.seconds.append(time.monotonic() - start)
                    known_kills = n_kills
                    siege.longest_silence = max(siege.longest_silence, time.monotonic() - last)
                    last = time.monotonic()
    siege.longest_silence = max(siege.longest_silence, time.monotonic() - last)


def row_flood(siege, draw):
    """The greedy key asks for one row without a pause."""
    with siege.client("greedy") as client:
        while not siege.stop.is_set():
            try:
                answer = client.post("/nearest", json=siege.rows["greedy"])
            except httpx.TransportError:
                siege.stop.wait(0.2)
                continue
            if siege.count("flood", answer, {200, 429, 503}).status_code == 200:
                assert answer.content == siege.answer


def jobs_one_by_one(siege, draw):
    """The good key sends a job, waits for it, compares its bytes, and removes it."""
    with siege.client("good") as client:
        for turn in range(MOST_JOBS):
            number = draw.randrange(WORKS)
            while (id := submit(siege, client, "good", number, turn)) is None:
                if siege.stop.wait(0.5):
                    return
            while (info := status(client, id))["status"] in ("accepted", "running", "unknown"):
                if siege.stop.wait(0.2):
                    return
            assert info["status"] == "successful", info
            with suppress(httpx.TransportError):
                result = client.get(f"/jobs/{id}/results")
                if siege.count("result", result, {200, 503}).status_code == 200:
                    assert sha256(result.content) == siege.expected[number]
                    siege.tally["good job compared"] += 1
            if siege.stop.wait(1):
                return


def submit(siege, client, key, number, turn):
    """Send a job; returns its id, or None when it is to be sent again."""
    work = siege.works[number]
    headers = LATER | {"Idempotency-Key": f"{key}-{turn}"}
    with suppress(httpx.TransportError):
        answer = client.post("/resolve", params=work.parameters, files=work.files, headers=headers)
        # 409: its first request, whose connection broke, is still under way.
        if siege.count(f"{key} job", answer, {201, 409, 429, 503}).status_code == 201:
            id = answer.json()["id"]
            siege.accepted[key][id] = number
            return id
    return None


def status(client, id):
    with suppress(httpx.TransportError):
        answer = client.get(f"/jobs/{id}")
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200:
            return answer.json()
    return {"status": "unknown"}


def jobs_without_end(siege, draw):
    """The greedy key sends as many jobs as it may have."""
    with siege.client("greedy") as client:
        for turn in range(MOST_JOBS):
            while submit(siege, client, "greedy", turn % WORKS, turn) is None:
                if siege.stop.wait(0.5):
                    return


def hostile_files(siege, draw):
    """The greedy key sends what no file should be."""
    files = [content for content, _ in REFUSED.values()]
    files += [make() for make, _ in BOMBS.values()]
    with siege.client("greedy") as client:
        while not siege.stop.wait(0.2):
            content = draw.choice(files)
            with suppress(httpx.TransportError):
                answer = client.post("/datasets", files={"file": ("points", content)})
                siege.count("hostile", answer, {200, 201, 400, 413, 415, 503, 507})


def large_bodies(siege, draw):
    """The greedy key sends arrays as large as they may be."""
    body = b'{"observations": {"lat": [' + b"1," * (BODY_BYTES // 2) + b"1]}}"
    headers = {"Content-Type": "application/json"}
    with siege.client("greedy") as client:
        while not siege.stop.wait(1):
            with suppress(httpx.TransportError):
                answer = client.post("/nearest", content=body, headers=headers)
                siege.count("large body", answer, {400, 413, 429, 503})


def slow_clients(siege, draw):
    """Connections without a key that send a little now and then, or nothing."""
    host, port = siege.stage.url.removeprefix("http://").split(":")
    beginnings = (
        b"",
        b"GET / HTTP/1.1\r\nHost: ",
        b"POST /datasets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    connections = []
    while not siege.stop.wait(0.1):
        with suppress(OSError):
            if len(connections) < SLOW_CLIENTS:
                connections.append(socket.create_connection((host, int(port)), timeout=5))
                connections[-1].sendall(draw.choice(beginnings))
                siege.tally["slow connection"] += 1
        for connection in draw.sample(connections, len(connections) // 8):
            try:
                connection.sendall(b"x")
            except OSError:
                connection.close()
                connections.remove(connection)
    for connection in connections:
        connection.close()


def kills(siege, draw):
    """Something is killed every now and then, and what has ended is started again.

    One thread does both: two would each start the service.
    """
    names = sorted(siege.stage.victims)
    order, next_kill = [], time.monotonic() + KILL_SECONDS
    while not siege.stop.wait(0.1):
        siege.stage.keep_alive()
        if time.monotonic() >= next_kill:
            order = order or draw.sample(names, len(names))
            # A worker may have to be waited for.
            if siege.stage.kill(order[-1]):
                order.pop()
                next_kill = time.monotonic() + KILL_SECONDS


def memory(siege, draw):
    """MB that the service and all its processes have for themselves, once a second."""
    while not siege.stop.wait(1):
        used = 0
        with suppress(psutil.Error):
            service = psutil.Process(siege.stage.pid)
            for one in (service, *service.children(recursive=True)):
                with suppress(psutil.Error):
                    used += one.memory_full_info().uss
            siege.memory.append(used >> 20)


ACTORS = (
    row_requests,
    *[row_flood] * FLOODS,
    jobs_one_by_one,
    jobs_without_end,
    hostile_files,
    large_bodies,
    slow_clients,
    kills,
    memory,
)


@pytest.mark.timeout(2 * SECONDS + 600)
def test_nothing_is_lost_and_no_key_starves(tmp_path, device, capsys):
    works = [make_work(number) for number in range(WORKS)]
    expected = undisturbed(works, tmp_path / "undisturbed", device)
    data_dir = tmp_path / "data"
    keys = {name: new_key(data_dir, name) for name in ("good", "greedy")}
    with closing(Besieged(tmp_path, device)) as stage:
        siege = prepared(stage, keys, works, expected)
        draw = random.Random(SEED)
        with ThreadPoolExecutor(len(ACTORS)) as threads:
            tasks = [threads.submit(actor, siege, random.Random(draw.random())) for actor in ACTORS]
            try:
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    raise_errors(tasks)
                    time.sleep(0.1)
            finally:
                siege.stop.set()
        raise_errors(tasks)
        with capsys.disabled():
            sys.stdout.write(summary(siege))
        check_the_end(siege)


def undisturbed(works, data_dir, device):
    """Checksums of the results when nobody disturbs them."""
    with running_service(data_dir, "--device", device) as client:
        locations = [work.send(client).headers["location"] for work in works]
        for location in locations:
            assert finished(client, location)["status"] == "successful"
        return [sha256(client.get(f"{location}/results").content) for location in locations]


def prepared(stage, keys, works, expected):
    """A siege of a service that is ready, with references of each key."""
    siege = Siege(stage, keys, works, expected)
    references = parquet(points(20_000, 5))

    def is_ready():
        with suppress(httpx.TransportError):
            return httpx.get(f"{stage.url}/readyz", timeout=60).status_code == 200
        return False

    wait_until(is_ready)
    for key in keys:
        with siege.client(key) as client:
            answer = client.post("/datasets", content=references, headers={"Content-Type": PARQUET})
            id = answer.raise_for_status().json()["id"]
            observations = {"lat": [47.0], "lon": [8.0]}
            siege.rows[key] = {"observations": observations, "references": f"dataset:{id}"}
            # Neither the key nor the id of a set stands in a result.
            siege.answer = client.post("/nearest", json=siege.rows[key]).raise_for_status().content
    return siege


def raise_errors(tasks):
    for task in tasks:
        if task.done():
            task.result()


def check_the_end(siege):
    """Every accepted job ends with its bytes; nothing else is left; nobody waited for ever."""
    stage = siege.stage
    lost = {}

    def all_ended():
        stage.keep_alive()
        lost.clear()
        for key, jobs in siege.accepted.items():
            with siege.client(key) as client:
                lost.update(
                    {
                        id: info
                        for id in jobs
                        if (info := status(client, id))["status"] != "successful"
                    }
                )
        assert not [info for info in lost.values() if info["status"] in ("failed", "dismissed")], (
            lost
        )
        return not lost

    wait_until(all_ended, seconds=300)
    for key, jobs in siege.accepted.items():
        with siege.client(key) as client:
            listed = {job["id"] for page in pages(client) for job in page}
            assert listed >= set(jobs), "an accepted job is lost"
            for id, number in jobs.items():
                result = client.get(f"/jobs/{id}/results").raise_for_status()
                assert sha256(result.content) == siege.expected[number]
    folder = stage.data_dir
    stage.settle()
    wait_until(lambda: not list((folder / "incoming").iterdir()))
    assert sum(stage.kills.values()) > SECONDS / KILL_SECONDS / 4, "hardly anything was killed"
    assert len(siege.seconds) > SECONDS / 10, "the good key was hardly answered"
    assert float(np.percentile(siege.seconds, 99)) < STARVED_SECONDS
    assert siege.longest_silence < SILENT_SECONDS
    third = len(siege.memory) // 3
    before, after = siege.memory[:third], siege.memory[-third:]
    assert statistics.median(after) - statistics.median(before) < GROWTH_MB


def pages(client):
    """The pages of the list of jobs."""
    url = "/jobs?limit=1000"
    while url:
        page = client.get(url).raise_for_status().json()
        yield page["jobs"]
        url = next((link["href"] for link in page["links"] if link["rel"] == "next"), None)


def summary(siege):
    third = max(1, len(siege.memory) // 3)
    p50, p99 = np.percentile(siege.seconds, [50, 99]) if siege.seconds else (np.nan, np.nan)
    counts = ", ".join(f"{what} {times}" for what, times in sorted(siege.tally.items()))
    kills = ", ".join(f"{name} {times}" for name, times in sorted(siege.stage.kills.items()))
    accepted = {key: len(jobs) for key, jobs in siege.accepted.items()}
    return (
        f"\n{SECONDS} s: one row of the good key p50 {p50:.3f} s, p99 {p99:.3f} s, most "
        f"{max(siege.seconds, default=np.nan):.3f} s of {len(siege.seconds)}, longest silence "
        f"{siege.longest_silence:.1f} s; jobs accepted {accepted}; kills: {kills}; memory MB "
        f"median {statistics.median(siege.memory[:third])} at first, "
        f"{statistics.median(siege.memory[-third:])} at last, most {max(siege.memory)}; {counts}\n"
    )
