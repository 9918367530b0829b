"""Lists of rows, the newest first, in pages that begin after the last row of the one before."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import Field

from georesolve.service import errors
from georesolve.service.clock import now
from georesolve.service.http.parameters import Parameters
from georesolve.service.store.rows import DatasetRow, JobState, JobStatus, ProcessId
from georesolve.service.store.schema import jobs

_LONGEST = 1_000_000_000
"""Seconds that a job cannot have run: databases know no number that is too large for them."""


class Page(Parameters):
    """One page of a list: so many rows from where the page before told, if it is not the first."""

    limit: int = Field(100, ge=1, le=1000, description="rows on a page")
    cursor: str | None = Field(None, description="where the page begins: see the link `next`")
    owner: str | None = Field(
        None,
        description="for keys of the role admin: only what was made with the keys of this name, or "
        "with the key that begins so; empty for what was made without keys",
    )

    def of(self, query: "sa.Select[Any]", table: sa.Table) -> "sa.Select[Any]":
        """A query for this page, and for one row more, which tells whether there is another."""
        if self.cursor is not None:
            created, _, id = self.cursor.partition("_")
            if not id or not self.cursor.isprintable():
                told = f"{self.cursor[:80]!r} is no cursor: take the link 'next' of the page before"
                raise errors.misplaced("/query/cursor", told)
            query = query.where(sa.tuple_(table.c.created, table.c.id) < sa.tuple_(created, id))
        return query.order_by(table.c.created.desc(), table.c.id.desc()).limit(self.limit + 1)

    def next_cursor(self, rows: Sequence[DatasetRow | JobState]) -> str | None:
        """The cursor of the page after rows of this one; None where they are the last."""
        if len(rows) <= self.limit:
            return None
        last = rows[self.limit - 1]
        return f"{last.created}_{last.id}"


class JobQuery(Page):
    """Which page of which jobs."""

    status: list[JobStatus] = Field([], description="only jobs in these")
    type: list[Literal["process"]] = Field([], description="of the standard; there is one")
    processID: list[ProcessId] = Field([], description="only jobs of these")
    datetime: str | None = Field(
        None, description="only jobs accepted then: a time, or two with a slash; `..` for open"
    )
    minDuration: int | None = Field(
        None, ge=0, le=_LONGEST, description="only jobs that ran as many seconds"
    )
    maxDuration: int | None = Field(
        None, ge=0, le=_LONGEST, description="only jobs that ran no longer"
    )

    def chosen(self, dialect: str) -> list[sa.ColumnElement[bool]]:
        """What holds for these jobs."""
        start, end = _interval(self.datetime) if self.datetime else (None, None)
        # What was never started has no duration, and is in no span of them.
        seconds = _seconds(jobs.c.started, sa.func.coalesce(jobs.c.finished, now()), dialect)
        conditions: list[tuple[Callable[[Any], sa.ColumnElement[bool]], Any]] = [
            (jobs.c.status.in_, self.status or None),
            (jobs.c.process.in_, self.processID or None),
            (jobs.c.created.__ge__, start),
            (jobs.c.created.__le__, end),
            (seconds.__ge__, self.minDuration),
            (seconds.__le__, self.maxDuration),
        ]
        return [holds(asked) for holds, asked in conditions if asked is not None]


def _seconds(start: Any, end: Any, dialect: str) -> sa.ColumnElement[Any]:
    """Time between two times, which are texts in the store."""
    if dialect == "sqlite":
        return (sa.func.julianday(end) - sa.func.julianday(start)) * 86_400.0
    time = sa.TIMESTAMP(timezone=True)
    return sa.extract("epoch", sa.cast(end, time) - sa.cast(start, time))


def _interval(text: str) -> tuple[str | None, str | None]:
    start, slash, end = text.partition("/")
    try:
        return _time(start), _time(end if slash else start)
    except (ValueError, OverflowError):
        # The first and the last day of the calendar may have no time in UTC.
        raise errors.misplaced(
            "/query/datetime",
            f"{text[:80]!r} is no time: give 2026-11-21T09:30:00Z, "
            "2026-11-21T00:00:00Z/2026-11-22T00:00:00Z, or .. for an open end",
        ) from None


def _time(text: str) -> str | None:
    if text in ("", ".."):
        return None
    time = datetime.fromisoformat(text)
    # Without an offset it is taken for UTC, as the times of the service are.
    time = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    return time.isoformat(timespec="milliseconds")
