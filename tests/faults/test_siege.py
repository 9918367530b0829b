"""Everything at once: jobs and small requests of two keys, kills, hostile files, slow clients.

Meanwhile the bucket, which holds the store and a source, falls silent, and fronts stand still.
"""

import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import finished, points, roles_of, running_service, wait_until
from tests.faults.livez import LivezWatch
from tests.faults.stage import Stage
from tests.faults.test_kills import make_work, sha256
from tests.lines import Line
from tests.object_store import BUCKET, seaweed
from tests.postgres import missing, running_postgres
from tests.service.test_hostile import BOMBS, REFUSED, refused
from tests.service.test_keys import new_key
from tests.service.test_resolve import PARQUET, parquet

SOAK_SECONDS = 1800
"""From here on `/livez` has a bound: a shorter siege runs where other tests do."""
LIVEZ_SECONDS = 0.25
SECONDS = int(os.environ.get("GEORESOLVE_SIEGE_SECONDS", "90"))
SEED = int(os.environ.get("GEORESOLVE_FAULT_SEED", "2022"))
WORKS = 8
"""Different jobs of random points; they are sent again and again, as some others are."""
MOST_JOBS = min(400, SECONDS)
"""Jobs of a key at most, however long it takes."""
KILL_SECONDS = 20.0
SILENCE_SECONDS = min(40.0, SECONDS / 6)
"""So long the bucket is silent at most: less than its clients wait for it."""
STOP_SECONDS = min(60.0, SECONDS / 10)
"""So long fronts stand still at most."""
FRONTS = 3
FLOODS = 4
SLOW_CLIENTS = 60
BODY_BYTES = 15 << 20
STARVED_SECONDS = 10.0
"""A request of one row that takes longer, among a hundred, means that its key is starved."""
SILENT_SECONDS = 90.0
"""A service that was killed answers again within this time, also on a busy machine."""
GROWTH_MB = 400
STEADY_SECONDS = 300
"""A siege from which memory counts: in a shorter one the first third is spent on loading."""
LATER = {"Prefer": "respond-async"}


SOURCE, STORE = f"s3://{BUCKET}/open", f"s3://{BUCKET}/kept"
EXECUTION = "/processes/nearest/execution"
AT_ONE_POINT = pa.table({"lat": np.zeros(1 << 17), "lon": np.zeros(1 << 17)})
RING = pa.table({"lat": np.zeros(1 << 19), "lon": np.linspace(-180, 180, 1 << 19)})
HARD = {
    "at one point": (AT_ONE_POINT, {"lat": [0.0] * 256, "lon": [0.0] * 256}),
    "ring": (RING, {"lat": [90.0] * 256, "lon": [0.0] * 256}),
}
"""References, and observations that are as far from each of them."""


def small_objects(one, n):
    return b'{"observations": [' + b",".join([one] * n) + b"]}"


HOSTILE_JSON = {
    "deep": b"[" * 250_000,
    "deep objects": b'{"observations":' * 16_000 + b"1" + b"}" * 16_000,
    "wide": b"{" + b",".join(b'"n%d":%d' % (i, i) for i in range(100_000)) + b"}",
    "one name": b"{" + b",".join([b'"lat":1'] * 100_000) + b"}",
    "empty objects": small_objects(b"{}", 87_000),
    "many empty objects": small_objects(b"{}", 2_000_000),
    "small objects": small_objects(b'{"lat":1,"lon":2}', 100_000),
    "empty lists": small_objects(b"[]", 1_000_000),
    "a long number": b'{"observations": {"lat": [' + b"9" * 1_000_000 + b'], "lon": [1]}}',
    "a long text": b'{"observations": "' + rb"\u0041" * 500_000 + b'"}',
}


class Besieged(Stage):
    """A service that closes slow connections sooner than it would, so that more of them come."""

    cluster_flags = (
        "--workers",
        "2",
        "--fronts",
        FRONTS,
        "--key-jobs",
        "25",
        "--body-seconds",
        "5",
    )

    def __init__(self, folder, device, *flags):
        self.cluster_flags += flags
        super().__init__(folder, device)


