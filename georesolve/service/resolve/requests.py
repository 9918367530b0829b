"""Requests as clients send them: how they want their answer, and what the model is read from.

JSON is held in memory, which keys share, and read in some milliseconds or by a thread.
"""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from fastapi import Depends, Header, Request
from pydantic import BaseModel, ValidationError, WithJsonSchema
from starlette.datastructures import Headers

from georesolve.service import errors, pools
from georesolve.service.http import openapi
from georesolve.service.http.bodies import refuse_other_types
from georesolve.service.http.parameters import parameters_of
from georesolve.service.receiving.uploads import receive_body, receive_form
from georesolve.service.resolve.context import Service, slot
from georesolve.service.resolve.models import ROLES, JobParameters, MatchInputs, ResolveForm
from georesolve.service.store.rows import Repeat

_LONGEST_KEY = 255
_LONGEST_WAIT_SECONDS = 60
"""A request that waits longer is cut by proxies; the job is there to be asked instead."""
SHORT_BYTES = 1 << 18
"""So much JSON is read in some milliseconds: a thousand observations have 40 KB."""
_PLAIN_ARRAY = re.compile(rb'\[[^][{}"]*\]')
"""An array without texts, arrays and objects in it; or a part of a text that looks like one."""
_NAME = re.compile(rb'"[^"]*"(?=\s*:)')
"""A name, or a text with a colon behind it."""
_MOST_NESTED = 1 << 19
"""Of 130 000 points of GeoJSON. So many take half a second to make, in which nobody else is
answered; as many as there is room for in `inline_bytes` take seconds."""
_QUICKLY_NESTED = 1 << 12
"""Arrays and objects in JSON that is read in some milliseconds: so many empty ones as there is room
for took a tenth of a second."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Terms:
    """How a client wants to be answered."""

    respond_async: bool
    wait_seconds: int | None
    """How long it waits for the result before it takes a job instead; None if it did not say."""
    key: str | None
    """Its Idempotency-Key."""
    headers: Headers
    since: float = field(default_factory=time.monotonic)

    @property
    def takes_a_job(self) -> bool:
        """Whether an answer without the result will do."""
        return self.respond_async or self.wait_seconds is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for the result at all."""
        return bool(self.wait_seconds) if self.takes_a_job else True

    def received(self) -> Self:
        """The same once the request has been received, from when on the client waits."""
        return replace(self, since=time.monotonic())

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


async def _terms_of(
    request: Request,
    prefer: Annotated[
        list[str] | None,
        Header(
            alias="Prefer",
            description="`respond-async`: a job to ask again; `wait=N`: the result if it is there "
            "within N seconds, and else the job; for example `respond-async`",
        ),
        openapi.TEXT,
    ] = None,
    key: Annotated[
        list[str] | None,
        Header(
            alias="Idempotency-Key",
            description="a request with the same key, sets and options is the same job; for "
            "example `5bd5d52c-5cf1-4b1c-8d6c-7d1d2c1f0b1e`",
        ),
        WithJsonSchema(
            {
                "type": "string",
                "minLength": 1,
                "maxLength": _LONGEST_KEY,
                "pattern": "^[!-~]([ -~]*[!-~])?$",
            }
        ),
    ] = None,
) -> Terms:
    """Read them; as the RFC wants, preferences that make no sense are passed over."""
    given: dict[str, str] = {}
    # Several headers, several preferences in each, parameters after a semicolon.
    for one in ",".join(prefer or []).split(","):
        name, _, value = one.partition(";")[0].partition("=")
        # Of a preference given twice the first counts.
        given.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = given.get("wait", "")
    is_number = wait.isascii() and wait.isdigit()
    seconds = min(int(wait[:9]), _LONGEST_WAIT_SECONDS) if is_number else None
    return Terms("respond-async" in given, seconds, _key_of(key or []), request.headers)


TermsOfRequest = Annotated[Terms, Depends(_terms_of)]


