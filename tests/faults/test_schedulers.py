"""A scheduler that the service does not own dies in the middle of a job."""

from contextlib import contextmanager

from tests.conftest import (
    finished,
    free_port,
    points,
    running_service,
    scheduler_on,
    wait_until,
)
from tests.service.test_jobs import shorter, start_job

WAITING = "waiting for workers: the cluster "


@contextmanager
def scheduler_lost(tmp_path, device, long_job):
    """A service whose scheduler has gone while a job ran: its client, the job, and the port."""
    observations, references, options = shorter(long_job)
    port = free_port()
    flags = ["--device", device, "--scheduler", f"tcp://127.0.0.1:{port}"]
    with running_service(tmp_path / "data", *flags, ready=False) as client:
        with scheduler_on(port):
            wait_until(lambda: client.get("/readyz").status_code == 200)
            checks = {one["name"]: one["detail"] for one in client.get("/readyz").json()["checks"]}
            assert checks["dashboard"] == "none", "it was started without one"
            location = start_job(client, observations, references, **options)
            wait_until(lambda: client.get(location).json()["progress"] > 0)
        yield client, location, port


def test_a_job_survives_the_loss_of_its_scheduler(tmp_path, device, long_job):
    with scheduler_lost(tmp_path, device, long_job) as (client, location, port):
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert client.get(location).json()["status"] == "running"
        second = start_job(client, points(10, 1), points(10, 2))
        for waiting in (location, second):
            wait_until(lambda job=waiting: client.get(job).json()["message"].startswith(WAITING))
        told = [job["message"] for job in client.get("/jobs").json()["jobs"]]
        assert [message[: len(WAITING)] for message in told] == [WAITING, WAITING]
        with scheduler_on(port):
            assert finished(client, location)["status"] == "successful"
            assert finished(client, second)["status"] == "successful"


def test_a_signal_ends_a_service_that_has_just_lost_its_scheduler(tmp_path, device, long_job):
    with scheduler_lost(tmp_path, device, long_job) as (client, _, _):
        client.process.terminate()
        client.process.wait(60)