@dataclass
class Siege:
    """What all who take part share.

    Attributes
    ----------
    works, expected
        Requests to send as jobs, and the checksum of the result of each.
    bucket
        The line to it.
    rows, answer
        The body with one row, for each key, and the bytes that answer it.
    files
        What no file should be.
    hard
        Bodies whose references are equally far, and the bytes that answer each.
    accepted
        Number of the work by the id of the accepted job, for each key.
    asked
        When each answered request of one row of the good key began and ended.
    silences, stops
        When the bucket was silent, and fronts stood still, by their process; the end is infinite
        while they do.
    """

    stage: Besieged
    keys: dict
    works: list
    expected: list
    bucket: Line
    livez: LivezWatch
    rows: dict = field(default_factory=dict)
    answer: bytes = b""
    files: list = field(default_factory=list)
    hard: dict = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    accepted: dict = field(default_factory=lambda: {"good": {}, "greedy": {}})
    asked: list = field(default_factory=list)
    silences: list = field(default_factory=list)
    stops: list = field(default_factory=list)
    longest_silence: float = 0.0
    memory: list = field(default_factory=list)
    tally: Counter = field(default_factory=Counter)

    def client(self, key, **options):
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        return httpx.Client(base_url=self.stage.url, headers=headers, **{"timeout": 60, **options})

    @property
    def seconds(self):
        """How long the good key waited for one row, unless the bucket or its front fell still."""
        spans = [*self.silences, *((start, start) for _, (start, _) in self.stops)]
        return [end - start for start, end in self.asked if not overlaps((start, end), spans)]

    def livez_seconds(self):
        """How long `/livez` took, by front, but for those that stood still."""
        found = {}
        for front, pid, start, end in self.livez.answers:
            still = [span for stopped, span in self.stops if stopped == pid]
            if not overlaps((start, end), still):
                found.setdefault(front, []).append(end - start)
        return found

    def count(self, what, answer, allowed):
        """Count an answer, which must be one of those that this request may have."""
        assert answer.status_code in allowed, f"{what}: {answer.status_code} {answer.text[:500]}"
        self.tally[f"{what} {answer.status_code}"] += 1
        return answer


def overlaps(span, others):
    return any(start < span[1] and span[0] < end for start, end in others)


def row_requests(siege, draw):
    """The good key asks for one row, again and again, and gets the same bytes.

    The first answer after a kill waited for the service, not for its turn: that is the silence.
    Each has a connection of its own: none is one of a front that stands still already.
    """
    last, known_kills = time.monotonic(), 0
    with siege.client("good", limits=httpx.Limits(max_keepalive_connections=0)) as client:
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
                        siege.asked.append((start, time.monotonic()))
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
            number = draw.randrange(len(siege.works))
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
    headers = LATER | {"Idempotency-Key": f"{key}-{turn}"}
    with suppress(httpx.TransportError):
        answer = client.post(**siege.works[number], headers=headers)
        # 408: its front stood still. 409: its first request broke off, and is still under way.
        if siege.count(f"{key} job", answer, {201, 408, 409, 429, 503}).status_code == 201:
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
            while submit(siege, client, "greedy", turn % len(siege.works), turn) is None:
                if siege.stop.wait(0.5):
                    return


def hostile_files(siege, draw):
    """The greedy key sends what no file should be."""
    with siege.client("greedy") as client:
        while not siege.stop.wait(0.2):
            content = draw.choice(siege.files)
            with suppress(httpx.TransportError):
                answer = client.post("/datasets", files={"file": ("points", content)})
                siege.count("hostile", answer, {200, 201, 400, 408, 413, 415, 503, 507})


def hostile_json(siege, draw):
    """The greedy key sends JSON that takes long to read."""
    headers = {"Content-Type": "application/json"}
    with siege.client("greedy") as client:
        while not siege.stop.wait(0.2):
            url, content = draw.choice(["/nearest", EXECUTION]), draw.choice([*HOSTILE_JSON])
            with suppress(httpx.TransportError):
                answer = client.post(url, content=HOSTILE_JSON[content], headers=headers)
                siege.count("hostile JSON", answer, {400, 408, 413, 429, 503})


def hard_rows(siege, draw):
    """The greedy key asks for rows whose references are all equally far."""
    with siege.client("greedy") as client:
        while not siege.stop.wait(0.2):
            name = draw.choice([*siege.hard])
            body, expected = siege.hard[name]
            with suppress(httpx.TransportError):
                answer = client.post("/nearest", json=body)
                if siege.count(name, answer, {200, 429, 503}).status_code == 200:
                    assert answer.content == expected


