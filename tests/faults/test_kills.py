"""Everything is killed at random moments, and every accepted job ends as if nothing had been."""

import contextlib
import hashlib
import os
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from georesolve.workers.results.manifest import open_matches
from tests.conftest import finished, points, running_service, wait_until
from tests.faults.stage import ExternalStage, PostgresStage, Stage
from tests.service.test_resolve import csv, parquet

SEED = int(os.environ.get("GEORESOLVE_FAULT_SEED", "2022"))
JOBS = 30
DISMISSED = 3
"""So many of the jobs are dismissed while they are live or just after."""
KILLS = 8
LONGEST_PAUSE = 10.0
"""Seconds between two kills at most: about twice what a service takes to be ready again, so that
some find it at work and some while it starts."""
RETRY, REFUSED = httpx.TransportError, httpx.ConnectError


class Work(NamedTuple):
    """One job to do: two files and how to match them."""

    number: int
    files: dict
    parameters: dict

    def send(self, client, **further):
        """Submit it; returns the answer. Sent again it is the same job."""
        parameters = self.parameters | further
        headers = {"Prefer": "respond-async", "Idempotency-Key": f"work-{self.number}"}
        return client.post("/resolve", params=parameters, files=self.files, headers=headers)


def make_work(number):
    """The job of this number: sizes from one row to seconds of work, all kinds of options."""
    draw = np.random.default_rng([SEED, number])
    m = int(10 ** draw.uniform(1, 5.3))
    n = int(10 ** draw.uniform(1, 5))
    references = points(n, draw, name=[f"place {i}" for i in range(n)])
    parameters = {"k": int(draw.choice([1, 1, 2, 5])), "how": str(draw.choice(["left", "inner"]))}
    if draw.random() < 0.4:
        parameters["columns"] = "name"
    if draw.random() < 0.3:
        parameters["max_distance_m"] = 10 ** draw.uniform(4, 7)
    observations = points(m, draw)
    if draw.random() < 0.2:
        observations = references
        parameters |= {"exclude_self": True, "observation_columns": "name"}
    suffix, write = ("csv", csv) if draw.random() < 0.2 else ("parquet", parquet)
    tables = {"observations": observations, "references": references}
    files = {role: (f"{role}.{suffix}", write(table)) for role, table in tables.items()}
    return Work(number, files, parameters)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def works():
    return [make_work(number) for number in range(JOBS)]


@pytest.fixture(scope="module")
def expected(works, tmp_path_factory, device):
    """What the jobs give when nobody disturbs them: the checksum of each result."""
    data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
    with running_service(data_dir, "--device", device) as client:
        locations = [work.send(client).headers["location"] for work in works]
        checksums = []
        for location in locations:
            assert finished(client, location)["status"] == "successful"
            checksums.append(sha256(client.get(f"{location}/results").content))
    return checksums


class Witness:
    """Looks all the time, over HTTP and on the disk, whether what is promised holds."""

    def __init__(self, stage, expected):
        self._stage = stage
        self.expected = expected
        self._client = httpx.Client(base_url=stage.url, timeout=10)
        self._draw = random.Random(SEED)
        self._hashed = set()
        self.number_of = {}
        self.dismissed = set()
        self.status = {}
        self.looks = Counter()

    def look(self):
        """Look once; what a killed service does not answer is asked again later."""
        try:
            self._look_at_list()
            self._look_at_results()
        except RETRY:
            self.looks["unanswered"] += 1
        self._look_at_files()

    def _look_at_list(self):
        known = dict(self.number_of)
        answer = self._client.get("/jobs", params={"limit": 1000})
        assert answer.status_code == 200, answer.text
        jobs = answer.json()["jobs"]
        ids = [job["id"] for job in jobs]
        assert len(set(ids)) == len(ids), "a job is there twice"
        assert set(known) <= set(ids), "an accepted job is lost"
        assert len(ids) <= JOBS, "a job sent again became another one"
        for job in jobs:
            before = self.status.get(job["id"], "accepted")
            if before not in ("accepted", "running"):
                allowed = {before, "dismissed"} if job["id"] in self.dismissed else {before}
                assert job["status"] in allowed, f"{job} was {before}, and that was the end"
            assert job["status"] != "failed", job
            self.status[job["id"]] = job["status"]
        self.looks["at the list"] += 1

    def _look_at_results(self):
        for id, number in list(self.number_of.items()):
            if id in self._hashed and self._draw.random() > 0.05:
                continue
            answer = self._client.get(f"/jobs/{id}/results")
            if answer.status_code == 200:
                assert sha256(answer.content) == self.expected[number]
                self.looks["at results"] += 1
            elif answer.status_code == 404:
                assert answer.json()["type"].endswith("/result-not-ready")
            else:
                assert (answer.status_code, id in self.dismissed) == (410, True), answer.text

    def _look_at_files(self):
        for path in self._stage.data_dir.glob("jobs/*/manifest.json"):
            number = self.number_of.get(path.parent.name)
            if path.parent.name in self._hashed or number is None:
                continue
            try:
                with open_matches(path.parent) as file:
                    checksum = sha256(file.read())
            except FileNotFoundError:
                continue
            assert checksum == self.expected[number], f"{path} is not complete"
            self._hashed.add(path.parent.name)
            self.looks["at result files"] += 1

    def close(self):
        self._client.close()


