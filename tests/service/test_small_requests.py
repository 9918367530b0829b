"""Small synchronous requests: answered without a job, in batches, whatever happens to workers."""

import io
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.workers.plan import QUICKLY_INDEXED
from tests.conftest import children_of, finished, points, running_service, wait_until
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
    assert {"decode_observations", "lane", "resolve", "write"} <= set(timings)
    assert service.get("/jobs").json() == jobs
    assert files_of(service) <= files


def test_many_at_once(service, references):
    def content(seed):
        answer = ask(service, references, seed % 8, k=1 + seed % 2)
        assert answer.status_code == 200, answer.text
        return answer.content

    seeds = range(64)
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(content, seeds))
    assert together == [content(seed) for seed in seeds]


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


def test_a_wait_is_kept_when_no_worker_answers(service, references):
    expected = ask(service, references, 1).content
    workers = workers_of(service)
    for worker in workers:
        worker.suspend()
    try:
        answer = ask(service, references, 1, prefer="wait=1")
        assert (answer.status_code, answer.headers["preference-applied"]) == (201, "wait=1")
    finally:
        for worker in workers:
            worker.resume()
    location = answer.headers["location"]
    assert finished(service, location)["status"] == "successful"
    assert service.get(f"{location}/results").content == expected
    assert ask(service, references, 1, prefer="wait=60").content == expected


def test_a_set_that_is_removed_before_its_turn_is_not_there(service, references):
    id = register(service, rows=1_001)
    form = {
        "observations": (None, f"dataset:{id}"),
        "references": (None, f"dataset:{references}"),
    }
    workers = workers_of(service)
    for worker in workers:
        worker.suspend()
    try:
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(service.post, "/resolve", files=form)
            # A worker has the request, or else the answer is the same.
            time.sleep(1)
            assert not sent.done()
            assert service.delete(f"/datasets/{id}").status_code == 204
            for worker in workers:
                worker.resume()
            answer = sent.result()
    finally:
        for worker in workers:
            worker.resume()
    assert answer.status_code == 404, answer.text
    assert answer.json()["type"] == "urn:georesolve:problem:no-such-dataset"


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


def test_workers_that_die_cost_nothing_but_time(tmp_path, device):
    with running_service(tmp_path / "data", "--device", device, "--workers", 2) as client:
        references = register(client)
        expected = ask(client, references, 1).content
        killed = []

        def contents(_):
            answers = []
            while len(killed) < 2 or answers[-5:] != [expected] * 5:
                answer = ask(client, references, 1)
                assert answer.status_code == 200, answer.text
                answers.append(answer.content)
            return set(answers)

        with ThreadPoolExecutor(4) as threads:
            answering = [threads.submit(contents, _) for _ in range(4)]
            for _ in range(2):
                victim = workers_of(client)[0]
                victim.kill()
                wait_until(lambda gone=victim: not gone.is_running())
                killed.append(victim)
            for one in answering:
                assert one.result() == {expected}
        # A worker that is on its way is waited for at the end, too.
        wait_until(lambda: client.get("/readyz").status_code == 200)


def workers_of(client):
    """The processes of the service that compute: Dask spawns them."""
    found = []

    def some():
        found[:] = children_of(client.process, "spawn_main", recursive=True)
        return bool(found)

    wait_until(some)
    return found
