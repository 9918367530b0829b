"""Tells of changes in the database, of whichever process: one thread looks for all who wait.

A front tells a runner on the same machine of a job at once, by a named pipe: its bell.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from georesolve.service.store.schema import jobs

logger = logging.getLogger(__name__)

_LOOK_SECONDS = {"sqlite": 0.02, "postgresql": 0.05}
"""While a job is waited for. A look takes SQLite some microseconds, Postgres an answer."""
_ANY_SECONDS = 0.05
"""While anything is waited for, as a runner does all the time for jobs that are accepted."""
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
        self._version = _VERSION[engine.dialect.name]
        self._look_seconds = _LOOK_SECONDS[engine.dialect.name]
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._is_open = False
        self._listeners: dict[str | None, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}
        self._seen: dict[str, tuple[object, ...]] = {}
        self._counting: sa.PoolProxiedConnection | None = None

    def version(self) -> object:
        """What every commit of any process changes; None where that takes an answer of a server.

        SQLite has it in shared memory: it takes the event loop microseconds, and waits for nothing.
        """
        if self._engine.dialect.name != "sqlite":
            return None
        # One connection: it counts the commits of all others.
        with suppress(self._engine.dialect.loaded_dbapi.Error, SQLAlchemyError), self._lock:
            if self._counting is None:
                self._counting = self._engine.raw_connection()
                self._counting.cursor().execute("PRAGMA busy_timeout=0")
            return self._counting.cursor().execute(self._version).fetchone()
        return None

    def close(self) -> None:
        """Close what is open here."""
        if self._counting is not None:
            self._counting.close()

    @contextmanager
    def watched(self, *also: Callable[[], None]) -> Iterator[None]:
        """Look for changes in a thread from now on; call `also` at the begin and after each."""
        self._is_open = True
        thread = threading.Thread(target=self._watch, args=(also,), name="changes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_open = False
            self._stirred.set()
            thread.join(2 * _RETRY_SECONDS)

    @contextmanager
    def of(self, id: str | None) -> Iterator[asyncio.Event]:
        """An event that is set when a job changes, or anything for None; its reader clears it."""
        event = asyncio.Event()
        with self._lock:
            self._listeners.setdefault(id, {})[event] = asyncio.get_running_loop()
        self._stirred.set()
        try:
            yield event
        finally:
            with self._lock:
                del self._listeners[id][event]
                if not self._listeners[id]:
                    del self._listeners[id]
                    self._seen.pop(id or "", None)

    def stop(self) -> None:
        """Wake all who wait: this process is about to end."""
        self.stopping = True
        self._wake(set(self._listeners))

    def _wake(self, ids: set[str | None]) -> None:
        with self._lock:
            found = [pair for id in ids for pair in self._listeners.get(id, {}).items()]
        for event, loop in found:
            # The loop of one who was just waiting may have ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    def _watch(self, also: tuple[Callable[[], None], ...]) -> None:
        errors = (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error)
        while self._is_open:
            try:
                with self._engine.connect() as connection:
                    connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                    self._watch_with(connection, also)
            except errors as error:
                logger.warning("changes of the database cannot be seen: %s", error)
                self._stirred.wait(_RETRY_SECONDS)
                self._stirred.clear()

    def _watch_with(self, connection: sa.Connection, also: tuple[Callable[[], None], ...]) -> None:
        # Not by SQLAlchemy, which takes most of the time of a look: a runner looks all the time.
        cursor = connection.connection.cursor()
        known: object = None
        while self._is_open:
            cursor.execute(self._version)
            version = cursor.fetchall()
            if version != known:
                known = version
                self._wake(self._changed(connection))
                for look in also:
                    look()
            self._stirred.wait(self._pause())
            self._stirred.clear()

    def _pause(self) -> float:
        with self._lock:
            if self._listeners.keys() - {None}:
                return self._look_seconds
            return _ANY_SECONDS if self._listeners else _IDLE_SECONDS

    def _changed(self, connection: sa.Connection) -> set[str | None]:
        """Which of those that are waited for have changed since the last look."""
        with self._lock:
            waited = set(self._listeners)
        ids = waited - {None}
        columns = (jobs.c.id, jobs.c.status, jobs.c.rows_done, jobs.c.updated)
        rows = connection.execute(sa.select(*columns).where(jobs.c.id.in_(ids))) if ids else ()
        now = {row.id: tuple(row) for row in rows}
        changed = {id for id in ids if id and now.get(id) != self._seen.get(id, ())}
        self._seen = now
        return {None, *changed} if None in waited else {*changed}


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
