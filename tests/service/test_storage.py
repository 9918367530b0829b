"""What is kept is counted and bounded: bytes of a key, texts of requests, what lists load."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from georesolve.query import MatchOptions
from georesolve.service.datasets.library import Library
from georesolve.service.store.listing import JobQuery
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from tests.conftest import (
    finished,
    look_up,
    points,
    run_nearest,
    running_service,
    store_points,
)
from tests.service.test_bounds import LATER, problem_of
from tests.service.test_jobs import PARQUET, parquet
from tests.service.test_keys import as_holder, new_key

QUOTA = 2_000_000


@pytest.fixture(scope="module")
def ann_and_ben(tmp_path_factory, shared_cluster):
    """Two holders of keys of a service on which each may keep 2 MB."""
    data_dir = tmp_path_factory.mktemp("storage") / "data"
    ann, ben = new_key(data_dir, "ann"), new_key(data_dir, "ben")
    flags = [*shared_cluster, "--key-bytes", QUOTA]
    with (
        running_service(data_dir, *flags) as client,
        as_holder(client, ann) as ann_client,
        as_holder(client, ben) as ben_client,
    ):
        yield ann_client, ben_client


def register(client, rows, seed):
    content = parquet(points(rows, seed))
    return client.post("/datasets", content=content, headers={"Content-Type": PARQUET})


def used(client):
    told = client.get("/datasets", params={"limit": 1}).raise_for_status().json()
    assert told["quota_bytes"] == QUOTA
    return told["used_bytes"]


def refused(answer):
    assert answer.status_code == 507, answer.text
    detail = problem_of(answer, "storage-full")
    assert f"and {QUOTA} may be kept: remove datasets and results" in detail
    return detail


def test_a_key_keeps_so_many_bytes(ann_and_ben):
    ann, ben = ann_and_ben
    assert used(ann) == used(ben) == 0
    made = register(ann, 60_000, 1).raise_for_status().json()
    assert used(ann) == made["size_bytes"] > QUOTA // 2
    assert len(ann.get(f"/datasets/{made['id']}/data.parquet").content) == made["size_bytes"]
    detail = refused(register(ann, 60_000, 2))
    assert f"take {made['size_bytes']} bytes, " in detail
    assert used(ann) == made["size_bytes"]
    assert register(ann, 60_000, 1).status_code == 200, "it is kept already"
    assert register(ben, 60_000, 2).status_code == 201
    body = dict.fromkeys(("observations", "references"), f"dataset:{made['id']}")
    twice = {**body, "k": 2}
    told = ann.post("/estimate", json=twice).json()
    (obstacle,) = told["obstacles"]
    assert f"{told['bytes_out']} bytes of what this key may keep yet" in obstacle
    assert f"there are {QUOTA - made['size_bytes']}" in obstacle
    refused(run_nearest(ann, twice, LATER))
    assert look_up(ann, body).status_code == 200, "small ones are not kept"
    ann.delete(f"/datasets/{made['id']}").raise_for_status()
    assert used(ann) == 0


def test_results_count_in_every_format_until_they_go(ann_and_ben):
    ann, _ = ann_and_ben
    before = used(ann)
    name = pa.array(["x" * 40, "y"]).take(pa.array(np.arange(10_000) % 2))
    files = {
        "observations": ("o.parquet", parquet(points(10_000, 3))),
        "references": ("r.parquet", parquet(points(10_000, 4, name=name))),
    }
    answer = ann.post("/resolve", params={"columns": "name"}, files=files, headers=LATER)
    assert answer.status_code == 201, answer.text
    location = answer.headers["location"]
    assert finished(ann, location)["status"] == "successful"
    size = ann.get(f"{location}/report").json()["size_bytes"]
    # Its sets are kept with it: they are small.
    sets = used(ann) - before - size
    assert 2 * 10_000 * 16 < sets < 2 * 10_000 * 30
    csv = ann.get(f"{location}/results/matches.csv").raise_for_status().content
    assert used(ann) == before + size + sets, "it is made as it is sent"
    assert len(csv) > size
    ann.delete(location).raise_for_status()
    assert used(ann) == before


def test_what_comes_together_is_counted_together(ann_and_ben):
    ann, _ = ann_and_ben
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda seed: register(ann, 30_000, seed), range(10, 16)))
    made = [answer.json() for answer in answers if answer.status_code == 201]
    assert {answer.status_code for answer in answers} == {201, 507}
    assert sum(one["size_bytes"] for one in made) == used(ann) <= QUOTA
    for one in made:
        ann.delete(f"/datasets/{one['id']}").raise_for_status()


def test_without_keys_the_disk_is_the_bound(service):
    told = service.get("/datasets").json()
    assert told["quota_bytes"] is None
    made = register(service, 10, 5).json()
    assert service.get("/datasets").json()["used_bytes"] >= told["used_bytes"] + made["size_bytes"]
    service.delete(f"/datasets/{made['id']}")


@pytest.mark.parametrize("options", [{"columns": ["n" * 501]}, {"lat": "n" * 501}])
def test_names_of_columns_are_short(service, options):
    table = {"lat": [0.5], "lon": [0.5]}
    sets = dict.fromkeys(("observations", "references"), table)
    answer = look_up(service, {**sets, **options})
    assert answer.status_code == 400
    assert re.search("(at most 500 characters|of 500 characters at most)", answer.json()["detail"])


def test_a_column_is_kept_once_however_often_it_was_named(service):
    table = {"lat": [0.5], "lon": [0.5], "n": [1]}
    inputs = {"observations": table, "references": table, "columns": ["n"] * 20_000}
    answer = service.post("/processes/nearest/execution", json={"inputs": inputs}, headers=LATER)
    location = answer.headers["location"]
    assert finished(service, location)["status"] == "successful"
    assert service.get(f"{location}/report").json()["options"]["columns"] == ["n"]
    service.delete(location).raise_for_status()


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path)
    yield made
    made.close()


@pytest.fixture
def waiting(tmp_path, store):
    """A job that waits, and is expected to take 14 bytes."""
    row = Library(store).keep(
        DatasetRow(store_points(points(5, 1), tmp_path / "points.parquet"), {})
    )
    kept = store.kept_bytes()
    return store.add_job(row, row, MatchOptions(k=2), Delivery(), size_bytes=14), kept


def test_lists_and_scrapes_load_what_they_show(store, waiting):
    id, _ = waiting
    statements = []
    sa.event.listen(
        store._engine, "before_cursor_execute", lambda *event: statements.append(event[2])
    )
    (listed,), (live,) = store.jobs(JobQuery()), store.live_jobs()
    assert listed == live
    assert (listed.id, listed.status) == (id, "accepted")
    assert len(statements) == 2
    for column in ("options", "problem", "report", "*"):
        assert not any(column in statement for statement in statements)


@pytest.mark.parametrize("is_live", [True, False])
def test_a_dismissed_job_forgets_what_it_was_told(store, waiting, is_live):
    id, kept = waiting
    assert store.kept_bytes() == kept + 14
    if is_live:
        assert store.finish_job(id, "dismissed", "dismissed by the client")
    else:
        assert store.finish_job(id, "successful", "done", report={"size_bytes": 14})
        assert store.kept_bytes() == kept + 14
        assert store.dismiss_finished_job(id)
    row = store.job(id)
    assert (row.status, row.options) == ("dismissed", MatchOptions())
    assert store.kept_bytes() == kept
