"""The result of a job as an HTTP answer.

Formats other than Parquet are made as they are sent. What is wrong with their first batch is told
as a problem; what goes wrong behind it ends the connection, so that no client takes half a result
for the whole.
"""

import errno
import io
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Annotated, Any, BinaryIO

import pyarrow as pa
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic_core import to_json
from starlette.datastructures import Headers

from georesolve.io.columns import Role
from georesolve.io.datasets import Dataset
from georesolve.io.local_files import Look
from georesolve.io.result_files import opened
from georesolve.io.result_formats import JSON, PARQUET, Format, up_to
from georesolve.io.storage import Folder, Home, StoreFailed
from georesolve.service import errors, pools
from georesolve.service.auth.access import own
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Checks
from georesolve.service.http import answers
from georesolve.service.links import OGC_RELATION, base_of
from georesolve.service.store.rows import Delivery, JobRow
from georesolve.service.store.store import Store
from georesolve.workers.results.manifest import (
    Extent,
    Manifest,
    Matches,
    look_at_manifest,
    open_matches,
    read_manifest,
)

logger = logging.getLogger(__name__)

_HELD_FILES = 16
"""Files that an answer holds from its begin: what has no more of them arrives whole, although its
job is dismissed meanwhile."""
_KEPT_MANIFESTS = 16
"""Each has a hundred bytes or two a row group: a MB at 2^29 rows."""


def format_of(delivery: Delivery, headers: Headers) -> Format:
    """The format of `outputs`, or what a client likes best, JSON in a document; NotAcceptable."""
    if delivery.media_type is not None:
        return answers.wanted_format(Headers({"accept": delivery.media_type}))
    return answers.wanted_format(headers, JSON if delivery.response == "document" else PARQUET)


