"""What a query may say: which page of which list; each parameter once, unless it is a list."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, get_origin

from fastapi import Request
from pydantic import Field
from starlette.requests import HTTPConnection

from georesolve.service.errors import InvalidRequest
from georesolve.service.http.parameters import LISTS, Parameters
from georesolve.service.links import Link
from georesolve.service.store.listing import Page, Selection, cursor_after
from georesolve.service.store.rows import DatasetRow, JobState, JobStatus, ProcessId

_LONGEST = 1_000_000_000
"""Seconds that a job cannot have run: databases know no number that is too large for them."""


class PageQuery(Parameters):
    """Which page of a list."""

    limit: int = Field(100, ge=1, le=1000, description="rows on a page")
    cursor: str | None = Field(None, description="where the page begins: see the link `next`")

    def page(self) -> Page:
        """The page."""
        return Page(self.limit, self.cursor)


class JobQuery(PageQuery):
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

    def selection(self) -> Selection:
        """Which jobs.

        Raises
        ------
        InvalidRequest
            When `datetime` is none.
        """
        start, end = _interval(self.datetime) if self.datetime else (None, None)
        return Selection(
            tuple(self.status),
            tuple(self.processID),
            start,
            end,
            self.minDuration,
            self.maxDuration,
        )


def _interval(text: str) -> tuple[str | None, str | None]:
    start, slash, end = text.partition("/")
    try:
        return _time(start), _time(end if slash else start)
    except (ValueError, OverflowError):
        # The first and the last day of the calendar may have no time in UTC.
        raise InvalidRequest(
            f"/query/datetime: {text[:80]!r} is no time: give 2026-11-21T09:30:00Z, "
            "2026-11-21T00:00:00Z/2026-11-22T00:00:00Z, or .. for an open end",
            [{"pointer": "/query/datetime", "detail": "no time of RFC 3339, nor two"}],
        ) from None


def _time(text: str) -> str | None:
    if text in ("", ".."):
        return None
    time = datetime.fromisoformat(text)
    # Without an offset it is taken for UTC, as the times of the service are.
    time = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    return time.isoformat(timespec="milliseconds")


def links_of_page(
    request: Request, rows: Sequence[DatasetRow | JobState], page: Page
) -> list[Link]:
    """The links of a list: to itself and, when there are more rows, to the next page."""
    links = [Link(href=str(request.url), rel="self", title="this document")]
    if len(rows) > page.limit:
        last = rows[page.limit - 1]
        url = request.url.include_query_params(cursor=cursor_after(last.created, last.id))
        links.append(Link(href=str(url), rel="next", title="the next page"))
    return links


_LISTS = LISTS | {
    name for name, field in JobQuery.model_fields.items() if get_origin(field.annotation) is list
}
"""Query parameters that may be given several times."""


def refuse_repeated(request: HTTPConnection) -> None:
    """Refuse a query that gives a parameter twice where one value counts.

    Raises
    ------
    InvalidRequest
    """
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in counts.items():
        if times > 1 and name not in _LISTS:
            raise InvalidRequest(
                f"/query/{name[:80]}: given {times} times, and one value counts: send it once",
                [{"pointer": f"/query/{name}", "detail": f"given {times} times"}],
            )