def submit_all(works, stage, witness, draw, stop):
    """Submit all jobs, spread over the time of the kills, each until it is accepted."""
    with httpx.Client(base_url=stage.url, timeout=30) as client:
        for number in draw.sample(range(len(works)), len(works)):
            while not stop.is_set():
                try:
                    # The slow way to the same bytes: more is under way when something is killed.
                    answer = works[number].send(client, algorithm="brute")
                except RETRY as error:
                    # It may have been accepted although nobody said so.
                    witness.looks["unanswered submissions"] += not isinstance(error, REFUSED)
                    stop.wait(0.2)
                    continue
                # Its first request, for which nobody waits any more, was accepted meanwhile.
                if answer.status_code == 409:
                    assert answer.json()["type"].endswith("/idempotency-key-in-use"), answer.text
                    stop.wait(1)
                    continue
                assert answer.status_code == 201, answer.text
                witness.number_of[answer.json()["id"]] = number
                break
            stop.wait(draw.uniform(0, KILLS * LONGEST_PAUSE / len(works)))


def dismiss_some(stage, witness, draw, stop):
    """Dismiss some jobs soon after they were accepted."""
    with httpx.Client(base_url=stage.url, timeout=30) as client:
        while len(witness.dismissed) < DISMISSED and not stop.wait(draw.uniform(1, 10)):
            candidates = [id for id in witness.number_of if id not in witness.dismissed]
            if not candidates:
                continue
            id = candidates[-1]
            witness.dismissed.add(id)
            while not stop.is_set():
                try:
                    answer = client.delete(f"/jobs/{id}")
                except RETRY:
                    stop.wait(0.2)
                    continue
                # 410: the service heard it, and died before it could say so.
                assert answer.status_code in (200, 410), answer.text
                break


def watch(stage, witness, stop):
    while not stop.wait(0.2):
        witness.look()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [Stage, ExternalStage, PostgresStage])
def test_every_job_ends_as_if_nothing_had_been(kind, works, expected, tmp_path, device, capsys):
    start = time.monotonic()
    draw = random.Random(f"{SEED} {kind.__name__}")
    stage = kind(tmp_path, device)
    witness = Witness(stage, expected)
    stop = threading.Event()
    try:
        with ThreadPoolExecutor(3) as threads:
            submitting = threads.submit(
                submit_all, works, stage, witness, random.Random(draw.random()), stop
            )
            dismissing = threads.submit(
                dismiss_some, stage, witness, random.Random(draw.random()), stop
            )
            watching = threads.submit(watch, stage, witness, stop)
            tasks = (submitting, dismissing, watching)
            try:
                kill_at_random(stage, witness, draw, tasks)
                submitting.result(120)
                dismissing.result(120)
                wait_until(lambda: all_ended(stage, witness, tasks), seconds=300)
            finally:
                stop.set()
            watching.result(30)
        witness.look()
        stage.settle()
        check_the_end(stage, witness)
    finally:
        stage.close()
        witness.close()
        with capsys.disabled():
            sys.stdout.write(summary(stage, witness, time.monotonic() - start))


def kill_at_random(stage, witness, draw, tasks):
    """Kill something again and again, every victim equally often."""
    names = list(stage.victims)
    order = names * -(-KILLS // len(names))
    draw.shuffle(order)
    for name in order:
        until = time.monotonic() + draw.uniform(0, LONGEST_PAUSE)
        # A worker may have to be waited for: its service has just been killed.
        while time.monotonic() < until or not stage.kill(name):
            raise_errors(tasks)
            stage.keep_alive()
            time.sleep(0.02)
        witness.looks["at a kill of running jobs"] += "running" in witness.status.values()


def raise_errors(tasks):
    for task in tasks:
        if task.done():
            task.result()


def all_ended(stage, witness, tasks):
    raise_errors(tasks)
    stage.keep_alive()
    live = {"accepted", "running"} & set(witness.status.values())
    return set(witness.number_of) <= set(witness.status) and not live


def check_the_end(stage, witness):
    """All is as it would be undisturbed, and nothing else is left."""
    with httpx.Client(base_url=stage.url, timeout=30) as client:
        wait_until(lambda: is_ready(client, stage))
    jobs = witness.status
    assert len(witness.number_of) == JOBS
    assert set(jobs) == set(witness.number_of), "a job sent again became another one"
    for id in jobs:
        assert jobs[id] == ("dismissed" if id in witness.dismissed else "successful")
    with httpx.Client(base_url=stage.url, timeout=30) as client:
        for id in set(jobs) - witness.dismissed:
            content = client.get(f"/jobs/{id}/results").content
            assert sha256(content) == witness.expected[witness.number_of[id]]
            told = client.get(f"/jobs/{id}/results/parts").json()
            assert client.get(f"/jobs/{id}/report").json()["digest"] == told["digest"]
    folder = stage.data_dir / "jobs"
    files = {id: {"manifest.json", "parts"} for id in set(jobs) - witness.dismissed}
    datasets = stage.data_dir / "datasets"

    def nothing_else_is_left():
        left = {job.name: {path.name for path in job.iterdir()} for job in folder.iterdir()}
        return (
            left == files
            # Small sets of a request are kept as long as its result.
            and len(list(datasets.iterdir())) == 2 * len(files)
            and not list((stage.data_dir / "incoming").glob("*/*"))
        )

    # What a worker still wrote when its job was dismissed is swept within two minutes.
    wait_until(nothing_else_is_left, seconds=240)


def is_ready(client, stage):
    # A worker ends some seconds after its scheduler, which may be after the last job.
    stage.keep_alive()
    with contextlib.suppress(RETRY):
        return client.get("/readyz").is_success
    return False


def summary(stage, witness, seconds):
    kills = ", ".join(f"{name} {times}" for name, times in sorted(stage.kills.items()))
    ends = Counter(witness.status.values())
    looks = ", ".join(f"{what} {times}" for what, times in sorted(witness.looks.items()))
    return (
        f"\n{type(stage).__name__}: {len(witness.number_of)} jobs accepted, "
        f"{dict(ends)}; {sum(stage.kills.values())} kills ({kills}); looks {looks}; "
        f"{seconds:.0f} s\n"
    )
