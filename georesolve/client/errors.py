"""What a client raises when a service refuses, does not answer, or sends other bytes than it said.

Refusals carry what the service says of them as problem+json (RFC 9457).
"""

import json
from dataclasses import dataclass, field, fields
from typing import Any

import httpx

_SHOWN = 300


class ServiceError(Exception):
    """What went wrong between a client and its service; the base of all that a client raises."""


class ServiceUnreachable(ServiceError):
    """The service did not answer for as long as the client has patience."""


class DamagedTransfer(ServiceError):
    """The bytes that came are not those of the service's checksum, twice in a row."""


@dataclass(eq=False, repr=False)
class ServiceRefused(ServiceError):
    """The service answered, and refused.

    Attributes
    ----------
    status
        Of HTTP.
    title, detail, type
        What is wrong, as the service says it: what was given, what is allowed, what to do. The
        type is a URI, by which programs tell problems apart.
    errors
        Where it is wrong: each with `detail` and a JSON `pointer`, or `file`, `column` and `row`.
    retry_after_s
        Seconds after which the service may have another answer; None where it did not say.
    request_id
        Under which the service has the request in its log; None where it did not say.
    """

    status: int
    title: str
    detail: str
    type: str = "about:blank"
    errors: list[dict[str, Any]] = field(default_factory=list)
    retry_after_s: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        # A refusal of one mistake has said it all.
        more = self.errors if len(self.errors) > 1 else []
        places = "".join(f"\n- {_place(error)}" for error in more)
        request = f"\n(request {self.request_id})" if self.request_id else ""
        super().__init__(f"{self.title} ({self.status}): {self.detail}{places}{request}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers of a pool send errors to the process that asked.
        return ServiceRefused, tuple(getattr(self, one.name) for one in fields(self))


def refusal(response: httpx.Response) -> ServiceRefused:
    """The refusal that an answer is; it has been read."""
    document = _document(response)
    # Seconds, as the service gives them; a date says nothing here.
    after = response.headers.get("retry-after", "")
    return ServiceRefused(
        response.status_code,
        str(document.get("title") or response.reason_phrase or "The request was refused"),
        str(document.get("detail") or _without_problem(response)),
        str(document.get("type", "about:blank")),
        [error for error in document.get("errors") or [] if isinstance(error, dict)],
        float(after) if after.isdecimal() else None,
        response.headers.get("x-request-id"),
    )


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json() if "json" in response.headers.get("content-type", "") else {}
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _without_problem(response: httpx.Response) -> str:
    """What to say of an answer that is not the service's, but of a proxy or of something else."""
    if location := response.headers.get("location"):
        return f"{response.url} leads on to {location}: give the client the address it leads to"
    text = " ".join(response.text.split())[:_SHOWN]
    return f"{response.url} answered without a problem in words: {text or 'nothing'}"


def _place(error: dict[str, Any]) -> str:
    where = [f"{name} {error[name]}" for name in ("file", "column", "row") if name in error]
    if "pointer" in error:
        where.append(str(error["pointer"]))
    return f"{', '.join(where)}: {error.get('detail', '')}".removeprefix(": ")
