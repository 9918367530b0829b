"""HTTP connections: how fronts share them, their number, and how large and slow a head may be.

What may be in a body, and how long a client may pause in it, stands in `service.http.bodies`.
"""

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Callable, MutableSequence
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from georesolve.service import errors
from georesolve.service.settings import Settings

logger = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10
"""The request line and all headers; each header counts for `_HEADER_BYTES` more."""
_HEADER_BYTES = 32
"""About what a header takes in memory beside its text."""
_PIECE_BYTES = 16 << 10
"""So much is parsed at a time: the parser keeps all of a header that has no end yet."""
_MOST_WAITING = 16
"""Requests of one connection that may be sent before the first of them is answered."""
BACKLOG = 256
"""Connections that the kernel accepts before the service does."""
_YIELD_SECONDS = 0.005
"""For so long a front leaves a connection to others that have fewer. Then it takes it: those may
have ended, or be busy."""
_EXHAUSTED_SECONDS = 1.0
"""After that a front tries again that may open no more files."""


class Acceptor:
    """Takes connections, as long as no other front has fewer, and leaves others some time first.

    The kernel wakes all fronts, and the first would take whatever waits: of 64 connections one of
    four had 30. `counts` are those of all fronts, in shared memory.
    """

    def __init__(
        self, sockets: list[socket.socket], counts: MutableSequence[int], own: int
    ) -> None:
        self._sockets = sockets
        self._counts = counts
        self._own = own
        self._taking: list[asyncio.Task[None]] = []
        self.most = sys.maxsize
        """Connections up to which they are taken at once."""

    def start(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Take connections from now on, in the event loop that runs."""
        self._taking = [asyncio.create_task(self._take(one, protocol)) for one in self._sockets]

    def stop(self) -> None:
        """Take no more."""
        for taking in self._taking:
            taking.cancel()

    def note(self, connections: int) -> None:
        """Tell the other fronts how many connections this one has."""
        self._counts[self._own] = connections

    async def _take(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        listening.setblocking(False)
        while True:
            await _readable(listening)
            if self._counts[self._own] > min(self._counts):
                await asyncio.sleep(_YIELD_SECONDS)
            # All that wait, in one turn of the event loop. One a turn, the last of 64 waited while
            # each of those before it was answered again and again.
            taken: list[socket.socket] = []
            pause = 0.0
            while True:
                try:
                    connection, _ = listening.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    # Another front was first, or the client has gone.
                    break
                except OSError as error:
                    logger.error("no connection can be accepted: %s", error)
                    pause = _EXHAUSTED_SECONDS
                    break
                connection.setblocking(False)
                # At once, and not when the connection is made: until then others come.
                self._counts[self._own] += 1
                taken.append(connection)
                if self._counts[self._own] >= min(self.most, min(self._counts) + 1):
                    break
            # Each is counted, and what it has sent is heard, before others are taken: where there
            # are as many as may be, who has sent nothing yet makes room.
            if taken:
                await asyncio.wait([asyncio.create_task(_open(one, protocol)) for one in taken])
            await asyncio.sleep(pause)


async def _open(connection: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
    except OSError:
        logger.info("a client had gone before its connection was open")
    except Exception:
        # The others are taken all the same.
        logger.exception("a connection was not opened")


async def _readable(listening: socket.socket) -> None:
    """Wait until a connection waits; it may be another front that takes it."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


class Connections:
    """All connections of a service, and what bounds them."""

    def __init__(self, settings: Settings, acceptor: Acceptor) -> None:
        self.acceptor, self.settings = acceptor, settings
        # Each may have a file open, too, and the other half is for jobs and the database.
        self.most = acceptor.most = min(settings.connections, _descriptors() // 4)
        # Those without a request that is being answered; which waits longest for its client, first.
        self.waiting: dict[_Connection, None] = {}
        # What uvicorn makes a connection with.
        self.protocol: Any = partial(_Connection, self)
        if self.most < settings.connections:
            logger.warning(
                "%d connections at most, and not %d: the process may have %d open files "
                "(ulimit -Hn), of which a quarter is for connections",
                self.most,
                settings.connections,
                _descriptors(),
            )


def raise_descriptors() -> None:
    """Let this process have as many open files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Connection(HttpToolsProtocol):
    """A connection of uvicorn's, with bounds on the size and the time of a head.

    One that waits for its client is ended after a while, and when there are too many: the one that
    has waited longest. The event loop calls `connection_*` and `data_received`, the parser `on_*`.
    """

    def __init__(self, bounds: Connections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds, self._settings = bounds, bounds.settings
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._is_head = True
        self._head_bytes = 0
        self._unheard_bytes = 0
        self._refusal: errors.Problem | None = None
        self._last_answer: errors.Problem | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._bounds.acceptor.note(len(self.connections))
        if len(self.connections) > self._bounds.most:
            longest = next(iter(self._bounds.waiting), None)
            if longest is None:
                self._refuse(
                    errors.TooManyConnections(
                        f"the service has {self._bounds.most} connections, all of them with a "
                        "request that is being answered, and takes no more: come again later"
                    )
                )
                return
            longest.end()
        self._wait(self._settings.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_stall()
        super().connection_lost(exc)
        self._bounds.acceptor.note(len(self.connections))

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            if self._last_answer is not None:
                return
            piece = data[start : start + _PIECE_BYTES]
            self._unheard_bytes += len(piece)
            super().data_received(piece)
            if self._unheard_bytes > HEAD_BYTES:
                self._refuse(self._head_too_large())
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return

    def on_message_begin(self) -> None:
        self._unheard_bytes = 0
        if len(self.pipeline) >= _MOST_WAITING:
            self._fail(
                errors.InvalidRequest(
                    f"{_MOST_WAITING} requests of this connection wait for their answers: read "
                    "these before you send more, or open more connections"
                )
            )
        self._is_head = True
        self._head_bytes = 0
        if self._is_idle():
            self._wait(self._settings.header_seconds)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_BYTES)
        # Trailers are no headers, and are dropped.
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        # The answer has been handed to the transport.
        is_whole = not self.cycle.more_body
        super().on_response_complete()
        if self._last_answer is not None:
            if self._is_idle():
                self._end_with(self._last_answer)
        elif self._is_idle():
            # The rest of a body that was refused is read, and dropped, for as long as a head may
            # take: a client that still sends it would not see its answer otherwise.
            self._wait(self._settings.idle_seconds if is_whole else self._settings.header_seconds)

    def pause_writing(self) -> None:
        # The client does not read.
        super().pause_writing()
        self._stall = self.loop.call_later(self._settings.body_seconds, self.end)

    def resume_writing(self) -> None:
        self._stop_stall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        # The parser has failed.
        self._refuse(
            self._refusal
            or errors.InvalidRequest(
                "this is no request as HTTP has it: percent-encode what is not ASCII in the "
                "address ('ü' is '%C3%BC'), and look at what else the client sends"
            )
        )

    def end(self) -> None:
        self._stop_waiting()
        self.transport.abort()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._bounds.waiting[self] = None
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        self._bounds.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _give_up(self) -> None:
        if self._head_bytes and self._is_head and not self.transport.is_closing():
            seconds = self._settings.header_seconds
            self._refuse(
                errors.HeadTimeout(
                    f"the headers of the request had not all come after {seconds:g} s, and may "
                    f"take {seconds:g} s: send them at once"
                )
            )
        else:
            self.end()

    def _count(self, size: int) -> None:
        self._unheard_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._fail(self._head_too_large())

    def _head_too_large(self) -> errors.Problem:
        return errors.HeadTooLarge(
            f"the request line and the headers have more than {HEAD_BYTES} bytes, which is the "
            f"limit (each header counts for {_HEADER_BYTES} more): send fewer or shorter ones"
        )

    def _fail(self, problem: errors.Problem) -> None:
        """Have the parser fail: what it is given after that is not looked at."""
        self._refusal = problem
        raise ValueError(problem.detail)

    def _refuse(self, problem: errors.Problem) -> None:
        """Answer with a problem behind the answers to complete requests, and close."""
        client = self.client[0] if self.client else "unknown"
        logger.info("%s sent no request that is answered: %s", client, problem.detail)
        self._stop_waiting()
        if self._is_idle() or self.cycle.more_body:
            self._end_with(problem)
        else:
            # Answers have nothing but their order: this one is behind those of earlier requests.
            self._last_answer = problem

    def _end_with(self, problem: errors.Problem) -> None:
        """Answer with a problem, unless another answer is on its way, and close."""
        if not self.pipeline and (self._is_idle() or not self.cycle.response_started):
            headers = {**problem.headers, "Connection": "close"}
            answer = JSONResponse(problem.document(), problem.status, headers, errors.PROBLEM_JSON)
            line = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}".encode()
            pairs = (*self.server_state.default_headers, *answer.raw_headers)
            lines = [line, *(b"%b: %b" % pair for pair in pairs)]
            self.transport.write(b"\r\n".join([*lines, b"", answer.body]))
        if not self._is_idle():
            # Whoever reads the request hears that the client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._stop_waiting()
        self.transport.close()
        # What the client does not read is not waited for.
        self._deadline = self.loop.call_later(self._settings.header_seconds, self.transport.abort)
