"""The database of a service: SQLite in its data folder, or Postgres by URL; brought up to date."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from georesolve.service import errors
from georesolve.service.clock import new_id, now
from georesolve.service.store.identity import has_content, make_data_dir
from georesolve.service.store.schema import VERSION, metadata, store

_MIGRATION_LOCK = 0x67656F72
"""Names the lock of migrations among the advisory locks of a Postgres database."""
_VERSION_TABLE = "alembic_version"
_LOCK_ALL = {
    "sqlite": "BEGIN IMMEDIATE",
    # No row: who only notes something, as the holder of the lease does, does not wait.
    "postgresql": f"SELECT pg_advisory_xact_lock({0x67656F61})",
}

Admission = Callable[[sa.Connection], None]
"""Refuses what is about to be entered, in its transaction, by raising something."""


class Queries:
    """Asks and changes a database for an owner, or for all; one transaction each time."""

    def __init__(self, engine: sa.Engine, owner: str | None = None) -> None:
        self._engine = engine
        self._single = of_single_statements(engine)
        self.owner = owner

    def _own(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.true() if self.owner is None else table.c.owner == self.owner

    def _expired(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return table.c.expires.is_not(None) & (table.c.expires <= now())

    def _rows(self, query: "sa.Select[Any]") -> Sequence[sa.RowMapping]:
        with self._single.connect() as connection:
            return connection.execute(query).mappings().all()

    def _first(self, query: "sa.Select[Any]", **values: Any) -> sa.RowMapping | None:
        with self._single.connect() as connection:
            return connection.execute(query, values).mappings().first()

    def _scalars(self, query: sa.Executable) -> list[Any]:
        with self._single.begin() as connection:
            return list(connection.execute(query).scalars())

    def _change(self, query: sa.UpdateBase) -> int:
        with self._single.begin() as connection:
            return connection.execute(query).rowcount

    @contextmanager
    def _accepting(self, admit: Admission | None = None) -> Iterator[sa.Connection]:
        """A transaction that enters something, unless it is not admitted; others wait meanwhile."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql(_LOCK_ALL[self._engine.dialect.name])
            if admit is not None:
                admit(connection)
            yield connection


def open_database(data_dir: Path, url: str | None = None) -> sa.Engine:
    """The SQLite file of a data folder, or Postgres by its URL, brought up to date: CannotStart."""
    if url:
        engine = _postgres(url)
        # A migration of large tables takes longer than a statement of a service may.
        _migrate(sa.create_engine(_parsed(url), poolclass=sa.NullPool))
        return engine
    path = sqlite_path(data_dir)
    make_data_dir(data_dir, path)
    engine = sa.create_engine(f"sqlite:///{path}")
    sa.event.listen(engine, "connect", _make_durable)
    _migrate(engine)
    return engine


def database_exists(data_dir: Path, url: str | None = None) -> bool:
    """Whether there is a database of a service already; raises as `open_database` does."""
    if not url:
        return has_content(sqlite_path(data_dir))
    engine = _postgres(url)
    try:
        with _connected(engine) as connection:
            return sa.inspect(connection).has_table(_VERSION_TABLE)
    finally:
        engine.dispose()


def refuse_missing(data_dir: Path, url: str | None = None) -> None:
    """Refuse a command about a service that has no database yet."""
    if not database_exists(data_dir, url):
        raise errors.CannotStart(
            f"there is no store of a service in {name_of_database(data_dir, url)}: name that of "
            "yours with --data-dir or --database-url"
        )


def of_single_statements(engine: sa.Engine) -> sa.Engine:
    """The same engine for transactions of one statement, which Postgres begins and ends itself."""
    # There is no way to a server that this would save SQLite.
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def name_of_database(data_dir: Path, url: str | None = None) -> str:
    """What to call the database before people; raises as `open_database` does."""
    if not url:
        return str(sqlite_path(data_dir))
    parsed = _parsed(url)
    return f"the Postgres database {parsed.database!r} on {parsed.host or 'this machine'}"


def sqlite_path(data_dir: Path) -> Path:
    """The SQLite file of a data folder."""
    return data_dir.absolute() / "georesolve.sqlite"


def _make_durable(connection: Any, record: Any) -> None:
    # FULL: a commit has reached the disk before the client hears of it.
    for pragma in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise errors.CannotStart("the database URL is no URL: give postgresql://...") from None
    if parsed.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise errors.CannotStart(
            f"the database URL begins with {parsed.drivername}://, allowed is postgresql://; "
            "for SQLite leave it out"
        )
    return parsed.set(drivername="postgresql+psycopg")


def _postgres(url: str) -> sa.Engine:
    try:
        # Its driver is an extra.
        from georesolve.service.store.postgres import bounded_engine

        return bounded_engine(_parsed(url))
    except ModuleNotFoundError as error:
        raise errors.CannotStart(
            f"Postgres needs {error.name}, which is not installed: "
            "pip install '.[service,postgres]' where georesolve was installed from"
        ) from error


def _connected(engine: sa.Engine, lock: sa.Executable | None = None) -> sa.Connection:
    try:
        connection = engine.connect()
        if lock is not None:
            connection.execute(lock)
        return connection
    except sa.exc.DatabaseError as error:
        raise errors.CannotStart(f"the database cannot be opened: {_reason_of(error)}") from error


def _reason_of(error: sa.exc.DatabaseError) -> str:
    return " ".join(str(error.orig).split())


def _migrate(engine: sa.Engine) -> None:
    """Make the tables, or run the migrations that are missing: one process at a time."""
    with _connected(engine) as connection:
        if _version_of(connection) == VERSION:
            return
    # It takes half of the time that a command about keys has.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "georesolve.service.store:migrations")
    is_sqlite = engine.dialect.name == "sqlite"
    of_postgres = sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK))
    with _connected(engine, sa.text("BEGIN IMMEDIATE") if is_sqlite else of_postgres) as connection:
        config.attributes["connection"] = connection
        version = _version_of(connection)
        try:
            if version is None:
                metadata.create_all(connection, checkfirst=False)
                connection.execute(store.insert().values(id=new_id()))
                command.stamp(config, VERSION)
            else:
                command.upgrade(config, VERSION)
        except (CommandError, sa.exc.NoSuchTableError):
            raise errors.CannotStart(
                f"the tables of the database, of version {version}, are none that this service "
                f"knows, up to {VERSION}: run the version of the service that made them"
            ) from None
        except sa.exc.DatabaseError as error:
            raise errors.CannotStart(
                f"the tables of the database cannot be made or changed: {_reason_of(error)}; let "
                "its user make tables (in Postgres, GRANT CREATE ON SCHEMA public TO the user), or "
                "name an empty database"
            ) from error
        connection.commit()


def _version_of(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION_TABLE):
        return None
    is_at = sa.text(f"SELECT version_num FROM {_VERSION_TABLE}")  # noqa: S608
    return connection.execute(is_at).scalar()
