"""Small jobs answered at once: the bytes of a job, alone or several in one search."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from georesolve.workers.cluster import in_event_loop
from georesolve.workers.express import NotResident, express
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.pipeline import run
from georesolve.workers.plan import QUICKLY_INDEXED
from tests.conftest import points, store_points, wait_until

OPTIONS = [
    {},
    {"k": 3, "columns": ("id",), "observation_columns": ("lat",)},
    {"max_distance_m": 300_000.0, "how": "inner"},
    {"algorithm": "brute"},
]


def expected(cluster, job):
    run(cluster, job, lambda progress: None, lambda: False)
    return job.result.read_bytes()


def at_once(cluster, worker, jobs):
    async def ask():
        async with in_event_loop(cluster) as client:
            resolve_at_once = express(client)
            return await resolve_at_once(worker, jobs)

    return asyncio.run(ask())


@pytest.fixture
def workers(cluster):
    return list(cluster.workers().values())


@pytest.fixture
def make_job(tmp_path):
    """Makes jobs against the same references, their observations in a file or in memory."""
    references = store_points(points(2_000, 2), tmp_path / "references.parquet")

    def make(name, rows, *, in_memory=False, **options):
        path = None if in_memory else tmp_path / f"{name}.parquet"
        observations = store_points(points(rows, seed=len(name)), path)
        return Job(name, tmp_path / name, observations, references, MatchOptions(**options))

    return make


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_bytes_of_a_job(cluster, workers, make_job, options):
    jobs = [
        make_job("one", 500, **options),
        make_job("three", 1, in_memory=True, **options),
        make_job("sixteen", 0, **options),
    ]
    content = [expected(cluster, in_a_file(job)) for job in jobs]
    for worker in workers:
        assert [one.content for one in at_once(cluster, worker, jobs)] == content
        for job, bytes_of_job in zip(jobs, content, strict=True):
            (alone,) = at_once(cluster, worker, [job])
            assert alone.content == bytes_of_job
            assert sum(alone.counts.values()) == job.observations.rows * job.options.k
            assert set(alone.seconds) == {"read", "index", "resolve", "write"}


def in_a_file(job):
    """The same job for the queue of tasks, whose inputs lie in files."""
    if not isinstance(job.observations.file, pa.Buffer):
        return job
    path = job.folder.with_suffix(".parquet")
    path.write_bytes(job.observations.file)
    return replace(job, observations=replace(job.observations, file=path))


def test_a_set_against_itself(cluster, workers, make_job):
    job = make_job("itself", 300, exclude_self=True)
    job = replace(job, references=job.observations)
    (answer,) = at_once(cluster, workers[0], [job])
    assert answer.content == expected(cluster, job)


def test_beside_the_chunks_of_a_job(cluster, workers, make_job):
    small = make_job("small", 100)
    content = expected(cluster, small)
    large = make_job("large", 50_000, algorithm="brute")

    def answers(worker):
        return {at_once(cluster, worker, [small])[0].content for _ in range(50)}

    with ThreadPoolExecutor(len(workers) + 1) as threads:
        running = threads.submit(expected, cluster, large)
        for seen in threads.map(answers, workers):
            assert seen == {content}
        assert running.result()


def test_references_that_take_long_to_index_are_loaded_beside(cluster, workers, tmp_path):
    references = store_points(points(QUICKLY_INDEXED + 1, 3), tmp_path / "references.parquet")
    options = MatchOptions(columns=("lat",))
    job = Job("many", tmp_path / "many", store_points(points(9, 4), None), references, options)
    for worker in workers:
        with pytest.raises(NotResident):
            at_once(cluster, worker, [job])
    content = expected(cluster, in_a_file(job))

    def answers(worker):
        with suppress(NotResident):
            assert at_once(cluster, worker, [job])[0].content == content
            return True

    for worker in workers:
        wait_until(lambda worker=worker: answers(worker))


def test_errors_reach_the_caller(cluster, workers, make_job):
    job = make_job("gone", 1)
    job.observations.file.unlink()
    with pytest.raises(RuntimeError, match="failed to read its input"):
        at_once(cluster, workers[0], [job])
