"""The two point sets of a request: as they were sent, and made or found.

What is sent is a file, arrays or GeoJSON, or it is named: a registered dataset, files at an
address. Arrays and datasets that were used a moment ago are at hand. Other things take their time:
files of strangers and Arrow streams are decoded in a sandbox.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from georesolve.intake.addresses import is_href
from georesolve.intake.columns import OnInvalid, Reading, Role
from georesolve.intake.matching import check_match
from georesolve.intake.representations import ARROW
from georesolve.service import pools
from georesolve.service.context import Service
from georesolve.service.errors import (
    InvalidInput,
    InvalidRequest,
    Problem,
    TooLarge,
    invalid_request,
    step,
)
from georesolve.service.http.bodies import refuse_other_types
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.receiving.receiving import Upload, keep_upload, receive_form
from georesolve.service.resolve.models import (
    JobParameters,
    MatchParameters,
    NearestInputs,
    NearestQuery,
)
from georesolve.service.resolve.options import options_of
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.sources import Manifest

ROLES: tuple[Role, Role] = ("observations", "references")
_FORMAT = {"mediaType", "format", "encoding", "schema"}
"""What OGC API lets stand beside a value; the value itself tells as much."""

_PLAIN_ARRAY = re.compile(rb'\[[^][{}"]*\]')
"""An array without texts, arrays and objects in it; or a part of a text that looks like one."""
_NAME = re.compile(rb'"[^"]*"(?=\s*:)')
"""A name, or a text with a colon behind it."""
_MOST_NESTED = 1 << 19
"""Of 130 000 points of GeoJSON. So many take half a second to make, in which nobody else is
answered; as many as there is room for in `inline_bytes` take seconds."""
QUICKLY_READ, _QUICKLY_NESTED = 1 << 18, 1 << 12
"""Bytes of JSON that are read in some milliseconds, and arrays and objects in them: so many empty
ones as there is room for took a tenth of a second."""

M = TypeVar("M", bound=BaseModel)


Set = Ingested | DatasetRow
"""An upload (deleted unless it is kept), or a registered dataset."""


class Asked(NamedTuple):
    """What a request asks for.

    Attributes
    ----------
    options
        How to match the two sets, with the names of all columns to carry.
    on_invalid
        What becomes of rows with invalid coordinates.
    pointer
        Tells the JSON pointer of an option in the request.
    output
        The address that the result is to be written to, if not into the folder of the service.
    """

    observations: Set
    references: Set
    options: MatchOptions
    on_invalid: OnInvalid
    pointer: Callable[[str], str]
    output: str | None = None

    @property
    def sets(self) -> tuple[Set, Set]:
        """Both sets."""
        return self.observations, self.references

    def check(self) -> None:
        """Check that the two sets can be matched, as `intake.matching` does."""
        observations, references = (one.dataset for one in self.sets)
        if isinstance(references.file, Manifest) and references.file.keeps_invalid:
            raise InvalidInput(
                f"references: those at {references.file.href} are not counted before they are "
                "read, so none of them may be invalid: leave out on_invalid=null, or upload them"
            )
        for role, one in zip(ROLES, (observations, references), strict=True):
            href = one.file.href if isinstance(one.file, Manifest) else None
            if self.output and href and _start_of(self.output).startswith(_start_of(href)):
                raise InvalidInput(
                    f"output: {self.output} lies in the folder of the {role}, {href}, where "
                    "the result would be read as one of them: name another folder"
                )
        check_match(observations, references, self.options, self.on_invalid, self.pointer)


def _start_of(href: str) -> str:
    """The start of whatever lies at an address; that of a local folder without links."""
    lies_at, star, _ = href.partition("*")
    # Only what begins as the last name before a star may be meant by it.
    folder, _, name = lies_at.rpartition("/") if star else (lies_at.rstrip("/"), "/", "")
    if folder.startswith("file://"):
        folder = f"file://{Path(folder.removeprefix('file://')).resolve()}"
    return f"{folder}/{name}"


class Sent(NamedTuple):
    """What was sent: both sets as they came, and how to match them.

    Attributes
    ----------
    parameters
        How to match and to read them.
    sets
        An `Upload`, the bytes of an Arrow stream, or what JSON may be as a point set.
    places
        Where they stand in the request, for errors.
    pointer
        Tells the JSON pointer of an option.
    output
        See `Asked`.
    """

    parameters: MatchParameters
    sets: tuple[Any, Any]
    places: tuple[str, str]
    pointer: Callable[[str], str]
    output: str | None = None

    async def asked(self, service: Service, folder: Path) -> Asked:
        """Make or find both sets, in a folder that goes with the request.

        Raises
        ------
        Problem
            When one of them is no table of points, or is not there.
        """
        sets = [
            await made(value, place, service, self.parameters.reading_of(role), folder)
            for value, place, role in zip(self.sets, self.places, ROLES, strict=True)
        ]
        return self._asked(*sets)

    async def datasets(self, service: Service) -> dict[str, DatasetRow]:
        """Those of the sets that are registered, by what they were called; each is used.

        Raises
        ------
        NoSuchDataset
        DatasetDamaged
        """
        named = {_dataset_of(_plain(value, "")[0]) for value in self.sets}
        found: dict[str, DatasetRow] = {}
        for id in filter(None, named):
            row = service.library.known(id)
            if row is None:
                row = await service.store.files(service.library.use, id)
            found[id] = row
        return found

    def asked_at_hand(self, service: Service, found: Mapping[str, DatasetRow]) -> Asked | None:
        """The same in this thread; None where one of the sets is not at hand.

        Parameters
        ----------
        found
            As `datasets` gave them.
        """
        sets: list[Set] = []
        for value, place, role in zip(self.sets, self.places, ROLES, strict=True):
            value, place = _plain(value, place)
            if (id := _dataset_of(value)) is not None:
                one: Set | None = found[id]
            else:
                one = _made_at_hand(value, place, service, self.parameters.reading_of(role))
            if one is None:
                return None
            sets.append(one)
        return self._asked(*sets)

    def _asked(self, observations: Set, references: Set) -> Asked:
        options = self.parameters.options(observations.dataset, references.dataset)
        on_invalid = self.parameters.on_invalid
        return Asked(observations, references, options, on_invalid, self.pointer, self.output)


async def sent_by_form(request: Request, service: Service, folder: Path) -> Sent:
    """What was sent as a form, whose options are fields of it or parameters of the query.

    Raises
    ------
    Problem
        When the body is no such form.
    """
    refuse_other_types(
        request,
        "multipart/form-data",
        "with the parts 'observations' and 'references'; JSON goes to /nearest or, for a job, to "
        "/processes/nearest/execution",
    )
    # What is wrong with the query is told before the form is received.
    options_of(JobParameters, request)
    form = await receive_form(request, folder, ROLES, JobParameters.model_fields)
    parameters, pointer = options_of(JobParameters, request, form.fields)
    sets = (form.parts["observations"], form.parts["references"])
    return Sent(parameters, sets, ROLES, pointer, output_of(service, parameters.output))


def sent_by_json(given: NearestInputs, pointer: str = "", output: str | None = None) -> Sent:
    """What was sent in a JSON document, where `pointer` says."""
    places = (f"{pointer}/observations", f"{pointer}/references")
    sets = (given.observations, given.references)
    return Sent(given, sets, places, lambda option: f"{pointer}/{step(option)}", output)


def sent_by_stream(request: Request, content: bytearray) -> Sent:
    """What was sent as an Arrow stream of observations, with all else in the query."""
    query, pointer = options_of(NearestQuery, request)
    if not (_is_elsewhere(query.references) or _dataset_of(query.references)):
        raise _no_name(query.references, "references")
    return Sent(query, (content, query.references), ("the body", "references"), pointer)


def output_of(service: Service, href: str | None) -> str | None:
    """Where a result is to be written; raises SinkNotAllowed before anything is asked for."""
    return None if href is None else service.sinks.output(href.strip())


def json_content(request: Request, service: Service) -> AbstractAsyncContextManager[bytearray]:
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
    refuse_other_types(request, "application/json", "(files go to /resolve)")
    return content_of(request, service)


@asynccontextmanager
async def content_of(request: Request, service: Service) -> AsyncIterator[bytearray]:
    """Hold a body in the memory that there is for bodies; raises as `json_content` does."""
    with service.memory.body(service.owner) as grow:
        content = bytearray()
        async for piece in request.stream():
            grow(len(piece))
            content += piece
        yield content


def _check_structure(content: bytes | bytearray) -> None:
    """Refuse what is too nested, and an object with a name twice; other mistakes are found later.

    Readers of JSON take any one of two values of a name.
    """
    # A body that has no more bytes has no more of them.
    is_long = len(content) > _MOST_NESTED
    if is_long and (nested := _nested(content)) > _MOST_NESTED:
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


def _nested(content: bytes | bytearray) -> int:
    """How many arrays and objects it has at most: a text may look like some."""
    return content.count(b"[") + content.count(b"{")


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
    if len(content) <= QUICKLY_READ and _nested(content) <= _QUICKLY_NESTED:
        return read_json(model, content)
    async with service.reading.place(service.owner):
        start = time.monotonic()
        try:
            return await pools.compute(read_json, model, content)
        finally:
            # Meanwhile others were hardly answered. They have as long before the next is read.
            await asyncio.sleep(time.monotonic() - start)


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


async def made(value: Any, place: str, service: Service, reading: Reading, folder: Path) -> Set:
    """Make or find one set, which was sent as `Sent` has it; raises what `Sent.asked` does."""
    value, place = _plain(value, place)
    if isinstance(value, bytearray):
        value = await pools.disk(keep_upload, bytes(value), folder, ARROW.media_type, place)
    elif _is_geojson(value):
        content = await pools.compute(to_json, value)
        value = await pools.disk(keep_upload, content, folder, "application/geo+json", place)
    if (id := _dataset_of(value)) is not None:
        return await service.store.files(service.library.use, id)
    if isinstance(value, Upload | str):
        one = await made_of_file(value, place, service, reading, folder)
        if one is not None:
            return one
    async with service.ingest.converting.place(service.owner):
        return await pools.compute(_of_arrays, value, place, service, reading)


async def made_of_file(
    value: Upload | str, place: str, service: Service, reading: Reading, folder: Path
) -> Ingested | None:
    """Make a set of a file, or of files at an address; None where a text names none."""
    if isinstance(value, Upload):
        return await service.ingest.from_upload(value, reading, folder, service.owner)
    if not is_href(value):
        return None
    look = service.ingest.from_href
    return await pools.remote(service.owner, look, value.strip(), reading, place)


def _made_at_hand(value: Any, place: str, service: Service, reading: Reading) -> Ingested | None:
    if isinstance(value, Upload | bytearray) or _is_geojson(value) or _is_elsewhere(value):
        return None
    return _of_arrays(value, place, service, reading)


def _plain(value: Any, place: str) -> tuple[Any, str]:
    """A set, and where it stands, without the objects that say no more than what is in them."""
    match value:
        # OGC API wraps an object that stands for an input in another.
        case {"value": str() | dict() as inner, **rest} if rest.keys() <= _FORMAT:
            return _plain(inner, f"{place}/value")
        case {"dataset": str(id), **rest} if not rest:
            return f"dataset:{id}", place
        # Links of OGC API say what is there; the files themselves do.
        case {"href": str(href), **rest} if rest.keys() <= {"type"}:
            return href, place
    return value, place


def _is_geojson(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "FeatureCollection"


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, str) and is_href(value)


def _of_arrays(value: Any, place: str, service: Service, reading: Reading) -> Ingested:
    if isinstance(value, str):
        raise _no_name(value, place)
    for name, column in value.items():
        if not isinstance(column, list):
            raise InvalidRequest(
                f'{place}/{name[:80]}: not an array: give a dataset as {{"dataset": "<id>"}}, '
                'files as {"href": "s3://..."}, arrays by column name, or a GeoJSON '
                "FeatureCollection",
                [{"pointer": f"{place}/{step(name)}", "detail": "not an array"}],
            )
    return service.ingest.from_arrays(value, reading, place)


def _no_name(text: str, place: str) -> Problem:
    return InvalidRequest(
        f"{place}: {text[:80]!r} is neither a file nor 'dataset:<id>' or an address"
    )


def _dataset_of(value: Any) -> str | None:
    """The id or the name of the registered dataset that a set is; None of another."""
    kind, _, id = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    return id or None if kind == "dataset" else None