def _key_of(given: list[str]) -> str | None:
    if not given:
        return None
    # A string as structured fields have it, in quotes; many clients leave these out.
    key = given[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    is_text = key.isascii() and key.isprintable()
    if len(given) > 1 or not 1 <= len(key) <= _LONGEST_KEY or not is_text:
        raise errors.InvalidRequest(
            f"the header Idempotency-Key must be given once, with 1 to {_LONGEST_KEY} printable "
            f"ASCII characters; it was given {len(given)} times, with {len(key)} characters"
        )
    return key


@asynccontextmanager
async def json_content(request: Request, service: Service) -> AsyncIterator[bytearray]:
    """Hold the body of a request in the memory that there is for bodies, if it is JSON.

    Only of JSON so little is taken that it fits into memory.
    """
    refuse_other_types(request, "application/json", "(files go to /resolve)")
    content = bytearray()
    try:
        async for piece in request.stream():
            service.memory.hold(service.owner, len(piece))
            content += piece
        yield content
    finally:
        service.memory.let_go(service.owner, len(content))


async def read_form(request: Request, folder: Path) -> ResolveForm:
    """The model of a form, whose options are fields of it or parameters of the query."""
    refuse_other_types(
        request,
        "multipart/form-data",
        "with the parts 'observations' and 'references'; JSON goes to /nearest or, for a job, to "
        "/processes/nearest/execution",
    )
    query = request.query_params.multi_items()
    # What is wrong with the query is told before the form is received.
    parameters_of(JobParameters, query)
    form = await receive_form(request, folder, ROLES, JobParameters.model_fields)
    return parameters_of(ResolveForm, query, form.fields, form.parts)


async def read_stream(request: Request, folder: Path) -> MatchInputs:
    """The model of an Arrow stream of observations, with all else in the query."""
    given = {"observations": await receive_body(request, folder)}
    return parameters_of(MatchInputs, request.query_params.multi_items(), given=given)


async def parsed(service: Service, content: bytearray, model: type[M]) -> M:
    """A body as a model, in a thread and in turn if it is large."""
    if len(content) <= SHORT_BYTES and _nested(content) <= _QUICKLY_NESTED:
        return _read_json(model, content)

    async def read() -> M:
        start = time.monotonic()
        try:
            return await pools.compute(service.owner, _read_json, model, content)
        finally:
            # Meanwhile others were hardly answered. They have as long before the next is read.
            await asyncio.sleep(time.monotonic() - start)

    async with slot(service.reading, service.owner) as start:
        return await start(read())


def _read_json(model: type[M], content: bytes | bytearray) -> M:
    _check_structure(content)
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        # What was given may be a whole set.
        is_short = len(content) <= SHORT_BYTES
        found = error.errors(include_url=False, include_input=is_short)
        raise errors.invalid_request(found) from None


def _check_structure(content: bytes | bytearray) -> None:
    """Refuse what is too nested, and an object with a name twice; other mistakes are found later.

    Readers of JSON take any one of two values of a name.
    """
    # A body that has no more bytes has no more of them.
    is_long = len(content) > _MOST_NESTED
    if is_long and (nested := _nested(content)) > _MOST_NESTED:
        raise errors.TooLarge(
            f"the body has {nested} arrays and objects, and the limit is {_MOST_NESTED}: send "
            "GeoJSON as a file, or one array for each column"
        )
    names = _NAME.findall(content)
    if len(set(names)) == len(names) and b"\\" not in content:
        # What may be a name stands there once.
        return
    # Without the arrays of numbers, which are most of it and take most of the time. A name may
    # look like one, so what is found without them is looked for with them.
    if _repeated_name(_PLAIN_ARRAY.sub(b"[]", content)) is not None:
        name = _repeated_name(content)
        if name is not None:
            raise errors.InvalidRequest(
                f"an object of the body has the name {name[:80]!r} more than once: send it once"
            )


def _nested(content: bytes | bytearray) -> int:
    """How many arrays and objects it has at most: a text may look like some."""
    # The two differ in one bit. `count` takes several times as long.
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) | 0x20 == ord("{")))


def _repeated_name(content: bytes | bytearray) -> str | None:
    """A name that an object has twice; None if there is none, or if this is no JSON."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            found.append(max(counts, key=counts.__getitem__))

    # Integers may have more digits than Python makes an integer of.
    with suppress(ValueError, RecursionError):
        json.loads(content, object_pairs_hook=look, parse_int=float)
    return found[0] if found else None
