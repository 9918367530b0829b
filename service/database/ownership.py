"""The data folder and the database belong to one service process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from service.errors import CannotStart

_SERVICE_LOCK = 0x67656F73
"""Names the lock of a running service among the advisory locks of a Postgres database."""
_LOCK_NOT_AVAILABLE = "55P03"
"""What Postgres says to who has waited for a lock as long as `lock_timeout` has it."""


class DataDirError(CannotStart):
    """The data folder cannot be made or written to."""


class DataDirInUseError(CannotStart):
    """Another service runs on the data folder."""


def make_data_dir(data_dir: Path) -> None:
    """Make a data folder where there is none.

    Raises
    ------
    DataDirError
        When that is not possible, or nothing can be written there.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / "lock").touch()
    except OSError as error:
        raise DataDirError(
            f"the data folder {data_dir} cannot be used: {error.strerror} ({error.filename}); "
            "name another with --data-dir, or let this user write there"
        ) from error


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
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


class DatabaseInUseError(CannotStart):
    """Another service runs on the database."""


@contextmanager
def claimed(engine: sa.Engine) -> Iterator[None]:
    """Claim a Postgres database for as long as its session lives; SQLite's is in an owned folder.

    Raises
    ------
    DatabaseInUseError
        When another service has it, on this machine or elsewhere: both would run its jobs.
    """
    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        # Not one of the pool: closed it is gone, and the claim with it.
        session.detach()
        # A service that was just ended may still have its session: Postgres notices a moment later.
        session.execute(sa.text("SET lock_timeout = '2s'"))
        try:
            session.execute(sa.select(sa.func.pg_advisory_lock(_SERVICE_LOCK)))
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            raise DatabaseInUseError(
                f"the database {engine.url.database!r} is in use by another service: stop that "
                "one, or take another database"
            ) from None
        yield
