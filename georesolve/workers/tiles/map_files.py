"""The observations of a result as a web map needs them: sorted along a Morton curve, in files.

An observation takes 24 bytes: its cell (see `map_cells_cpu`), the distance to its nearest
reference or NaN, and its row in the result, each in a file of its own. Of a summary the rows are
observations or references, with their counts, NaN for 0. The files can be made anew.
"""

import json
import mmap
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.io.datasets import Dataset, read_rows
from georesolve.io.index_files import IndexFolder
from georesolve.io.local_files import complete, write_at
from georesolve.io.result_files import opened
from georesolve.io.threads import side_by_side
from georesolve.kernels.hilbert import spread
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.workers.results.distances import (
    DISTANCE,
    STRETCH,
    Stretch,
    pieces,
    shown_columns,
    stretches,
)
from georesolve.workers.results.manifest import Manifest
from georesolve.workers.results.parts import Part
from georesolve.workers.tiles import map_cells_cpu

MOST_ZOOM = map_cells_cpu.BITS - 8
PIXELS = 1 << 16
"""Of a tile."""
_NAME = "map.index"
_COLUMNS = {"cells": np.int64, "distances": np.float64, "rows": np.int64}
_WORD_BYTES = 8
_HEAD_BYTES = mmap.PAGESIZE
"""Each file begins with the same head."""
_GRAIN = 1 << 15
_STEP = 256
"""Of so many points of a run one is in its sample."""
_MOST_EDGES = 1 << 22
"""Of pieces in runs: so many numbers are kept in memory."""
_FILES = 16
"""That threads write to by turns."""


class MapFolder(IndexFolder):
    """The maps of jobs, each in the folder of its job; those opened longest ago go first."""

    pattern: ClassVar[str] = f"*/{_NAME}*"


def map_paths(folder: Path) -> list[Path]:
    """The files of the map that lies in a folder."""
    return [folder / f"{_NAME}.{column}" for column in _COLUMNS]


class Square(NamedTuple):
    """What the pixels of a tile show; arrays of shape (256, 256), rows from north to south."""

    matched: np.ndarray
    """Observations that have a reference."""
    unmatched: np.ndarray
    """Those that have none."""
    numbers: np.ndarray
    """Their median distance, or their greatest count; NaN where none is matched."""


class Map:
    """The observations of a result on a web map, mapped from their files in a folder.

    `beyond` is how many lie north or south of 85.0511 degrees. A file that is missing raises
    FileNotFoundError, one that is damaged or of another result ValueError.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        columns = []
        for path, dtype in zip(map_paths(folder), _COLUMNS.values(), strict=True):
            with path.open("rb") as file:
                head = json.loads(file.read(_HEAD_BYTES))
            size_bytes = _HEAD_BYTES + _WORD_BYTES * head["rows"]
            if head["digest"] != digest or path.stat().st_size != size_bytes:
                raise ValueError(f"{path.name} is of another result, or was cut off")
            columns.append(_mapped(path, dtype, _HEAD_BYTES, head["rows"]))
        self.rows: int = head["rows"]
        self.beyond: int = head["beyond"]
        self.bounds_deg: list[float] | None = head["bounds_deg"]
        self._cells, self._distances, self._rows = columns
        self._densest: dict[int, int] = {}

    def densest(self, z: int) -> int:
        """The most observations that a pixel of a zoom level has."""
        if z not in self._densest:
            most = np.zeros(threads_for(self.rows, _GRAIN), np.int64)
            in_threads(map_cells_cpu.densest, most.size, self._cells, _shift(z), most)
            self._densest[z] = int(most.max())
        return self._densest[z]

    def count(self, z: int, x: int, y: int) -> int:
        """How many observations lie in a tile."""
        piece = self._piece(z, x, y)
        return int(piece.stop - piece.start)

    def rows_of(self, z: int, x: int, y: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the result of the observations in a tile, ascending, and their distances."""
        piece = self._piece(z, x, y)
        order = np.argsort(self._rows[piece])
        return self._rows[piece][order], self._distances[piece][order]

    def square(self, z: int, x: int, y: int, *, greatest: bool = False) -> Square:
        """What the pixels of a tile show: medians, or the greatest numbers."""
        piece, low = self._piece(z, x, y), _first(z, x, y)
        numbers = low + (np.arange(PIXELS + 1, dtype=np.int64) << _shift(z))
        edges = piece.start + np.searchsorted(self._cells[piece], numbers)
        matched, found = np.zeros(PIXELS, np.int64), np.full(PIXELS, np.nan)
        threads = threads_for(piece.stop - piece.start, _GRAIN)
        given = edges, self._distances, greatest
        in_threads(map_cells_cpu.medians, threads, *given, matched, found)
        unmatched = np.diff(edges) - matched
        return Square(*(array[_ORDER] for array in (matched, unmatched, found)))

    def _piece(self, z: int, x: int, y: int) -> slice:
        low = _first(z, x, y)
        ends = np.searchsorted(self._cells, [low, low + (1 << (_shift(z) + 16))])
        return slice(*ends.tolist())


