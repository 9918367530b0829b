"""Small synchronous requests: answered without a job, whatever happens to workers."""

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.engine.cost_model import QUICKLY_INDEXED
from georesolve.service.app import create_app
from georesolve.service.settings import Settings
from tests.conftest import (
    NO_CLUSTER,
    children_of,
    finished,
    points,
    run_nearest,
    running_service,
    wait_until,
)
from tests.service.test_jobs import PARQUET, files_of, parquet

ROWS = 100


@pytest.fixture
def references(service):
    """The id of a registered set."""
    id = register(service)
    yield id
    service.delete(f"/datasets/{id}")


def register(client, rows=2_000):
    content = parquet(points(rows, 41))
    return client.post("/datasets", content=content, headers={"Content-Type": PARQUET}).json()["id"]


def ask(client, references, seed, prefer="", **parameters):
    form = {
        "observations": ("o.parquet", parquet(points(ROWS, seed))),
        "references": (None, f"dataset:{references}"),
    }
    return client.post("/resolve", params=parameters, files=form, headers={"Prefer": prefer})


def content_of_a_job(client, *arguments, **parameters):
    answer = ask(client, *arguments, prefer="respond-async", **parameters)
    location = answer.headers["location"]
    assert finished(client, location)["status"] == "successful"
    return client.get(f"{location}/results").content


@pytest.mark.parametrize("parameters", [{}, {"k": 5, "columns": "id", "max_distance_m": 1e6}])
def test_the_bytes_of_a_job_and_nothing_kept(service, references, parameters):
    expected = content_of_a_job(service, references, 1, **parameters)
    jobs, files = service.get("/jobs").json(), files_of(service)
    answer = ask(service, references, 1, **parameters)
    assert (answer.status_code, answer.content) == (200, expected)
    assert answer.headers["content-disposition"] == 'attachment; filename="matches.parquet"'
    timings = dict(one.split(";dur=") for one in answer.headers["server-timing"].split(", "))
    assert {"decode_observations", "at_hand", "resolve", "write"} <= set(timings)
    assert service.get("/jobs").json() == jobs
    assert files_of(service) <= files


def test_many_at_once(service, references):
    def content(seed):
        answer = ask(service, references, seed % 8, k=1 + seed % 2)
        assert answer.status_code == 200, answer.text
        return answer.content

    # Eight requests, four times each.
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(content, range(32)))
    assert together == 4 * [content(seed) for seed in range(8)]


def test_references_that_take_long_to_index_are_a_matter_for_a_job_first(service):
    references = register(service, QUICKLY_INDEXED + 1)

    def newest(limit):
        jobs = service.get("/jobs", params={"limit": limit}).json()["jobs"]
        return [job["jobID"] for job in jobs]

    before = newest(1)
    first = ask(service, references, 1)
    assert first.status_code == 200
    made, *others = newest(2)
    assert others == before
    assert made not in before

    def is_small():
        answer = ask(service, references, 1)
        assert (answer.status_code, answer.content) == (200, first.content)
        return "server-timing" in answer.headers

    wait_until(is_small)


def test_workers_are_not_asked(service, references):
    expected = ask(service, references, 1).content
    workers = workers_of(service)
    for worker in workers:
        worker.suspend()
    try:
        assert ask(service, references, 1).content == expected
        waited = ask(service, references, 1, prefer="wait=60")
        assert (waited.status_code, waited.headers["preference-applied"]) == (200, "wait=60")
        assert waited.content == expected
    finally:
        for worker in workers:
            worker.resume()


def test_a_set_that_was_removed_is_not_there(service, references):
    id = register(service, rows=1_001)
    form = {"observations": (None, f"dataset:{references}"), "references": (None, f"dataset:{id}")}
    assert service.post("/resolve", files=form).status_code == 200
    assert service.delete(f"/datasets/{id}").status_code == 204
    answer = service.post("/resolve", files=form)
    assert answer.status_code == 404, answer.text
    assert answer.json()["type"] == "urn:georesolve:problem:no-such-dataset"


def test_what_is_called_a_dataset_is_not_taken_for_an_address(service, references):
    body = {"observations": {"dataset": "s3://bucket/x"}, "references": {"dataset": references}}
    answer = run_nearest(service, body)
    assert answer.status_code == 404, answer.text
    assert answer.json()["type"] == "urn:georesolve:problem:no-such-dataset"


def test_the_index_of_a_registered_set_is_kept_as_long_as_it_is(tmp_path):
    def indexes():
        return [path.stem for path in (tmp_path / "data" / "datasets" / "indexes").iterdir()]

    def digest(id):
        return client.get(f"/datasets/{id}").json()["sha256"]

    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        first, second = register(client, rows=1_000), register(client, rows=1_001)
        body = {"observations": {"lat": [1], "lon": [2]}, "references": f"dataset:{first}"}
        expected = client.post("/nearest", json=body).raise_for_status().content
        kept = digest(first)
        assert indexes() == [kept]
        client.post("/nearest", json={**body, "references": f"dataset:{second}"})
        assert sorted(indexes()) == sorted([kept, digest(second)])
        # What comes with a request goes with it.
        own = {"lat": [1, 2], "lon": [2, 3]}
        client.post("/nearest", json={**body, "references": own}).raise_for_status()
        client.delete(f"/datasets/{second}").raise_for_status()
        assert indexes() == [kept]
    folder = tmp_path / "data" / "datasets" / "indexes"
    path = folder / f"{kept}.index"
    content = bytearray(path.read_bytes())
    content[-4_096] ^= 1
    path.write_bytes(content)
    (folder / f"{'0' * 64}.index").touch()
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        assert indexes() == [kept]
        assert client.post("/nearest", json=body).raise_for_status().content == expected
        assert "is built anew: it is damaged" in client.log.read_text()
    assert path.read_bytes() != content


def test_a_long_text_in_every_row_is_a_matter_for_a_job(service):
    """Of a kilobyte that was sent nobody makes 80 MB in memory."""
    references = pa.table({"name": ["x" * 8_000], "lat": [1.0], "lon": [2.0]})
    files = {
        "observations": ("o.parquet", parquet(points(10_000, 5).select(["lat", "lon"]))),
        "references": ("r.parquet", parquet(references)),
    }
    answer = service.post("/resolve", files=files, headers={"Accept": "text/csv"})
    assert answer.status_code == 200
    assert "server-timing" in answer.headers, "without its text it is small"
    answer = service.post("/resolve", params={"columns": "name"}, files=files)
    assert answer.status_code == 200, answer.text
    assert "server-timing" not in answer.headers
    assert pq.read_table(io.BytesIO(answer.content)).num_rows == 10_000


def workers_of(client):
    """The processes of the service that compute: Dask spawns them."""
    found = []

    def some():
        found[:] = children_of(client.process, "spawn_main", recursive=True)
        return bool(found)

    wait_until(some)
    return found


def test_a_request_leaves_no_view_of_the_service_behind(tmp_path):
    async def views_after(requests):
        app = create_app(Settings(data_dir=tmp_path))
        asking = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        async with app.router.lifespan_context(app), asking as client:
            for _ in range(requests):
                answer = await client.post("/estimate", json={"observations": 1, "references": 1})
                assert answer.status_code == 503, "there is no cluster"
            return len(app.state.service.views)

    assert asyncio.run(views_after(3)) == 1
