"""What a query may say: which page of a list; each parameter once, unless it is a list."""

from collections import Counter

from fastapi import Request
from pydantic import Field
from starlette.requests import HTTPConnection

from georesolve.service.errors import InvalidRequest
from georesolve.service.http.parameters import LISTS, Parameters
from georesolve.service.links import Link

_LISTS = LISTS | {"processID", "status", "type"}
"""What may be given several times: names of columns, and the lists of `jobs.models.JobQuery`."""


class PageQuery(Parameters):
    """Which page of a list."""

    limit: int = Field(100, ge=1, le=1000, description="rows on a page")
    cursor: str | None = Field(None, description="where the page begins: see the link `next`")


def links_of_page(request: Request, cursor: str | None) -> list[Link]:
    """The links of a list: to itself and, where it has a cursor, to the next page."""
    links = [Link(href=str(request.url), rel="self", title="this document")]
    if cursor is not None:
        url = request.url.include_query_params(cursor=cursor)
        links.append(Link(href=str(url), rel="next", title="the next page"))
    return links


def refuse_repeated(request: HTTPConnection) -> None:
    """Refuse a query that gives a parameter twice where one value counts."""
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in counts.items():
        if times > 1 and name not in _LISTS:
            raise InvalidRequest(
                f"/query/{name[:80]}: given {times} times, and one value counts: send it once",
                [{"pointer": f"/query/{name}", "detail": f"given {times} times"}],
            )
