"""Who has much to do keeps nobody else waiting: jobs, files and small requests go round by key."""

import asyncio

from georesolve.service.pools import Turns


async def work(turns, order, name, until=None):
    """Take a place for the owner that the name begins with."""
    async with turns.place(name[0]):
        order.append(name)
        if until:
            await until.wait()


def test_a_free_place_goes_to_the_owner_who_holds_the_fewest():
    async def order_of(names, places):
        turns, order, until = Turns(places), [], asyncio.Event()
        tasks = [asyncio.create_task(work(turns, order, name, until)) for name in names]
        await asyncio.sleep(0)
        assert order == list(names[:places])
        until.set()
        await asyncio.gather(*tasks)
        return order

    names = ("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert asyncio.run(order_of(names, 1)) == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert asyncio.run(order_of(names, 2))[:5] == ["a1", "a2", "b1", "a3", "c1"]
    assert asyncio.run(order_of(names[:4], 1)) == ["a1", "a2", "a3", "a4"]


def test_no_place_is_lost_with_work_that_is_cancelled():
    async def check():
        turns, order = Turns(1), []
        async with turns.place("a"):
            waiting, called, last = (
                asyncio.create_task(work(turns, order, name)) for name in ("a1", "a2", "a3")
            )
            await asyncio.sleep(0)
            waiting.cancel()
        # It has its place, and has not been told.
        called.cancel()
        await asyncio.gather(waiting, called, return_exceptions=True)
        await last
        assert order == ["a3"]

    asyncio.run(asyncio.wait_for(check(), 10))


def test_who_is_to_be_alone_is_alone_and_is_not_passed_over():
    async def check():
        turns, log = Turns(2), []

        async def job(name, *, alone=False):
            async with turns.place("one owner", alone=alone):
                log.append(f"{name} runs")
                await asyncio.sleep(0.01)
                log.append(f"{name} ends")

        names = ("a", "b", "cancelled", "alone", "c", "d")
        tasks = {
            name: asyncio.create_task(job(name, alone=name in ("cancelled", "alone")))
            for name in names
        }
        await asyncio.sleep(0)
        tasks["cancelled"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert {*log[:2]} == {"a runs", "b runs"}
        assert log[4:6] == ["alone runs", "alone ends"]
        assert {*log[6:8]} == {"c runs", "d runs"}

    asyncio.run(asyncio.wait_for(check(), 10))


def test_who_was_alone_has_no_more_than_the_others_afterwards():
    async def check():
        turns, order, until = Turns(1), [], asyncio.Event()
        async with turns.place("b", alone=True):
            tasks = [asyncio.create_task(work(turns, order, name, until)) for name in ("a1", "b1")]
            await asyncio.sleep(0)
        until.set()
        await asyncio.gather(*tasks)
        assert order == ["a1", "b1"]

    asyncio.run(asyncio.wait_for(check(), 10))


def test_others_go_on_when_who_was_to_be_alone_gives_up():
    async def check():
        turns, order = Turns(2), []
        async with turns.place("a"):

            async def alone():
                async with turns.place("b", alone=True):
                    pass

            waiting = asyncio.create_task(alone())
            other = asyncio.create_task(work(turns, order, "c1"))
            await asyncio.sleep(0.01)
            assert order == []
            waiting.cancel()
            await other

    asyncio.run(asyncio.wait_for(check(), 10))
