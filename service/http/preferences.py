"""What a client prefers of the answer: the header Prefer (RFC 7240)."""

import time
from typing import NamedTuple

from starlette.datastructures import Headers

_LONGEST_WAIT_SECONDS = 60
"""A request that waits longer is cut by proxies; the job is there to be asked instead."""


class Preference(NamedTuple):
    """How long a client wants to wait for a result.

    Attributes
    ----------
    respond_async
        Whether it wants a job to ask again.
    wait_seconds
        How long it waits for the result before it takes a job instead; None where it did not say.
    """

    respond_async: bool = False
    wait_seconds: int | None = None

    @property
    def takes_a_job(self) -> bool:
        """Whether an answer without the result will do."""
        return self.respond_async or self.wait_seconds is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for the result at all."""
        return bool(self.wait_seconds) if self.takes_a_job else True

    def seconds_left(self, since: float) -> float | None:
        """How long it still waits, when it has waited since a time of `time.monotonic`."""
        if self.wait_seconds is None:
            return None
        return max(0.0, since + self.wait_seconds - time.monotonic())

    def applied(self, *, by_job: bool = False) -> dict[str, str]:
        """The header that says which preferences were honoured, by the result or by a job."""
        wait = None if self.wait_seconds is None else f"wait={self.wait_seconds}"
        honoured = ["respond-async" if self.respond_async and by_job else None, wait]
        text = ", ".join(one for one in honoured if one)
        return {"Preference-Applied": text} if text else {}


def preference_of(headers: Headers) -> Preference:
    """Read the preferences of a request; as the RFC wants, what makes no sense is passed over."""
    given: dict[str, str] = {}
    # Several headers, several preferences in each, parameters after a semicolon.
    for one in ",".join(headers.getlist("prefer")).split(","):
        name, _, value = one.partition(";")[0].partition("=")
        # Of a preference given twice the first counts.
        given.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = given.get("wait", "")
    is_number = wait.isascii() and wait.isdigit()
    seconds = min(int(wait[:9]), _LONGEST_WAIT_SECONDS) if is_number else None
    return Preference("respond-async" in given, seconds)
