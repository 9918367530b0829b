"""How a client wants to be answered: its headers Prefer, Idempotency-Key and Accept."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from starlette.datastructures import Headers

from georesolve.intake.representations import Format
from georesolve.service.database.rows import Delivery, Repeat
from georesolve.service.errors import InvalidRequest
from georesolve.service.http.preferences import Preference, preference_of
from georesolve.service.results.negotiation import format_of

_LONGEST_KEY = 255


@dataclass(frozen=True)
class Terms:
    """How a client wants to be answered.

    Attributes
    ----------
    preference
        How long it waits, since its request was received.
    key
        Its Idempotency-Key, if it sent one.
    headers
        What Accept stands in.
    delivery
        How an execution of OGC API wants its result, of which the job is the record. None for the
        bare result: a small one leaves no job.
    """

    preference: Preference
    key: str | None
    headers: Headers
    delivery: Delivery | None = None
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, headers: Headers) -> "Terms":
        """Read them.

        Raises
        ------
        InvalidRequest
            When the key is given several times, or is no short text.
        """
        return cls(preference_of(headers), _key_of(headers), headers)

    def received(self, delivery: Delivery | None = None) -> Self:
        """The same once the request has been received, from when on the client waits."""
        return replace(self, delivery=delivery, since=time.monotonic())

    def format(self) -> Format:
        """The format that the client likes best; raises NotAcceptable where there is none such."""
        return format_of(self.delivery or Delivery(), self.headers)

    def seconds_left(self) -> float | None:
        """How long the client still waits; None for as long as it takes."""
        return self.preference.seconds_left(self.since)

    def repeat(self, *content: Any) -> Repeat | None:
        """The key with a digest of what was sent; None without a key.

        Parameters
        ----------
        content
            Texts and dataclasses that name all that the answer depends on.
        """
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
