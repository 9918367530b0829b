"""Tells of changes in the database, of whichever process: one task looks for all who wait.

A front tells a runner on the same machine of a job at once, by a named pipe: its bell.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from georesolve.service import pools
from georesolve.service.store.engine import of_single_statements
from georesolve.service.store.schema import jobs

logger = logging.getLogger(__name__)

_LOOK_SECONDS = {"sqlite": 0.02, "postgresql": 0.05}
"""While a job is waited for. A look takes SQLite some microseconds, Postgres an answer."""
_ANY_SECONDS = {"sqlite": 0.25, "postgresql": 0.05}
"""While anything is waited for, as a runner does all the time for jobs that are accepted.

All fronts of a SQLite file are on the machine of its runner, and ring. Others may be elsewhere.
"""
_IDLE_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_PIPE_BYTES = 65_536
"""As many a pipe holds; a full one was rung already."""
_VERSION = {
    # Another number after each commit of another connection.
    "sqlite": "PRAGMA data_version",
    # Another one after each begin and end of a transaction that writes.
    "postgresql": "SELECT pg_current_snapshot()::text",
}


class Changes:
    """Wakes those who wait for a job, or for anything, when the database has changed."""

    def __init__(self, engine: sa.Engine) -> None:
        # Whether this process is about to end: those who wait are woken, and go.
        self.stopping = False
        self._engine = engine
        self._dialect = engine.dialect.name
        self._errors = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
        # One connection: it counts the commits of all others.
        self._connection: sa.Connection | None = None
        self._looking = threading.Lock()
        self._stirred = asyncio.Event()
        self._listeners: dict[str | None, set[asyncio.Event]] = {}

    def version(self) -> object:
        """What every commit of any process changes; None where that takes an answer of a server.

        SQLite has it in shared memory: it takes the event loop microseconds, and waits for nothing.
        """
        if self._is_near:
            with suppress(*self._errors):
                return self._look()
        return None

    @property
    def _is_near(self) -> bool:
        """Whether a look waits for nothing: to connect waits for a disk, and for those before."""
        return self._dialect == "sqlite" and self._connection is not None

    def _look(self) -> object:
        with self._looking:
            if self._connection is None:
                engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
                self._connection = engine.connect()
                if self._dialect == "sqlite":
                    self._connection.exec_driver_sql("PRAGMA busy_timeout=0")
            # Not by SQLAlchemy, which takes most of the time of a look.
            cursor = self._connection.connection.cursor()
            cursor.execute(_VERSION[self._dialect])
            return cursor.fetchall()

    def close(self) -> None:
        """Close what is open here."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # It may be broken: it goes back to no pool.
            connection.invalidate()
            connection.close()

    @asynccontextmanager
    async def watched(self, *also: Callable[[], None]) -> AsyncIterator[None]:
        """Look for changes from now on; threads call `also` at the begin and after each."""
        self._stirred = asyncio.Event()
        async with pools.beside(self._watch(also), "changes"):
            yield

    @contextmanager
    def of(self, id: str | None) -> Iterator[asyncio.Event]:
        """An event that is set when a job changes, or anything for None; its reader clears it."""
        event = asyncio.Event()
        self._listeners.setdefault(id, set()).add(event)
        self._stirred.set()
        try:
            yield event
        finally:
            self._listeners[id].remove(event)
            if not self._listeners[id]:
                del self._listeners[id]

    def stop(self) -> None:
        """Wake all who wait: this process is about to end."""
        self.stopping = True
        self._wake(set(self._listeners))

    def _wake(self, ids: set[str | None]) -> None:
        for event in [event for id in ids for event in self._listeners.get(id, ())]:
            event.set()

    async def _watch(self, also: tuple[Callable[[], None], ...]) -> None:
        known: object = None
        seen: dict[str, tuple[object, ...]] = {}
        while True:
            self._stirred.clear()
            pause = self._pause()
            try:
                # As in `version`: a thread would take several times as much of a processor.
                version = self._look() if self._is_near else await pools.database(self._look)
                if version != known:
                    ids = {id for id in self._listeners if id}
                    now = await pools.database(self._states, ids) if ids else {}
                    self._wake({None, *(id for id in ids if now.get(id) != seen.get(id, ()))})
                    known, seen = version, now
                    for look in also:
                        await pools.database(look)
            except Exception as error:
                is_foreseen = isinstance(error, self._errors)
                logger.warning("changes cannot be seen: %s", error, exc_info=not is_foreseen)
                self.close()
                known, pause = None, _RETRY_SECONDS
            # Not a timeout, which ends a wait by an error: that takes longer than a look.
            timer = asyncio.get_running_loop().call_later(pause, self._stirred.set)
            await self._stirred.wait()
            timer.cancel()

    def _pause(self) -> float:
        if self._listeners.keys() - {None}:
            return _LOOK_SECONDS[self._dialect]
        return _ANY_SECONDS[self._dialect] if self._listeners else _IDLE_SECONDS

    def _states(self, ids: set[str]) -> dict[str, tuple[object, ...]]:
        """How jobs are that are waited for."""
        columns = (jobs.c.id, jobs.c.status, jobs.c.rows_done, jobs.c.updated)
        with of_single_statements(self._engine).connect() as connection:
            rows = connection.execute(sa.select(*columns).where(jobs.c.id.in_(ids)))
            return {row.id: tuple(row) for row in rows}


class Bell:
    """The bell of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        # What begins with a dot is nothing to lose: see `service.store.identity`.
        self._path = data_dir / ".bell"

    def ring(self) -> None:
        """Wake the runner, if there is one on this machine."""
        with suppress(OSError):
            pipe = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            with os.fdopen(pipe, "wb", buffering=0) as rung:
                rung.write(b"\0")

    @contextmanager
    def heard(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have the event loop of the caller call a function each time that it rings, if it can."""
        loop = asyncio.get_running_loop()

        def hear(pipe: int) -> None:
            with suppress(BlockingIOError):
                os.read(pipe, _PIPE_BYTES)
            wake()

        with ExitStack() as opened:
            try:
                with suppress(FileExistsError):
                    os.mkfifo(self._path, 0o600)
                # To write, too: without a writer a pipe is at its end all the time.
                pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
                opened.callback(os.close, pipe)
                loop.add_reader(pipe, hear, pipe)
                opened.callback(loop.remove_reader, pipe)
            except OSError as error:
                logger.warning("fronts cannot ring, and jobs start some moments later: %s", error)
            yield
