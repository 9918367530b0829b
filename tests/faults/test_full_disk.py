"""A full disk can be emptied: uploads and jobs keep some of it free."""

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from georesolve.cli.serve import main
from georesolve.service import disk
from georesolve.service.disk import Probe
from georesolve.service.store.store import Store
from tests.conftest import (
    NO_CLUSTER,
    finished,
    free_port,
    points,
    run_nearest,
    running_service,
    scheduler_on,
    small_job,
    wait_until,
)
from tests.service.test_bounds import LATER, fill, problem_of, small_disk
from tests.service.test_jobs import PARQUET, files_of, parquet, start_job
from tests.service.test_keys import new_key

KEPT_FREE = 12 << 20
FLAGS = (*NO_CLUSTER, "--keep-free", KEPT_FREE)


def fill_by_uploads(client):
    """Register datasets until there is no room; returns their addresses."""
    made = []
    for seed in range(100):
        content = parquet(points(30_000, seed))
        answer = client.post("/datasets", content=content, headers={"Content-Type": PARQUET})
        if answer.status_code == 507:
            return made
        made.append(httpx.URL(answer.raise_for_status().headers["location"]).path)
    raise AssertionError("the disk does not become full")


def test_a_disk_that_uploads_filled_can_be_emptied():
    """No upload takes what is kept free, so that what others leave of it lets all be deleted."""
    with small_disk(24) as disk:
        with running_service(disk, *FLAGS, ready=False) as client:
            jobs = [small_job(client).headers["location"] for _ in range(2)]
            with closing(Store(disk)) as store:
                store.finish_job(jobs[0].rpartition("/")[2], "successful", "done")
            with ThreadPoolExecutor(2) as threads:
                lists = threads.map(fill_by_uploads, [client] * 2)
                made = {address for own in lists for address in own}
            assert len(made) > 4
            assert KEPT_FREE // 2 < shutil.disk_usage(disk).free < KEPT_FREE + (5 << 20)
            ballast = shutil.disk_usage(disk).free - KEPT_FREE // 2
            (disk / "ballast").write_bytes(bytes(ballast))
            assert small_job(client).status_code == 507
            [check] = (c for c in client.get("/readyz").json()["checks"] if c["name"] == "disk")
            assert (check["ok"], f"{KEPT_FREE} must stay free" in check["detail"]) == (False, True)
            for job in jobs:
                assert client.delete(job).status_code == 200
                assert client.get(job).json()["status"] == "dismissed"
            for verb in ("create", "rotate", "revoke"):
                assert main(["keys", verb, "ann", "--data-dir", str(disk)]) == 0
            key = new_key(disk, "root", "--role", "admin")
        # What starts on a full disk lets it be emptied, too.
        with running_service(disk, *FLAGS, ready=False) as client:
            client.headers["Authorization"] = f"Bearer {key}"
            for address in made:
                assert client.delete(address).status_code == 204
            (disk / "ballast").unlink()
            assert fill_by_uploads(client)


def test_jobs_stop_while_too_little_is_free(shared_cluster, device, long_job):
    """One that runs fails and makes room; one that is accepted waits until there is some."""
    observations, references, options = long_job
    # Half of it holds the parts that are being written when the disk is full, and once they are
    # gone there is still too little.
    kept_free, mib = (KEPT_FREE, 64) if device == "cpu" else (512 << 20, 1024)
    flags = (*shared_cluster, "--keep-free", kept_free, "--concurrent-jobs", 1)
    with small_disk(mib) as disk, running_service(disk, *flags) as client:
        running = start_job(client, observations, references, **options)
        waiting = small_job(client).headers["location"]
        wait_until(lambda: client.get(running).json()["rows_done"] > 0)
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - kept_free // 2))
        assert finished(client, running)["status"] == "failed"
        told = client.get(f"{running}/results")
        assert told.status_code == 507
        assert f"and {kept_free} must stay free" in told.json()["detail"]
        wait_until(lambda: client.get(waiting).json()["message"] == "waiting for room on the disk")
        (disk / "ballast").unlink()
        assert finished(client, waiting)["status"] == "successful"


def test_a_full_disk():
    """Uploads are refused and leave nothing; a job that does not fit fails; the service goes on."""
    port = free_port()
    flags = ["--keep-free", 0, "--scheduler", f"tcp://127.0.0.1:{port}"]
    with small_disk(48) as disk, running_service(disk, *flags, ready=False) as client:
        content = parquet(points(200_000, 1))
        headers = {"Content-Type": PARQUET}
        registered = client.post("/datasets", content=content, headers=headers)
        assert registered.status_code == 201
        before = files_of(client)
        name = f"dataset:{registered.json()['id']}"
        body = {"observations": name, "references": name}
        # Accepted while there is room, it waits for a cluster until there is none.
        answer = run_nearest(client, {**body, "k": 4}, LATER)
        assert answer.status_code == 201, answer.text
        job = answer.headers["location"]
        ballast = fill(disk, leave=len(content) // 2)
        other = parquet(points(200_000, 2))
        for send in (
            lambda: client.post("/datasets", content=iter([other]), headers=headers),
            lambda: client.post("/datasets", content=other, headers=headers),
            lambda: client.post("/datasets", files={"file": ("f.parquet", other)}),
        ):
            answer = send()
            assert answer.status_code == 507, answer.text
            problem_of(answer, "storage-full")
            assert files_of(client) == before
        with scheduler_on(port):
            info = finished(client, job)
            assert info["status"] == "failed"
            assert "became full" in info["message"]
            answer = client.get(f"{job}/results")
            assert (answer.status_code, answer.json()["title"]) == (
                507,
                "The service has no space left",
            )
            assert int(answer.headers["retry-after"]) > 0
            wait_until(lambda: files_of(client) == before)
            ballast.unlink()
            answer = run_nearest(client, {**body, "k": 1}, LATER)
            assert finished(client, answer.headers["location"])["status"] == "successful"


def test_a_write_that_hangs_holds_up_no_caller():
    going, written = threading.Event(), threading.Event()

    def write():
        going.set()
        written.wait(30)
        raise OSError(errno.ENOSPC, "")

    probe = Probe(write)
    # Of a try that hangs nobody knows yet how it ends.
    assert probe.trouble() is None
    assert going.wait(30)
    assert probe.trouble() is None
    written.set()
    assert probe.trouble(30) == ("No space left on device", True)
    going.clear()
    assert probe.trouble() == ("No space left on device", True)
    assert not going.is_set(), "it is not tried at each call"


def test_a_write_that_no_thread_could_be_started_for_does_not_hang():
    probe = Probe(bool)
    with pytest.MonkeyPatch.context() as patch:
        # As where the process has as many threads as it may.
        patch.setattr(threading.Thread, "start", refuse_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            probe.trouble()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "_HUNG_SECONDS", 0.0)
        assert probe.trouble(0.1) is None


def refuse_thread(*_, **__):
    raise RuntimeError("can't start new thread")
