"""How a client wants to be answered: its headers Prefer (RFC 7240), Idempotency-Key and Accept."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from starlette.datastructures import Headers

from georesolve.intake.representations import Format
from georesolve.service.errors import InvalidRequest
from georesolve.service.results.negotiation import format_of
from georesolve.service.store.rows import Delivery, Repeat

_LONGEST_KEY = 255
_LONGEST_WAIT_SECONDS = 60
"""A request that waits longer is cut by proxies; the job is there to be asked instead."""


@dataclass(frozen=True)
class Terms:
    """How a client wants to be answered."""

    respond_async: bool
    wait_seconds: int | None
    """How long it waits for the result before it takes a job instead; None if it did not say."""
    key: str | None
    """Its Idempotency-Key."""
    headers: Headers
    delivery: Delivery | None = None
    """How an execution of OGC API wants its result, of which the job is the record. None for the
    bare result: a small one leaves no job."""
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, headers: Headers) -> "Terms":
        """Read them; as the RFC wants, preferences that make no sense are passed over."""
        given: dict[str, str] = {}
        # Several headers, several preferences in each, parameters after a semicolon.
        for one in ",".join(headers.getlist("prefer")).split(","):
            name, _, value = one.partition(";")[0].partition("=")
            # Of a preference given twice the first counts.
            given.setdefault(name.strip().lower(), value.strip().strip('"'))
        wait = given.get("wait", "")
        is_number = wait.isascii() and wait.isdigit()
        seconds = min(int(wait[:9]), _LONGEST_WAIT_SECONDS) if is_number else None
        return cls("respond-async" in given, seconds, _key_of(headers), headers)

    @property
    def takes_a_job(self) -> bool:
        """Whether an answer without the result will do."""
        return self.respond_async or self.wait_seconds is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for the result at all."""
        return bool(self.wait_seconds) if self.takes_a_job else True

    def received(self, delivery: Delivery | None = None) -> Self:
        """The same once the request has been received, from when on the client waits."""
        return replace(self, delivery=delivery, since=time.monotonic())

    def format(self) -> Format:
        """The format that the client likes best; raises NotAcceptable where there is none such."""
        return format_of(self.delivery or Delivery(), self.headers)

    def seconds_left(self) -> float | None:
        """How long the client still waits; None for as long as it takes."""
        if self.wait_seconds is None:
            return None
        return max(0.0, self.since + self.wait_seconds - time.monotonic())

    def applied(self, *, by_job: bool = False) -> dict[str, str]:
        """The header that says which preferences were honoured, by the result or by a job."""
        wait = None if self.wait_seconds is None else f"wait={self.wait_seconds}"
        honoured = ["respond-async" if self.respond_async and by_job else None, wait]
        text = ", ".join(one for one in honoured if one)
        return {"Preference-Applied": text} if text else {}

    def repeat(self, *content: Any) -> Repeat | None:
        """The key with a digest of `content`, which names all that the answer depends on."""
        if self.key is None:
            return None
        named = json.dumps(content, sort_keys=True, default=asdict)
        return Repeat(self.key, hashlib.sha256(named.encode()).hexdigest())


def _key_of(headers: Headers) -> str | None:
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    # A string as structured fields have it, in quotes; many clients leave these out.
    key = given[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    is_text = key.isascii() and key.isprintable()
    if len(given) > 1 or not 1 <= len(key) <= _LONGEST_KEY or not is_text:
        raise InvalidRequest(
            f"the header Idempotency-Key must be given once, with 1 to {_LONGEST_KEY} printable "
            f"ASCII characters; it was given {len(given)} times, with {len(key)} characters"
        )
    return key
