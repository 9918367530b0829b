"""A job that takes the memory of its service fails; the one that runs beside it does not."""

import os
import time
from pathlib import Path

import httpx
import pytest

from georesolve.workers import assembly
from tests.conftest import ROOT, free_port, kill_with_children, points, start_service
from tests.faults.cage import memory_cage
from tests.service.test_jobs import start_job

GUILTY = 501
"""Observations that the guilty job has, and no other."""
MEMORY = 2 << 30
DEATHS = 6


def oom_kills():
    """How many processes of this machine the kernel has killed for want of memory."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counters["oom_kill"])


def join_or_hoard():
    """Have the service take all memory where it gathers the result of the guilty job."""
    add = assembly.Assembly.add

    def hoard(self, chunk, record):
        hoarded = []
        while self._job.observations.rows == GUILTY:
            hoarded.append(b"x" * (64 << 20))
        add(self, chunk, record)

    assembly.Assembly.add = hoard


@pytest.mark.timeout(300)
def test_a_job_that_takes_the_memory_of_its_service_fails_at_its_sixth_death(
    tmp_path, device, monkeypatch
):
    # Python runs it at its start.
    at_start = "from tests.faults.test_crash_loop import join_or_hoard; join_or_hoard()"
    (tmp_path / "sitecustomize.py").write_text(at_start)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    port, ends, before = free_port(), {}, oom_kills()
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    flags = ["--device", device, "--port", port, "--workers", "1"]
    told = tmp_path / "log"
    with memory_cage(MEMORY) as hold, told.open("ab") as log, client:
        process, jobs = start_service(tmp_path / "data", log, *flags, from_shell=True), {}
        hold(process.pid)
        try:
            while len(ends) < 2:
                assert process.poll() is None, "only the runner may die"
                try:
                    if not jobs and client.get("/readyz").status_code == 200:
                        innocent = points(120_000, 1), points(100_000, 2)
                        jobs["innocent"] = start_job(client, *innocent, algorithm="brute")
                        jobs["guilty"] = start_job(client, points(GUILTY, 3), points(10, 4))
                    for name, location in jobs.items():
                        info = client.get(location).json()
                        if info["status"] in ("successful", "failed"):
                            ends[name] = info["status"]
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            problem = client.get(f"{jobs['guilty']}/results").json()
        finally:
            kill_with_children(process)
    assert oom_kills() > before, "the kernel killed nothing, so nothing was shown"
    assert ends == {"innocent": "successful", "guilty": "failed"}
    assert "the service died each time that it ran this job" in problem["detail"]
    assert told.read_text().count("the runner has ended with signal 9") == DEATHS
