"""A job as its client sees it: how far it is, and its matches when they are there."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from georesolve.client.bodies import Document
from georesolve.client.downloads import download
from georesolve.client.errors import ServiceError
from georesolve.client.exchange import Exchange, blocking, logger
from georesolve.io.local_files import refuse_special_file
from georesolve.io.progress import progress_bar

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import polars
    import pyarrow as pa

_LIVE = ("accepted", "running")
_LISTEN_AGAIN_SECONDS = 0.5

T = TypeVar("T")


class _Told:
    """What a service said of a job last."""

    info: dict[str, Any]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.status}, {self.info['message']}>"

    @property
    def id(self) -> str:
        """Its name at the service."""
        return str(self.info["id"])

    @property
    def name(self) -> str:
        """What lists call it: what it was made of, unless its client said."""
        return str(self.info["name"])

    @property
    def status(self) -> str:
        """What it was when it was last looked at.

        `accepted`, `running`, `successful`, `failed` or `dismissed`.
        """
        return str(self.info["status"])

    @property
    def expires(self) -> datetime | None:
        """Until when its result is kept; None while that is not known, or for ever."""
        text = self.info.get("expires")
        return None if text is None else datetime.fromisoformat(text)


class AsyncJob(_Told):
    """A job at the service.

    Attributes
    ----------
    id
        Its name at the service.
    info
        What the service said of it last: `status`, `message`, `progress`, `rows`, `rows_done`,
        `rows_a_second`, `seconds_left` and times.
    """

    def __init__(
        self, exchange: Exchange, info: dict[str, Any], *, is_own: bool, progress: bool | None
    ) -> None:
        self._exchange = exchange
        self._is_own = is_own
        self._progress = progress
        self.info = info

    async def refresh(self) -> None:
        """Look how far it is."""
        self.info = (await self._exchange.ask("GET", self._path)).json()

    async def wait(self) -> None:
        """Wait until it has ended, with a progress bar.

        A job of this client is dismissed when the wait is interrupted (Ctrl-C, or a task that is
        cancelled); one that was looked up by its id goes on.

        Raises
        ------
        ServiceRefused
            With the problem of the job when it failed or was dismissed.
        ServiceUnreachable
        """
        if self.status in _LIVE:
            try:
                await self._follow()
            except (Exception, GeneratorExit):
                raise
            except BaseException:
                if self._is_own:
                    with self._exchange.wire.shielded():
                        await self._let_go()
                raise
        if self.status != "successful":
            # The address of the result says why there is none.
            await self._exchange.ask("GET", f"{self._path}/results", passing=frozenset())

    async def dismiss(self) -> None:
        """Stop it; remove it with its result when it has ended."""
        self.info = (await self._exchange.ask("DELETE", self._path)).json()

    async def rename(self, name: str) -> None:
        """Change what lists call it: at first that is what it was made of."""
        body = Document({"name": name})
        self.info = (await self._exchange.ask("PATCH", self._path, body=body)).json()

    async def report(self) -> dict[str, Any]:
        """What it did: counts by status, timings by stage, devices, versions, checksums."""
        await self.wait()
        report: dict[str, Any] = (await self._exchange.ask("GET", f"{self._path}/report")).json()
        return report

    async def parts(self) -> dict[str, Any]:
        """Wait for the result and tell which Parquet files it is: addresses, rows and digests."""
        await self.wait()
        path = f"{self._path}/results/parts"
        listed: dict[str, Any] = (await self._exchange.ask("GET", path)).json()
        return listed

    async def download(self, path: str | Path) -> Path:
        """Wait for the result and write it to a file, whose suffix says the format.

        What is cut off goes on where it stopped, by another call with the same path, too: half a
        file lies beside it until then.

        Parameters
        ----------
        path
            With one of the suffixes that the service gives results in: `.parquet`, `.arrows`,
            `.csv`, `.json` or `.geojson`.

        Raises
        ------
        ServiceRefused
            When the job failed, was dismissed or has expired, there is no such format, or the
            result was written elsewhere, as `submit` was told: see `parts`.
        DamagedTransfer, ServiceUnreachable
        """
        target = Path(path)
        refuse_special_file(target)
        await self.wait()
        name = f"matches{target.suffix.lower() or '.parquet'}"
        with progress_bar(self._progress, "B", "receiving") as show:
            await download(self._exchange, f"{self._path}/results/{name}", target, show)
        return target

    async def to_arrow(self) -> "pa.Table":
        """Wait for the result and read it as a pyarrow table; raises as `download` does."""
        import pyarrow.parquet as pq

        with TemporaryDirectory(prefix="georesolve-") as folder:
            path = await self.download(Path(folder) / "matches.parquet")
            return await self._exchange.wire.work(pq.read_table, path)

    async def to_pandas(self) -> "pd.DataFrame":
        """The same as a pandas frame; whole numbers stay such where one is missing (`Int64`)."""
        from georesolve.io.tables import to_pandas

        return await self._as(to_pandas)

    async def to_geopandas(self) -> "geopandas.GeoDataFrame":
        """The same as a GeoPandas frame, of a result that carries a geometry or `lat` and `lon`.

        Raises
        ------
        ValueError
            When the result carries neither.
        """
        from georesolve.io.tables import to_geopandas

        return await self._as(to_geopandas)

    async def to_polars(self) -> "polars.DataFrame":
        """The same as a polars frame."""
        from georesolve.io.tables import to_polars

        return await self._as(to_polars)

    async def _as(self, convert: Callable[["pa.Table"], T]) -> T:
        return await self._exchange.wire.work(convert, await self.to_arrow())

    @property
    def _path(self) -> str:
        return f"/jobs/{self.id}"

    async def _follow(self) -> None:
        """Show how far it is until it has ended."""
        with progress_bar(self._progress, "rows", "resolving") as show:
            show(self.info["rows_done"], self.info["rows"])
            while self.status in _LIVE:
                # A stream that is cut off or held back on its way says nothing of the job.
                with suppress(ServiceError):
                    async with aclosing(self._events()) as events:
                        async for self.info in events:
                            show(self.info["rows_done"], self.info["rows"])
                if self.status in _LIVE:
                    await self._exchange.wire.pause(_LISTEN_AGAIN_SECONDS)
                    await self.refresh()
                    show(self.info["rows_done"], self.info["rows"])

    async def _events(self) -> AsyncGenerator[dict[str, Any]]:
        """What the service tells of it as it gets on."""
        async with self._exchange.stream("GET", f"{self._path}/events") as response:
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "data":
                    yield json.loads(value)

    async def _let_go(self) -> None:
        """Dismiss it; the caller has gone, and hears of nothing but the log."""
        try:
            await self.dismiss()
        except ServiceError as error:
            logger.warning("the job %s may go on: it could not be dismissed: %s", self.id, error)


class Job(_Told):
    """A job at the service; the methods of `AsyncJob`, which block here.

    Attributes
    ----------
    awaited
        The same job, over the wire of its blocking client.
    """

    def __init__(self, awaited: AsyncJob) -> None:
        self.awaited = awaited

    @property
    def info(self) -> dict[str, Any]:  # type: ignore[override]
        """What the service said of it last."""
        return self.awaited.info

    refresh = blocking(AsyncJob.refresh)
    wait = blocking(AsyncJob.wait)
    dismiss = blocking(AsyncJob.dismiss)
    rename = blocking(AsyncJob.rename)
    report = blocking(AsyncJob.report)
    parts = blocking(AsyncJob.parts)
    download = blocking(AsyncJob.download)
    to_arrow = blocking(AsyncJob.to_arrow)
    to_pandas = blocking(AsyncJob.to_pandas)
    to_geopandas = blocking(AsyncJob.to_geopandas)
    to_polars = blocking(AsyncJob.to_polars)
