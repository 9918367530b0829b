"""Point sets as a client sends them: files of its user, and tables written to a file.

They go into a form, which is read from its start as often as it is sent, a piece at a time.
"""

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import httpx

if TYPE_CHECKING:
    import pyarrow as pa

_REGISTERED = "dataset:"
_GEOPANDAS = "geopandas.GeoDataFrame"
_TABLES = {"pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"}


class AtService(NamedTuple):
    """A point set that the service has, ``dataset:<id>``, or reads itself."""

    name: str


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A form with point sets by name, whose files are open as long as the stack is.

    `on_sent` is told how many of its bytes are sent, and how many there are.
    """

    def __init__(self, sets: Mapping[str, Path | AtService], files: ExitStack) -> None:
        fields: dict[str, Any] = {}
        for name, one in sets.items():
            if isinstance(one, AtService):
                fields[name] = (None, one.name)
            else:
                file = files.enter_context(one.open("rb"))
                # What it holds, the service sees from its first bytes or its name.
                fields[name] = (one.name, file, "application/octet-stream")
        form = httpx.Request("POST", "", files=fields)
        assert isinstance(form.stream, httpx.SyncByteStream), "a form blocks as well"
        self._form = form.stream
        self.headers = {name: form.headers[name] for name in ("Content-Type", "Content-Length")}
        self.size = int(form.headers["Content-Length"])
        self.on_sent: Callable[[int, int | None], None] = lambda sent, size: None

    def count(self) -> None:
        """Have the service check what comes: with a digest, for which all is read once."""
        digest = hashlib.sha256()
        for piece in self._form:
            digest.update(piece)
        encoded = base64.b64encode(digest.digest()).decode()
        self.headers["Content-Digest"] = f"sha-256=:{encoded}:"

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for piece in self._form:
            yield piece
            sent += len(piece)
            self.on_sent(sent, self.size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        # Files of a network or of a slow disk hold up nothing else.
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece


def is_address(text: str) -> bool:
    """Whether a text is meant as the address of files that a service reads or writes."""
    return "://" in text


class Document(httpx.ByteStream):
    """JSON as the body of a request."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        encoded = json.dumps(content).encode()
        super().__init__(encoded)
        self.headers = {"Content-Type": "application/json", "Content-Length": str(len(encoded))}


def columns_of(data: Any, most: int) -> dict[str, list[Any]] | list[Any] | None:
    """The columns of a table of few rows, if JSON says all of them as they are; else None.

    Streams, which are read only once, give None, too. Records without a row are an empty list.
    """
    if _is_empty_list(data):
        return []
    import numpy as np
    import pyarrow as pa

    from georesolve.io.tables import are_records, kinds_of

    kinds = kinds_of(data)
    if are_records(data) or (kinds & _TABLES and _GEOPANDAS not in kinds):
        n = len(data)
    elif isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "__len__"):
        n = len(data[0])
    else:
        return None
    if not 0 < n <= most:
        return None
    table = _stream(data, "observations").read_all()
    plain = (pa.int64(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(), pa.bool_())
    if len({*table.column_names}) < table.num_columns:
        return None
    for column in table.columns:
        is_said = column.type in plain and column.null_count < n
        if not is_said or (
            column.type == pa.float64() and not np.isfinite(column.drop_null()).all()
        ):
            return None
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _is_empty_list(data: Any) -> bool:
    """Whether data are records without a row, which say nothing of their columns."""
    return isinstance(data, list) and not data


def registered(data: Any) -> AtService | None:
    """A point set that the service has registered; None of other data."""
    if isinstance(data, str) and data.startswith(_REGISTERED):
        return AtService(data)
    if isinstance(id := getattr(data, "id", None), str) and hasattr(data, "sha256"):
        return AtService(f"{_REGISTERED}{id}")
    return None


def point_set(data: Any, folder: Path, name: str) -> Path | AtService:
    """Make a file of a point set in the folder, unless it is one or the service has it."""
    if isinstance(data, str) and is_address(data):
        return AtService(data)
    if (known := registered(data)) is not None:
        return known
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if not path.is_file():
            raise FileNotFoundError(f"{name}: there is no file {str(path)!r}")
        return path
    target = folder / f"{name}.parquet"
    _write(data, target, name)
    return target


def _write(data: Any, target: Path, name: str) -> None:
    import pyarrow.parquet as pq

    from georesolve.io.tables import as_frame, kinds_of

    data = as_frame(data)
    if _GEOPANDAS in kinds_of(data):
        # With its CRS, which the service looks at.
        data.to_parquet(target, index=False)
        return
    with _stream(data, name) as batches, pq.ParquetWriter(target, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _stream(data: Any, name: str) -> "pa.RecordBatchReader":
    """The rows of a table, pair, dict or list of records; raises TypeError of all else."""
    import pyarrow as pa

    from georesolve.io import tables
    from georesolve.io.tables import OTHERS, NoColumn, as_column, as_table, kinds_of

    data = {"lat": [], "lon": []} if _is_empty_list(data) else data
    try:
        if tables.are_records(data):
            data = as_table(tables.columns_of(data), name)
        elif isinstance(data, tuple | list) and len(data) == 2:
            data = as_table(dict(zip(("lat", "lon"), data, strict=True)), name)
        elif isinstance(data, dict):
            data = as_table(data, name)
        elif "pandas.DataFrame" in kinds_of(data):
            # As in this process: its index is no column, and as a frame it takes three times as
            # long, for what its index and its types may be.
            columns = [as_column(values, str(column)) for column, values in data.items()]
            data = pa.Table.from_arrays(columns, [*map(str, data.columns)])
        elif "polars.DataFrame" in kinds_of(data):
            data = tables.polars_table(data)
    except NoColumn as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (TypeError, pa.ArrowInvalid) as error:
        # A single column has such a stream, too.
        raise TypeError(
            f"{name}: {type(data).__name__} is no point set: give a path, a table (pandas, "
            "GeoPandas, pyarrow, polars, or anything with __arrow_c_stream__), a registered "
            f"dataset, a pair of arrays (latitudes, longitudes), or {OTHERS}"
        ) from error