def large_bodies(siege, draw):
    """The greedy key sends arrays as large as they may be."""
    body = b'{"observations": {"lat": [' + b"1," * (BODY_BYTES // 2) + b"1]}}"
    headers = {"Content-Type": "application/json"}
    with siege.client("greedy") as client:
        while not siege.stop.wait(1):
            with suppress(httpx.TransportError):
                answer = client.post("/nearest", content=body, headers=headers)
                siege.count("large body", answer, {400, 408, 413, 429, 503})


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


def silences(siege, draw):
    """The bucket is silent for a while, and comes back."""
    while not siege.stop.wait(draw.uniform(1, 2) * SILENCE_SECONDS):
        siege.silences.append((time.monotonic(), np.inf))
        siege.bucket.open.clear()
        siege.stop.wait(draw.uniform(0.5, 1) * SILENCE_SECONDS)
        siege.bucket.open.set()
        siege.silences[-1] = siege.silences[-1][0], time.monotonic()


def stops(siege, draw):
    """Fronts stand still for a while, but not all of them, and go on."""
    while not siege.stop.wait(draw.uniform(0.5, 1.5) * STOP_SECONDS):
        with suppress(psutil.Error):
            fronts = roles_of(siege.stage, "front")
            still = (
                draw.sample(fronts, draw.randint(1, FRONTS - 1)) if len(fronts) == FRONTS else []
            )
            begun = len(siege.stops)
            siege.stops += [(front.pid, (time.monotonic(), np.inf)) for front in still]
            try:
                for front in still:
                    front.suspend()
                siege.stop.wait(draw.uniform(0.1, 1) * STOP_SECONDS)
            finally:
                for front in still:
                    # It may have been killed.
                    with suppress(psutil.NoSuchProcess):
                        front.resume()
                for number in range(begun, len(siege.stops)):
                    pid, (start, _) = siege.stops[number]
                    siege.stops[number] = pid, (start, time.monotonic())


def kills(siege, draw):
    """Something is killed every now and then, and what has ended is started again.

    One thread does both: two would each start the service.
    """
    names = sorted(siege.stage.victims)
    order, next_kill = [], time.monotonic() + KILL_SECONDS
    while not siege.stop.wait(0.1):
        siege.stage.keep_alive()
        siege.livez.service.value = siege.stage.pid
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
    hostile_json,
    hard_rows,
    large_bodies,
    slow_clients,
    silences,
    stops,
    kills,
    memory,
)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A bucket with points in it, behind a line."""
    with seaweed(tmp_path / "bucket") as store:
        for name, n in (("observations", 100_000), ("references", 20_000)):
            with store.files.open_output_stream(f"{BUCKET}/open/{name}.parquet") as file:
                pq.write_table(points(n, n), file)
        with Line(urlsplit(store.environment["AWS_ENDPOINT_URL"]).port) as line:
            threading.Thread(target=line.serve_forever, daemon=True).start()
            for name, value in (store.environment | {"AWS_ENDPOINT_URL": line.address}).items():
                monkeypatch.setenv(name, value)
            yield line
            line.open.set()
            line.shutdown()


@pytest.fixture
def database():
    """Flags of a database: Postgres where its programs are installed, else SQLite."""
    with ExitStack() as stack:
        if missing():
            yield ()
        else:
            yield "--database-url", stack.enter_context(running_postgres())("siege")


@pytest.mark.timeout(2 * SECONDS + 900)
def test_nothing_is_lost_and_no_key_starves(tmp_path, device, capsys, bucket, database):
    works = requests()
    expected = undisturbed(works, tmp_path / "undisturbed", device)
    keys = {name: new_key(tmp_path / "data", name, *database) for name in ("good", "greedy")}
    flags = ("--sources", SOURCE, "--store", STORE, *database)
    with closing(Besieged(tmp_path, device, *flags)) as stage:
        with closing(LivezWatch(stage.url, stage.pid, FRONTS)) as livez:
            siege = prepared(Siege(stage, keys, works, expected, bucket, livez))
            besiege(siege)
        with capsys.disabled():
            sys.stdout.write(f"\nwith {'Postgres' if database else 'SQLite'}, {summary(siege)}")
        check_the_end(siege)


def requests():
    """What is sent as jobs."""
    asked = [
        {"url": "/resolve", "params": work.parameters, "files": work.files}
        for work in map(make_work, range(WORKS))
    ]
    for references, observations in HARD.values():
        tables = {"observations": pa.table(observations), "references": references}
        files = {role: (f"{role}.parquet", parquet(table)) for role, table in tables.items()}
        asked.append({"url": "/resolve", "files": files})
    sets = {role: {"href": f"{SOURCE}/{role}.parquet"} for role in ("observations", "references")}
    return [*asked, {"url": EXECUTION, "json": {"inputs": sets}}]


def undisturbed(works, data_dir, device):
    """Checksums of the results when nobody disturbs them."""
    with running_service(data_dir, "--device", device, "--sources", SOURCE) as client:
        locations = [client.post(**work, headers=LATER).headers["location"] for work in works]
        for location in locations:
            assert finished(client, location)["status"] == "successful"
        return [sha256(client.get(f"{location}/results").content) for location in locations]


def prepared(siege):
    """A siege of a service that is ready, with references of each key."""

    def is_ready():
        with suppress(httpx.TransportError):
            return httpx.get(f"{siege.stage.url}/readyz", timeout=60).status_code == 200
        return False

    def registered(client, table):
        headers = {"Content-Type": PARQUET}
        answer = client.post("/datasets", content=parquet(table), headers=headers)
        return f"dataset:{answer.raise_for_status().json()['id']}"

    def answered(client, body):
        return client.post("/nearest", json=body).raise_for_status().content

    siege.files += [refused(name)[0] for name in REFUSED]
    siege.files += [make() for make, _ in BOMBS.values()]
    wait_until(is_ready)
    observations = {"lat": [47.0], "lon": [8.0]}
    for key in siege.keys:
        with siege.client(key) as client:
            references = registered(client, points(20_000, 5))
            siege.rows[key] = {"observations": observations, "references": references}
            # Neither the key nor the id of a set stands in a result.
            siege.answer = answered(client, siege.rows[key])
    with siege.client("greedy") as client:
        for name, (references, observations) in HARD.items():
            body = {"observations": observations, "references": registered(client, references)}
            siege.hard[name] = body, answered(client, body)
    return siege


def besiege(siege):
    """Let all who take part do so for a while."""
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
    wait_until(lambda: not list((folder / "incoming").glob("*/*")))
    assert sum(stage.kills.values()) > SECONDS / KILL_SECONDS / 4, "hardly anything was killed"
    assert len(siege.asked) > SECONDS / 10, "the good key was hardly answered"
    # In a short siege something may have stood still all the time.
    assert not siege.seconds or float(np.percentile(siege.seconds, 99)) < STARVED_SECONDS
    assert siege.longest_silence < SILENT_SECONDS
    livez = siege.livez_seconds()
    assert len(livez) == FRONTS, "a front was never asked"
    if SECONDS >= SOAK_SECONDS:
        for front, seconds in livez.items():
            assert float(np.percentile(seconds, 99)) < LIVEZ_SECONDS, front
    if SECONDS >= STEADY_SECONDS:
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
    livez = "".join(
        f"{front} p50 {np.percentile(seconds, 50):.4f} s, p99 {np.percentile(seconds, 99):.3f} s, "
        f"most {max(seconds):.3f} s of {len(seconds)}; "
        for front, seconds in sorted(siege.livez_seconds().items())
    )
    return (
        f"{SECONDS} s: /livez {livez}{len(siege.silences)} silences of the bucket, "
        f"{len(siege.stops)} stops of a front; one row of the good key p50 {p50:.3f} s, "
        f"p99 {p99:.3f} s, most {max(siege.seconds, default=np.nan):.3f} s of "
        f"{len(siege.seconds)}, longest silence "
        f"{siege.longest_silence:.1f} s; jobs accepted {accepted}; kills: {kills}; memory MB "
        f"median {statistics.median(siege.memory[:third])} at first, "
        f"{statistics.median(siege.memory[-third:])} at last, most {max(siege.memory)}; {counts}\n"
    )
