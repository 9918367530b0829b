"""What OpenAPI says of refusals: the problems that an operation may answer with, by status."""

from collections import defaultdict
from typing import Any

from georesolve.service.errors import (
    PROBLEM_JSON,
    BadRange,
    BodyTimeout,
    DatasetDamaged,
    Forbidden,
    InvalidInput,
    InvalidRequest,
    JobDismissed,
    JobFailed,
    KeyExpired,
    KeyInUse,
    KeyReused,
    NoSuchDataset,
    NoSuchJob,
    NoSuchUpload,
    NotAcceptable,
    NotReady,
    OutputTaken,
    Problem,
    QueueFull,
    RangeNotSatisfiable,
    ResultDamaged,
    ResultExpired,
    ResultNotReady,
    ResultTooLarge,
    SetsGone,
    SinkNotAllowed,
    SourceNotAllowed,
    StorageFull,
    TooLarge,
    TooManyBodies,
    TooManyJobs,
    TooManyWrongKeys,
    Unauthorized,
    UnknownHost,
    UnsupportedFormat,
    UploadIncomplete,
    UploadInUse,
)

PROBLEM_SCHEMA = {
    "title": "Problem",
    "description": "What is wrong, as RFC 9457 has it.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "description": "which problem it is, as a URI"},
        "title": {"type": "string", "description": "the same for people"},
        "status": {"type": "integer", "description": "the status of the answer"},
        "detail": {
            "type": "string",
            "description": "what was given, what is allowed and what to do",
        },
        "instance": {"type": "string", "description": "the path that was asked"},
        "errors": {
            "type": "array",
            "description": "where it is wrong",
            "items": {
                "type": "object",
                "properties": {
                    "detail": {"type": "string"},
                    "pointer": {"type": "string", "description": "JSON pointer into the request"},
                    "file": {"type": "string"},
                    "column": {"type": "string"},
                    "row": {"type": "integer", "description": "counted from 0"},
                },
            },
        },
    },
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "seconds after which to try again",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}
_WAITING_HELPS = (429, 503, 507)

_GUARDED = (
    *(InvalidRequest, UnknownHost, Unauthorized, KeyExpired, Forbidden, TooManyWrongKeys),
    NotReady,
)
"""What every operation that asks for a key may answer."""

CHANGES = (StorageFull,)
"""What whoever changes something may be told."""
BODIES = (BodyTimeout, TooLarge, UnsupportedFormat, TooManyBodies)
"""What a body may be refused with, whatever is in it."""
UPLOADED = (NoSuchUpload, UploadIncomplete, UploadInUse)
"""What stands in the way of an upload that is named in place of a file."""
TABLES = (
    *(*CHANGES, *BODIES, *UPLOADED),
    *(InvalidInput, NoSuchDataset, DatasetDamaged, SourceNotAllowed),
)
"""What point sets may be refused with."""
JOBS = (
    KeyInUse,
    KeyReused,
    TooManyJobs,
    QueueFull,
    NotReady,
    JobFailed,
    JobDismissed,
    ResultDamaged,
)
"""What stands in the way of a job, or of an answer at once."""
OUTPUTS = (SinkNotAllowed, OutputTaken)
"""What the place that a client names for a result may be refused with."""
RESULTS = (
    NoSuchJob,
    NotAcceptable,
    ResultNotReady,
    JobDismissed,
    ResultExpired,
    ResultDamaged,
    SetsGone,
    DatasetDamaged,
    JobFailed,
    ResultTooLarge,
    StorageFull,
)
"""What stands in the way of a result."""
FILES = (BadRange, RangeNotSatisfiable)
"""What may be wrong with the range of a file that is asked for."""


def refusals(*kinds: type[Problem], guarded: bool = True) -> dict[int | str, dict[str, Any]]:
    """The refusals of an operation, by status.

    Parameters
    ----------
    kinds
        The problems that it may answer with.
    guarded
        Whether it asks for a key, and for the name of the service.
    """
    titles = defaultdict(list)
    for kind in dict.fromkeys((*kinds, *(_GUARDED if guarded else (InvalidRequest,)))):
        titles[kind.status].append(kind.title)
    return {status: _refusal(status, titles[status]) for status in sorted(titles)}


def _refusal(status: int, titles: list[str]) -> dict[str, Any]:
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer: dict[str, Any] = {"description": "; ".join(titles), "content": content}
    return answer | ({"headers": _RETRY_AFTER} if status in _WAITING_HELPS else {})
