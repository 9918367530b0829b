"""Memory stays flat over hundreds of jobs and of small requests."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.conftest import finished, look_up, points, run_nearest, running_service
from tests.service.test_jobs import PARQUET, parquet

JOBS = int(os.environ.get("GEORESOLVE_MEMORY_JOBS", "600"))
WARM = JOBS // 4
"""After so many everything is loaded, and the logs of Dask, which have a length, are full."""
GROWTH_BYTES = 64 << 20
CLIENTS = 4


@pytest.mark.timeout(900)
def test_memory_stays_flat(tmp_path, device, capsys):
    with running_service(tmp_path / "data", "--device", device) as client:
        observations, references = register(client, 500, 1), register(client, 20_000, 2)
        body = {"observations": f"dataset:{observations}", "references": f"dataset:{references}"}
        expected = look_up(client, body).raise_for_status().content

        def job(_):
            headers = {"Prefer": "respond-async"}
            answer = run_nearest(client, body, headers).raise_for_status()
            location = answer.headers["location"]
            assert finished(client, location)["status"] == "successful"
            assert client.get(f"{location}/results").content == expected
            assert look_up(client, body).content == expected
            client.delete(location).raise_for_status()

        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(job, range(WARM)))
            before = memory(client.process)
            list(threads.map(job, range(JOBS - WARM)))
            after = memory(client.process)
        with capsys.disabled():
            sys.stdout.write(f"\nMB a process after {WARM} jobs {before}, after {JOBS} {after}\n")
        assert sum(after) - sum(before) < GROWTH_BYTES >> 20


def register(client, rows, seed):
    content = parquet(points(rows, seed))
    answer = client.post("/datasets", content=content, headers={"Content-Type": PARQUET})
    return answer.raise_for_status().json()["id"]


def memory(process):
    """MB that a service and each of its children have for themselves, the oldest first."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    lasting = sorted((one for one in family if one.is_running()), key=lambda one: one.create_time())
    return [one.memory_full_info().uss >> 20 for one in lasting]
