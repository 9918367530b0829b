"""Estimates: what they learn from the jobs that were run."""

import asyncio
from contextlib import suppress

import pytest

from georesolve.engine.estimate import Capacity, estimate, size_of_dataset
from georesolve.query import MatchOptions
from georesolve.workers.cluster import in_event_loop
from georesolve.workers.job import Job
from georesolve.workers.pace import Pace, asked_of_worker
from tests.conftest import points, store_points, wait_until


def capacity_of(cluster, pace):
    """What an estimate knows of a cluster."""

    async def ask():
        async with in_event_loop(cluster) as client:
            address = next(iter(cluster.workers().values()))
            return await asked_of_worker(client, cluster.device, address)

    told = []

    def answers():
        # On a busy machine a worker may not answer in time.
        with suppress(OSError):
            told[:] = asyncio.run(ask())
        return told

    wait_until(answers)
    return Capacity(cluster.device, len(cluster.workers()), pace.factor, *told)


def test_an_estimate_follows_the_jobs_that_were_run(tmp_path, cluster):
    sets = [store_points(points(n, n), tmp_path / f"{n}.parquet") for n in (5000, 300)]
    job = Job(*sets, MatchOptions(), id="j", folder=tmp_path / "j")
    sizes = [size_of_dataset(one, ()) for one in sets]
    pace = Pace()

    def seconds():
        return estimate(capacity_of(cluster, pace), *sizes, job.options).seconds

    by_the_rates = seconds()
    # One job that was unlucky is no rule.
    pace.note(cluster, job, 100 * by_the_rates, 0.0)
    assert seconds() == by_the_rates
    for _ in range(9):
        pace.note(cluster, job, 4 * by_the_rates, 0.0)
    assert abs(seconds() / by_the_rates - 4) < 1e-9


def test_an_estimate_counts_code_that_is_new(tmp_path, cluster):
    sets = [store_points(points(n, n), tmp_path / f"{n}.parquet") for n in (5000, 300)]
    sizes, options = [size_of_dataset(one, ()) for one in sets], MatchOptions()
    capacity = capacity_of(cluster, Pace())
    # Its workers have rehearsed it.
    known = estimate(capacity, *sizes, options, kind=options.kind(*sets))
    assert known.seconds_compiling == 0
    assert known.seconds == estimate(capacity, *sizes, options).seconds
    new = estimate(capacity, *sizes, options, kind="never asked")
    assert new.seconds - known.seconds == pytest.approx(new.seconds_compiling)
    assert new.seconds_warm == known.seconds_warm
    if cluster.device == "cpu":
        assert new.seconds_compiling > 0
