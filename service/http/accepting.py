"""New connections, shared evenly by the fronts that listen on the same sockets.

The kernel wakes all of them, and the first would take whatever waits: of 64 connections one of four
fronts had 30, and its clients waited for each other while other fronts had nothing to do.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, MutableSequence
from typing import Any

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
        self._waits: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[Any]] = set()

    def start(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Take connections from now on, in the event loop that runs."""
        for one in self._sockets:
            one.setblocking(False)
            self._listen(one, protocol)

    def stop(self) -> None:
        """Take no more."""
        for wait in self._waits.values():
            wait.cancel()
        for one in self._sockets:
            asyncio.get_running_loop().remove_reader(one)

    def note(self, connections: int) -> None:
        """Tell the other fronts how many connections this one has."""
        self._counts[self._own] = connections

    def _listen(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        asyncio.get_running_loop().add_reader(listening, self._look, listening, protocol)

    def _look(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        if self._counts[self._own] > min(self._counts):
            self._pause(_YIELD_SECONDS, listening, protocol)
        else:
            self._take(listening, protocol)

    def _pause(
        self, seconds: float, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        def again() -> None:
            self._listen(listening, protocol)
            self._take(listening, protocol)

        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._waits[listening] = loop.call_later(seconds, again)

    def _take(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another front was first, or the client has gone.
            return
        except OSError as error:
            logger.error("no connection can be accepted: %s", error)
            self._pause(_EXHAUSTED_SECONDS, listening, protocol)
            return
        connection.setblocking(False)
        # At once, and not when the connection is made: until then others come.
        self._counts[self._own] += 1
        loop = asyncio.get_running_loop()
        task = loop.create_task(_opened(loop.connect_accepted_socket(protocol, connection)))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


async def _opened(opening: Coroutine[Any, Any, Any]) -> None:
    try:
        await opening
    except OSError:
        logger.info("a client had gone before its connection was open")
