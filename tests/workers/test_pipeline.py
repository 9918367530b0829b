"""Jobs on a real cluster: right, the same bytes however cut, whole after a worker's death."""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import get_worker
from distributed.client import FutureState

from georesolve.engine import attributes, cost_model, plan
from georesolve.engine.match_sets import CarriedTooLong
from georesolve.engine.plan import Chunk
from georesolve.engine.result_rows import STATUSES
from georesolve.io.datasets import Dataset, streamed
from georesolve.query import MatchOptions
from georesolve.workers import partitions, pipeline
from georesolve.workers.cluster import open_cluster
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.job import Job
from georesolve.workers.partitions import RUN, bounds, resolve, resolve_run
from georesolve.workers.pipeline import JobCancelled, run
from georesolve.workers.results.manifest import open_matches
from georesolve.workers.results.parts import part_name, record_name
from tests.conftest import (
    START_SECONDS,
    points,
    sphere,
    store_points,
    wait_until,
    worker_given_up,
)
from tests.oracle import haversine_m, nearest


def read_matches(job):
    with open_matches(job.folder) as file:
        return pq.read_table(file)


def never():
    return False


def ignore(progress):
    pass


@pytest.fixture
def make_job(tmp_path, cluster):
    """Makes jobs with the same datasets and folders of their own."""
    made, own = [], cluster.client.cluster

    def is_whole():
        """Workers that an earlier test has killed are there again."""
        cluster.restore()
        return len(cluster.workers()) == len(own.worker_spec)

    wait_until(is_whole, START_SECONDS)

    def make(observations, references, **options):
        number = len(made)
        job = Job(
            store_points(observations, tmp_path / f"observations-{number}.parquet"),
            store_points(references, tmp_path / f"references-{number}.parquet"),
            MatchOptions(**options),
            id=f"{tmp_path.name}-{number}",
            folder=tmp_path / f"job-{number}",
        )
        made.append(job)
        return job

    return make


def cut_into(monkeypatch, size):
    def chunks(n_observations, *further):
        starts = range(0, n_observations, size)
        return [Chunk(start, min(start + size, n_observations)) for start in starts]

    monkeypatch.setattr(pipeline, "chunks", chunks)


def test_every_row_equals_the_oracle(cluster, make_job):
    job = make_job(points(20_000, 1), points(3_000, 2))
    result, progress = run(cluster, job, ignore, never)
    table = read_matches(job)
    rows, metres = nearest(*sphere(20_000, 1), *sphere(3_000, 2))
    np.testing.assert_array_equal(table["observation"], np.arange(20_000))
    np.testing.assert_array_equal(table["reference"], rows)
    np.testing.assert_allclose(table["distance_m"], metres, rtol=1e-12, atol=1e-3)
    assert set(table["status"].to_pylist()) == {"matched"}
    np.testing.assert_array_equal(table["observation_id"], np.arange(20_000) + 1_000_000)
    np.testing.assert_array_equal(table["reference_id"], rows + 1_000_000)
    assert progress.counts["matched"] == progress.rows_done == result.rows == 20_000
    assert sum(progress.chunks_by_worker.values()) >= 2


def test_bytes_do_not_show_the_chunks(cluster, make_job, monkeypatch):
    names = [f"place {i}" if i % 3 else None for i in range(500)]
    tables = points(5_000, 3), points(500, 4, name=names)
    digests, contents = set(), set()
    for size in (5_000, 1_234, 617):
        cut_into(monkeypatch, size)
        job = make_job(*tables, columns=("name",), max_distance_m=500_000.0)
        digests.add(run(cluster, job, ignore, never)[0].digest)
        contents.add(open_matches(job.folder).read())
    assert len(digests) == len(contents) == 1


def statuses_job(make_job, **options):
    """Five observations of every fate: beyond, matched, invalid twice, matched."""
    observations = pa.table({"lat": [10.0, 0.0, np.nan, 95.0, 0.0], "lon": [0.0, 0.0, 0, 0, 1.0]})
    references = pa.table({"lat": [0.0, 0.0], "lon": [0.0, 1.0], "name": ["a", None]})
    return make_job(observations, references, columns=("name",), **options)


