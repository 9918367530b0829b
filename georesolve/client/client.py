"""A client of a georesolve service: it knows HTTP, and the tables that people work with."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import uuid4

import httpx

from georesolve.client.bodies import AtService, Body, Document, columns_of, point_set, registered
from georesolve.client.errors import ServiceError, ServiceRefused
from georesolve.client.exchange import PASSING, BlockingWire, Exchange, Wire, blocking, logger, run
from georesolve.client.jobs import AsyncJob, Job
from georesolve.io.progress import progress_bar
from georesolve.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

    # They stand beside what needs numba, and a client does without.
    from georesolve.options import JobKeywords, NearestKeywords, ReadingKeywords, WithinKeywords

_LITTLE_BYTES = 4 << 20
"""So much is sent and answered in one request, without a job where the service takes it so."""
_FEW_ROWS = 4096
"""Rows of a result that are looked up by JSON, which is faster than a file up to so many."""
_PLAIN = (str, int, float, list, tuple, dict, type(None))
_JSON: dict[str, tuple[type, ...]] = {"k": (int,)} | dict.fromkeys(
    ("exclude_self", "near", "once", "allow_exact"), (bool,)
)
"""What an option is that JSON says as it is given; each of the others is `_PLAIN`."""
_BY = ("by", "observation_by", "reference_by")
_TOO_MUCH = frozenset({413, 503})
"""What a service answers that does not look up so much, or has not yet read the references."""
_WAIT_SECONDS = 5
_A_PAGE = 1000


@dataclass(frozen=True)
class Dataset:
    """A point set that is registered at the service: given in place of one, as often as needed.

    Attributes
    ----------
    id
        Of this content at the service; `"dataset:<id>"` stands for it, too.
    name
        What lists show: the name of its file, or what was said instead.
    names
        Names that stand for it as well: `places` while it is the newest version of that name,
        `places@3` as long as it is kept.
    rows, invalid_rows
        All its rows, and those without valid coordinates.
    bbox
        West, south, east and north of its valid points in degrees; None where there are none.
    columns, lat, lon, id_column
        Its columns, and which of them say where and what a point is.
    geometry
        The column of its lines and polygons; None where all rows are points.
    sha256, size_bytes
        Of its file, as the service keeps it.
    created, expires
        When it was registered, and when it is removed unless it is used again.
    owner
        The name of the key that it was made with, told to keys of the role admin.
    """

    id: str
    names: list[str]
    rows: int
    invalid_rows: int
    bbox: list[float] | None
    columns: list[str]
    lat: str
    lon: str
    id_column: str | None
    geometry: str | None
    sha256: str
    size_bytes: int
    created: str
    expires: str | None
    owner: str | None = None
    name: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self:
        """What a service says of it; services to come may say more."""
        known: dict[str, Any] = {field.name: info.get(field.name) for field in fields(cls)}
        return cls(**known)


class AsyncClient:
    """`Client` for asyncio: the same parameters and methods, which are awaited."""

    _wire = Wire

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        progress: bool | None = None,
        patience_s: float = 120.0,
        timeout_s: float = 60.0,
    ) -> None:
        try:
            scheme = httpx.URL(url).scheme
        except httpx.InvalidURL:
            scheme = ""
        if scheme not in ("http", "https"):
            raise ValueError(
                f"{url!r} is no address of a service: give one such as 'http://localhost:8000'"
            )
        headers = {"User-Agent": f"georesolve/{__version__}"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.strip()}"
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0))
        self._progress = progress
        wire = self._wire(base_url=url, headers=headers, timeout=timeout)
        self._exchange = Exchange(wire, patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._exchange.wire.close()

    async def register(
        self,
        data: Any,
        *,
        name: str | None = None,
        alias: str | None = None,
        **columns: "Unpack[ReadingKeywords]",
    ) -> Dataset:
        """Register a point set at the service, to resolve with it often.

        The same content is registered once: the second time gives the same dataset.

        Parameters
        ----------
        data
            A path to a file (Parquet, Arrow, CSV, GeoJSON, GeoPackage, FlatGeobuf or a zipped
            shapefile), which is streamed; the address of
            Parquet files that the service may read (``s3://bucket/day=*/``); a table of pandas,
            GeoPandas, pyarrow or polars, or whatever has `__arrow_c_stream__`; a pair of arrays,
            latitudes and longitudes in degrees; or a list of records.
        name
            Title in lists, by default the name of the file; no address of the set. See `rename`.
        alias
            Address such as ``sites``: ``dataset:sites`` means this set from now on, as its newest
            version; the version before is ``dataset:sites@1``.
        columns
            Names of the columns `lat`, `lon`, `geometry` and `id`, and of the `layer` of a file
            that has several; the `crs` of coordinates that do not say theirs; `on_invalid="null"`
            keeps rows without valid coordinates; `coordinates="trust"` takes numbers for degrees,
            whatever they look like; `edges` and `densify_m` say how lines and polygons run.

        Raises
        ------
        ServiceRefused
            When the service does not take it: with the column and row where something is wrong.
        ServiceUnreachable
        """
        where = ("POST", "/datasets") if alias is None else ("PUT", f"/datasets/{alias}")
        async with self._sets(data=data) as sets:
            file = sets["data"]
            if isinstance(file, AtService) and file.name.startswith("dataset:"):
                raise ValueError(f"data: it is registered already, as {file.name!r}")
            with ExitStack() as files:
                body = Body({"file": file}, files)
                response = await self._send(*where, body, {**columns, "name": name}, {})
        return Dataset.of(response.json())

    async def remove(self, dataset: Dataset) -> None:
        """Remove a registered dataset; results made with it stay.

        Raises
        ------
        ServiceRefused
            While a job needs it, or when there is no such dataset any more.
        ServiceUnreachable
        """
        await self._exchange.ask("DELETE", f"/datasets/{dataset.id}")

    async def rename(self, dataset: Dataset, name: str) -> Dataset:
        """Change what lists call a registered dataset; raises as `remove` does."""
        path, body = f"/datasets/{dataset.id}", Document({"name": name})
        response = await self._exchange.ask("PATCH", path, body=body)
        return Dataset.of(response.json())

    async def nearest(
        self, observations: Any, references: Any, **options: "Unpack[NearestKeywords]"
    ) -> Any:
        """Find the nearest references of every observation.

        Little is answered at once, a small table against a registered set in milliseconds. For much
        the service makes a job, which is waited for with a progress bar and removed with its result
        once that is here; interrupted, it is dismissed.

        Parameters
        ----------
        observations, references
            Each as for `register`, or a registered dataset (or the text `dataset:<id>`).
        options
            `k`, `max_distance_m`, `exclude_self`, `near`, `earth`, `how`, `columns`,
            `observation_columns`, `summary` and `algorithm`, `by`, `time`, `max_time`,
            `time_direction`, `allow_exact` and `rank_by`, and what `register` takes, also for one
            set alone, as in `observation_crs`: see the match options of the service.

        Returns
        -------
        table
            The result, of the kind of the observations: a pandas frame with their index, a
            GeoPandas frame with their geometry, too, or a polars frame; else a pyarrow table.

        Raises
        ------
        ServiceRefused
            When the service does not take it, or the job failed.
        ServiceUnreachable, DamagedTransfer
        """
        import pyarrow.parquet as pq

        from georesolve.io.tables import like

        table = await self._looked_up(observations, references, options)
        if table is not None:
            return like(table, observations)
        async with self._form(observations, references) as (body, is_sent):
            if is_sent and body.size <= _LITTLE_BYTES:
                headers = {"Prefer": f"wait={_WAIT_SECONDS}"}
                # A key makes a job even of a small request, so the first attempt has no key.
                response = await self._send(
                    "POST", "/resolve", body, options, headers, _with_key(headers)
                )
                if response.status_code == httpx.codes.OK:
                    if "monitor" in response.links:
                        await self._forget(response.links["monitor"]["url"].rpartition("/")[2])
                    return like(pq.read_table(BytesIO(response.content)), observations)
                job = self._job(response.json(), is_own=True)
            else:
                job = await self._accepted(body, options)
        matches = await job.to_arrow()
        await self._forget(job.id)
        return await self._exchange.wire.work(like, matches, observations)

    async def within(
        self,
        observations: Any,
        references: Any,
        distance_m: float | str,
        **options: "Unpack[WithinKeywords]",
    ) -> Any:
        """Find all references within a distance of every observation, or a summary of them.

        Parameters are those of `georesolve.within`; sets, what is returned and what is raised are
        as for `nearest`.
        """
        asked: Any = {**options, "question": "within", "distance_m": distance_m}
        return await self.nearest(observations, references, **asked)

    async def _looked_up(
        self, observations: Any, references: Any, options: Mapping[str, Any]
    ) -> "pa.Table | None":
        """The answer about a small table and a registered set; None where it takes more than that.

        A service may find it too much although the rows are few.
        """
        import pyarrow as pa

        known, options = registered(references), _said(options)
        # Of numpy, or 1 for True: JSON has one way to say each.
        is_known = options.get("question", "nearest") in ("nearest", "within")
        is_plain = is_known and all(
            type(value) in _JSON.get(name, _PLAIN) for name, value in options.items()
        )
        most = _FEW_ROWS // max(1, options.get("k", 1)) if is_plain and known is not None else 0
        columns = columns_of(observations, most) if most else None
        if known is None or columns is None:
            return None
        document = {name: value for name, value in options.items() if value is not None}
        question = document.pop("question", "nearest")
        document |= {"observations": columns, "references": known.name}
        headers = {"Accept": "application/vnd.apache.arrow.stream"}
        try:
            response = await self._exchange.ask(
                *("POST", f"/{question}"),
                headers=headers,
                body=Document(document),
                passing=PASSING - _TOO_MUCH,
            )
        except ServiceRefused as error:
            if error.status in _TOO_MUCH:
                return None
            raise
        return pa.ipc.open_stream(response.content).read_all()

    async def submit(
        self, observations: Any, references: Any, **options: "Unpack[JobKeywords]"
    ) -> AsyncJob:
        """Have the service make a job of it: see `Client.submit`."""
        async with self._form(observations, references) as (body, _):
            return await self._accepted(body, options)

    async def job(self, id: str) -> AsyncJob:
        """The job with this id; raises ServiceRefused where there is none."""
        return self._job((await self._exchange.ask("GET", f"/jobs/{id}")).json())

    async def jobs(
        self, *, status: Sequence[str] = (), owner: str | None = None, limit: int = 100
    ) -> list[AsyncJob]:
        """Jobs, the newest first.

        Parameters
        ----------
        status
            Only jobs in these: `accepted`, `running`, `successful`, `failed`, `dismissed`.
        owner
            For keys of the role admin, which see those of all: only jobs of the keys of this name,
            or of what was made without keys for an empty one.
        limit
            How many at most.
        """
        found = self._listed("jobs", limit, status=list(status), owner=owner)
        return [self._job(info) for info in await found]

    async def datasets(self, *, owner: str | None = None, limit: int = 100) -> list[Dataset]:
        """Registered datasets, the newest first; `owner` and `limit` are as for `jobs`."""
        return [Dataset.of(info) for info in await self._listed("datasets", limit, owner=owner)]

    async def _listed(self, what: str, limit: int, **query: Any) -> list[dict[str, Any]]:
        """What the pages of a list have."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < limit:
            page = query | {"limit": min(limit - len(found), _A_PAGE), "cursor": cursor}
            document = (await self._exchange.ask("GET", f"/{what}", query=page)).json()
            found += document[what]
            following = [link["href"] for link in document["links"] if link["rel"] == "next"]
            if not following:
                break
            cursor = httpx.URL(following[0]).params["cursor"]
        return found

    async def _forget(self, id: str) -> None:
        """Remove a job that the caller knows nothing of."""
        try:
            await self._exchange.ask("DELETE", f"/jobs/{id}")
        except ServiceError as error:
            logger.warning("the job %s is not removed, and expires: %s", id, error)

    async def _accepted(self, body: Body, options: Mapping[str, Any]) -> AsyncJob:
        headers = _with_key({"Prefer": "respond-async"})
        response = await self._send("POST", "/resolve", body, options, headers)
        return self._job(response.json(), is_own=True)

    @asynccontextmanager
    async def _form(self, observations: Any, references: Any) -> AsyncIterator[tuple[Body, bool]]:
        """A form with both sets, and whether observations are sent with it."""
        async with self._sets(observations=observations, references=references) as sets:
            with ExitStack() as files:
                yield Body(sets, files), isinstance(sets["observations"], Path)

    @asynccontextmanager
    async def _sets(self, **given: Any) -> AsyncIterator[dict[str, Path | AtService]]:
        """Point sets as they are sent: files, and what the service has."""
        with TemporaryDirectory(prefix="georesolve-") as folder:
            work = self._exchange.wire.work
            yield {
                name: await work(point_set, one, Path(folder), name) for name, one in given.items()
            }

    async def _send(
        self,
        method: str,
        path: str,
        body: Body,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        retry_headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        await self._exchange.wire.work(body.count)
        shown = self._progress if body.size > _LITTLE_BYTES else False
        # A list of one name is sent twice: one text is read as a list with commas, or `*` for all.
        given = {
            name: [*value, *value] if isinstance(value, list | tuple) and len(value) == 1 else value
            for name, value in _said(query).items()
        }
        given |= {name: json.dumps(one) for name, one in given.items() if isinstance(one, dict)}
        with progress_bar(shown, "B", "sending") as body.on_sent:
            return await self._exchange.ask(
                *(method, path),
                query=given,
                headers=headers,
                body=body,
                retry_headers=retry_headers,
            )

    def _job(self, info: dict[str, Any], *, is_own: bool = False) -> AsyncJob:
        return AsyncJob(self._exchange, info, is_own=is_own, progress=self._progress)


def _with_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with an Idempotency-Key: requests that are sent several times make one job."""
    return {**headers, "Idempotency-Key": f'"{uuid4().hex}"'}


def _said(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a request says them: a length of time as a text, one column as a list."""
    said = {name: [one] if name in _BY and isinstance(one, str) else one
            for name, one in options.items()}  # fmt: skip
    given: Any = said.get("max_time")
    if isinstance(given, timedelta):
        more = int(getattr(given, "nanoseconds", 0))
        said["max_time"] = f"{given // timedelta(microseconds=1) * 1000 + more}ns"
    elif type(given).__name__ == "timedelta64":
        said["max_time"] = f"{given.astype('timedelta64[ns]').astype(int)}ns"
    return said


class _Blocked(AsyncClient):
    """The same over a wire that blocks: nothing in it suspends."""

    _wire = BlockingWire


class Client:
    """A client of a georesolve service.

    What fails for a while is tried again: connections that are refused or cut, and answers 408,
    429, 502, 503 and 504, after as long as the service says (`Retry-After`). Jobs are asked for
    with an `Idempotency-Key`, so that one sent twice is one job. Downloads go on where they broke
    off. A client that gets on with nothing for `patience_s` gives up.

    Parameters
    ----------
    url
        Of the service, such as `http://localhost:8000`.
    key
        API key; None where the service needs none.
    progress
        Whether to show progress bars; None for: in a notebook, or when standard error is a
        terminal.
    patience_s
        Seconds from the first failure to the last try of a request or of a download; what gets on
        starts them anew.
    timeout_s
        Seconds without a byte after which a connection counts as cut. After an upload it is 600 at
        least, since the service reads all of it before it answers.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        progress: bool | None = None,
        patience_s: float = 120.0,
        timeout_s: float = 60.0,
    ) -> None:
        self.awaited = _Blocked(
            url, key, progress=progress, patience_s=patience_s, timeout_s=timeout_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    close = blocking(AsyncClient.close)
    register = blocking(AsyncClient.register)
    datasets = blocking(AsyncClient.datasets)
    remove = blocking(AsyncClient.remove)
    rename = blocking(AsyncClient.rename)
    nearest = blocking(AsyncClient.nearest)
    within = blocking(AsyncClient.within)

    def submit(self, observations: Any, references: Any, **options: "Unpack[JobKeywords]") -> Job:
        """Have the service find the nearest references of every observation, as a job.

        Parameters and what is raised are those of `nearest`; the job and its result stay until they
        expire or are dismissed.

        With `output`, the address of a folder or of a prefix (``s3://bucket/results/``) that the
        service may write to, its workers write the result there: `job.parts()` lists the files,
        which stay whatever becomes of the job, and the service has nothing to be downloaded.
        """
        return Job(run(self.awaited.submit(observations, references, **options)))

    def job(self, id: str) -> Job:
        """The job with this id; raises ServiceRefused where there is none."""
        return Job(run(self.awaited.job(id)))

    def jobs(
        self, *, status: Sequence[str] = (), owner: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Jobs, the newest first; see `AsyncClient.jobs`."""
        found = self.awaited.jobs(status=status, owner=owner, limit=limit)
        return [Job(one) for one in run(found)]
