"""Lists of jobs and datasets: pages that nothing moves, and which rows are on them."""

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from tests.conftest import finished, small_job


def pages(client, path, **query):
    """All pages from the first to the last, as the links lead."""
    answer = client.get(path, params=query).raise_for_status().json()
    while True:
        yield answer
        following = [link["href"] for link in answer["links"] if link["rel"] == "next"]
        if not following:
            return
        answer = client.get(following[0]).raise_for_status().json()


def done(client):
    return finished(client, small_job(client).headers["location"])


def test_pages_of_jobs(service):
    made = [done(service)["jobID"] for _ in range(5)]
    query = {"limit": 2, "processID": "nearest", "status": ["successful", "failed"]}
    found = []
    for page in pages(service, "/jobs", **query):
        assert 1 <= len(page["jobs"]) <= 2
        found += [job["jobID"] for job in page["jobs"]]
        # What is added while one reads is newer than all that is still to come.
        done(service)
    assert found[:5] == made[::-1]
    assert len(found) == len(set(found))
    last = service.get("/jobs", params={"limit": 1000}).json()
    assert [link["rel"] for link in last["links"]] == ["self"]


def test_pages_of_datasets(service):
    ids = []
    for i in range(3):
        headers = {"Content-Type": "text/csv"}
        made = service.post("/datasets", content=f"lat,lon\n{i},77\n".encode(), headers=headers)
        ids.append(made.json()["id"])
    found = [d["id"] for page in pages(service, "/datasets", limit=1) for d in page["datasets"]]
    assert found[:3] == ids[::-1]
    for id in ids:
        assert service.delete(f"/datasets/{id}").status_code == 204


def test_filters(service):
    first, second, third = (done(service) for _ in range(3))
    mine = [job["jobID"] for job in (first, second, third)]
    with closing(sqlite3.connect(service.log.with_suffix("") / "georesolve.sqlite")) as database:
        earlier = (datetime.fromisoformat(first["started"]) - timedelta(seconds=60)).isoformat(
            timespec="milliseconds"
        )
        with database:
            database.execute("UPDATE jobs SET started = ? WHERE id = ?", (earlier, mine[0]))

    def found(**query):
        jobs = (
            service.get("/jobs", params={"limit": 1000, **query}).raise_for_status().json()["jobs"]
        )
        return [mine.index(job["jobID"]) for job in jobs[::-1] if job["jobID"] in mine]

    assert found() == found(type="process") == [0, 1, 2]
    assert found(processID="nearest", status="successful") == [0, 1, 2]
    assert found(status="failed") == []
    assert found(minDuration=50) == [0]
    assert found(maxDuration=50) == [1, 2]
    assert found(datetime=first["created"]) == [0]
    assert found(datetime=f"{second['created']}/..") == [1, 2]
    assert found(datetime=f"../{second['created']}") == [0, 1]
    assert found(datetime="2000-01-01/2000-12-31T23:59:59Z") == []


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"cursor": "!!!"},
        {"cursor": "YWJj"},
        {"status": "sleeping"},
        {"processID": "none"},
        {"type": "service"},
        {"datetime": "yesterday"},
        {"datetime": "2026-01-01/2026-02-01/2026-03-01"},
        {"datetime": "0001-01-01T00:00:00+05:00"},
        {"cursor": "\0_\0"},
        {"minDuration": -1},
        {"maxDuration": 1 << 63},
        {"colour": "red"},
        {"limit": [1, 2]},
    ],
)
def test_bad_queries(service, query):
    answer = service.get("/jobs", params=query)
    assert answer.status_code == 400, answer.text
    assert "/query/" in answer.json()["detail"]
