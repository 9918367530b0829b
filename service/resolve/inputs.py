"""The two point sets of a request: made of files or arrays, or found among the datasets."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from georesolve.intake.addresses import is_href
from georesolve.intake.columns import OnInvalid, Reading, Role
from georesolve.intake.flat_streams import flat_table
from georesolve.intake.matching import check_match
from georesolve.intake.representations import ARROW
from georesolve.service.context import Service
from georesolve.service.database.rows import DatasetRow
from georesolve.service.errors import (
    InvalidInput,
    InvalidRequest,
    TooLarge,
    UnsupportedFormat,
    invalid_request,
    step,
)
from georesolve.service.http.bounds import media_type, off_the_loop
from georesolve.service.resolve.models import (
    JobParameters,
    MatchParameters,
    NearestInputs,
    NearestQuery,
)
from georesolve.service.resolve.options import options_of
from georesolve.service.uploads.ingest import Ingested
from georesolve.service.uploads.receiving import (
    Upload,
    check_digest,
    keep_upload,
    receive_form,
)
from georesolve.service.uploads.resumable import is_upload
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.sources import Manifest

ROLES: tuple[Role, Role] = ("observations", "references")
_FORMAT = {"mediaType", "format", "encoding", "schema"}
"""What OGC API lets stand beside a value; the value itself tells as much."""

_PLAIN_ARRAY = re.compile(rb'\[[^][{}"]*\]')
"""An array without texts, arrays and objects in it; or a part of a text that looks like one."""
_NAME = re.compile(rb'"[^"]*"(?=\s*:)')
"""A name, or a text with a colon behind it."""
_BODY = "the body"
_MOST_NESTED = 1 << 19
"""Of 130 000 points of GeoJSON. So many take half a second to make, in which nobody else is
answered; as many as there is room for in `inline_bytes` take seconds."""
_QUICKLY_READ = 1 << 18
"""Bytes of JSON that are read in some milliseconds."""

M = TypeVar("M", bound=BaseModel)


class Inputs(NamedTuple):
    """Both sets: an upload (deleted unless it is kept), or a registered dataset."""

    observations: Ingested | DatasetRow
    references: Ingested | DatasetRow


class StreamQuery(NamedTuple):
    """What stands in the query beside a stream, and what tells the JSON pointer of an option."""

    query: NearestQuery
    pointer: Callable[[str], str]


class Asked(NamedTuple):
    """What a request asks for.

    Attributes
    ----------
    inputs
        Both sets.
    options
        How to match them, with the names of all columns to carry.
    on_invalid
        What becomes of rows with invalid coordinates.
    pointer
        Tells the JSON pointer of an option in the request.
    output
        The address that the result is to be written to, if not into the folder of the service.
    """

    inputs: Inputs
    options: MatchOptions
    on_invalid: OnInvalid
    pointer: Callable[[str], str]
    output: str | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        parameters: MatchParameters,
        pointer: Callable[[str], str],
        output: str | None = None,
    ) -> "Asked":
        """The same, as it was sent."""
        options = parameters.options(*(one.dataset for one in inputs))
        return cls(inputs, options, parameters.on_invalid, pointer, output)

    def check(self) -> None:
        """Check that the two sets can be matched, as `intake.matching` does."""
        observations, references = (one.dataset for one in self.inputs)
        if isinstance(references.file, Manifest) and references.file.keeps_invalid:
            raise InvalidInput(
                f"references: those at {references.file.href} are not counted before they are "
                "read, so none of them may be invalid: leave out on_invalid=null, or upload them"
            )
        check_match(observations, references, self.options, self.on_invalid, self.pointer)


async def asked_by_form(request: Request, service: Service, folder: Path) -> Asked:
    """What a form asks for, whose options are fields of it or parameters of the query.

    Raises
    ------
    Problem
        When the body is no such form, or what it holds is no table of points.
    """
    _refuse_other_types(
        request,
        "multipart/form-data",
        "with the parts 'observations' and 'references'; JSON goes to /nearest or, for a job, to "
        "/processes/nearest/execution",
    )
    # What is wrong with the query is told before the form is received.
    options_of(JobParameters, request)
    form = await receive_form(request, folder, ROLES, JobParameters.model_fields)
    parameters, pointer = options_of(JobParameters, request, form.fields)
    output = _output(service, parameters.output)
    inputs = [
        await _from_part(form.parts[role], role, service, parameters.reading_of(role), folder)
        for role in ROLES
    ]
    return Asked.of(Inputs(*inputs), parameters, pointer, output)


def _output(service: Service, href: str | None) -> str | None:
    """Where a result is to be written; raises SinkNotAllowed before anything is asked for."""
    return None if href is None else service.sinks.output(href.strip())


async def asked_by_json(
    service: Service,
    given: NearestInputs,
    folder: Path,
    pointer: str = "",
    output: str | None = None,
) -> Asked:
    """What a JSON document asks for, where `pointer` says."""
    output = _output(service, output)
    inputs = [
        await input_of_json(
            getattr(given, role), f"{pointer}/{role}", service, given.reading_of(role), folder
        )
        for role in ROLES
    ]
    return Asked.of(Inputs(*inputs), given, lambda option: f"{pointer}/{step(option)}", output)


def asked_by_flat_stream(service: Service, asked: StreamQuery, content: bytearray) -> Asked | None:
    """What a small Arrow stream of plain columns asks for, in this thread; None with others.

    These are files of strangers, which are decoded elsewhere, as references at an address are
    looked up: `asked_by_stream` waits for them.
    """
    start = time.perf_counter()
    table = flat_table(content)
    if table is None or _is_elsewhere(asked.query.references):
        return None
    references = service.library.use(_id_of(asked.query.references, "references"))
    reading = asked.query.reading_of("observations")
    observations = service.ingest.from_table(table, reading, _BODY, start)
    return Asked.of(Inputs(observations, references), asked.query, asked.pointer)


async def asked_by_stream(
    service: Service, asked: StreamQuery, content: bytearray, folder: Path
) -> Asked:
    """What any Arrow stream of observations asks for, with all else in the query.

    Raises
    ------
    Problem
        When the query names no registered dataset as `references`, or the body is no such stream.
    """
    references = await _named(
        asked.query.references,
        "references",
        service,
        asked.query.reading_of("references"),
        folder,
    )
    upload = keep_upload(bytes(content), folder, ARROW.media_type, _BODY)
    reading = asked.query.reading_of("observations")
    observations = await service.ingest.from_upload(upload, reading, folder, service.owner)
    return Asked.of(Inputs(observations, references), asked.query, asked.pointer)


def _refuse_other_types(request: Request, wanted: str, how: str) -> None:
    given = media_type(request.headers)
    if given != wanted:
        raise UnsupportedFormat(
            f"the media type {given[:80] or 'none'} is not supported here: send {wanted} {how}"
        )


@asynccontextmanager
async def json_content(request: Request, service: Service) -> AsyncIterator[bytearray]:
    """Hold the body of a request, which is JSON, in the memory that there is for bodies.

    Raises
    ------
    UnsupportedFormat
        When it is not JSON: only of JSON so little is taken that it fits into memory.
    TooManyBodies
        When there is no memory for it.
    InvalidRequest
        When its digest is not the one that was sent with it.
    """
    _refuse_other_types(request, "application/json", "(files go to /resolve)")
    async with content_of(request, service) as content:
        yield content


@asynccontextmanager
async def content_of(request: Request, service: Service) -> AsyncIterator[bytearray]:
    """Hold a body in the memory that there is for bodies; raises as `json_content` does."""
    with service.memory.body(service.owner) as grow:
        content = bytearray()
        async for piece in request.stream():
            grow(len(piece))
            content += piece
        await off_the_loop(partial(check_digest, request), content)
        yield content


def is_quickly_read(content: bytearray) -> bool:
    """Whether a body of JSON is so small that nobody notices when it is read."""
    return len(content) <= _QUICKLY_READ


@asynccontextmanager
async def _turn(service: Service, content: bytearray) -> AsyncIterator[None]:
    """Wait until nobody else reads a large body, if this is one."""
    if is_quickly_read(content):
        yield
        return
    async with service.reading.place(service.owner):
        start = time.monotonic()
        try:
            yield
        finally:
            # Meanwhile others were hardly answered. They have as long before the next is read.
            await asyncio.sleep(time.monotonic() - start)


def _check_structure(content: bytes | bytearray) -> None:
    """Refuse what is too nested, and an object with a name twice; other mistakes are found later.

    Readers of JSON take any one of two values of a name.
    """
    nested = content.count(b"[") + content.count(b"{")
    if nested > _MOST_NESTED:
        raise TooLarge(
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
            raise InvalidRequest(
                f"an object of the body has the name {name[:80]!r} more than once: send it once"
            )


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


async def parsed(service: Service, content: bytearray, model: type[M]) -> M:
    """A body as a model, in a thread and in turn if it is large; raises as `read_json` does."""
    async with _turn(service, content):
        return await off_the_loop(partial(read_json, model), content)


def read_json(model: type[M], content: bytes | bytearray) -> M:
    """A body as a model.

    Raises
    ------
    TooLarge
        When it has so many arrays and objects that all others would wait while it is read.
    InvalidRequest
        When an object has a name twice, or the model does not take it.
    """
    _check_structure(content)
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False, include_input=False)) from None


async def _from_part(
    part: Upload | str, role: str, service: Service, reading: Reading, folder: Path
) -> Ingested | DatasetRow:
    if isinstance(part, str):
        return await _named(part, role, service, reading, folder)
    return await service.ingest.from_upload(part, reading, folder, service.owner)


async def _named(
    text: str, role: str, service: Service, reading: Reading, folder: Path
) -> Ingested | DatasetRow:
    """The set that a text names: a registered one, an upload, or files at an address."""
    if is_upload(text):
        upload = await asyncio.to_thread(service.uploads.taken, text, folder, role)
        return await service.ingest.from_upload(upload, reading, folder, service.owner)
    if not is_href(text):
        return await asyncio.to_thread(service.library.use, _id_of(text, role))
    async with service.ingest.converting.place(service.owner):
        return await asyncio.to_thread(service.ingest.from_href, text.strip(), reading, role)


async def input_of_json(
    value: Any, pointer: str, service: Service, reading: Reading, folder: Path
) -> Ingested | DatasetRow:
    """Make or find one set that stands in a JSON document."""
    value, pointer = _unwrapped(value, pointer)
    if isinstance(value, str):
        return await _named(value, pointer, service, reading, folder)
    if _is_elsewhere(value):
        return await _named(value["href"], pointer, service, reading, folder)
    if _is_geojson(value):
        upload = keep_upload(to_json(value), folder, "application/geo+json", pointer)
        return await service.ingest.from_upload(upload, reading, folder, service.owner)
    async with service.ingest.converting.place(service.owner):
        return await asyncio.to_thread(_small_input, value, pointer, service, reading)


def asked_at_hand(service: Service, given: NearestInputs) -> Asked | None:
    """What a small JSON document asks for, in this thread; None with GeoJSON.

    That is a file of strangers, which is decoded elsewhere: `asked_by_json` waits for it, as it
    does for uploads and for files at an address.
    """
    sets = [_unwrapped(getattr(given, role), f"/{role}") for role in ROLES]
    if any(_is_geojson(value) or _is_elsewhere(value) for value, _ in sets):
        return None
    inputs = [
        _small_input(value, pointer, service, given.reading_of(role))
        for role, (value, pointer) in zip(ROLES, sets, strict=True)
    ]
    return Asked.of(Inputs(*inputs), given, lambda option: f"/{step(option)}")


def _unwrapped(value: Any, pointer: str) -> tuple[Any, str]:
    """A set, and where it stands: OGC API wraps an object that stands for an input in another."""
    match value:
        case {"value": inner, **rest} if isinstance(inner, str | dict) and rest.keys() <= _FORMAT:
            return _unwrapped(inner, f"{pointer}/value")
    return value, pointer


def _is_geojson(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "FeatureCollection"


def _is_elsewhere(value: Any) -> bool:
    match value:
        case str():
            return is_href(value) or is_upload(value)
        case {"href": str(), **rest}:
            # Links of OGC API say what is there; the files themselves do.
            return rest.keys() <= {"type"}
    return False


def _small_input(
    value: Any, pointer: str, service: Service, reading: Reading
) -> Ingested | DatasetRow:
    match value:
        case str():
            return service.library.use(_id_of(value, pointer))
        case {"dataset": str(id), **rest} if not rest:
            return service.library.use(id)
    for name, column in value.items():
        if not isinstance(column, list):
            raise InvalidRequest(
                f'{pointer}/{name[:80]}: not an array: give a dataset as {{"dataset": "<id>"}}, '
                'files as {{"href": "s3://..."}}, '
                "arrays by column name, or a GeoJSON FeatureCollection",
                [{"pointer": f"{pointer}/{step(name)}", "detail": "not an array"}],
            )
    return service.ingest.from_arrays(value, reading, pointer)


def _id_of(text: str, role: str) -> str:
    kind, _, id = text.strip().partition(":")
    if kind != "dataset" or not id:
        raise InvalidRequest(
            f"{role}: {text[:80]!r} is neither a file nor 'dataset:<id>', 'upload:<id>' or an "
            "address"
        )
    return id
