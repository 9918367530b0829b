"""The plan: every row in exactly one chunk, chunks of a bearable size."""

import itertools
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georesolve.engine.cost_model import rows_a_second, takes_long
from georesolve.engine.estimate import estimate, size_of_rows
from georesolve.engine.plan import (
    RESULT_ROW_GROUP,
    Chunk,
    chunks,
    groups_at_once,
    next_run,
)
from georesolve.io.datasets import ROW_GROUP
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.pace import Pace
from tests.conftest import points, store_points, wait_until
from tests.workers.test_pace import capacity_of


@given(
    st.integers(0, 1 << 26),
    st.integers(1, 1 << 28),
    st.builds(MatchOptions, k=st.integers(1, 64), algorithm=st.sampled_from(["auto", "brute"])),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 64),
)
def test_every_row_is_in_one_chunk(n_observations, n_references, options, device, n_workers):
    plan = chunks(n_observations, n_references, options, device, n_workers)
    assert plan[0].start == 0
    assert plan[-1].stop == n_observations
    for one, following in itertools.pairwise(plan):
        assert one.start < one.stop == following.start
        size = one.stop - one.start
        assert size <= ROW_GROUP or size % ROW_GROUP == 0


def estimated(cluster, n_observations, n_references, options):
    sizes = size_of_rows(n_observations), size_of_rows(n_references)

    return estimate(capacity_of(cluster, Pace()), *sizes, options)


@pytest.mark.parametrize("n_observations", [0, 1, 1000, 65_537, 3_000_000])
@pytest.mark.parametrize("n_references", [1, 10**4, 10**9])
def test_an_estimate_counts_the_chunks_of_the_plan(cluster, n_observations, n_references):
    options = MatchOptions(k=3, algorithm="brute")
    # On a busy machine the scheduler may take its workers for lost for a while.
    wait_until(cluster.workers)
    workers = len(cluster.workers())
    plan = chunks(n_observations, n_references, options, cluster.device, workers)
    assert estimated(cluster, n_observations, n_references, options).chunks == len(plan)


def test_an_estimate_takes_no_more_memory_for_more_chunks(cluster):
    options = MatchOptions(algorithm="brute")
    estimated(cluster, 1, 1, options)
    tracemalloc.start()
    try:
        told = estimated(cluster, 1 << 31, 10**12, options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told.chunks == 1 << 21
    assert peak < 1 << 22


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chunks_of_what_takes_long_take_about_a_second(device, k):
    options, n_references, n = MatchOptions(k=k), 1 << 23, 1 << 22
    spread = chunks(n, n_references, options, device, 1, compared=30)
    assert spread == chunks(n, n_references, options, device, 1)
    plan = chunks(n, n_references, options, device, 1, compared=n_references)
    seconds = 1 / rows_a_second(n_references, options, device, n_references)
    # Whole row groups are rounded.
    assert 0.5 <= plan[0].stop * seconds <= 1.5 or plan[0].stop == 1_024
    assert sum(stop - start for start, stop in plan) == n
    assert takes_long(n, n_references, options, device)
    assert not takes_long(1 << 20, 1 << 7, options, device)
    # Brute force takes no longer than brute force.
    brute = rows_a_second(n_references, MatchOptions(k=k, algorithm="brute"), device)
    assert rows_a_second(n_references, options, device, n_references) == pytest.approx(
        brute, rel=0.01
    )


def test_chunks_that_take_little_are_taken_in_runs():
    plan = [Chunk(row, row + 1) for row in range(200)]
    waiting = plan[::-1]
    sizes = [len(next_run(waiting, 2, None))]
    assert waiting == plan[:0:-1], "none has told how long it takes"
    taken = []
    while waiting:
        run = next_run(waiting, 2, 0.04)
        sizes.append(len(run))
        taken += run
    assert taken == plan[1:]
    assert max(sizes) == 12, "half a second"
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert sizes[-8:] == [1] * 8, "every worker is busy to the end"
    assert len(next_run(plan, 2, 0.6)) == 1


@pytest.mark.parametrize(("n_groups", "at_once"), [(1, 1), (8, 1), (32, 2), (512, 4)])
def test_each_thread_has_row_groups_to_encode(tmp_path, n_groups, at_once):
    references = store_points(points(1, 1), tmp_path / "points.parquet")
    observations = replace(references, rows=n_groups * RESULT_ROW_GROUP)
    job = Job(observations, references, MatchOptions(), id="job", folder=tmp_path)
    assert groups_at_once(job, 16) == at_once
