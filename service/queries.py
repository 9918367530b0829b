"""What a query may say: each parameter once, unless it is a list."""

from collections import Counter
from typing import get_origin

from fastapi import Request
from pydantic import Field

from service.errors import InvalidRequest
from service.models import MatchParameters, Parameters
from service.store import JobStatus


class JobFilters(Parameters):
    """Which jobs to list."""

    status: list[JobStatus] = Field([], description="only jobs in these")
    limit: int = Field(100, ge=1, le=1000, description="jobs on a page")


_LISTS = {
    name
    for name, field in (MatchParameters.model_fields | JobFilters.model_fields).items()
    if get_origin(field.annotation) is list
}
"""Query parameters that may be given several times."""


def refuse_repeated(request: Request) -> None:
    """Refuse a query that gives a parameter twice where one value counts.

    Raises
    ------
    InvalidRequest
    """
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in counts.items():
        if times > 1 and name not in _LISTS:
            raise InvalidRequest(
                f"/query/{name[:80]}: given {times} times, and one value counts: send it once",
                [{"pointer": f"/query/{name}", "detail": f"given {times} times"}],
            )
