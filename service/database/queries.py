"""`Queries`: statements, each in a transaction of its own."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


class Queries:
    """Asks and changes a database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def _rows(self, query: "sa.Select[Any]") -> Sequence[sa.RowMapping]:
        with self._engine.connect() as connection:
            return connection.execute(query).mappings().all()

    def _first(self, query: "sa.Select[Any]", **values: Any) -> sa.RowMapping | None:
        with self._engine.connect() as connection:
            return connection.execute(query, values).mappings().first()

    def _scalars(self, query: "sa.Select[Any]") -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def _change(self, query: sa.UpdateBase) -> int:
        """Change rows; tells how many."""
        with self._engine.begin() as connection:
            return connection.execute(query).rowcount
