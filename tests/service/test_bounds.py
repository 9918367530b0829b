"""Bounds: jobs that may wait, room that must stay on the disk, and a disk that is full."""

import contextlib
import itertools
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import (
    NO_CLUSTER,
    finished,
    look_up,
    points,
    run_nearest,
    running_service,
    small_job,
    wait_until,
)
from tests.service.test_jobs import PARQUET, files_of, parquet
from tests.service.test_keys import as_holder, new_key

NEAREST = "/processes/nearest/execution"
LATER = {"Prefer": "respond-async"}


def problem_of(answer, slug):
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:georesolve:problem:{slug}"
    assert int(answer.headers["retry-after"]) > 0
    return answer.json()["detail"]


def test_jobs_of_the_service_and_of_a_key(tmp_path):
    data_dir = tmp_path / "data"
    ann, ben = new_key(data_dir, "ann"), new_key(data_dir, "ben")
    flags = [*NO_CLUSTER, "--queue-jobs", 3, "--key-jobs", 2]
    with (
        running_service(data_dir, *flags, ready=False) as client,
        as_holder(client, ann) as ann_client,
        as_holder(client, ben) as ben_client,
    ):
        mine = [small_job(ann_client) for _ in range(2)]
        assert [answer.status_code for answer in mine] == [201, 201]
        refused = small_job(ann_client)
        assert refused.status_code == 429
        assert "2 jobs of this key wait or run, and 2 may" in problem_of(refused, "too-many-jobs")
        assert small_job(ben_client).status_code == 201
        refused = small_job(ben_client)
        assert refused.status_code == 503
        assert "3 jobs of the service wait or run, and 3 may" in problem_of(refused, "queue-full")
        before = files_of_data(data_dir)
        files = {
            "observations": ("o.parquet", parquet(points(9, 1))),
            "references": ("r.parquet", parquet(points(9, 2))),
        }
        refused = ben_client.post("/resolve", files=files, headers=LATER)
        assert refused.status_code == 503
        assert files_of_data(data_dir) == before
        # A small request is no job, and needs no place.
        table = {"lat": [1.0], "lon": [2.0]}
        sets = {"observations": table, "references": table}
        assert look_up(ben_client, sets).status_code == 200
        assert ann_client.delete(mine[0].headers["location"]).status_code == 200
        assert small_job(ann_client).status_code == 201


@pytest.mark.parametrize(
    ("path", "media_type", "start"),
    [
        (NEAREST, "application/json", b'{"inputs": '),
        ("/resolve", "multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data; "),
        ("/datasets", "text/csv", b"lat,lon\n1,2\n"),
    ],
    ids=["json", "form", "file"],
)
@pytest.mark.parametrize("length", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_that_pauses_is_given_up(pausing, path, media_type, start, length):
    if "chunked" in length:
        start = b"%x\r\n%s\r\n" % (len(start), start)
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: localhost:{pausing.base_url.port}",
        f"Content-Type: {media_type}",
        length,
        "Prefer: respond-async",
        "Idempotency-Key: mine",
    ]
    with socket.create_connection((pausing.base_url.host, pausing.base_url.port), 30) as silent:
        silent.sendall("\r\n".join([*head, "", ""]).encode() + start)
        answer = silent.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 "), answer
    problem = json.loads(body)
    assert problem["type"] == "urn:georesolve:problem:body-timeout"
    assert "a pause may have 0.5 s" in problem["detail"]
    assert files_of(pausing) == set()


def test_a_key_is_free_again_after_a_pause(pausing):
    assert small_job(pausing, **{"Idempotency-Key": "mine"}).status_code == 201
    # After its body a request may take as long as it wants.
    start = time.monotonic()
    assert small_job(pausing, Prefer="wait=1").status_code == 201
    assert time.monotonic() - start >= 1


@pytest.fixture(scope="module")
def pausing(tmp_path_factory):
    """A service that waits for half a second, and has no cluster."""
    flags = [*NO_CLUSTER, "--body-seconds", 0.5]
    data_dir = tmp_path_factory.mktemp("pausing") / "data"
    with running_service(data_dir, *flags, ready=False) as client:
        yield client


def files_of_data(data_dir):
    return {p for name in ("datasets/*", "jobs/*", "incoming/*/*") for p in data_dir.glob(name)}


def test_places_are_not_given_twice(tmp_path):
    flags = [*NO_CLUSTER, "--queue-jobs", 5]
    with running_service(tmp_path / "data", *flags, ready=False) as client:
        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(lambda _: small_job(client), range(12)))
        assert sorted(answer.status_code for answer in answers) == [201] * 5 + [503] * 7


