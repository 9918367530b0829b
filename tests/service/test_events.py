"""What is told of a job while it runs, and what becomes of it when its client goes away."""

import http.client
import json
from contextlib import contextmanager

import httpx
import pytest

from tests.conftest import points, wait_until
from tests.service.test_jobs import parquet, shorter, start_job


@contextmanager
def events_of(client, location, **headers):
    """The events of a job as they come: name, id and statusInfo."""
    with client.stream("GET", f"{location}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _parsed(answer)


def _parsed(answer):
    event = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif "data" in event:
            yield event["event"], event["id"], json.loads(event["data"])
            event = {}


def test_a_job_is_told_of_until_it_ends(service, long_job):
    observations, references, options = shorter(long_job)
    n = observations.num_rows
    location = start_job(service, observations, references, **options)
    with events_of(service, location) as events:
        told = list(events)
    names = [name for name, _, _ in told]
    assert names[0] == "status"
    assert names[-1] == "end"
    assert names.count("end") == 1
    assert "progress" in names
    rows = [info["rows_done"] for _, _, info in told]
    assert rows == sorted(rows)
    assert told[-1][2] == service.get(location).json()
    assert (told[-1][2]["status"], rows[-1]) == ("successful", n)
    running = next(info for name, _, info in told if info.get("seconds_left"))
    assert running["rows"] == n
    left = (running["rows"] - running["rows_done"]) / running["rows_a_second"]
    assert running["seconds_left"] == pytest.approx(left)
    assert f"{running['rows_done']} of {n} rows" in running["message"]
    assert f"{left:.0f} s left" in running["message"]


def test_a_listener_that_comes_back_is_told_what_is_new(service, long_job):
    observations, references, options = long_job
    location = start_job(service, observations, references, **options)
    wait_until(lambda: service.get(location).json()["status"] == "running")
    with events_of(service, location) as events:
        name, known, _ = next(events)
    assert name == "status"
    with events_of(service, location, **{"Last-Event-ID": known}) as events:
        service.delete(location)
        name, known, info = next(events)
        assert (name, info["status"]) == ("end", "dismissed")
        assert list(events) == []
    # A browser comes back until it is told that there is nothing more.
    again = service.get(f"{location}/events", headers={"Last-Event-ID": known})
    assert (again.status_code, again.content) == (204, b"")


def test_head_and_unknown_jobs(service, long_job):
    observations, references, options = long_job
    location = start_job(service, observations, references, **options)
    head = service.head(f"{location}/events")
    assert (head.status_code, head.content) == (200, b"")
    assert service.delete(location).status_code == 200
    answer = service.get("/jobs/none/events")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("prefer", [None, "wait=60"])
def test_a_client_that_goes_away_leaves_no_job_running(service, long_job, prefer):
    observations, references, options = long_job
    # As many as an answer at once may be of.
    observations, references = (one.slice(0, 2_000_000) for one in (observations, references))
    before = {job["id"] for job in service.get("/jobs").json()["jobs"]}
    files = {"observations": ("o.parquet", parquet(observations))}
    files["references"] = ("r.parquet", parquet(references))
    headers = {"Prefer": prefer} if prefer else {}

    def new_job():
        jobs = service.get("/jobs").json()["jobs"]
        return next((job for job in jobs if job["id"] not in before), None)

    request = service.build_request("POST", "/resolve", params=options, files=files)
    connection = http.client.HTTPConnection(service.base_url.host, service.base_url.port)
    target = request.url.raw_path.decode()
    connection.request("POST", target, request.read(), {**request.headers, **headers})
    wait_until(new_job)
    connection.close()
    wait_until(lambda: new_job()["status"] == "dismissed")


def test_a_job_outlives_the_client_that_asked_for_one(service):
    with httpx.Client(base_url=service.base_url, timeout=60) as passing:
        location = start_job(passing, points(2_000, 1), points(1_000, 2))
    wait_until(lambda: service.get(location).json()["status"] == "successful")