def test_statuses_nulls_and_provenance(cluster, make_job):
    job = statuses_job(make_job, max_distance_m=0.0)
    _, progress = run(cluster, job, ignore, never)
    table = read_matches(job)
    assert table.to_pydict() == {
        "observation": [0, 1, 2, 3, 4],
        "reference": [None, 0, None, None, 1],
        "distance_m": [None, 0.0, None, None, 0.0],
        "status": ["beyond_max_distance", "matched", *["invalid_coordinate"] * 2, "matched"],
        "reference_name": [None, "a", None, None, None],
    }
    assert table.schema.field("status").type == pa.dictionary(pa.int8(), pa.string())
    written = json.loads(pq.read_schema(open_matches(job.folder)).metadata[b"georesolve"])
    assert written["counts"] == dict(zip(STATUSES, (2, 1, 2, 0), strict=True))
    assert written["counts"] == dict(progress.counts)
    # The bytes of a result depend on its rows and options alone: the report has the digests.
    assert written.keys() == {"version", "radius_m", "options", "counts"}


def test_inner_keeps_matched_rows_only(cluster, make_job):
    job = statuses_job(make_job, max_distance_m=0.0, how="inner")
    result, progress = run(cluster, job, ignore, never)
    assert read_matches(job)["observation"].to_pylist() == [1, 4]
    assert (result.rows, progress.rows_done) == (2, 5)


def test_k_nearest_of_a_set_against_itself(cluster, make_job):
    table = points(50, 9, name=[f"n{i}" for i in range(50)])
    job = make_job(table, table, k=60, exclude_self=True, observation_columns=("name",))
    _, progress = run(cluster, job, ignore, never)
    result = read_matches(job)
    assert result.schema.field("rank").type == pa.int32()
    np.testing.assert_array_equal(result["observation"], np.repeat(np.arange(50), 60))
    np.testing.assert_array_equal(result["rank"], np.tile(np.arange(1, 61), 50))
    assert result["observation_name"].to_pylist() == [f"n{i}" for i in range(50) for _ in range(60)]
    assert progress.counts == Counter(matched=50 * 49, no_reference=50 * 11)
    lat, lon = sphere(50, 9)
    metres = haversine_m(lat[:, None], lon[:, None], lat, lon)
    np.fill_diagonal(metres, np.inf)
    order = metres.argsort(axis=1)[:, :49]
    found = result["reference"].to_numpy().reshape(50, 60)
    np.testing.assert_array_equal(found[:, :49], order)
    assert np.isnan(found[:, 49:]).all()


def test_k_with_a_limit_tells_why_a_rank_is_empty(cluster, make_job):
    observations = pa.table({"lat": [0.0, 91.0], "lon": [0.0, 0.0]})
    references = pa.table({"lat": [1.0, 0.0, np.nan], "lon": [0.0, 0.0, 0.0]})
    job = make_job(observations, references, k=3, max_distance_m=1000.0)
    run(cluster, job, ignore, never)
    table = read_matches(job)
    assert table["status"].to_pylist() == [
        *("matched", "beyond_max_distance", "no_reference"),
        *["invalid_coordinate"] * 3,
    ]
    assert table["reference"].to_pylist() == [1, None, None, None, None, None]


def test_references_without_a_valid_row(cluster, make_job):
    references = pa.table({"lat": [np.nan], "lon": [0.0]})
    job = make_job(pa.table({"lat": [1.0, 99.0], "lon": [1.0, 1.0]}), references)
    run(cluster, job, ignore, never)
    statuses = read_matches(job)["status"].to_pylist()
    assert statuses == ["no_reference", "invalid_coordinate"]


