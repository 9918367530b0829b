"""The data folder and the database belong to one service process at a time."""

import asyncio
import fcntl
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import sqlalchemy as sa

from georesolve.service.database.identity import ID_FILE, DataDirError, content_of, shown
from georesolve.service.database.reserve import Reserve
from georesolve.service.errors import CannotStart

logger = logging.getLogger(__name__)

_KEEP_SECONDS = 5.0
_SERVICE_LOCK = 0x67656F73
"""Names the lock of a running service among the advisory locks of a Postgres database."""
_LOCK_NOT_AVAILABLE = "55P03"
"""What Postgres says to who has waited for a lock as long as `lock_timeout` has it."""


class DataDirInUseError(CannotStart):
    """Another service runs on the data folder."""


def make_data_dir(data_dir: Path) -> None:
    """Make a data folder where there is none.

    Raises
    ------
    DataDirError
        When that is not possible, or nothing can be written there, or it is not that of a service.
    """
    lock = data_dir / "lock"
    try:
        # Looked at in this order: a service that makes the folder meanwhile makes its lock first.
        content = content_of(data_dir)
        is_foreign = bool(content) and not (lock.exists() or (data_dir / ID_FILE).exists())
        if is_foreign or not re.fullmatch(r"\d*\s*", _text_of(lock)):
            raise DataDirError(
                f"the data folder {data_dir} is not empty and is not that of a service, it has "
                f"{shown(content)}: name an empty or a new folder with --data-dir"
            )
        data_dir.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise DataDirError(
            f"the data folder {data_dir} cannot be used: {error.strerror} ({error.filename}); "
            "name another with --data-dir, or let this user write there"
        ) from error


def _text_of(lock: Path) -> str:
    return lock.read_text(errors="replace") if lock.exists() else ""


@contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Own a data folder; the kernel ends the ownership with the process, however it ends.

    Raises
    ------
    DataDirError
        When it cannot be made or written to.
    DataDirInUseError
        When another process owns it: two would take up and sweep away each other's work.
    """
    make_data_dir(data_dir)
    with (data_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise DataDirInUseError(
                f"the data folder {data_dir} is in use by process {lock.read().strip()}: "
                "stop that one, or take another folder"
            ) from None
        lock.truncate(0)
        number = f"{os.getpid()}\n".encode()
        Reserve(data_dir).spend(lambda: os.write(lock.fileno(), number))
        yield


class DatabaseInUseError(CannotStart):
    """Another service runs on the database."""


class _Claim:
    """A claim on a Postgres database, which lasts as long as its session."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._session = self._take()

    def keep(self) -> None:
        """Take the claim again if its session has ended: the server may have been restarted.

        Raises
        ------
        DatabaseInUseError
            When another service has taken it meanwhile.
        sqlalchemy.exc.SQLAlchemyError
            When the database is not reached.
        """
        try:
            self._session.execute(sa.text("SELECT 1"))
        except sa.exc.SQLAlchemyError:
            self.end()
            self._session = self._take()

    def end(self) -> None:
        """Let others have it."""
        self._session.close()

    def _take(self) -> sa.Connection:
        session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        # Not one of the pool: closed it is gone, and the claim with it.
        session.detach()
        # A service that was just ended may still have its session: Postgres notices a moment later.
        session.execute(sa.text("SET lock_timeout = '2s'"))
        try:
            session.execute(sa.select(sa.func.pg_advisory_lock(_SERVICE_LOCK)))
        except sa.exc.OperationalError as error:
            session.close()
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            raise DatabaseInUseError(
                f"the database {self._engine.url.database!r} is in use by another service: stop "
                "that one, or take another database"
            ) from None
        return session


@contextmanager
def claimed(engine: sa.Engine) -> Iterator[Callable[[], None]]:
    """Claim a Postgres database for as long as its session lives; SQLite's is in an owned folder.

    Yields what keeps the claim, and is to be called now and then: see `_Claim.keep`.

    Raises
    ------
    DatabaseInUseError
        When another service has it, on this machine or elsewhere: both would run its jobs.
    """
    if engine.dialect.name != "postgresql":
        yield lambda: None
        return
    claim = _Claim(engine)
    try:
        yield claim.keep
    finally:
        claim.end()


@asynccontextmanager
async def kept(keep: Callable[[], None], lost: Callable[[], None]) -> AsyncIterator[None]:
    """Keep a claim from now on.

    Parameters
    ----------
    keep
        What `claimed` gave.
    lost
        Is called when another service has the claim.
    """

    async def keep_for_ever() -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            try:
                await asyncio.to_thread(keep)
            except DatabaseInUseError as error:
                logger.critical("this service ends: %s", error)
                lost()
                return
            except sa.exc.SQLAlchemyError as error:
                logger.warning("the claim on the database cannot be kept: %s", error)

    task = asyncio.create_task(keep_for_ever(), name="claim")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
