"""A backup under load: all that the service had accepted is there again, with its bytes."""

import itertools
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from georesolve.service.ops.backup import SUMS
from tests.conftest import finished, points, running_service
from tests.service.test_backup import back_up
from tests.service.test_jobs import PARQUET, parquet, start_job


def restore(file, data_dir):
    """Restore it as the documentation says."""
    data_dir.mkdir()
    subprocess.run(["tar", "-C", data_dir, "-xf", file], check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=data_dir, check=True)


def register(client, seed):
    content = parquet(points(500, seed))
    answer = client.post("/datasets", content=content, headers={"Content-Type": PARQUET})
    return f"/datasets/{answer.raise_for_status().json()['id']}"


def content_of(client, path):
    """The SHA-256 of a dataset, or of the result of a job, and all its bytes."""
    if path.startswith("/datasets"):
        content = client.get(f"{path}/data.parquet").raise_for_status().content
        return client.get(path).json()["sha256"], content
    assert finished(client, path)["status"] == "successful"
    content = client.get(f"{path}/results").raise_for_status().content
    return client.get(f"{path}/report").json()["digest"], content


def test_all_that_was_accepted_is_there_again(tmp_path, shared_cluster):
    accepted, removed = [], set()
    is_over, enough = threading.Event(), threading.Semaphore(0)

    def load(url, number):
        """Have datasets and jobs made, and of every third both removed."""
        with httpx.Client(base_url=url, timeout=60) as client:
            for i in itertools.count(1):
                if is_over.is_set():
                    return
                dataset = register(client, 1000 * number + i)
                job = start_job(client, points(300, i), points(200, number))
                accepted.extend((dataset, job))
                enough.release()
                if i % 3 == 0:
                    finished(client, job)
                    removed.update((dataset, job))
                    assert client.delete(dataset).is_success
                    assert client.delete(job).is_success

    with running_service(tmp_path / "data", *shared_cluster) as client:
        with ThreadPoolExecutor(2) as pool:
            loads = [pool.submit(load, client.base_url, number) for number in (1, 2)]
            for _ in range(8):
                assert enough.acquire(timeout=60)
            before = [*accepted]
            told = back_up(tmp_path / "data", tmp_path / "backup.tar")
            is_over.set()
            assert [one.result() for one in loads] == [None, None]
        assert (told.returncode, "in the service, too" in told.stderr) == (0, False), told.stderr
        kept = [path for path in before if path not in removed]
        contents = {path: content_of(client, path) for path in kept}
    restore(tmp_path / "backup.tar", tmp_path / "restored")
    with running_service(tmp_path / "restored", *shared_cluster) as client:
        assert {path: content_of(client, path) for path in kept} == contents
        # What was removed meanwhile is there or not, as it was when the database was copied.
        for path in set(before) - {*kept}:
            assert client.get(path).status_code in (200, 404)
        for one in client.get("/datasets").json()["datasets"]:
            assert client.get(f"/datasets/{one['id']}/data.parquet").is_success