@dataclass(frozen=True)
class Results:
    """The results of jobs, as the owner of a store sees them.

    All that reads a result raises what has become of it: it is not there, gone, damaged, or has
    failed; or SetsGone, where coordinates are wanted.
    """

    store: Store
    library: Library
    checks: Checks
    inline_bytes: int
    """So large a result may stand in a document."""

    async def response(self, job: JobRow, request: Request) -> Response:
        """The result of a job, in the way that its client wished to have it."""
        refuse_without_result(job)
        monitor = f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'
        format = format_of(job.delivery, request.headers)
        if job.delivery.transmission == "reference" or job.delivery.output:
            answers.refuse_unmatched(request, None)
            response = _reference(job, format, request)
        elif job.delivery.response == "document":
            answers.refuse_unmatched(request, None)
            response = await self._document(job, format, request)
        else:
            response = await self.in_format(job, format, request)
            response.headers["Vary"] = "Accept"
            response.headers["Content-Location"] = _url(job, format, request)
            return response
        response.headers["Vary"] = "Accept"
        response.headers.append("Link", monitor)
        return response

    async def in_format(self, job: JobRow, format: Format, request: Request) -> Response:
        """The result of a job in a format, whole or the range that was asked for."""
        refuse_without_result(job)
        _refuse_elsewhere(job)
        lines = " lines" if format.geometry == "line" else ""
        headers = answers.saved_as(format.name, f"{job.name}{lines}.{format.suffix}")
        headers["Link"] = f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'
        if format == PARQUET:
            return await self.parquet(job, request, headers=headers)
        answers.refuse_unmatched(request, None)
        with result_of(job):
            run, pieces = await self._making(job, format), self._pieces(job, format)
            return await _stream_response(run, pieces, format, headers)

    async def parquet(
        self,
        job: JobRow,
        request: Request,
        part: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The result of a job, or a part of it, which is a Parquet file of its own."""
        _refuse_elsewhere(job)
        run = self.store.files
        manifest = await run(self.manifest_of, job)
        extents, digest = manifest.extents(), manifest.digest
        if part is not None:
            found = next((one for one in manifest.parts if one.name == part), None)
            if found is None:
                raise errors.NotThere(
                    f"the result of the job {job.id!r} has no part {part[:80]!r}: "
                    f"/jobs/{job.id}/results/parts lists those that it has"
                )
            extents, digest = [Extent(found, 0, found.size_bytes)], found.digest
        edges = accumulate((one.size_bytes for one in extents), initial=0)
        spans = [
            answers.Span(*ends, partial(self._check, job, manifest, extent))
            for ends, extent in zip(pairwise(edges), extents, strict=True)
        ]
        held = _HELD_FILES if isinstance(manifest.place, Folder) else 0

        def opened() -> BinaryIO:
            return io.BufferedReader(Matches(manifest, held, extents), answers.BLOCK_BYTES)

        with result_of(job):
            look = await run(manifest.look, extents[-1])
            told = look, PARQUET.media_type, part or PARQUET.name
            file = answers.File(opened, spans[-1].stop, digest, *told, spans)
            return await answers.file_response(run, file, request, headers)

    def manifest_of(self, job: JobRow) -> Manifest:
        """The manifest of a job's result."""
        refuse_without_result(job)
        assert job.report is not None, "a result has a report"
        with result_of(job):
            folder = self.store.job_folder(job.id)
            manifest = _kept_manifest(folder, look_at_manifest(folder), job.report["digest"])
        if manifest is None:
            raise _damaged(job)
        return manifest

    def set_of(self, job: JobRow, role: Role) -> Dataset:
        """One of the two sets of a job."""
        try:
            return self.library.whole(getattr(job, role)).dataset
        except errors.NoSuchDataset:
            raise errors.SetsGone(
                f"the {role} of the job {job.id!r} are not kept any more, and a result has no "
                "coordinates of its own: send the job again with registered datasets, or, to have "
                "its sets kept as long as its result, with 'Accept: application/geo+json'"
            ) from None

    async def _making(self, job: JobRow, format: Format) -> answers.Run:
        """What calls the makers of a format: a server that is silent holds up none but these."""
        asks = not isinstance(self.store.root, Folder)
        if format.geometry != "" and not asks:
            asks = await pools.database(self._asks_elsewhere, job)
        return partial(pools.remote if asks else pools.texts, self.store.owner or "")

    def _pieces(self, job: JobRow, format: Format) -> Iterator[bytes]:
        """The result in a format other than Parquet, which may refuse its values; else OSError."""
        assert format.pieces is not None, "Parquet is there"
        with open_matches(self.store.job_folder(job.id)) as file:
            yield from format.pieces(opened(file), partial(self.set_of, job))

    def _asks_elsewhere(self, job: JobRow) -> bool:
        sets = (self.store.dataset(id) for id in (job.observations, job.references))
        return any(one.dataset.lies_elsewhere for one in sets if one is not None)

    async def _check(self, job: JobRow, manifest: Manifest, extent: Extent) -> None:
        """Compare the file that an extent lies in with its digest."""
        look, check = partial(manifest.look, extent), partial(manifest.is_whole, extent)
        key = f"{job.id}/{manifest.name_of(extent)}"
        with result_of(job):
            if isinstance(manifest.place, Folder):
                is_whole = await self.checks.is_whole(key, look, check)
            else:
                is_whole = await self.store.files(check)
            if not is_whole:
                raise _damaged(job)

    async def _document(self, job: JobRow, format: Format, request: Request) -> Response:
        """The result in a document (OGC API - Processes 1.0, 7.11.4), or a link if it is large."""
        if not format.is_text:
            return _reference(job, format, request)
        manifest = await self.store.files(self.manifest_of, job)
        # As text it is larger still, and need not be made for that.
        if manifest.size_bytes > self.inline_bytes:
            return _reference(job, format, request)
        for extent in manifest.extents():
            await self._check(job, manifest, extent)
        with result_of(job):
            making = await self._making(job, format)
            document = await making(self._in_document, job, format)
        if document is None:
            return _reference(job, format, request)
        return Response(document, media_type="application/json")

    def _in_document(self, job: JobRow, format: Format) -> bytes | None:
        """A result in a document; None if it is larger than may stand there in its format."""
        value = up_to(self.inline_bytes, self._pieces(job, format))
        if value is None:
            return None
        about = {"mediaType": format.media_type}
        if not format.media_type.endswith("json"):
            # Not json.dumps: for each MB that takes 5 ms in which nobody else is answered.
            value = to_json(value.decode())
        return b'{"matches":{"value":%b,%b}}' % (value.strip(), to_json(about)[1:-1])


OwnResults = Annotated[Results, own("results")]


@lru_cache(_KEPT_MANIFESTS)
def _kept_manifest(folder: Home, look: Look, digest: str) -> Manifest | None:
    manifest = read_manifest(folder)
    return manifest if manifest.digest == digest else None


async def _stream_response(
    run: answers.Run, pieces: Iterator[bytes], format: Format, headers: Mapping[str, str]
) -> StreamingResponse:
    """Answer with pieces, which `run` has made in a thread; raises what the first one does."""
    first = await run(next, pieces, None)

    async def all_pieces() -> AsyncIterator[bytes]:
        piece = first
        while piece is not None:
            yield piece
            piece = await run(next, pieces, None)

    told = {"Accept-Ranges": "none", "Cache-Control": "private", **headers}
    return StreamingResponse(all_pieces(), 200, told, format.media_type)


@contextmanager
def result_of(job: JobRow) -> Iterator[None]:
    """Tell what has become of a result that cannot be read: it is gone, or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(job) from None
    except StoreFailed:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        # What pyarrow raises has no number: a page without its checksum, a footer that is none.
        logger.exception("the result of the job %s is damaged", job.id)
        raise _damaged(job) from None


def _url(job: JobRow, format: Format, request: Request) -> str:
    return f"{base_of(request)}/jobs/{job.id}/results/{format.address}"


def _refuse_elsewhere(job: JobRow) -> None:
    if job.delivery.output:
        raise errors.NotThere(
            f"the result of the job {job.id!r} lies at {job.delivery.output}, and not here: "
            f"/jobs/{job.id}/results/parts lists its parts"
        )


def refuse_without_result(job: JobRow) -> None:
    """Raise the problem of a job that was dismissed, has failed, is live or has expired."""
    if job.status == "dismissed":
        raise _gone(job)
    if job.problem is not None:
        raise _as_problem(job.problem)
    if job.status != "successful":
        raise errors.ResultNotReady(
            f"the job {job.id!r} is {job.status}: {job.message}", headers={"Retry-After": "1"}
        )
    if job.has_expired and not job.delivery.output:
        raise _gone(job)


def _gone(job: JobRow) -> errors.Problem:
    """Why the result of a job is not there, which is not live and has not failed."""
    if job.has_expired and job.status != "dismissed":
        return errors.ResultExpired(
            f"the result of the job {job.id!r} was kept until {job.expires}: send the job again"
        )
    return errors.JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")


def _damaged(job: JobRow) -> errors.Problem:
    return errors.ResultDamaged(
        f"the result of the job {job.id!r} is damaged on the disk of the service, and is not given "
        "out: dismiss the job, and send it again"
    )


def _reference(job: JobRow, format: Format, request: Request) -> Response:
    """Where the result is: a header, or a document."""
    # Where it lies elsewhere, that is a folder of Parquet files.
    format = PARQUET if job.delivery.output else format
    href = job.delivery.output or _url(job, format, request)
    if job.delivery.response == "raw":
        link = f'<{href}>; rel="{OGC_RELATION}results"; type="{format.media_type}"'
        return Response(status_code=204, headers={"Link": link})
    return JSONResponse({"matches": {"href": href, "type": format.media_type}})


def _as_problem(document: dict[str, Any]) -> errors.Problem:
    # The result stays away; the same work, sent again, finds room when somebody has made it.
    kind = errors.StorageFull if document["type"] == errors.StorageFull.type else errors.Problem
    problem = kind(document["detail"], document.get("errors"))
    problem.status, problem.type = document["status"], document["type"]
    problem.title = document["title"]
    return problem
