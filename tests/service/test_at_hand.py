"""Small requests wait in turn, and not too many of them: of all owners, and of one."""

import asyncio
import threading
from contextlib import closing
from os import sched_getaffinity

import pytest

from georesolve.service.errors import InvalidInput, QueueFull, TooManyJobs
from georesolve.service.resolve.context import AtHand
from georesolve.service.settings import Settings

THREADS = min(4, max(1, len(sched_getaffinity(0)) - 1))


@pytest.fixture
def at_hand():
    with closing(AtHand(Settings(fronts=1))) as at_hand:
        yield at_hand


class HeldBack:
    """Work that ends when it is told to; notes who began."""

    def __init__(self):
        self.begun = []
        self.may_end = threading.Event()

    def of(self, name):
        def work():
            self.begun.append(name)
            # Kernels may have to be compiled first.
            assert self.may_end.wait(300)
            return name

        return work


def test_a_flood_of_one_key_delays_another_by_one_request_a_thread(at_hand):
    async def check():
        work = HeldBack()
        asked = [asyncio.create_task(at_hand.answer("ann", work.of("ann"))) for _ in range(200)]
        await asyncio.sleep(0)
        asked.append(asyncio.create_task(at_hand.answer("ben", work.of("ben"))))
        await asyncio.sleep(0)
        work.may_end.set()
        assert await asyncio.gather(*asked) == ["ann"] * 200 + ["ben"]
        # Those that threads had in hand, and one more for each that ended at that moment.
        assert work.begun.index("ben") <= 2 * THREADS

    asyncio.run(check())


def test_no_more_than_its_threads_work_at_a_time(at_hand):
    async def check():
        while (at_hand.trouble or "").endswith("compiled once for this machine"):
            await asyncio.sleep(0.01)
        assert at_hand.trouble is None
        work = HeldBack()
        asked = [asyncio.create_task(at_hand.answer("", work.of(i))) for i in range(THREADS + 3)]
        while len(work.begun) < THREADS:
            await asyncio.sleep(0.001)
        # A turn of the loop for each that could still begin.
        for _ in range(10):
            await asyncio.sleep(0)
        assert work.begun == list(range(THREADS))
        work.may_end.set()
        assert await asyncio.gather(*asked) == list(range(THREADS + 3))

    asyncio.run(check())


def test_a_slot_stays_taken_while_its_thread_works_for_a_cancelled_request(at_hand):
    async def check():
        work = HeldBack()
        requests = [asyncio.create_task(at_hand.answer("ann", work.of(i))) for i in range(THREADS)]
        while len(work.begun) < THREADS:
            await asyncio.sleep(0.001)
        for task in requests:
            task.cancel()
        assert all(isinstance(one, asyncio.CancelledError)
                   for one in await asyncio.gather(*requests, return_exceptions=True))  # fmt: skip
        # No slot is free: an answer of the event loop, too, waits for the threads.
        waiting = asyncio.create_task(at_hand.answer("ben", work.of("ben"), lambda: "quick"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        work.may_end.set()
        assert await asyncio.wait_for(waiting, 60) == "quick"
        assert await at_hand.answer("ann", work.of("again")) == "again"

    asyncio.run(check())


def test_a_slot_is_free_after_a_failure(at_hand):
    async def check():
        def fail():
            raise InvalidInput("no")

        for _ in range(THREADS + 1):
            with pytest.raises(InvalidInput):
                await at_hand.answer("ann", fail)
        assert await at_hand.answer("ben", lambda: "answer") == "answer"

    asyncio.run(asyncio.wait_for(check(), 60))


def test_one_key_may_have_so_many_unanswered(at_hand):
    async def check():
        work = HeldBack()
        asked = [asyncio.create_task(at_hand.answer("ann", work.of(i))) for i in range(256)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyJobs, match="256 small requests of this key wait"):
            await at_hand.answer("ann", work.of("more"))
        asked.append(asyncio.create_task(at_hand.answer("ben", work.of("ben"))))
        work.may_end.set()
        await asyncio.gather(*asked)
        assert await at_hand.answer("ann", work.of("again")) == "again"

    asyncio.run(check())


def test_all_may_have_so_many_unanswered(at_hand):
    async def check():
        work = HeldBack()
        asked = [asyncio.create_task(at_hand.answer("", work.of(i))) for i in range(1_030)]
        await asyncio.sleep(0)
        refused = [task for task in asked if task.done()]
        assert [type(task.exception()) for task in refused] == [QueueFull] * 6
        assert refused[0].exception().headers["Retry-After"] == "1"
        work.may_end.set()
        assert len(await asyncio.gather(*set(asked) - set(refused))) == 1_024

    asyncio.run(check())


def test_what_is_quick_is_answered_by_the_event_loop_in_turn(at_hand):
    async def check():
        begun = []

        def quickly(name):
            begun.append((name, threading.get_ident()))
            return name

        def of(name):
            return at_hand.answer(name, threading.get_ident, lambda: quickly(name))

        asked = [asyncio.create_task(of("ann")) for _ in range(50)]
        asked.append(asyncio.create_task(of("ben")))
        assert await asyncio.gather(*asked) == ["ann"] * 50 + ["ben"]
        here = threading.get_ident()
        assert {thread for _, thread in begun} == {here}
        # Those that had a place, and one more for each that ended at that moment.
        assert [name for name, _ in begun].index("ben") <= 2 * THREADS
        assert await at_hand.answer("ann", threading.get_ident, lambda: None) != here

    asyncio.run(check())


def test_what_fails_in_the_event_loop_is_looked_into_by_a_thread(at_hand):
    def fail(error):
        raise error

    async def check():
        def of(error):
            return at_hand.answer("ann", threading.get_ident, lambda: fail(error))

        for error in (OSError("a file that was cut off"), ValueError("a bug of ours")):
            assert await of(error) != threading.get_ident()
        with pytest.raises(InvalidInput, match="no rows"):
            await of(InvalidInput("no rows"))

    asyncio.run(check())


def test_an_error_is_that_of_the_request(at_hand):
    def fail():
        raise ValueError("of this one")

    async def check():
        with pytest.raises(ValueError, match="of this one"):
            await at_hand.answer("ann", fail)
        assert await at_hand.answer("ann", lambda: 1) == 1

    asyncio.run(check())
