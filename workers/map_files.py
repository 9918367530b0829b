"""The observations of a result as a web map needs them: sorted along a Morton curve, in a file.

An observation takes 24 bytes: its cell (see `workers.cells_cpu`), the float64 distance to its
reference, NaN where it has none, and its row in the result. Whatever a tile or a pixel shows stands
in one piece of the file. Only the nearest reference of each observation counts. The file lies in
the folder of the job, goes with it, and may be removed at any time: it is made anew.
"""

import json
import mmap
import tempfile
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.workers import cells_cpu
from georesolve.workers.datasets import Dataset, read_rows
from georesolve.workers.distances import pieces
from georesolve.workers.files import complete
from georesolve.workers.index_files import IndexFolder
from georesolve.workers.manifest import Extent, Manifest
from georesolve.workers.parts import Part
from georesolve.workers.result import opened
from georesolve.workers.threads import side_by_side

MAP_NAME = "map.index"
MOST_ZOOM = cells_cpu.BITS - 8
PIXELS = 1 << 16
"""Of a tile."""
_ROW_BYTES = 24
_HEAD_BYTES = mmap.PAGESIZE
_BUCKETS = 12
_GRAIN = 1 << 15
_RUN = 1 << 16
"""Points that a thread sorts at a time, if no bucket holds more."""


class MapFolder(IndexFolder):
    """The maps of jobs, each in the folder of its job; those opened longest ago go first."""

    pattern: ClassVar[str] = f"*/{MAP_NAME}"


class Square(NamedTuple):
    """What the pixels of a tile show; arrays of shape (256, 256), rows from north to south.

    Attributes
    ----------
    matched, unmatched : int64
        Observations that have a reference, and that have none.
    median_m : float64
        Their median distance; NaN where none is matched.
    """

    matched: np.ndarray
    unmatched: np.ndarray
    median_m: np.ndarray


class Map:
    """The observations of a result on a web map, mapped from their file.

    Raises
    ------
    FileNotFoundError
    ValueError
        When the file is of another result, or is damaged.

    Attributes
    ----------
    rows
        Observations that the map shows.
    beyond
        Those that lie beyond 85.0511 degrees north or south.
    bounds_deg
        West, south, east and north of what is shown; None where nothing is.
    """

    def __init__(self, path: Path, digest: str) -> None:
        with path.open("rb") as file:
            head = json.loads(file.read(_HEAD_BYTES))
        self.rows: int = head["rows"]
        self.beyond: int = head["beyond"]
        self.bounds_deg: list[float] | None = head["bounds_deg"]
        size_bytes = _HEAD_BYTES + self.rows * _ROW_BYTES
        if head["digest"] != digest or path.stat().st_size != size_bytes:
            raise ValueError(f"{path.name} is of another result, or was cut off")
        columns = []
        for number, dtype in enumerate((np.int64, np.float64, np.int64)):
            offset = _HEAD_BYTES + 8 * number * self.rows
            # Not read-only, although nothing is written: that is another type to numba.
            columns.append(_mapped(path, dtype, "c", offset, self.rows))
        self._cells, self._distances, self._rows = columns
        self._densest: dict[int, int] = {}

    def densest(self, z: int) -> int:
        """The most observations that a pixel of a zoom level has."""
        if z not in self._densest:
            self._densest[z] = int(cells_cpu.densest(self._cells, _shift(z)))
        return self._densest[z]

    def count(self, z: int, x: int, y: int) -> int:
        """How many observations lie in a tile."""
        piece = self._piece(z, x, y)
        return int(piece.stop - piece.start)

    def rows_of(self, z: int, x: int, y: int) -> np.ndarray:
        """The rows in the result of the observations in a tile, in their order."""
        return np.sort(self._rows[self._piece(z, x, y)])

    def square(self, z: int, x: int, y: int) -> Square:
        """What the pixels of a tile show."""
        piece, low = self._piece(z, x, y), _first(z, x, y)
        numbers = low + (np.arange(PIXELS + 1, dtype=np.int64) << _shift(z))
        edges = piece.start + np.searchsorted(self._cells[piece], numbers)
        matched, median_m = np.zeros(PIXELS, np.int64), np.full(PIXELS, np.nan)
        threads = threads_for(piece.stop - piece.start, _GRAIN)
        in_threads(cells_cpu.medians, threads, edges, self._distances, matched, median_m)
        unmatched = np.diff(edges) - matched
        return Square(*(array[_ORDER] for array in (matched, unmatched, median_m)))

    def _piece(self, z: int, x: int, y: int) -> slice:
        low = _first(z, x, y)
        ends = np.searchsorted(self._cells, [low, low + (1 << (_shift(z) + 16))])
        return slice(*ends.tolist())


