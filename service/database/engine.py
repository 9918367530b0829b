"""The database of a service: SQLite in its data folder, or Postgres by URL; brought up to date."""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

_MIGRATION_LOCK = 0x67656F72
"""Names the lock of migrations among the advisory locks of a Postgres database."""


class DatabaseUrlError(ValueError):
    """The URL of the database cannot be used."""


def open_database(data_dir: Path, url: str | None = None) -> sa.Engine:
    """Open the database and bring its tables to this version of the schema.

    Parameters
    ----------
    data_dir
        Folder of the SQLite file, which is made when it is missing.
    url
        ``postgresql://user:password@host/name`` to use that instead.

    Raises
    ------
    DatabaseUrlError
        When the URL is not one of Postgres, or its driver is not installed.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    engine = _postgres(url) if url else _sqlite(data_dir.absolute() / "georesolve.sqlite")
    _migrate(engine)
    return engine


def _sqlite(path: Path) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{path}")
    sa.event.listen(engine, "connect", _make_durable)
    return engine


def _make_durable(connection: Any, record: Any) -> None:
    # FULL: a commit has reached the disk before the client hears of it.
    for pragma in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _postgres(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise DatabaseUrlError("the database URL is no URL: give postgresql://...") from None
    if parsed.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise DatabaseUrlError(
            f"the database URL begins with {parsed.drivername}://, allowed is postgresql://; "
            "for SQLite leave it out"
        )
    try:
        # Asked before each use: a database that was restarted meanwhile costs no request.
        return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise DatabaseUrlError(
            f"Postgres needs {error.name}, which is not installed: "
            "pip install 'georesolve[postgres]'"
        ) from error


def _migrate(engine: sa.Engine) -> None:
    """Run the migrations that are missing: all of them or none, one process at a time."""
    config = Config()
    config.set_main_option("script_location", "service.database:migrations")
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
