"""Point sets as a client sends them: files of its user, and tables written to a file.

Each is read from its start as often as it is sent, a piece at a time.
"""

import base64
import hashlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
import httpx

_PIECE_BYTES = 1 << 20
_PARQUET = "application/vnd.apache.parquet"
_MEDIA_TYPES = {
    ".parquet": _PARQUET,
    ".pq": _PARQUET,
    ".geoparquet": _PARQUET,
    ".arrow": "application/vnd.apache.arrow.file",
    ".feather": "application/vnd.apache.arrow.file",
    ".arrows": "application/vnd.apache.arrow.stream",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".geojson": "application/geo+json",
    ".json": "application/geo+json",
}
_REGISTERED = "dataset:"


class AtService(NamedTuple):
    """A point set that the service has, ``dataset:<id>``, or reads itself."""

    name: str


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """What is sent with a request: bytes and files, one after the other.

    Attributes
    ----------
    size
        Its bytes.
    digest
        Its SHA-256 as headers have it, once it was counted.
    on_sent
        Told how many of them have been sent, and all.
    """

    def __init__(self, parts: list[bytes | Path], media_type: str) -> None:
        self._parts = parts
        self._media_type = media_type
        self.on_sent: Callable[[int, int | None], None] = lambda sent, size: None
        self.size = sum(
            len(part) if isinstance(part, bytes) else part.stat().st_size for part in parts
        )
        self.digest = ""

    @property
    def headers(self) -> dict[str, str]:
        """What says what it is."""
        headers = {"Content-Type": self._media_type, "Content-Length": str(self.size)}
        return headers | ({"Content-Digest": self.digest} if self.digest else {})

    def count(self) -> None:
        """Have the service check what comes: with a digest, for which all is read once."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        self.digest = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for piece in self._pieces():
            yield piece
            sent += len(piece)
            self.on_sent(sent, self.size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        # Files of a network or of a slow disk hold up nothing else.
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
                continue
            with part.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece


def file_body(path: Path) -> Body:
    """The body that a file is."""
    return Body([path], media_type(path))


def form_body(sets: Mapping[str, Path | AtService]) -> Body:
    """A form with both sets of a request, by name."""
    boundary = secrets.token_hex(16)
    parts: list[bytes | Path] = []
    for name, one in sets.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'
        if isinstance(one, AtService):
            parts.append(f"{head}\r\n\r\n{one.name}\r\n".encode())
        else:
            head = f'{head}; filename="{quote(one.name)}"\r\nContent-Type: {media_type(one)}'
            parts += [f"{head}\r\n\r\n".encode(), one, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return Body(parts, f"multipart/form-data; boundary={boundary}")


def is_address(text: str) -> bool:
    """Whether a text is meant as the address of files that a service reads or writes."""
    return "://" in text


def point_set(data: Any, folder: Path, name: str) -> Path | AtService:
    """Make a file of a point set, unless it is one or the service has it.

    Parameters
    ----------
    data
        A path; a registered dataset or its `dataset:<id>`; an address that the service may read; a
        GeoPandas frame or series; whatever has `__arrow_c_stream__`, as tables of pandas, pyarrow
        and polars; a pair of arrays, latitudes and longitudes in degrees, or a dict of columns.
    folder
        Where the file may be made.
    name
        What to call it.

    Raises
    ------
    FileNotFoundError
    TypeError
        When it is none of these.
    """
    if isinstance(data, str) and (data.startswith(_REGISTERED) or is_address(data)):
        return AtService(data)
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if not path.is_file():
            raise FileNotFoundError(f"{name}: there is no file {str(path)!r}")
        return path
    if isinstance(id := getattr(data, "id", None), str) and hasattr(data, "sha256"):
        return AtService(f"{_REGISTERED}{id}")
    target = folder / f"{name}.parquet"
    _write(data, target, name)
    return target


def _write(data: Any, target: Path, name: str) -> None:
    geopandas = sys.modules.get("geopandas")
    if geopandas and isinstance(data, geopandas.GeoSeries):
        data = data.to_frame("geometry")
    if geopandas and isinstance(data, geopandas.GeoDataFrame):
        # With its CRS, which the service looks at.
        data.to_parquet(target)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    from georesolve.arrays import OTHERS, NoColumn, as_column, as_table

    polars, pandas = sys.modules.get("polars"), sys.modules.get("pandas")
    if polars and isinstance(data, polars.LazyFrame):
        data = data.collect()
    try:
        if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], dict):
            data = as_table(dict(zip(("lat", "lon"), data, strict=True)), name)
        elif isinstance(data, dict):
            data = as_table(data, name)
        elif pandas and isinstance(data, pandas.DataFrame):
            for column, values in data.items():
                if str(values.dtype).startswith(("object", "complex")):
                    as_column(values, str(column))
    except NoColumn as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        stream = pa.RecordBatchReader.from_stream(data)
    except (TypeError, pa.ArrowInvalid) as error:
        # A single column has such a stream, too.
        raise TypeError(
            f"{name}: {type(data).__name__} is no point set: give a path, a table (pandas, "
            "GeoPandas, pyarrow, polars, or anything with __arrow_c_stream__), a registered "
            f"dataset, a pair of arrays (latitudes, longitudes), or {OTHERS}"
        ) from error
    with (
        stream as batches,
        pq.ParquetWriter(target, batches.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def media_type(path: Path) -> str:
    """What the name says; the service looks at the first bytes before it."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return _MEDIA_TYPES.get(suffixes[-1] if suffixes else "", "application/octet-stream")