def _shift(z: int) -> int:
    """Bits of a cell that are within one pixel."""
    return 2 * (MOST_ZOOM - z)


def _first(z: int, x: int, y: int) -> int:
    return int(_spread(x) | _spread(y) << 1) << (_shift(z) + 16)


_spread = spread.py_func
_ORDER = _spread(np.arange(256))[None, :] | _spread(np.arange(256))[:, None] << 1
"""Where the pixels of a tile stand along the curve, by row and column."""


def map_bytes(manifest: Manifest) -> int:
    """Bytes that the map of a result takes at most, while it is made twice as many."""
    return len(_COLUMNS) * (_HEAD_BYTES + _WORD_BYTES * manifest.rows)


def write_map(folder: Path, manifest: Manifest, observations: Dataset) -> None:
    """Write the map of a result to files in a folder, each complete or absent.

    Memory is bounded: each thread sorts a run of the rows into a file without a name; then it takes
    a stretch of the curve from all runs, sorts that, and writes it where it belongs.
    """
    desk = _Desk()
    with ExitStack() as stack:
        paths = [stack.enter_context(complete(path)) for path in map_paths(folder)]
        pile = stack.enter_context(_scratch(folder))

        sort = partial(_sorted_run, pile, desk, manifest, observations, shown_columns(manifest))
        runs = list(side_by_side(sort, stretches(manifest)))
        beyond = sum(run.beyond for run in runs)
        runs = [run for run in runs if run.rows]
        rows = sum(run.rows for run in runs)
        ends = np.array([run.bounds_deg for run in runs])
        bounds = [*ends[:, :2].min(axis=0), *ends[:, 2:].max(axis=0)] if runs else None
        head = {"digest": manifest.digest, "rows": rows, "beyond": beyond, "bounds_deg": bounds}
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for file in files:
            file.write(json.dumps(head).encode().ljust(_HEAD_BYTES))
            file.flush()
        if runs:
            _merge(pile, runs, desk, files)


class _Scratch:
    """Words that are too many for memory, in files that threads write to by turns.

    A system lets one at a time write to a file.
    """

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._files = files
        self._ends = [0] * len(files)
        self._turn = 0
        self._lock = threading.Lock()

    def add(self, *columns: np.ndarray) -> tuple[int, int]:
        """Write columns one behind the other; returns the number of their file, and their begin."""
        with self._lock:
            number, self._turn = self._turn, (self._turn + 1) % len(self._files)
            start = end = self._ends[number]
            self._ends[number] += sum(column.size for column in columns)
        for column in columns:
            write_at(self._files[number], column, _WORD_BYTES * end)
            end += column.size
        return number, start

    def mapped(self) -> tuple[np.ndarray, ...]:
        both = zip(self._files, self._ends, strict=True)
        return tuple(_mapped(file, np.int64, 0, words) for file, words in both)


@contextmanager
def _scratch(folder: Path) -> Iterator[_Scratch]:
    """Files without a name in a folder, for as long as the context lasts."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(_FILES)]
        yield _Scratch(files)
        # The system takes 60 ms to free a GiB of a file that goes.
        for _ in side_by_side(lambda file: file.close(), files):
            pass


def _mapped(file: Path | IO[bytes], dtype: Any, offset: int, n: int) -> np.ndarray:
    """Map values of a file from a byte on.

    The array is not read-only, although nothing is written: that is another type to numba.
    """
    # A file of no bytes cannot be mapped; to numba a memmap is slower than an array.
    return np.asarray(np.memmap(file, dtype, "c", offset, (n,))) if n else np.empty(0, dtype)


class _Desk(threading.local):
    """Memory that a thread sorts in, used again: pages touched anew take as long as the sort."""

    def __init__(self) -> None:
        self._words = np.empty(0, np.int64)

    def laid(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for `n` points, of shape (3, n), and as many words to sort them with."""
        if self._words.size < 6 * n:
            self._words = np.empty(6 * n, np.int64)
        return self._words[: 3 * n].reshape(3, n), self._words[3 * n : 6 * n]


class _Run(NamedTuple):
    """Points in the order of the curve, in a scratch file: three columns of a word a point."""

    file: int
    """The number of the file."""
    start: int
    """Words of the file before it."""
    rows: int
    beyond: int
    bounds_deg: np.ndarray
    sample: np.ndarray
    """Every `_STEP`-th cell."""


