"""`Queries`: statements, each in a transaction of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from georesolve.service.clock import now
from georesolve.service.store.engine import of_single_statements

_LOCK_ALL = {
    "sqlite": "BEGIN IMMEDIATE",
    # No row: who only notes something, as the holder of the lease does, does not wait.
    "postgresql": f"SELECT pg_advisory_xact_lock({0x67656F61})",
}

Admission = Callable[[sa.Connection], None]
"""Refuses what is about to be entered, in its transaction, by raising something."""


def admit_any(connection: sa.Connection) -> None:
    """Admit whatever is entered."""


class Queries:
    """Asks and changes a database, on behalf of one owner, or of all for None.

    Attributes
    ----------
    owner
        Whose rows are seen and made; None sees those of all and makes those of nobody.
    """

    def __init__(
        self,
        engine: sa.Engine,
        owner: str | None = None,
    ) -> None:
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

    def _scalars(self, query: "sa.Select[Any]") -> list[Any]:
        with self._single.connect() as connection:
            return list(connection.execute(query).scalars())

    def _change(self, query: sa.UpdateBase) -> int:
        """Change rows; tells how many."""
        with self._single.begin() as connection:
            return connection.execute(query).rowcount

    @contextmanager
    def _accepting(self, admit: Admission = admit_any) -> Iterator[sa.Connection]:
        """A transaction that enters something, if it is admitted; others wait meanwhile."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql(_LOCK_ALL[self._engine.dialect.name])
            admit(connection)
            yield connection