def _shift(z: int) -> int:
    """Bits of a cell that are within one pixel."""
    return 2 * (MOST_ZOOM - z)


def _first(z: int, x: int, y: int) -> int:
    """The first cell of a tile."""
    bits = sum((x >> i & 1) << 2 * i | (y >> i & 1) << (2 * i + 1) for i in range(z))
    return bits << (_shift(z) + 16)


def _order() -> np.ndarray:
    """Where the pixels of a tile stand along the curve, by row and column."""
    bits = np.zeros(256, np.int64)
    for i in range(8):
        bits |= (np.arange(256) >> i & 1) << 2 * i
    order: np.ndarray = bits[None, :] | bits[:, None] << 1
    return order


_ORDER = _order()


def map_bytes(manifest: Manifest) -> int:
    """Bytes that the map of a result takes at most, while it is made twice as many."""
    return _HEAD_BYTES + _ROW_BYTES * manifest.rows


def write_map(path: Path, manifest: Manifest, observations: Dataset) -> None:
    """Write the map of a result to a file that is complete or absent.

    Memory is bounded: what is sorted lies in files that are mapped.

    Raises
    ------
    OSError
        When the result is gone or damaged, or the disk is full.
    SourceFailed
        When the observations are files of their owner, and these fail.
    """
    with tempfile.TemporaryFile(dir=path.parent) as scratch, complete(path) as temporary:
        head, given = _gathered(scratch, manifest, observations)
        with temporary.open("w+b") as file:
            file.write(json.dumps(head).encode().ljust(_HEAD_BYTES))
            file.flush()
            _sort(given, _columns(file, head["rows"], _HEAD_BYTES))


def _columns(file: Any, n: int, offset: int = 0) -> tuple[np.ndarray, ...]:
    file.truncate(offset + _ROW_BYTES * n)
    return tuple(
        _mapped(file, dtype, "r+", offset + 8 * number * n, n)
        for number, dtype in enumerate((np.int64, np.float64, np.int64))
    )


def _mapped(file: Any, dtype: Any, mode: Any, offset: int, n: int) -> np.ndarray:
    # A file of no bytes cannot be mapped; to numba a memmap is slower than an array.
    return np.asarray(np.memmap(file, dtype, mode, offset, (n,))) if n else np.empty(0, dtype)


