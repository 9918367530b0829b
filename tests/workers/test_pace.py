"""Estimates: what they learn from the jobs that were run."""

import asyncio

from georesolve.workers.cluster import in_event_loop
from georesolve.workers.estimate import Pace, estimate, size_of_dataset
from georesolve.workers.jobs import Job, MatchOptions
from tests.conftest import points, store_points


def test_an_estimate_follows_the_jobs_that_were_run(tmp_path, cluster):
    sets = [store_points(points(n, n), tmp_path / f"{n}.parquet") for n in (5000, 300)]
    job = Job("j", tmp_path / "j", *sets, MatchOptions())
    sizes = [size_of_dataset(one, ()) for one in sets]
    pace = Pace()

    def seconds():
        async def ask():
            async with in_event_loop(cluster) as client:
                return await estimate(client, cluster, pace, *sizes, job.options)

        return asyncio.run(ask()).seconds

    by_the_rates = seconds()
    # One job that was unlucky is no rule.
    pace.note(cluster, job, 100 * by_the_rates)
    assert seconds() == by_the_rates
    for _ in range(9):
        pace.note(cluster, job, 4 * by_the_rates)
    assert abs(seconds() / by_the_rates - 4) < 1e-9
