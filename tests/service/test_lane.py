"""The lane of small requests, whatever its workers do, each has an answer."""

import asyncio

import pytest

from service.errors import NotReady, QueueFull
from service.jobs.express import ExpressLane
from tests.conftest import points, store_points
from workers.jobs import Job, MatchOptions

SECONDS = 10


@pytest.fixture
def job(tmp_path):
    one = store_points(points(1, 1), None)
    return Job("job", tmp_path, one, one, MatchOptions())


class SilentWorkers:
    """They take what they are given, and never answer."""

    def __init__(self):
        self.taken = asyncio.Event()

    async def resolve_at_once(self, worker, jobs):
        self.taken.set()
        await asyncio.Event().wait()


def test_a_lane_that_closes_refuses_what_waits_and_what_runs_and_what_comes(job):
    async def close_under_way():
        workers = SilentWorkers()
        lane = ExpressLane(workers.resolve_at_once)
        lane.notice(["only"])
        asked = [asyncio.create_task(lane.resolve(job)) for _ in range(3)]
        await workers.taken.wait()
        lane.close()
        asked.append(asyncio.create_task(lane.resolve(job)))
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(asyncio.wait_for(close_under_way(), SECONDS))
    assert [type(answer) for answer in answers] == [NotReady] * 4
    assert {answer.detail for answer in answers} == {"the cluster was lost: try again"}


def test_a_lane_takes_no_more_than_it_holds(job):
    async def crowd():
        lane = ExpressLane(SilentWorkers().resolve_at_once)
        asked = [asyncio.create_task(lane.resolve(job)) for _ in range(1030)]
        done, waiting = await asyncio.wait(asked, timeout=0.2)
        lane.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [type(task.exception()) for task in done]

    assert asyncio.run(asyncio.wait_for(crowd(), SECONDS)) == [QueueFull] * 6
