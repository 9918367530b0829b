"""Errors as RFC 9457 problems: one table from exception to status, type and title.

The process that decodes files loads this, so it imports no framework: `service.http.handlers` makes
answers of problems.
"""

import errno
import sqlite3
from collections.abc import Sequence
from typing import Any

from georesolve.io import errors as io_errors

PROBLEM_JSON = "application/problem+json"
_ERRORS_SHOWN = 10
OWN_TYPES = "urn:georesolve:problem:"
_SQLITE_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_POSTGRES_FULL = "53100"
_OGC = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"


class CannotStart(RuntimeError):
    """Why a command ends before its work begins: what whoever called it is told, in one line."""


class Problem(io_errors.Refused):
    """Something that a client is told as problem+json, with further headers of the answer."""

    status = 500
    type = "urn:georesolve:problem:internal-error"
    title = "The service failed"
    retry_seconds: int | None = None
    """After which a client may try again, where waiting helps; `headers` may say otherwise."""

    def __init__(
        self,
        detail: str,
        errors: list[dict[str, Any]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail, errors)
        waiting = {"Retry-After": str(self.retry_seconds)} if self.retry_seconds else {}
        self.headers = waiting | (headers or {})

    def document(self, instance: str | None = None) -> dict[str, Any]:
        """The problem as a JSON object."""
        about = ("type", "title", "status", "detail")
        document: dict[str, Any] = {name: getattr(self, name) for name in about}
        document |= {} if instance is None else {"instance": instance}
        return document | ({"errors": self.errors} if self.errors else {})


def _problem(
    status: int, slug: str, title: str, retry_seconds: int | None = None, base: str = OWN_TYPES
) -> type[Problem]:
    about = {"status": status, "type": base + slug, "title": title, "retry_seconds": retry_seconds}
    problem: type[Problem] = type(slug.title().replace("-", ""), (Problem,), about)
    if BY_TYPE.setdefault(problem.type, problem) is not problem:
        raise ValueError(f"the problem type {problem.type} is in the table twice")
    return problem


BY_TYPE: dict[str, type[Problem]] = {Problem.type: Problem}
"""All problems by their type: a type has one status and one title."""


# The table of all problems, by status, and after how many seconds to try again.
InvalidInput = _problem(400, "invalid-input", "The input is not valid")
InvalidRequest = _problem(400, "invalid-request", "The request is not valid")
BadRange = _problem(400, "bad-range", "The range is not valid")
UnknownHost = _problem(400, "unknown-host", "The service has another name")
Unauthorized = _problem(401, "unauthorized", "The request needs a valid key")
KeyExpired = _problem(401, "key-expired", "The key has expired")
Forbidden = _problem(403, "forbidden", "The request is not allowed")
NotThere = _problem(404, "not-found", "Not Found")
SourceNotAllowed = _problem(403, "source-not-allowed", "The service does not read from there")
SinkNotAllowed = _problem(403, "sink-not-allowed", "The service does not write to there")
NoSuchDataset = _problem(404, "no-such-dataset", "There is no such dataset")
NoSuchJob = _problem(404, "no-such-job", "There is no such job", base=_OGC)
NoSuchProcess = _problem(404, "no-such-process", "There is no such process", base=_OGC)
ResultNotReady = _problem(404, "result-not-ready", "The job has no result yet", base=_OGC)
NotAcceptable = _problem(406, "not-acceptable", "The result is not to be had in that format")
TooLargeForFormat = _problem(406, "too-large-for-format", "The result is too large for that format")
BodyTimeout = _problem(408, "body-timeout", "The rest of the body did not come")
HeadTimeout = _problem(408, "head-timeout", "The headers did not come in time")
DatasetInUse = _problem(409, "dataset-in-use", "A job still needs the dataset")
DatasetDamaged = _problem(409, "dataset-damaged", "The dataset is damaged")
OutputTaken = _problem(409, "output-taken", "Something lies there already")
KeyInUse = _problem(409, "idempotency-key-in-use", "The first request is not answered yet", 1)
ResultExpired = _problem(410, "result-expired", "The result has expired")
SetsGone = _problem(410, "sets-gone", "The sets of the job are not kept any more")
JobDismissed = _problem(410, "job-dismissed", "The job was dismissed")
PreconditionFailed = _problem(412, "precondition-failed", "ETag does not match")
ResultTooLarge = _problem(413, "result-too-large", "The result is too large")
TooLarge = _problem(413, "too-large", "The input is too large")
UnsupportedFormat = _problem(415, "unsupported-format", "The format of the input is not supported")
RangeNotSatisfiable = _problem(416, "range-not-satisfiable", "The file has no such range")
KeyReused = _problem(422, "idempotency-key-reused", "The key was used with other content")
TooManyJobs = _problem(429, "too-many-jobs", "The key has too many jobs", 5)
TooManyWrongKeys = _problem(429, "too-many-wrong-keys", "The address sent too many wrong keys")
HeadTooLarge = _problem(431, "head-too-large", "The headers are too large")
JobFailed = _problem(500, "job-failed", "The job failed")
ResultDamaged = _problem(500, "result-damaged", "The result is damaged")
QueueFull = _problem(503, "queue-full", "The service has too many jobs", 10)
TooManyBodies = _problem(503, "too-many-bodies", "The service has too many bodies in memory", 2)
TooManyConnections = _problem(
    503, "too-many-connections", "The service has too many connections", 2
)
NotReady = _problem(503, "not-ready", "The service is not ready", 2)
StorageFull = _problem(507, "storage-full", "The service has no space left", 60)

_OF_IO: dict[type[io_errors.Refused], type[Problem]] = {
    io_errors.InvalidInput: InvalidInput,
    io_errors.InvalidOption: InvalidRequest,
    io_errors.TooLarge: TooLarge,
    io_errors.SourceNotAllowed: SourceNotAllowed,
    io_errors.SinkNotAllowed: SinkNotAllowed,
    io_errors.SourceUnreadable: NotReady,
    io_errors.UnsupportedFormat: UnsupportedFormat,
    io_errors.NotRepresentable: NotAcceptable,
    io_errors.RowTooWide: TooLargeForFormat,
    io_errors.ResultTooLarge: ResultTooLarge,
}


def problem_of(refused: io_errors.Refused) -> Problem:
    """Problem of HTTP for a refusal of `georesolve.io`."""
    if isinstance(refused, Problem):
        return refused
    return _OF_IO[type(refused)](refused.detail, refused.errors)


def invalid_request(errors: Sequence[Any]) -> Problem:
    """The problem of what pydantic found wrong with a request."""
    places = [
        {"detail": _said(error), "pointer": "".join(f"/{step(part)}" for part in error["loc"])}
        for error in errors[:_ERRORS_SHOWN]
    ]
    # The pointer to the whole is empty.
    return InvalidRequest(f"{places[0]['pointer'] or 'the body'}: {places[0]['detail']}", places)


def _said(error: Any) -> str:
    """What pydantic says is wrong, and the number or text that was given."""
    given = error.get("input")
    if error["msg"].startswith("Input should") and isinstance(given, str | float | int):
        return f"{error['msg']}, got {repr(given)[:80]}"
    return str(error["msg"])


def misplaced(pointer: str, detail: str) -> Problem:
    """The problem of something that stands in the wrong place of a request, or should not."""
    return InvalidRequest(f"{pointer[:80]}: {detail}", [{"pointer": pointer, "detail": detail}])


def step(name: Any) -> str:
    """A name as a step of a JSON pointer (RFC 6901)."""
    return str(name).replace("~", "~0").replace("/", "~1")


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of a file or of the database says that there is no space left."""
    # SQLAlchemy wraps the error of the driver.
    cause = getattr(error, "orig", error)
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT)
    is_sqlite_full = getattr(cause, "sqlite_errorcode", None) in _SQLITE_FULL
    return is_sqlite_full or getattr(cause, "sqlstate", None) == _POSTGRES_FULL


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that no more files can be opened for now."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def store_away() -> Problem:
    """The problem of whoever needs the database while it does not answer."""
    return NotReady("the database of the service does not answer: try again")


def disk_full() -> Problem:
    """The problem of such an error."""
    return StorageFull(
        "the disk of the service became full, and nothing was kept of this: remove datasets and "
        "results that are no longer needed, or come again later"
    )