def test_no_observations(cluster, make_job):
    job = make_job(points(0, 0), points(10, 1, name=["x"] * 10), columns=("name",))
    result, _ = run(cluster, job, ignore, never)
    assert result.rows == 0
    names = ["observation", "reference", "distance_m", "status"]
    carried = ["observation_id", "reference_id", "reference_name"]
    assert read_matches(job).schema.names == names + carried


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_second_run_takes_up_what_stands(cluster, make_job, monkeypatch, tmp_path, elsewhere):
    cut_into(monkeypatch, 1_000)
    tables = points(20_000, 5), points(1_000, 6)
    undisturbed = make_job(*tables)
    expected, _ = run(cluster, undisturbed, ignore, never)

    job = make_job(*tables)
    if elsewhere:
        job = replace(job, output=f"file://{tmp_path}/elsewhere/")
    rows_done = []
    with pytest.raises(JobCancelled):
        run(cluster, job, lambda p: rows_done.append(p.rows_done), lambda: len(rows_done) > 3)
    standing = {path: path.stat().st_mtime_ns for path in job.records.path.glob("*.json")}
    assert 3 <= len(standing) < 20
    result, progress = run(cluster, job, ignore, never)
    assert result.digest == expected.digest
    assert progress.counts["matched"] == 20_000
    assert sum(progress.chunks_by_worker.values()) == 20
    assert {path: path.stat().st_mtime_ns for path in standing} == standing


def test_a_killed_worker_costs_nothing_but_time(cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 500)
    tables = points(20_000, 7), points(20_000, 8)
    expected, _ = run(cluster, make_job(*tables), ignore, never)

    pids = cluster.client.run(os.getpid).values()
    victim = min(pids)
    killed = []

    def kill_once(progress):
        if progress.rows_done > 2_000 and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    result, progress = run(cluster, make_job(*tables), kill_once, never)
    assert killed
    assert result.digest == expected.digest
    assert progress.counts["matched"] == progress.rows_done == 20_000
    cluster.client.wait_for_workers(len(pids), timeout=120)
    assert victim not in cluster.client.run(os.getpid).values()


