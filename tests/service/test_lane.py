"""The lane of small requests: who is next, how many a key may have, workers that do not answer."""

import asyncio
from contextlib import closing

import pytest

from georesolve.service.errors import NotReady, QueueFull, TooManyJobs
from georesolve.service.jobs import express
from georesolve.service.jobs.express import ExpressLane
from georesolve.workers.express import ExpressAnswer
from georesolve.workers.jobs import Job, MatchOptions
from tests.conftest import points, store_points


@pytest.fixture
def job(tmp_path):
    """Makes a small job with a number of its own for `k`, and so in a batch of its own or not."""
    points_stored = store_points(points(10, 1), tmp_path / "points.parquet")

    def make(id, k=1):
        return Job(id, tmp_path / id, points_stored, points_stored, MatchOptions(k=k))

    return make


class HeldBack:
    """A way to workers that answer when they are told to; keeps what they were given."""

    def __init__(self):
        self.given = []
        self.may_answer = asyncio.Event()

    async def __call__(self, worker, jobs):
        self.given.append((worker, [job.id for job in jobs]))
        await self.may_answer.wait()
        return [ExpressAnswer(job.id.encode(), {}, {}) for job in jobs]


def test_a_flood_of_one_key_delays_another_by_one_batch(job):
    async def check():
        workers = HeldBack()
        with closing(ExpressLane(workers)) as lane:
            lane.notice(["one"])
            asked = [
                asyncio.create_task(lane.resolve(job(f"ann-{i}", k=1 + i % 2), "ann"))
                for i in range(200)
            ]
            await asyncio.sleep(0)
            asked += [
                asyncio.create_task(lane.resolve(job(f"ben-{i}", k=3), "ben")) for i in range(2)
            ]
            await asyncio.sleep(0)
            workers.may_answer.set()
            answers = await asyncio.gather(*asked)
        assert [answer.content.decode() for answer in answers] == [
            *(f"ann-{i}" for i in range(200)),
            *(f"ben-{i}" for i in range(2)),
        ]
        batches = [ids for _, ids in workers.given]
        assert batches[2] == ["ben-0", "ben-1"]
        # What shares references and options shares a search, in the order in which it came.
        assert max(map(len, batches)) == 64
        assert len(batches) <= 8

    asyncio.run(check())


def test_one_key_may_have_so_many_unanswered(job):
    async def check():
        workers = HeldBack()
        with closing(ExpressLane(workers)) as lane:
            asked = [asyncio.create_task(lane.resolve(job(f"ann-{i}"), "ann")) for i in range(256)]
            await asyncio.sleep(0)
            with pytest.raises(TooManyJobs, match="256 small requests of this key wait"):
                await lane.resolve(job("ann-more"), "ann")
            asked.append(asyncio.create_task(lane.resolve(job("ben-0"), "ben")))
            workers.may_answer.set()
            lane.notice(["one"])
            await asyncio.gather(*asked)
            await lane.resolve(job("ann-again"), "ann")

    asyncio.run(check())


class OneHangs(HeldBack):
    """As held back, but only the worker `hung`; the others answer at once."""

    async def __call__(self, worker, jobs):
        if worker == "hung":
            return await super().__call__(worker, jobs)
        self.given.append((worker, [job.id for job in jobs]))
        return [ExpressAnswer(job.id.encode(), {}, {}) for job in jobs]


def test_what_a_hung_worker_has_goes_elsewhere(job, monkeypatch):
    monkeypatch.setattr(express, "_PATIENCE_SECONDS", 0.05)

    async def check():
        workers = OneHangs()
        with closing(ExpressLane(workers)) as lane:
            lane.notice(["hung", "well"])
            answers = await asyncio.gather(*(lane.resolve(job(f"{i}"), "") for i in range(10)))
            assert [answer.content for answer in answers] == [b"%d" % i for i in range(10)]
            # The scheduler does not know yet, and tells of it again and again.
            for i in range(20):
                lane.notice(["hung", "well"])
                await lane.resolve(job(f"more-{i}"), "")
            assert [worker for worker, _ in workers.given].count("hung") == 1
            workers.may_answer.set()
            await asyncio.sleep(0.01)
            lane.notice(["hung"])
            assert (await lane.resolve(job("last"), "")).content == b"last"

    asyncio.run(check())


def test_a_request_that_no_worker_answers_ends(job, monkeypatch):
    monkeypatch.setattr(express, "_DEADLINE_SECONDS", 0.05)

    async def check():
        with closing(ExpressLane(HeldBack())) as lane:
            for workers in ([], ["hung"]):
                lane.notice(workers)
                with pytest.raises(NotReady, match="no worker has answered within"):
                    await lane.resolve(job("only"), "")

    asyncio.run(check())


def test_a_lane_that_closes_refuses_what_waits_and_what_runs_and_what_comes(job):
    async def close_under_way():
        workers = HeldBack()
        lane = ExpressLane(workers)
        lane.notice(["only"])
        asked = [asyncio.create_task(lane.resolve(job("one"), "")) for _ in range(3)]
        while not workers.given:
            await asyncio.sleep(0)
        lane.close()
        asked.append(asyncio.create_task(lane.resolve(job("one"), "")))
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(asyncio.wait_for(close_under_way(), 10))
    assert [type(answer) for answer in answers] == [NotReady] * 4
    assert {answer.detail for answer in answers} == {"the cluster was lost: try again"}


def test_a_lane_takes_no_more_than_it_holds(job):
    async def crowd():
        lane = ExpressLane(HeldBack())
        asked = [asyncio.create_task(lane.resolve(job("one"), "")) for _ in range(1030)]
        done, waiting = await asyncio.wait(asked, timeout=0.2)
        lane.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [type(task.exception()) for task in done]

    assert asyncio.run(asyncio.wait_for(crowd(), 10)) == [QueueFull] * 6
