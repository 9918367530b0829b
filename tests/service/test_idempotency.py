"""Requests sent twice: one job, whatever came between them."""

import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from tests.conftest import finished, points, run_nearest, wait_until
from tests.service.test_jobs import files_of, parquet
from tests.service.test_processes import TINY

EXECUTION = "/processes/nearest/execution"
OTHER = {**TINY, "observations": {"lat": [3], "lon": [2]}}


def send(client, key, body=TINY, path=None, prefer="respond-async", **options):
    headers = {"Idempotency-Key": key, **({"Prefer": prefer} if prefer else {})}
    if path is None:
        return run_nearest(client, {**body, **options}, headers)
    return client.post(path, headers=headers, **body)


def jobs(client):
    return {job["id"] for job in client.get("/jobs", params={"limit": 1000}).json()["jobs"]}


def test_the_same_again_is_the_same_job(service):
    first = send(service, '"a-1"')
    assert first.status_code == 201
    finished(service, first.headers["location"])
    before = jobs(service)
    # In quotes, as structured fields have it, or without; waited for or not; by either route.
    again = send(service, "a-1")
    assert (again.status_code, again.headers["location"]) == (201, first.headers["location"])
    form = {"files": dict.fromkeys(TINY, ("one.csv", b"lat,lon\n1,2\n"))}
    for body, path in ((TINY, None), (form, "/resolve")):
        result = send(service, "a-1", body, path, prefer=None)
        assert result.status_code == 200, result.text
        assert f'<{first.headers["location"]}>; rel="monitor"' in result.headers["link"]
    assert jobs(service) == before


def test_the_key_of_a_deleted_job_can_be_used_again(service):
    first = send(service, "i-1").headers["location"]
    finished(service, first)
    deleted = service.delete(first).json()
    assert (deleted["status"], deleted["progress"]) == ("dismissed", 100)
    assert service.get(first).json() == deleted
    # With the same content or with other.
    for body in (TINY, OTHER):
        again = send(service, "i-1", body)
        assert (again.status_code, again.headers["location"] != first) == (201, True)
        assert finished(service, again.headers["location"])["status"] == "successful"
        service.delete(again.headers["location"])


def test_other_content_is_refused(service):
    before = jobs(service)
    first = send(service, "b-1")
    others = [
        send(service, "b-1", OTHER),
        send(service, "b-1", k=2),
        send(service, "b-1", {"json": {"inputs": TINY, "response": "document"}}, EXECUTION),
    ]
    for answer in others:
        assert answer.status_code == 422
        assert answer.json()["type"].endswith(":idempotency-key-reused")
        assert first.headers["location"].rpartition("/")[2] in answer.json()["detail"]
    assert len(jobs(service) - before) == 1
    finished(service, first.headers["location"])


def test_many_at_the_same_time_make_one_job(service):
    before = jobs(service)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: send(service, "d-1"), range(12)))
    codes = Counter(answer.status_code for answer in answers)
    assert set(codes) <= {201, 409}
    assert codes[201] >= 1
    assert len({a.headers["location"] for a in answers if a.status_code == 201}) == 1
    assert all(a.headers["retry-after"] == "1" for a in answers if a.status_code == 409)
    assert len(jobs(service) - before) == 1


@contextmanager
def half_sent(client, key):
    """A request of which the service has a part; yields its connection and the rest."""
    headers = {"Idempotency-Key": key, "Prefer": "respond-async"}
    request = client.build_request("POST", EXECUTION, json={"inputs": TINY}, headers=headers)
    content = request.read()
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    with closing(connection):
        connection.putrequest("POST", EXECUTION, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        connection.endheaders(content[:10])
        yield connection, content[10:]


def test_the_same_that_was_accepted_meanwhile_is_the_same_job(service):
    with half_sent(service, "e-1") as (connection, rest):
        location = send(service, "e-1").headers["location"]
        connection.send(rest)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["location"]) == (201, location)


def test_a_key_is_free_after_a_refusal_or_a_lost_connection(service):
    bad = {**TINY, "observations": {"lat": [91], "lon": [2]}}
    # Jobs of the tests before this one write files until they end.
    live = {"status": ["accepted", "running"]}
    wait_until(lambda: not service.get("/jobs", params=live).json()["jobs"])
    before = files_of(service)
    assert send(service, "f-1", bad).status_code == 400
    with half_sent(service, "f-1"):
        pass
    location = send(service, "f-1").headers["location"]
    finished(service, location)
    service.delete(location).raise_for_status()
    wait_until(lambda: files_of(service) <= before)


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "a\tb"])
def test_bad_keys(service, key):
    assert send(service, key).status_code == 400


def test_a_client_with_a_key_may_go_and_come_back(service, long_job):
    _, references, options = long_job
    before = jobs(service)
    files = {"observations": ("o.parquet", parquet(points(20_000, 1)))}
    files["references"] = ("r.parquet", parquet(references))
    headers = {"Idempotency-Key": "h-1"}
    arguments = {"params": options, "files": files, "headers": headers}
    request = service.build_request("POST", "/resolve", **arguments)
    connection = http.client.HTTPConnection(service.base_url.host, service.base_url.port)
    target = request.url.raw_path.decode()
    connection.request("POST", target, request.read(), dict(request.headers))
    wait_until(lambda: jobs(service) - before)
    connection.close()
    answer = service.post("/resolve", **arguments)
    assert answer.status_code == 200
    assert len(jobs(service) - before) == 1