def test_what_is_finished_is_not_held(cluster, make_job, monkeypatch):
    # A worker's death would have Dask compute it again, also when its datasets are long removed.
    cut_into(monkeypatch, 1_000)
    job = make_job(points(4_000, 1), points(100, 2))

    def held():
        return sum(job.id.replace("-", "_") in str(key) for key in cluster.client.futures)

    def look(progress):
        # The client lets go in its own thread, which may wait for a core.
        wait_until(lambda: held() <= (4_000 - progress.rows_done) // 1_000 + 1)

    run(cluster, job, look, never)
    wait_until(lambda: held() == 0)


def test_chunks_in_flight_are_not_looked_at_again_and_again(cluster, make_job, monkeypatch):
    """A job costs as much a chunk however many are in flight."""
    cut_into(monkeypatch, 50)
    monkeypatch.setattr(pipeline, "_WINDOW_A_WORKER", 64)
    looks, look = [], FutureState.wait

    def counted(state, *arguments):
        looks.append(state)
        return look(state, *arguments)

    monkeypatch.setattr(FutureState, "wait", counted)
    _, progress = run(cluster, make_job(points(2_000, 1), points(100, 2)), ignore, never)
    assert progress.rows_done == 2_000
    assert 0 < len(looks) < 2 * 2_000 // 50


def test_a_damaged_part_is_made_again(cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 500)
    tables = points(2_000, 1), points(100, 2)
    job = make_job(*tables)
    expected, _ = run(cluster, job, ignore, never)
    damaged, standing = (job.place.path / part_name(start, start + 500) for start in (0, 500))
    with damaged.open("r+b") as part:
        part.seek(damaged.stat().st_size // 3)
        part.write(bytes(64))
    modified = [path.stat().st_mtime_ns for path in (damaged, standing)]
    result, progress = run(cluster, job, ignore, never)
    assert result.digest == expected.digest
    assert progress.rows_done == 2_000
    again = [path.stat().st_mtime_ns for path in (damaged, standing)]
    assert [old == new for old, new in zip(modified, again, strict=True)] == [False, True]


def test_a_part_of_another_version_is_made_again(cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 500)
    job = make_job(points(1_000, 1), points(100, 2))
    run(cluster, job, ignore, never)
    before = {path: path.stat().st_mtime_ns for path in job.records.path.glob("*.json")}
    run(cluster, job, ignore, never)
    assert {path: path.stat().st_mtime_ns for path in job.records.path.glob("*.json")} == before
    monkeypatch.setattr(partitions, "__version__", "of another time")
    run(cluster, job, ignore, never)
    after = {path: path.stat().st_mtime_ns for path in job.records.path.glob("*.json")}
    assert all(after[path] > before[path] for path in before)


def test_a_worker_with_two_chunks_in_hand(device, cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 500)
    tables = points(20_000, 1), points(300, 2)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    monkeypatch.setattr("georesolve.workers.cluster.CHUNKS_IN_HAND", {"cpu": 2, "cuda": 2})
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    with open_cluster(settings) as one_worker:
        assert list(one_worker.client.nthreads().values()) == [2]
        result, progress = run(one_worker, make_job(*tables), ignore, never)
    assert result.digest == expected.digest
    assert progress.verified == 8 * 40
    assert sum(progress.chunks_by_worker.values()) == 40


def resolve_few(chunk, job):
    """Finds no memory for more than a thousand observations."""
    if chunk.stop - chunk.start > 1_000:
        raise MemoryError(f"{chunk.stop - chunk.start} observations")
    return resolve(chunk, job)


def test_a_chunk_that_finds_no_memory_is_halved(cluster, make_job, monkeypatch, caplog):
    tables = points(10_000, 1), points(100, 2)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    monkeypatch.setattr(pipeline, "resolve", resolve_few)
    result, progress = run(cluster, make_job(*tables), ignore, never)
    assert "is halved" in caplog.text
    assert result.digest == expected.digest
    assert progress.rows_done == 10_000


def resolve_or_fail(chunk, job):
    """Fails on the first chunk, while others are in hand."""
    time.sleep(0.5 if chunk.start == 0 else 1.5)
    if chunk.start == 0:
        raise ZeroDivisionError("of the first chunk")
    return resolve(chunk, job)


def test_a_job_that_fails_leaves_no_chunk_in_hand(cluster, make_job, monkeypatch):
    """Its parts are removed next: who wrote one behind that would leave it there."""
    cut_into(monkeypatch, 500)
    job = make_job(points(2_000, 1), points(100, 2))
    monkeypatch.setattr(pipeline, "resolve", resolve_or_fail)
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run(cluster, job, ignore, never)
    assert 1 < time.monotonic() - start < 10
    names = job.place.names()
    time.sleep(2)
    assert job.place.names() == names


def ring(n):
    """References on a circle of latitude, and observations at the pole, half of them."""
    references, observations = points(n, 4), points(20_000, 5)
    lat, lon = (observations[name].to_numpy().copy() for name in ("lat", "lon"))
    lat[10_000:] = 90.0
    return (
        pa.table({"id": observations["id"], "lat": lat, "lon": lon}),
        references.set_column(1, "lat", pa.array(np.full(n, 45.0))),
    )


def test_chunks_of_what_takes_long_are_shorter(cluster, device, make_job, monkeypatch):
    tables = ring(1 << 15)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    seconds = {"cpu": 0.01, "cuda": 3e-5}[device]
    monkeypatch.setattr(plan, "_CHUNK_SECONDS", seconds)
    monkeypatch.setattr(cost_model, "_LONG_SECONDS", seconds)
    result, progress = run(cluster, make_job(*tables), ignore, never)
    assert result.digest == expected.digest
    # Ten thousand of the twenty are compared with all of the ring.
    assert progress.compared == pytest.approx(1 << 14, rel=0.4)
    assert sum(progress.chunks_by_worker.values()) == 20
    spread = make_job(points(20_000, 5), points(1 << 15, 4))
    _, progress = run(cluster, spread, ignore, never)
    assert sum(progress.chunks_by_worker.values()) <= 10


def test_halves_of_an_earlier_try_are_not_trusted(cluster, make_job, monkeypatch):
    """The plan does not name them: nobody would compare their parts with their digests."""
    cut_into(monkeypatch, 5_000)
    tables = points(10_000, 1), points(100, 2)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    monkeypatch.setattr(pipeline, "resolve", resolve_few)
    job, rows_done = make_job(*tables), []
    with pytest.raises(JobCancelled):
        run(cluster, job, lambda p: rows_done.append(p.rows_done), lambda: len(rows_done) > 4)
    parts = [path for path in job.folder.glob("*/*.parquet") if path.stat().st_size]
    assert parts
    for path in parts:
        path.write_bytes(bytes(path.stat().st_size))
    result, _ = run(cluster, job, ignore, never)
    assert result.digest == expected.digest
    rows, _ = nearest(*sphere(10_000, 1), *sphere(100, 2))
    np.testing.assert_array_equal(pq.read_table(open_matches(job.folder))["reference"], rows)


def resolve_on_a_slow_worker(chunk, job):
    """Takes until it is told to go on, on the worker that took the first chunk of a job."""
    name, slow = get_worker().name, job.folder / "slow"
    # A link is there with what it says: a file would be empty at first, and read by others.
    with contextlib.suppress(FileExistsError):
        slow.symlink_to(str(name))
    if str(slow.readlink()) == str(name):
        wait_until(lambda: (job.folder / "go on").exists())
    return resolve(chunk, job)


def test_a_chunk_that_is_late_is_computed_elsewhere(cluster, make_job, monkeypatch, caplog):
    if len(cluster.workers()) < 2:
        pytest.skip("one worker has no other to take its chunk")
    cut_into(monkeypatch, 1_000)
    tables = points(5_000, 1), points(100, 2)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    monkeypatch.setattr(pipeline, "resolve", resolve_on_a_slow_worker)
    monkeypatch.setattr(pipeline, "_PATIENCE_SECONDS", 0.1)
    job = make_job(*tables)
    try:
        result, progress = run(cluster, job, ignore, never)
        slow = str((job.folder / "slow").readlink())
        assert slow not in progress.chunks_by_worker
        assert progress.rows_done == sum(progress.counts.values()) == 5_000
        assert "are late, and computed elsewhere as well" in caplog.text
        assert result.digest == expected.digest
        written = {path: path.stat().st_mtime_ns for path in job.folder.glob("*/*")}
    finally:
        (job.folder / "go on").touch()
    # What was late ends without a part of its own.
    wait_until(lambda: not any(cluster.client.run(threads_in_use).values()))
    assert {path: path.stat().st_mtime_ns for path in job.folder.glob("*/*")} == written


def resolve_slowly_or_without_memory(chunk, job):
    """Finds no memory for a copy of the chunk that another worker is slow with."""
    name, slow = get_worker().name, job.folder / "slow"
    with contextlib.suppress(FileExistsError):
        slow.symlink_to(f"{name} {chunk.start}")
    slow_name, first = str(slow.readlink()).split()
    if str(chunk.start) == first:
        if slow_name != str(name):
            (job.folder / "go on").touch()
            raise MemoryError(f"{chunk.stop - chunk.start} observations")
        wait_until((job.folder / "go on").exists)
        # Until the runner has heard of it.
        time.sleep(0.5)
    return resolve(chunk, job)


def test_a_copy_without_memory_is_not_halved(cluster, make_job, monkeypatch, caplog):
    if len(cluster.workers()) < 2:
        pytest.skip("one worker has no other to take its chunk")
    cut_into(monkeypatch, 2_000)
    monkeypatch.setattr(pipeline, "resolve", resolve_slowly_or_without_memory)
    monkeypatch.setattr(pipeline, "_PATIENCE_SECONDS", 0.1)
    job = make_job(points(8_000, 1), points(100, 2))
    _, progress = run(cluster, job, ignore, never)
    assert "are late, and computed elsewhere as well" in caplog.text
    assert "is halved" not in caplog.text
    assert sum(progress.chunks_by_worker.values()) == 4
    assert progress.rows_done == 8_000


def threads_in_use(dask_worker):
    return len(dask_worker.active_threads)


def take_runs_of(monkeypatch, size):
    """Have workers take so many chunks as one task."""

    def next_run(waiting, *further):
        return tuple(waiting.pop() for _ in range(min(size, len(waiting))))

    monkeypatch.setattr(pipeline, "next_run", next_run)


def resolve_or_die_once(chunk, job):
    """Ends a worker that takes the third chunk: Dask gives up the task then."""
    if chunk.start == 1_000:
        with contextlib.suppress(FileExistsError), (job.folder / "died").open("x"):
            os._exit(1)
    return resolve(chunk, job)


def test_a_job_gets_workers_back_that_dask_has_given_up(device, make_job):
    with worker_given_up(device) as (cluster, pid):
        _, progress = run(cluster, make_job(points(1_000, 1), points(100, 2)), ignore, never)
        assert pid not in cluster.client.run(os.getpid).values()
    assert progress.rows_done == 1_000


@pytest.mark.parametrize(
    ("do", "size"), [(resolve, 500), (resolve_or_die_once, 500), (resolve_few, 1_500)]
)
def test_a_run_of_chunks_is_whole_whatever_becomes_of_it(cluster, make_job, monkeypatch, do, size):
    tables = points(10_000, 1), points(100, 2)
    expected, _ = run(cluster, make_job(*tables), ignore, never)
    cut_into(monkeypatch, size)
    take_runs_of(monkeypatch, 4)
    monkeypatch.setattr(pipeline, "resolve", do)
    job = make_job(*tables)
    result, progress = run(cluster, job, ignore, never)
    assert result.digest == expected.digest
    assert progress.rows_done == progress.counts["matched"] == 10_000
    assert (job.folder / "died").exists() == (do is resolve_or_die_once)


def note_and_resolve_or_die_once(chunk, job):
    with (job.folder / "resolved").open("a") as file:
        file.write(f"{chunk.start}\n")
    return resolve_or_die_once(chunk, job)


def test_what_a_run_has_done_stands_when_its_worker_dies(cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 500)
    take_runs_of(monkeypatch, 4)
    monkeypatch.setattr(pipeline, "resolve", note_and_resolve_or_die_once)
    job, done = make_job(points(2_000, 1), points(100, 2)), {}

    def look(progress):
        if progress.rows_done == 500:
            done.update({path: path.stat().st_mtime_ns for path in job.records.path.iterdir()})

    run(cluster, job, look, never)
    assert {path.name for path in done} == {record_name(start, start + 500) for start in (0, 500)}
    assert {path: path.stat().st_mtime_ns for path in done} == done
    resolved = Counter((job.folder / "resolved").read_text().split())
    assert (resolved["500"], resolved["1500"]) == (1, 1)


def test_a_run_that_is_late_is_computed_elsewhere(cluster, make_job, monkeypatch):
    if len(cluster.workers()) < 2:
        pytest.skip("one worker has no other to take its chunks")
    cut_into(monkeypatch, 500)
    take_runs_of(monkeypatch, 2)
    tables = points(5_000, 1), points(100, 2)
    # A worker that compiles takes long, and what is late is told by that.
    run(cluster, make_job(*tables), ignore, never)
    monkeypatch.setattr(pipeline, "resolve", resolve_on_a_slow_worker)
    monkeypatch.setattr(pipeline, "_PATIENCE_SECONDS", 0.1)
    job = make_job(*tables)
    try:
        _, progress = run(cluster, job, ignore, never)
        assert str((job.folder / "slow").readlink()) not in progress.chunks_by_worker
        assert progress.rows_done == sum(progress.counts.values()) == 5_000
    finally:
        (job.folder / "go on").touch()
    wait_until(lambda: not any(cluster.client.run(threads_in_use).values()))


def resolve_slowly(chunk, job):
    time.sleep(0.2)
    return resolve(chunk, job)


def test_a_cancel_does_not_wait_for_the_end_of_a_run(cluster, make_job, monkeypatch):
    cut_into(monkeypatch, 100)
    take_runs_of(monkeypatch, 50)
    monkeypatch.setattr(pipeline, "resolve", resolve_slowly)
    job = make_job(points(10_000, 1), points(100, 2))
    with pytest.raises(JobCancelled):
        run(cluster, job, ignore, lambda: any(job.records.path.iterdir()))
    # Of runs of fifty a few chunks each were done.
    assert len(list(job.records.path.iterdir())) < 50


def no_memory(chunk, job):
    raise MemoryError(f"{chunk.stop - chunk.start} observations")


def test_no_memory_for_a_thousand_fails_the_job(cluster, make_job, monkeypatch):
    monkeypatch.setattr(pipeline, "resolve", no_memory)
    with pytest.raises(MemoryError, match="observations"):
        run(cluster, make_job(points(10_000, 1), points(100, 2)), ignore, never)


def test_tasks_are_named_after_their_job(cluster, make_job):
    def task_prefixes(dask_scheduler):
        return set(dask_scheduler.task_prefixes)

    def keys_of(dask_scheduler, job):
        events = dask_scheduler.transition_log
        return {event[0][0] for event in events if f"_{job}-" in str(event[0])}

    for _ in range(2):
        job = make_job(points(10, 1), points(20, 2))
        run(cluster, job, ignore, never)
    name = job.id.replace("-", "_")
    keys = cluster.client.run_on_scheduler(keys_of, job=name)
    assert {key.partition(f"_{name}-")[0] for key in keys} == {"resolve-run"}
    # Dask keeps what it learns by prefix for ever, so a prefix must not be a job's.
    prefixes = cluster.client.run_on_scheduler(task_prefixes)
    assert not [prefix for prefix in prefixes if job.id in prefix or name in prefix]


def test_tasks_are_named_without_a_look_at_the_sets(cluster, make_job, monkeypatch):
    def refuse(dataset):
        raise AssertionError("of a set of many files, each task would read all again")

    monkeypatch.setattr(Dataset, "__dask_tokenize__", refuse, raising=False)
    job = make_job(points(5, 1), points(5, 2))
    assert run(cluster, job, ignore, never)[0].rows == 5


def test_jobs_of_one_id_are_not_taken_for_each_other(cluster, make_job):
    """Dask gives what it has of the same name already, for as long as that is in use."""
    first, second = (
        replace(make_job(points(100, seed), points(9, 2)), id="same") for seed in (1, 3)
    )
    in_use = dd.from_map(bounds, [(Chunk(0, 100),)], meta=RUN).map_partitions(
        resolve_run, first, resolve, meta=RUN
    )
    run(cluster, second, ignore, never)
    sets = (points(100, 3), points(9, 2))
    rows, _ = nearest(*(table[name].to_numpy() for table in sets for name in ("lat", "lon")))
    assert read_matches(second)["reference"].to_pylist() == rows.tolist()
    del in_use


def test_chunks_are_begun_in_the_order_of_their_rows(cluster, make_job, monkeypatch):
    def begun(dask_scheduler, job):
        log = [(event[0], event[2]) for event in dask_scheduler.transition_log]
        return [key for key, state in log if f"_{job}-" in str(key) and state == "processing"]

    cut_into(monkeypatch, 1_000)
    job = make_job(points(20_000, 1), points(20, 2))
    run(cluster, job, ignore, never)
    keys = cluster.client.run_on_scheduler(begun, job=job.id.replace("-", "_"))
    # One collection after the other, and of each the partitions from the last, which has the first
    # rows of them.
    collections = [[i for _, i in group] for _, group in groupby(keys, key=itemgetter(0))]
    assert len(collections) == len({name for name, _ in keys}) > 1
    assert collections == [[*range(len(numbers))][::-1] for numbers in collections]
    assert len(keys) == 20


@pytest.mark.parametrize("how", ["left", "inner"])
def test_long_texts_are_carried_while_memory_holds_them(cluster, make_job, how):
    texts = ["a" * 1_000, "é" * 300, None]
    references = pa.table({"lat": [0.0, 0.0, 60.0], "lon": [0.0, 90.0, 0.0], "text": texts})
    observations = points(140_000, 1)
    job = make_job(observations, references, columns=("text",), how=how)
    run(cluster, job, ignore, never)
    table = read_matches(job)
    nearest_rows = table["reference"].to_numpy()
    assert table["reference_text"].equals(
        pa.chunked_array([pa.array(texts).take(pa.array(nearest_rows))])
    )


WIDE = {
    "text": pa.array(["a" * 140_000, "b"]),
    "dictionary": pa.array(["a" * 140_000, "b"]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", WIDE)
def test_wide_values_make_row_groups_smaller(cluster, make_job, monkeypatch, kind):
    """Who joins chunks, and who reads a result, decodes a row group."""
    references = pa.table({"lat": [0.0, 0.0], "lon": [90.0, -90.0], "wide": WIDE[kind]})
    job, other = (make_job(points(2_500, 1), references, columns=("wide",)) for _ in range(2))
    result, _ = run(cluster, job, ignore, never)
    metadata = pq.read_metadata(open_matches(job.folder))
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes == [2048, 452]
    rows = 0
    for batch in streamed(open_matches(job.folder)).iter_batches(512):
        expected = WIDE[kind].take(batch["reference"])
        assert batch["reference_wide"].cast(expected.type).equals(expected)
        rows += batch.num_rows
    assert rows == 2_500
    cut_into(monkeypatch, 1_300)
    again, _ = run(cluster, other, ignore, never)
    assert again.digest == result.digest


def test_what_is_too_wide_fails_before_it_takes_memory(cluster, make_job):
    """A job that an earlier version accepted; now it is refused before."""
    references = pa.table({"lat": [0.0], "lon": [0.0], "list": [[0] * 600_000]})
    job = make_job(points(2_000, 1), references, columns=("list",))
    with pytest.raises(CarriedTooLong, match=r"widest row of the references has 19200004 .* an id"):
        run(cluster, job, ignore, never)
    assert not job.folder.exists()


def test_an_error_that_is_kept_holds_up_no_large_row_group(tmp_path, monkeypatch):
    dataset = store_points(points(2, 1, text=["a", "b"]), tmp_path / "points.parquet")
    job = Job(
        dataset, dataset, MatchOptions(observation_columns=("text",)), id="job", folder=tmp_path
    )
    rows = pa.table({"observation": [0, 1], "reference": [0, 1]})
    of_groups = iter([{"id": [1], "text": ["a"]}, {"id": [2], "text": [2]}])
    monkeypatch.setattr(attributes, "_LARGE_BYTES", -1)

    def read(own):
        return pa.table(next(of_groups))

    with pytest.raises(ValueError, match="schema does not match") as kept:
        partitions._encode(job, Chunk(0, 2), rows, read, [Chunk(0, 1), Chunk(1, 2)])
    assert kept.tb
    assert not attributes._making_large.locked()


def test_a_column_that_no_worker_can_hold_fails_its_job(cluster, make_job):
    job = make_job(points(10, 1), points(2, 1, text=["a", "b"]), columns=("text",))
    # As if it had so many rows: to write them takes longer than a test may.
    width = job.references.widths[-1]._replace(total=2**50)
    wide = replace(job.references, widths=(*job.references.widths[:-1], width))
    with pytest.raises(CarriedTooLong, match=f"takes {2**50} bytes of memory, and a worker has"):
        run(cluster, replace(job, references=wide), ignore, never)


def test_a_chunk_that_fails_fails_the_job(cluster, make_job):
    job = make_job(points(10, 1), points(10, 2))
    job.references.file.unlink()
    with pytest.raises(FileNotFoundError):
        run(cluster, job, ignore, never)
    with pytest.raises(FileNotFoundError):
        open_matches(job.folder)
