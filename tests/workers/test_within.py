"""Jobs of all within a distance: the bytes of the command, however cut, whole after a death."""

import os
import re
import signal
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve import files
from georesolve.engine.plan import Chunk, chunks_of_pairs
from georesolve.io.errors import InvalidInput, ResultTooLarge
from georesolve.options import Options, WithinOptions
from georesolve.workers.job import Job
from georesolve.workers.pipeline import JobCancelled, run
from georesolve.workers.results.manifest import open_matches
from tests.conftest import points, store_points
from tests.workers.test_pipeline import cut_into, ignore, never

NAMES = [f"place {i}" if i % 3 else None for i in range(1_200)]
KINDS = ["sum", "mean", "min", "max"]
MANY = points(3_000, 1, radius=np.linspace(0, 2e7, 3_000)), points(1_200, 2, name=NAMES)
ASKED = {
    "pairs": {"distance_m": 2e7},
    "left": {"distance_m": "radius", "how": "left", "columns": ("name",)},
    "few": {"distance_m": 20_000.0, "observation_columns": ("radius",)},
    "none": {"distance_m": 0.0},
    "counts": {"distance_m": 3e6, "summary": {"count": True}},
    "of the nearest": {"k": 7, "max_distance_m": 1e6, "summary": {"count": True}},
}


def asked_for(**options):
    return (WithinOptions if "distance_m" in options else Options)(on_invalid="null", **options)


@pytest.fixture
def make_job(tmp_path):
    made = []

    def make(observations, references, **options):
        number = len(made)
        sets = [
            store_points(table, tmp_path / f"{role}-{number}.parquet")
            for role, table in (("observations", observations), ("references", references))
        ]
        asked = asked_for(**options)
        folder = tmp_path / f"job-{number}"
        job = Job(*sets, asked.match(*sets), id=f"{tmp_path.name}-{number}", folder=folder)
        made.append(job)
        return job

    return make


def content(job):
    with open_matches(job.folder) as file:
        return file.read()


def by_command(tmp_path, observations, references, **options):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, table in zip(paths, (observations, references), strict=True):
        pq.write_table(table, path)
    out = tmp_path / "out.parquet"
    asked = asked_for(**options)
    summary = files.resolve(*paths, out, asked, device="cpu")
    return out.read_bytes(), summary.counts


@pytest.mark.parametrize("asked", ASKED)
def test_bytes_are_those_of_the_command_however_cut(
    cluster, make_job, monkeypatch, tmp_path, asked
):
    expected, counts = by_command(tmp_path, *MANY, **ASKED[asked])
    for size in (3_000, 700):
        cut_into(monkeypatch, size)
        job = make_job(*MANY, **ASKED[asked])
        result, progress = run(cluster, job, ignore, never)
        assert content(job) == expected
        assert dict(progress.counts) == counts
        assert progress.rows_done == 3_000
        assert result.rows == pq.read_metadata(pa.BufferReader(expected)).num_rows
    if asked == "pairs":
        assert result.rows > 3 * 2**20


def test_a_set_against_itself_and_sums(cluster, make_job, monkeypatch, tmp_path):
    cut_into(monkeypatch, 70)
    numbers = 2**53 + np.arange(400)
    sizes = {
        "size": np.arange(400) / 7,
        "unsigned": numbers.astype(np.uint64),
        "decimal": pa.array(numbers).cast(pa.decimal128(20)),
        "text": pa.array(numbers).cast(pa.string()),
    }
    table = points(400, 3, **sizes)
    summary = {"count": True, **dict.fromkeys(sizes, KINDS)}
    for options in ({"once": True}, {"exclude_self": True, "summary": summary}):
        job = make_job(table, table, distance_m=4e6, **options)
        run(cluster, job, ignore, never)
        assert content(job) == by_command(tmp_path, table, table, distance_m=4e6, **options)[0]


def test_all_copies_of_a_reference_are_found(cluster, make_job, tmp_path):
    sets = points(50, 1), pa.table({"lat": np.ones(300), "lon": np.ones(300)})
    job = make_job(*sets, distance_m=2e7)
    result, _ = run(cluster, job, ignore, never)
    assert result.rows > 10_000
    assert content(job) == by_command(tmp_path, *sets, distance_m=2e7)[0]


def test_killed_while_pairs_are_written_and_taken_up_again(
    cluster, make_job, monkeypatch, tmp_path
):
    cut_into(monkeypatch, 300)
    expected, _ = by_command(tmp_path, *MANY, distance_m=2e7)
    job = make_job(*MANY, distance_m=2e7)

    def has_part():
        return any(job.records.path.glob("*.json"))

    # Stopped with a part written, and taken up again: what was counted stands, and that part.
    with pytest.raises(JobCancelled):
        run(cluster, job, ignore, has_part)
    counted = list(job.counting().records.path.glob("*.json"))
    standing = {
        path: path.stat().st_mtime_ns for path in [*counted, *job.records.path.glob("*.j*")]
    }
    assert len(counted) == 10
    workers, killed = cluster.client.run(os.getpid).values(), []
    victim = min(workers)

    def kill_once(progress):
        if not killed:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    run(cluster, job, kill_once, never)
    assert killed
    assert content(job) == expected
    assert {path: path.stat().st_mtime_ns for path in standing} == standing
    cluster.client.wait_for_workers(len(workers), timeout=60)


def test_what_is_too_large_is_refused_before_a_pair_is_written(cluster, make_job):
    job = make_job(*MANY, distance_m=1e6)

    words = r"the result has (\d+) rows, about (\d+) bytes, and 4000 are allowed: ask for a shorter"
    with pytest.raises(ResultTooLarge, match=words) as refused:
        run(cluster, job, ignore, never, 4000)
    rows, size_bytes = map(int, re.match(words, str(refused.value)).groups())
    assert not [*job.place.path.glob("*.parquet")]
    result, _ = run(cluster, job, ignore, never)
    assert result.rows == rows
    assert 0.5 < size_bytes / result.size_bytes < 2


def test_a_column_without_a_distance_fails_the_job(cluster, make_job):
    table = points(20, 1, radius=[*range(19), None])
    with pytest.raises(InvalidInput, match="'radius' holds None in row 19, where it must hold 0"):
        run(cluster, make_job(table, points(5, 2), distance_m="radius"), ignore, never)


def test_chunks_of_pairs_that_are_rare_are_of_few_counted_ones(make_job):
    job = make_job(*MANY, distance_m=1.0)
    starts = list(range(0, 32_001, 1_000))
    rare = replace(job, counted=(starts, [5 * i for i in range(33)]))
    assert chunks_of_pairs(rare, rare.counted[1], "cpu") == Chunk(0, 160).pieces(40)
    many = replace(job, counted=(starts, [10**6 * i for i in range(33)]))
    assert chunks_of_pairs(many, many.counted[1], "cpu") == Chunk(0, 32 * 10**6).pieces(2**20)
    none = replace(job, counted=(starts, [0] * 33))
    assert chunks_of_pairs(none, none.counted[1], "cpu") == [Chunk(0, 0)]