def _gathered(
    scratch: Any, manifest: Manifest, observations: Dataset
) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """Cells, distances and rows as they come, and what the head of the file says."""
    columns = _columns(scratch, manifest.rows)
    used, beyond, lock = 0, 0, Lock()
    low, high = np.full(2, np.inf), np.full(2, -np.inf)

    def read(piece: tuple[Part, int]) -> None:
        nonlocal used, beyond, low, high
        part, row = piece
        with manifest.open(Extent(part, 0, part.size_bytes)) as handle:
            parquet = opened(handle)
            has_rank = "rank" in parquet.schema_arrow.names
            names = ["observation", "distance_m", *(["rank"] if has_rank else [])]
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, columns=names, use_threads=False)
                first_row, row = row, row + table.num_rows
                lon, lat = _coordinates(observations, table["observation"].to_numpy())
                if has_rank:
                    # What is no number is no point, and is not placed.
                    lon[table["rank"].to_numpy() != 1] = np.nan
                distance = np.array(pc.fill_null(table["distance_m"], np.nan))
                own = [np.empty(table.num_rows, one.dtype) for one in columns]
                shown, outside = cells_cpu.place(lon, lat, distance, first_row, *own)
                seen = np.abs(lat) <= cells_cpu.MOST_LATITUDE_DEG
                lon = np.where(lon >= 180, lon - 360, lon)
                seen &= (lon >= -180) & (lon <= 180)
                with lock:
                    start, used = used, used + shown
                    beyond += outside
                    if seen.any():
                        ends = np.stack([lon[seen], lat[seen]])
                        low = np.minimum(low, ends.min(axis=1))
                        high = np.maximum(high, ends.max(axis=1))
                for to, values in zip(columns, own, strict=True):
                    to[start : start + shown] = values[:shown]

    for _ in side_by_side(read, pieces(manifest)):
        pass
    bounds = [*low.tolist(), *high.tolist()] if used else None
    head = {"digest": manifest.digest, "rows": used, "beyond": beyond, "bounds_deg": bounds}
    return head, tuple(column[:used] for column in columns)


def _coordinates(observations: Dataset, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes of rows that ascend, in arrays that may be written to."""
    names = [observations.lon, observations.lat]
    if not rows.size:
        return np.empty(0), np.empty(0)
    first = int(rows[0])
    table = read_rows(observations.file, first, int(rows[-1]) + 1, names)
    lon, lat = (np.asarray(table[name].to_numpy())[rows - first] for name in names)
    return lon, lat


def _sort(given: tuple[np.ndarray, ...], target: tuple[np.ndarray, ...]) -> None:
    cells = given[0]
    n = cells.size
    if not n:
        return
    low, high = int(cells.min()), int(cells.max())
    shift = max(0, (high - low).bit_length() - _BUCKETS)
    threads = threads_for(n, _GRAIN)
    counts = np.zeros((threads, ((high - low) >> shift) + 1), np.int64)
    in_threads(cells_cpu.tally, threads, cells, low, shift, counts)
    stops = counts.T.cumsum().reshape(-1, threads)
    places = np.ascontiguousarray(stops.T) - counts
    in_threads(cells_cpu.scatter, threads, given, low, shift, places, target)
    ends = stops[:, -1]
    # Whole buckets, many small ones together.
    cuts = np.unique(ends[np.searchsorted(ends, np.arange(_RUN, n + _RUN, _RUN).clip(max=n))])
    runs = zip([0, *cuts[:-1].tolist()], cuts.tolist(), strict=True)

    def sort(run: tuple[int, int]) -> None:
        own = slice(*run)
        order = np.argsort(target[0][own])
        for column in target:
            column[own] = column[own][order]

    for _ in side_by_side(sort, runs):
        pass


def read_matches(manifest: Manifest, rows: np.ndarray) -> pa.Table:
    """Some rows of a result, all of its columns; every row group that has one is decoded.

    Parameters
    ----------
    rows : int64 array, shape (n,)
        Ascending.

    Raises
    ------
    OSError
        When it is gone or damaged.
    """

    def read(piece: tuple[Part, int]) -> list[pa.Table]:
        part, row = piece
        own = rows[np.searchsorted(rows, row) : np.searchsorted(rows, row + part.rows)] - row
        if not own.size and row:
            return []
        found, start = [], 0
        with manifest.open(Extent(part, 0, part.size_bytes)) as handle:
            parquet = opened(handle)
            if not own.size:
                return [parquet.schema_arrow.empty_table()]
            for group in range(parquet.num_row_groups):
                stop = start + parquet.metadata.row_group(group).num_rows
                within = own[np.searchsorted(own, start) : np.searchsorted(own, stop)] - start
                if within.size:
                    table = parquet.read_row_group(group, use_threads=False)
                    found.append(table.take(pa.array(within)))
                start = stop
        return found

    return pa.concat_tables(
        table for tables in side_by_side(read, pieces(manifest)) for table in tables
    )
