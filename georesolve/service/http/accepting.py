"""New connections, shared evenly by the fronts that listen on the same sockets.

The kernel wakes all of them, and the first would take whatever waits: of 64 connections one of four
fronts had 30, and its clients waited for each other while other fronts had nothing to do.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, MutableSequence

logger = logging.getLogger(__name__)

_YIELD_SECONDS = 0.005
"""For so long a front leaves a connection to others that have fewer. Then it takes it: those may
have ended, or be busy."""
_EXHAUSTED_SECONDS = 1.0
"""After that a front tries again that may open no more files."""


class Acceptor:
    """Takes connections one at a time, unless other fronts have fewer and come first.

    Parameters
    ----------
    sockets
        Those that listen; all fronts have the same.
    counts
        How many connections each front has, in memory that they share.
    own
        Which of them is that of this front.
    """

    def __init__(
        self, sockets: list[socket.socket], counts: MutableSequence[int], own: int
    ) -> None:
        self._sockets = sockets
        self._counts = counts
        self._own = own
        self._taking: list[asyncio.Task[None]] = []

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
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                # Another front was first, or the client has gone.
                continue
            except OSError as error:
                logger.error("no connection can be accepted: %s", error)
                await asyncio.sleep(_EXHAUSTED_SECONDS)
                continue
            connection.setblocking(False)
            # At once, and not when the connection is made: until then others come.
            self._counts[self._own] += 1
            try:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(protocol, connection)
            except OSError:
                logger.info("a client had gone before its connection was open")
            except Exception:
                # The others are taken all the same.
                logger.exception("a connection was not opened")


async def _readable(listening: socket.socket) -> None:
    """Wait until a connection waits; it may be another front that takes it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)
