"""What OpenAPI says of refusals: each problem that an operation may answer with, and an example."""

from collections import defaultdict
from typing import Any

from georesolve.intake.representations import FORMATS
from georesolve.service.description import examples
from georesolve.service.errors import (
    PROBLEM_JSON,
    BadRange,
    BodyTimeout,
    DatasetDamaged,
    DatasetInUse,
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
    NoSuchProcess,
    NotAcceptable,
    NotReady,
    PreconditionFailed,
    Problem,
    QueueFull,
    RangeNotSatisfiable,
    ResultDamaged,
    ResultExpired,
    ResultNotReady,
    ResultTooLarge,
    SetsGone,
    StorageFull,
    TooLarge,
    TooManyBodies,
    TooManyJobs,
    TooManyWrongKeys,
    Unauthorized,
    UnknownHost,
    UnsupportedFormat,
    disk_full,
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

_ID = examples.JOB_ID
_EXAMPLES = [
    InvalidInput(
        "observations: 1 of 2 rows have invalid coordinates, the first one row 1: column 'lat' "
        "holds 148.86, allowed are degrees from -90 to 90; mend them, or keep them with the "
        "option on_invalid=null",
        [
            {
                "file": "observations",
                "column": "lat",
                "row": 1,
                "detail": "column 'lat' holds 148.86, allowed are degrees from -90 to 90",
            }
        ],
    ),
    InvalidRequest(
        "/query/limit: given 2 times, and one value counts: send it once",
        [{"pointer": "/query/limit", "detail": "given 2 times"}],
    ),
    BadRange("Range is 'bytes=first', which is no range: write it as in 'bytes=0-499'"),
    UnknownHost(
        "the request is for the host 'example.org', and this service answers for localhost, "
        "127.0.0.1, ::1: name others in the setting allowed_hosts"
    ),
    Unauthorized(
        "this service asks for a key: send the header 'Authorization: Bearer KEY', or "
        "'X-API-Key: KEY'"
    ),
    KeyExpired(
        "the key gr_1f0c5e2a of 'ann' expired at 2026-11-21T14:36:33.530+00:00: ask the operator "
        "of the service for a new one ('georesolve keys rotate gr_1f0c5e2a')"
    ),
    Forbidden(
        "a page of another site (https://example.org) sent this request, which only its own pages "
        "and programs may"
    ),
    NoSuchDataset(f"there is no dataset {examples.DATASET_ID!r}"),
    NoSuchJob(f"there is no job {_ID!r}"),
    NoSuchProcess("there is no process 'farthest': there are 'nearest', 'echo'"),
    ResultNotReady(f"the job {_ID!r} is running: resolving: 0 of 2 rows"),
    NotAcceptable(
        "Accept is 'text/html', but a result is to be had as "
        f"{', '.join(one.media_type for one in FORMATS)}: accept one of them, or leave the header "
        "out for application/vnd.apache.parquet"
    ),
    ResultTooLarge(
        "as text/csv the result is larger than the limit of 17179869184 bytes: take it as Parquet"
    ),
    BodyTimeout(
        "nothing came for 60 s after 65536 bytes of the body, and a pause may have 60 s: send it "
        "again, with shorter ones"
    ),
    DatasetInUse(
        f"a job that is not finished needs the dataset {examples.DATASET_ID!r}; dismiss it"
    ),
    PreconditionFailed(
        "the newest version of 'places' has another ETag than If-Match: look what has changed "
        "before you replace it"
    ),
    DatasetDamaged(
        f"the file of the dataset {examples.DATASET_ID!r} is damaged or missing on the disk of the "
        "service: register the same content again, which mends it under its id"
    ),
    KeyInUse(
        "a request with the Idempotency-Key '1f0c' is being received: send this one again when "
        "that one is answered"
    ),
    ResultExpired(
        f"the result of the job {_ID!r} was kept until {examples.DONE['expires']}: send the job "
        "again"
    ),
    JobDismissed(f"the job {_ID!r} was dismissed; its result does not exist"),
    SetsGone(
        f"the observations of the job {_ID!r} are not kept any more, and a result has no "
        "coordinates of its own: send the job again with registered datasets, or, to have its "
        "sets kept as long as its result, with 'Accept: application/geo+json'"
    ),
    TooLarge(
        "5000000 rows of both sets together (observations k times) are more than the limit of "
        "4000000 for an answer at once: send the header 'Prefer: respond-async' and follow the "
        "Location of the answer"
    ),
    UnsupportedFormat("the media type text/html is not supported here: send application/json"),
    RangeNotSatisfiable(
        "Range is 'bytes=9000-', but the file has 3170 bytes: ask for some of these"
    ),
    KeyReused(
        "the Idempotency-Key '1f0c' came with other sets or options before, and made the job "
        f"{_ID!r}: send the same again, or take another key"
    ),
    TooManyJobs(
        "100 jobs of this key wait or run, and 100 may: wait for one to end, or dismiss one"
    ),
    TooManyWrongKeys(
        "the key that was sent opens nothing here, and too many such keys came from 192.0.2.7: "
        "come again with a right one, or in 48 s"
    ),
    TooManyBodies(
        "the JSON bodies that are being read have 268435457 bytes, and all may have 268435456: "
        "send fewer at a time, or files"
    ),
    JobFailed("an error of the service; its log has the details"),
    ResultDamaged(
        f"the result of the job {_ID!r} is damaged on the disk of the service, and is not given "
        "out: dismiss the job, and send it again"
    ),
    QueueFull("1000 jobs of the service wait or run, and 1000 may: come again later"),
    NotReady("the cluster is being opened: try again, or send 'Prefer: respond-async'"),
    disk_full(),
]
_BY_KIND = {type(one): one for one in _EXAMPLES}

_GUARDED = (
    *(InvalidRequest, UnknownHost, Unauthorized, KeyExpired, Forbidden, TooManyWrongKeys),
    NotReady,
)
"""What every operation that asks for a key may answer."""

CHANGES = (StorageFull,)
"""What whoever changes something may be told."""
BODIES = (BodyTimeout, TooLarge, UnsupportedFormat, TooManyBodies)
"""What a body may be refused with, whatever is in it."""
TABLES = (*CHANGES, *BODIES, InvalidInput, NoSuchDataset, DatasetDamaged)
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


def refusals(
    instance: str, *kinds: type[Problem], guarded: bool = True
) -> dict[int | str, dict[str, Any]]:
    """The refusals of an operation, by status.

    Parameters
    ----------
    instance
        The path of the operation in the examples.
    kinds
        The problems that it may answer with.
    guarded
        Whether it asks for a key, and for the name of the service.
    """
    by_status = defaultdict(list)
    for kind in dict.fromkeys((*kinds, *(_GUARDED if guarded else (InvalidRequest,)))):
        by_status[kind.status].append(_BY_KIND[kind])
    return {status: _refusal(instance, by_status[status]) for status in sorted(by_status)}


def _refusal(instance: str, problems: list[Problem]) -> dict[str, Any]:
    status = problems[0].status
    answer: dict[str, Any] = {
        "description": "; ".join(one.title for one in problems),
        "content": {
            PROBLEM_JSON: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {
                    one.type.rpartition("/" if "/" in one.type else ":")[2]: {
                        "summary": one.title,
                        "value": one.document(instance),
                    }
                    for one in problems
                },
            }
        },
    }
    if status in _WAITING_HELPS:
        answer["headers"] = _RETRY_AFTER
    return answer
