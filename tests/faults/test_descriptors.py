"""A service that can open no more files: its jobs wait, and end when it can."""

import psutil
import pytest

from tests.conftest import finished, roles_of, running_service, wait_until
from tests.service.test_jobs import shorter, start_job


@pytest.mark.timeout(300)
def test_a_job_waits_until_files_can_be_opened_again(tmp_path, device, long_job):
    with running_service(tmp_path / "data", "--device", device) as client:
        observations, references, options = shorter(long_job)
        job = start_job(client, observations, references, **options)
        wait_until(lambda: client.get(job).json()["status"] == "running")
        [process] = roles_of(client.process, "runner")
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        # Fewer than are open: each new one is refused, with EMFILE.
        process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
        try:
            wait_until(lambda: "waiting until files can be opened" in client.log.read_text())
        finally:
            process.rlimit(psutil.RLIMIT_NOFILE, before)
        info = finished(client, job)
        assert info["status"] == "successful", info
