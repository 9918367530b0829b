"""Lists of rows, the newest first, in pages that begin after the last row of the one before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from georesolve.service import errors
from georesolve.service.store.rows import DatasetRow, JobState
from georesolve.service.store.schema import jobs


@dataclass(frozen=True)
class Page:
    """One page of a list: so many rows from where the page before told, if it is not the first."""

    limit: int = 100
    cursor: str | None = None

    def of(self, query: "sa.Select[Any]", table: sa.Table) -> "sa.Select[Any]":
        """A query for this page, and for one row more, which tells whether there is another."""
        place = sa.tuple_(table.c.created, table.c.id)
        if self.cursor is not None:
            query = query.where(place < sa.tuple_(*_place_of(self.cursor)))
        return query.order_by(table.c.created.desc(), table.c.id.desc()).limit(self.limit + 1)

    def next_cursor(self, rows: Sequence[DatasetRow | JobState]) -> str | None:
        """The cursor of the page after rows of this one; None where they are the last."""
        if len(rows) <= self.limit:
            return None
        last = rows[self.limit - 1]
        return f"{last.created}_{last.id}"


def _place_of(cursor: str) -> tuple[str, str]:
    created, _, id = cursor.partition("_")
    if not id or not cursor.isprintable():
        raise errors.InvalidRequest(
            f"/query/cursor: {cursor[:80]!r} is no cursor: take the link 'next' of the page before"
        )
    return created, id


@dataclass(frozen=True)
class Selection:
    """Which jobs: all, or those in one of some statuses, accepted in a time, that ran so long."""

    statuses: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    created_from: str | None = None
    created_to: str | None = None
    shortest_seconds: float | None = None
    longest_seconds: float | None = None

    def of(self, query: "sa.Select[Any]", now: str, dialect: str) -> "sa.Select[Any]":
        """A query for these jobs."""
        # What was never started has no duration, and is in no span of them.
        seconds = _seconds(jobs.c.started, sa.func.coalesce(jobs.c.finished, now), dialect)
        conditions: list[tuple[Callable[[Any], sa.ColumnElement[bool]], Any]] = [
            (jobs.c.status.in_, self.statuses or None),
            (jobs.c.process.in_, self.processes or None),
            (jobs.c.created.__ge__, self.created_from),
            (jobs.c.created.__le__, self.created_to),
            (seconds.__ge__, self.shortest_seconds),
            (seconds.__le__, self.longest_seconds),
        ]
        for holds, asked in conditions:
            if asked is not None:
                query = query.where(holds(asked))
        return query


ALL = Selection()


def _seconds(start: Any, end: Any, dialect: str) -> sa.ColumnElement[Any]:
    """Time between two times, which are texts in the store."""
    if dialect == "sqlite":
        return (sa.func.julianday(end) - sa.func.julianday(start)) * 86_400.0
    time = sa.TIMESTAMP(timezone=True)
    return sa.extract("epoch", sa.cast(end, time) - sa.cast(start, time))
