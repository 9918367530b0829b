"""Estimates: what they learn from the jobs that were run."""

import asyncio
from contextlib import suppress

from georesolve.workers.cluster import in_event_loop
from georesolve.workers.estimate import Capacity, Pace, estimate, memory_of_worker, size_of_dataset
from georesolve.workers.jobs import Job, MatchOptions
from tests.conftest import points, store_points, wait_until


def capacity_of(cluster, pace):
    """What an estimate knows of a cluster."""

    async def ask():
        async with in_event_loop(cluster) as client:
            address = next(iter(cluster.workers().values()))
            return await memory_of_worker(client, cluster.device, address)

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
    job = Job("j", tmp_path / "j", *sets, MatchOptions())
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
