"""Requests and their answers, over a wire that blocks or one that is awaited.

What a client does is written once, as coroutines over `httpx.AsyncClient`. An event loop runs them,
or `run`: nothing suspends over a `BlockingWire`, so it takes them from start to end at once.
"""

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import httpx

from georesolve.client.bodies import Body, Document
from georesolve.client.errors import ServiceError, ServiceRefused, ServiceUnreachable, refusal

logger = logging.getLogger("georesolve.client")

PASSING = frozenset({408, 429, 502, 503, 504})
_CUT_OFF = (
    httpx.NetworkError,
    httpx.TimeoutException,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
)
_KEY_IN_USE = "urn:georesolve:problem:idempotency-key-in-use"
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 10.0
_DECODING_SECONDS = 600.0
"""A service may take so long between the last byte of an upload and its answer: it decodes it."""

P = ParamSpec("P")
T = TypeVar("T")
Query = Mapping[str, Any]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a `BlockingWire`, which never suspends it."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking wire was suspended")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method of what is `awaited`, for callers that block."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return run(method(self.awaited, *arguments, **options))

    return call


class Wire:
    """How requests are sent, and how the caller waits: it is awaited."""

    def __init__(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)
        self.request = self._http.build_request

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of its answer has yet to be read."""
        return await self._http.send(request, stream=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what takes the time of a disk or of a core, in a thread."""
        return await anyio.to_thread.run_sync(function, *arguments)

    def shielded(self) -> AbstractContextManager[Any]:
        """What is done in here is finished although the caller was cancelled."""
        return anyio.CancelScope(shield=True)


class BlockingWire(Wire):
    """Blocks its caller: what is awaited is there when it is asked for."""

    def __init__(self, **options: Any) -> None:
        self._blocking = httpx.Client(**options)
        self.request = self._blocking.build_request

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of its answer is read as that of one that is awaited."""
        response = self._blocking.send(request, stream=True)
        assert isinstance(response.stream, httpx.SyncByteStream), "a client that blocks made it"
        response.stream = _Pieces(response.stream)
        return response

    async def close(self) -> None:
        """Close the connections."""
        self._blocking.close()

    async def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it here."""
        return function(*arguments)

    def shielded(self) -> AbstractContextManager[Any]:
        """Nothing is cancelled here."""
        return nullcontext()


class _Pieces(httpx.AsyncByteStream):
    """The body of an answer as it comes."""

    def __init__(self, blocking: httpx.SyncByteStream) -> None:
        self._blocking = blocking

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._blocking:
            yield piece

    async def aclose(self) -> None:
        self._blocking.close()


class Patience:
    """How long a client goes on trying from its first failure on; what gets on starts anew.

    `passing` are the statuses after which a request is sent again.
    """

    def __init__(self, wire: Wire, seconds: float, passing: frozenset[int]) -> None:
        self._wire = wire
        self._seconds = seconds
        self._passing = passing
        self._tries = 0
        self._since = 0.0

    def renew(self) -> None:
        """Note that something got on."""
        self._tries = 0

    async def after(self, error: ServiceError) -> None:
        """Wait before the next try, as long as the service says or longer with every try.

        Raises the error itself when it does not pass, or the next try would come too late.
        """
        wanted = None
        if isinstance(error, ServiceRefused):
            if error.status not in self._passing and error.type != _KEY_IN_USE:
                raise error
            wanted = error.retry_after_s
        self._tries += 1
        if self._tries == 1:
            self._since = time.monotonic()
        if wanted is None:
            longest = min(_FIRST_PAUSE_SECONDS * 2**self._tries, _LONGEST_PAUSE_SECONDS)
            # Not all that lost the same service come back at the same time.
            wanted = random.uniform(longest / 2, longest)  # noqa: S311
        spent = time.monotonic() - self._since
        if spent + wanted > self._seconds:
            error.add_note(
                f"The client tried {self._tries} times in {spent:.0f} s, and the next try was due "
                f"in {wanted:.0f} s. It goes on for {self._seconds:g} s: give it more with "
                "Client(url, patience_s=...)."
            )
            raise error
        if self._tries == 1:
            logger.warning("%s; trying again for up to %g s", error, self._seconds)
        await self._wire.pause(wanted)


class Exchange:
    """Asks one service, again while it cannot answer."""

    def __init__(self, wire: Wire, patience_s: float) -> None:
        self.wire = wire
        self._patience_s = patience_s

    def patience(self, passing: frozenset[int] = PASSING) -> Patience:
        """The patience for one task."""
        return Patience(self.wire, self._patience_s, passing)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | Document | None = None,
        passing: frozenset[int] = PASSING,
        retry_headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and read its answer; it is sent again after a status that is `passing`.

        Every request may be sent twice: those that make a job carry a key, the service knows a
        dataset again by its content, and all others change nothing more the second time. Retries
        have `retry_headers`, if given.
        """
        patience = self.patience(passing)
        while True:
            try:
                async with self.stream(method, path, query, headers, body) as response:
                    await response.aread()
                    return response
            except (ServiceRefused, ServiceUnreachable) as error:
                await patience.after(error)
                headers = retry_headers or headers

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | Document | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, once; the body of its answer is read in here, where it may fail, too."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        request = self.wire.request(method, path, params=given or None, headers=headers)
        if body is not None:
            request.headers.update(body.headers)
            request.stream = body
            timeout = request.extensions["timeout"]
            read_seconds = max(timeout["read"], _DECODING_SECONDS)
            request.extensions["timeout"] = {**timeout, "read": read_seconds}
        try:
            response = await self.wire.send(request)
            try:
                if not response.is_success:
                    await response.aread()
                    raise refusal(response)
                yield response
            finally:
                await response.aclose()
        except _CUT_OFF as error:
            what, url = str(error) or type(error).__name__, request.url.copy_with(query=None)
            failure = f"{method} {url} was cut off ({what})"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                failure = f"{url} cannot be reached ({what}): check the address, and that the "
                failure += "service runs"
            raise ServiceUnreachable(failure) from error