def test_the_same_again_needs_no_second_place(tmp_path):
    flags = [*NO_CLUSTER, "--queue-jobs", 1]
    with running_service(tmp_path / "data", *flags, ready=False) as client:
        table = {"lat": [1.0], "lon": [2.0]}
        body = {"observations": table, "references": table}
        # The job is told as JSON, whatever its result is wanted as.
        headers = {**LATER, "Accept": "text/html", "Idempotency-Key": "mine"}
        answers = [run_nearest(client, body, headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[1].text
        assert answers[0].headers["location"] == answers[1].headers["location"]
        for other in ({"Idempotency-Key": "other"}, {}):
            answer = run_nearest(client, body, {**LATER, **other})
            assert answer.status_code == 503


def test_room_that_must_stay_on_the_disk(tmp_path, shared_cluster):
    free = shutil.disk_usage(tmp_path).free
    flags = [*shared_cluster, "--keep-free", 2 * free]
    with running_service(tmp_path / "data", *flags) as client:
        content = parquet(points(50, 1))
        for send in (
            lambda: client.post("/datasets", content=content, headers={"Content-Type": PARQUET}),
            lambda: client.post(
                "/datasets", content=iter([content]), headers={"Content-Type": PARQUET}
            ),
            lambda: client.post(
                "/datasets", content=content, headers={"Content-Type": "application/json"}
            ),
            lambda: client.post("/datasets", files={"file": ("f.parquet", content)}),
        ):
            answer = send()
            assert answer.status_code == 507
            detail = problem_of(answer, "storage-full")
            assert f"and {2 * free} must stay free" in detail
            assert "bytes free" in detail
        table = {"lat": [1.0], "lon": [2.0]}
        body = {"observations": table, "references": table}
        assert run_nearest(client, body, LATER).status_code == 507
        health = client.get("/readyz").json()
        assert health["status"] == "full"
        [disk] = (c for c in health["checks"] if c["name"] == "disk")
        assert not disk["ok"]
        assert f"{2 * free} must stay free" in disk["detail"]
        # What needs no disk is answered, and what makes room would be.
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "full")
        assert look_up(client, body).status_code == 200
        assert files_of(client) == set()


@contextlib.contextmanager
def small_disk(megabytes):
    """A file system of its own for a data folder."""
    # Not in pytest's folder, which it could not remove if this process was killed.
    folder = Path(tempfile.mkdtemp(prefix="georesolve-disk-"))
    disk = folder / "data"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
    try:
        if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("a small file system cannot be mounted here")
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("is_form", "put"), [(False, False), (True, False), (False, True)], ids=["body", "form", "put"]
)
def test_room_is_looked_at_while_a_body_comes(is_form, put):
    """Nobody said how much would come, so it is refused on the way, with room left on the disk."""
    must_stay_free = 40 << 20
    flags = [*NO_CLUSTER, "--keep-free", must_stay_free]
    with small_disk(96) as disk, running_service(disk, *flags, ready=False) as client:
        start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f.csv"\r\n\r\n'
        pieces = itertools.chain([start] if is_form else [], itertools.repeat(bytes(1 << 20), 80))
        media_type = "multipart/form-data; boundary=b" if is_form else "text/csv"
        method, path = ("PUT", "/datasets/places") if put else ("POST", "/datasets")
        headers = {"Content-Type": media_type}
        answer = client.request(method, path, content=pieces, headers=headers)
        assert answer.status_code == 507, answer.text
        assert f"and {must_stay_free} must stay free" in problem_of(answer, "storage-full")
        wait_until(lambda: not list((disk / "incoming").glob("*/*")))


def fill(path, leave=0):
    """Take the room on a small disk, but for some bytes; returns the file that has it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while (left := shutil.disk_usage(path).free - leave) > 0:
            handle.write(bytes(min(left, 1 << 20)))
    return ballast


def test_a_job_is_accepted_when_its_result_is_expected_to_fit(shared_cluster):
    """As `/estimate` says beforehand; what must stay free is not counted as room."""
    must_stay_free = 40 << 20
    flags = [*shared_cluster, "--keep-free", must_stay_free]
    with small_disk(96) as disk, running_service(disk, *flags) as client:
        content = parquet(points(80_000, 1))
        headers = {"Content-Type": PARQUET}
        made = client.post("/datasets", content=content, headers=headers).json()
        body = dict.fromkeys(("observations", "references"), f"dataset:{made['id']}")
        for k, fits in ((64, False), (8, True)):
            told = client.post("/estimate", json={**body, "k": k}).json()
            assert told["fits"] is fits
            answer = run_nearest(client, {**body, "k": k}, LATER)
            if fits:
                assert finished(client, answer.headers["location"])["status"] == "successful"
            else:
                # The two sets lie there already.
                coming = told["bytes_out"]
                assert coming + must_stay_free > shutil.disk_usage(disk).free > coming
                (obstacle,) = told["obstacles"]
                assert f"{coming} bytes on the disk" in obstacle
                assert answer.status_code == 507
                assert f"{coming} bytes are coming" in problem_of(answer, "storage-full")
        arrays = {"lat": [0.5] * 1000, "lon": [0.5] * 1000}
        ballast = fill(disk, leave=must_stay_free + (40 << 10))
        body = {"observations": arrays, "references": arrays}
        told = client.post("/estimate", json=body).json()
        assert told["fits"] is False, "arrays do not lie there yet"
        assert run_nearest(client, body, LATER).status_code == 507
        ballast.unlink()
        assert run_nearest(client, body, LATER).status_code == 201


def test_a_job_whose_end_cannot_be_written_down_waits_for_room(tmp_path, shared_cluster):
    refuse = """CREATE TRIGGER refuse BEFORE UPDATE ON jobs WHEN NEW.status = 'successful'
        BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""
    with running_service(tmp_path / "data", *shared_cluster) as client:
        with closing(sqlite3.connect(tmp_path / "data" / "georesolve.sqlite")) as database:
            database.execute(refuse)
            job = small_job(client).headers["location"]
            wait_until(lambda: "database or disk is full" in client.log.read_text())
            assert client.get(job).json()["status"] == "running"
            database.execute("DROP TRIGGER refuse")
        assert finished(client, job)["status"] == "successful"
        assert client.get(f"{job}/results").is_success
