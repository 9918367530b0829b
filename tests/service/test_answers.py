"""Files as answers: how they are closed, and whose turn it is to read them."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from georesolve.io.local_files import Look
from georesolve.io.result_formats import FORMATS
from georesolve.service import pools
from georesolve.service.http.answers import File, file_response
from georesolve.service.results.response import Results
from georesolve.service.store.store import Store

SECONDS = 20
CONTENT = b"0123456789"


class Content:
    """A file whose reading waits until it may go on."""

    def __init__(self):
        self.is_closed = self.is_read = False
        self.may_go_on, self.closed = threading.Event(), threading.Event()
        self._at = 0

    def tell(self):
        return self._at

    def seek(self, offset):
        self._at = offset

    def read(self, size):
        assert not self.closed.is_set()
        self.is_read = True
        assert self.may_go_on.wait(SECONDS)
        assert not self.closed.is_set(), "it is closed while a thread reads it"
        return CONTENT[self._at : self._at + size]

    def close(self):
        self.closed.set()


async def answer(run, content, send, **headers):
    """Send the content as an answer to a client that stays."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "headers": raw, "path": "/"}
    file = File(lambda: content, len(CONTENT), "tag", Look(0, 0, 0), "text/plain", "digits")
    response = await file_response(run, file, Request(scope))
    await response(scope, asyncio.Event().wait, send)


def test_an_answer_takes_no_turn_to_close_its_file():
    content, sent, turns = Content(), [], []
    content.may_go_on.set()

    async def run(function, *given):
        turns.append(function)
        return await pools.disk(function, *given)

    async def send(message):
        sent.append(message)

    asyncio.run(answer(run, content, send, range="bytes=2-4"))
    assert sent[0]["status"] == 206
    assert b"".join(one.get("body", b"") for one in sent) == b"234"
    assert content.closed.is_set()
    assert len(turns) == 2, "one to open it, one to read it"


def test_a_file_that_is_read_still_is_closed_by_the_thread_that_reads_it():
    content = Content()

    async def send(message):
        pass

    async def leave():
        answering = asyncio.create_task(answer(pools.disk, content, send))
        while not content.is_read:
            await asyncio.sleep(0)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert not content.closed.is_set()
        content.may_go_on.set()

    asyncio.run(asyncio.wait_for(leave(), SECONDS))
    assert content.closed.wait(SECONDS)


@pytest.mark.parametrize("suffix", ["csv", "geojson"])
def test_only_what_asks_elsewhere_waits_for_a_silent_source(tmp_path, suffix):
    """Batches of GeoJSON that a source keeps waiting leave those of CSV their places."""
    own_store, told = Store(tmp_path).of("ann"), threading.Event()
    own_store.dataset = lambda _: SimpleNamespace(dataset=SimpleNamespace(lies_elsewhere=True))
    results = Results(own_store, SimpleNamespace(of=None), None, 0)
    job = SimpleNamespace(observations="a", references="b")
    by_suffix = {one.suffix: one for one in FORMATS}

    async def ask():
        silent = await results._making(job, by_suffix["geojson"])
        waiting = [asyncio.create_task(silent(told.wait, SECONDS)) for _ in range(4)]
        await asyncio.sleep(0)
        other = await Results(own_store.of("bob"), None, None, 0)._making(job, by_suffix[suffix])
        assert await other(len, "made") == 4
        assert not any(one.done() for one in waiting)
        told.set()
        assert all(await asyncio.gather(*waiting))

    asyncio.run(asyncio.wait_for(ask(), SECONDS))
    own_store.close()