def _sorted_run(
    pile: _Scratch,
    desk: _Desk,
    manifest: Manifest,
    observations: Dataset,
    columns: tuple[str, str],
    stretch: Stretch,
) -> _Run:
    own, shown = columns
    table = stretch.read(manifest, [own, shown])
    # They ascend, repeat and leave out some, and a stretch has one at least.
    of = table[own].to_numpy()
    first, stop = int(of[0]), int(of[-1]) + 1
    names = [observations.lon, observations.lat]
    degrees = read_rows(observations.file, first, stop, names)
    lon, lat = (np.asarray(degrees[name].to_numpy())[of - first] for name in names)
    if "rank" in table.column_names:
        # What is no number is no point, and is not placed.
        lon = np.where(table["rank"].to_numpy() == 1, lon, np.nan)
    numbers = pc.fill_null(table[shown].cast(pa.float64()), np.nan).to_numpy()
    if shown != DISTANCE:
        numbers = np.where(numbers > 0, numbers, np.nan)
    given = lon, lat, numbers
    for one in given:
        # As Arrow's are without a copy: those that may be written to are of another type to numba.
        one.flags.writeable = False
    points, spare = desk.laid(table.num_rows)
    cells, distances, rows = points
    bounds = np.empty(4)
    shown, beyond = map_cells_cpu.place(
        *given, stretch.first_row, cells, distances.view(np.float64), rows, bounds
    )
    map_cells_cpu.sort(points, shown, spare)
    place = pile.add(*(column[:shown] for column in points))
    return _Run(*place, shown, beyond, bounds, cells[:shown:_STEP].copy())


def _merge(pile: _Scratch, runs: list[_Run], desk: _Desk, files: Sequence[IO[bytes]]) -> None:
    """Write the points of all runs in the order of the curve, each column behind its head."""
    numbers, starts, sizes = np.array([(run.file, run.start, run.rows) for run in runs]).T.copy()
    n = int(sizes.sum())
    words = pile.mapped()
    # Cells that part the points into pieces of about so many rows each, and at most `_STEP` of each
    # run more; a cell of very many points is a piece of its own.
    rows = max(STRETCH, n * len(runs) // _MOST_EDGES)
    chosen = np.sort(np.concatenate([run.sample for run in runs]))[:: rows // _STEP]
    full = chosen[1:][chosen[1:] == chosen[:-1]] + 1
    borders = np.unique(np.concatenate([chosen, full, [np.iinfo(np.int64).max]]))

    def find(run: _Run) -> np.ndarray:
        return np.searchsorted(words[run.file][run.start : run.start + run.rows], borders)

    edges = np.stack(list(side_by_side(find, runs)), axis=1)

    def write(piece: tuple[int, np.ndarray, np.ndarray]) -> None:
        first, begins, ends = piece
        count = int((ends - begins).sum())
        points, spare = desk.laid(count)
        map_cells_cpu.gather(words, numbers, starts, sizes, begins, ends, points)
        map_cells_cpu.sort(points, count, spare)
        for file, column in zip(files, points, strict=True):
            write_at(file, column, _HEAD_BYTES + _WORD_BYTES * first)

    for _ in side_by_side(write, _pieces(borders, edges)):
        pass


def _pieces(borders: np.ndarray, edges: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The place of the first of points that stand together, and where runs begin and end them."""
    first = 0
    for number, width in enumerate(np.diff(borders)):
        begins, ends = edges[number], edges[number + 1]
        counts = ends - begins
        # Points of one cell are in order as they are, and need not be in memory together.
        share = counts.cumsum() // STRETCH if width == 1 else np.zeros(counts.size)
        for own in np.unique(share):
            yield first, begins, np.where(share == own, ends, begins)
            first += int(counts[share == own].sum())


def read_all_ranks(manifest: Manifest, rows: np.ndarray, k: int) -> pa.Table:
    """All rows of the observations whose first rows these are; an inner result may have fewer."""
    behind = np.unique(rows[:, None] + np.arange(k))
    table = read_matches(manifest, behind[behind < manifest.rows])
    is_first = np.isin(behind[: table.num_rows], rows)
    return table.filter(pc.is_in(table["observation"], table["observation"].filter(is_first)))


def read_matches(
    manifest: Manifest, rows: np.ndarray, distance_m: np.ndarray | None = None
) -> pa.Table:
    """Some rows of a result, which ascend, with all columns; row groups that have one are decoded.

    Distances that are given, NaN where there is none, are not decoded: that takes most of the time.
    """
    first = manifest.parts[0]
    with manifest.reading(first) as handle:
        schema = opened(handle).schema_arrow
    known = {}
    if distance_m is not None and DISTANCE in schema.names:
        known = {DISTANCE: pa.array(distance_m, from_pandas=True)}
    if distance_m is not None and not np.isnan(distance_m).any():
        known["status"] = pa.array(["matched"] * rows.size, schema.field("status").type)
    names = [name for name in schema.names if name not in known]

    def read(piece: tuple[Part, int]) -> list[pa.Table]:
        part, row = piece
        own = rows[np.searchsorted(rows, row) : np.searchsorted(rows, row + part.rows)] - row
        if not own.size:
            return []
        found, start = [], 0
        with manifest.reading(part) as handle:
            parquet = opened(handle)
            for group in range(parquet.num_row_groups):
                stop = start + parquet.metadata.row_group(group).num_rows
                within = own[np.searchsorted(own, start) : np.searchsorted(own, stop)] - start
                if within.size:
                    table = parquet.read_row_group(group, columns=names, use_threads=False)
                    found.append(table.take(pa.array(within)))
                start = stop
        return found

    found = pa.concat_tables(
        table for tables in side_by_side(read, pieces(manifest)) for table in tables
    )
    columns = [known[name] if name in known else found[name] for name in schema.names]
    # In one piece: of a table of many pieces text is made piece by piece.
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()
