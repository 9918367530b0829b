"""The reference sets resident on a worker, by content hash; the least recently used goes first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.engine import memory
from georesolve.engine.backends import backend, read_points
from georesolve.engine.filter_encoding import Keys, Narrowed
from georesolve.engine.match_sets import CarriedTooLong, MatchSets
from georesolve.io.column_sizes import value_bytes
from georesolve.io.datasets import ROW_GROUP, Dataset, read_rows
from georesolve.io.errors import InvalidInput
from georesolve.io.index_files import IndexFolder
from georesolve.io.outlines import read_shapes
from georesolve.io.source_files import SourceFiles
from georesolve.kernels.query import is_valid
from georesolve.query import FilterOptions, MatchOptions

Piece = tuple[int, int]
"""A range of reference rows, the second not included."""

_Key = tuple[str, Hashable]
"""The hash of a set and either a piece and how it is searched, for its index, or a column."""


class _Shelf:
    """What is resident of one kind, within a budget of bytes; what was used longest ago goes first.

    What several threads need is loaded once; what others need meanwhile waits only for memory.
    """

    def __init__(self, budget: Callable[[], int]) -> None:
        self._budget = budget
        self._held: OrderedDict[_Key, Any] = OrderedDict()
        self._loading: dict[_Key, Future[Any]] = {}
        # What is being loaded takes so many bytes.
        self._needed: dict[_Key, int] = {}
        self._freed = threading.Condition()

    def __contains__(self, key: _Key) -> bool:
        with self._freed:
            return key in self._held

    def get(self, key: _Key, load: Callable[[], Any], needed_bytes: Callable[[], int]) -> Any:
        """What is there under a key, loaded on first need: then it is asked how many bytes."""
        with self._freed:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
            of_another = self._loading.get(key)
            if of_another is None:
                loading = self._loading[key] = Future()
        if of_another is not None:
            return of_another.result()
        try:
            with self._room_for(key, needed_bytes()):
                held = load()
            with self._freed:
                self._held[key] = held
                self._keep_to(self._budget(), least=1)
            loading.set_result(held)
        except BaseException as error:
            # It is that of all who wait.
            loading.set_exception(error)
            raise
        finally:
            with self._freed:
                del self._loading[key]
        return held

    def clear(self) -> None:
        with self._freed:
            self._held.clear()

    @contextmanager
    def _room_for(self, key: _Key, needed_bytes: int) -> Iterator[None]:
        """Wait until what others load leaves room, and make some."""
        with self._freed:
            self._freed.wait_for(
                lambda: (
                    not self._needed or sum(self._needed.values()) + needed_bytes <= self._budget()
                )
            )
            self._needed[key] = needed_bytes
            self._keep_to(self._budget() - sum(self._needed.values()), least=0)
        try:
            yield
        finally:
            with self._freed:
                del self._needed[key]
                self._freed.notify_all()

    def _keep_to(self, budget: int, *, least: int) -> None:
        """Let go of what was used longest ago until the rest takes so many bytes."""
        while len(self._held) > least and self.nbytes > budget:
            self._held.popitem(last=False)

    @property
    def nbytes(self) -> int:
        return sum(int(held.nbytes) for held in self._held.values())


_indexes = _Shelf(memory.indexes_bytes)
"""On the device."""
_columns = _Shelf(memory.columns_bytes)
"""On the host."""


def pieces(references: Dataset) -> list[Piece]:
    """The ranges of a reference set that are searched one after the other: one, if it fits."""
    at_once, grain = memory.references_at_once(backend().device), ROW_GROUP
    if references.outlines is not None:
        # A few may take as much as all others.
        at_once, grain = at_once * references.rows // max(1, references.as_points), 1
    if references.rows <= at_once:
        return [(0, references.rows)]
    # Whole row groups, so that none is decoded twice.
    groups = -(-references.rows // grain)
    number = -(-groups // max(1, at_once // grain))
    size = -(-groups // number) * grain
    return [
        (start, min(start + size, references.rows)) for start in range(0, references.rows, size)
    ]


def _key(references: Dataset, piece: Piece, how: Hashable) -> _Key:
    return references.sha256, (piece, how)


def indexes(
    references: Dataset,
    options: MatchOptions,
    own: list[Piece],
    narrowed: Narrowed | None = None,
    folder: IndexFolder | None = None,
) -> Iterator[tuple[int, Any]]:
    """The first row and the index of each of some pieces of the references: resident ones first.

    So a chunk begins with the pieces that the one before it ended with. In the order of their rows
    each would be let go of just before its turn.
    """
    how, left = narrowed.how if narrowed else options.earth, [*own]
    while left:
        piece = next((one for one in left if _key(references, one, how) in _indexes), left[0])
        left.remove(piece)
        yield piece[0], resident_index(references, options, piece, narrowed, folder=folder)


def resident_index(
    references: Dataset,
    options: MatchOptions,
    piece: Piece,
    narrowed: Narrowed | None = None,
    *,
    folder: IndexFolder | None = None,
    copies: bool = False,
) -> Any:
    """The index of a piece of a reference set, made from their file on first need.

    It is a `kernels.ReferenceIndex`, of lines and polygons a `ShapeIndex`, and where observations
    are `narrowed` a `FilteredIndex`. That of all of them is kept in a file, for a CPU and on the
    sphere, if it is worth one. With `copies` it holds all that are equal, as `kernels.within` needs
    them.
    """
    earth = options.earth
    how = narrowed.how if narrowed else earth

    def build(copies: bool = False) -> kernels.ReferenceIndex | kernels.ShapeIndex:
        if references.outlines is not None:
            return shape_index(references, *piece)
        degrees, evidence = read_points(references, *piece)
        if isinstance(references.file, SourceFiles) and evidence is not None:
            references.file.refuse_implausible(evidence, piece[0])
        if narrowed is not None:
            return narrowed.built(degrees, backend().device, piece[0])
        return kernels.build_index(*degrees, copies=copies, earth=earth)

    def load() -> kernels.ReferenceIndex | kernels.ShapeIndex:
        is_whole = piece == (0, references.rows)
        if folder is None or backend().device != "cpu" or not is_whole or how != "sphere":
            return build()
        return folder.index(references.sha256, build)

    def needed_bytes() -> int:
        n = references.as_points * (piece[1] - piece[0]) // max(1, references.rows)
        return memory.search_bytes(backend().device, n, 0, 1)

    index = _indexes.get(_key(references, piece, how), load, needed_bytes)
    if copies and not index.whole:
        key = _key(references, piece, (earth, "with copies"))
        index = _indexes.get(key, partial(build, copies=True), needed_bytes)
    return index


def shape_index(points: Dataset, start: int, stop: int) -> kernels.ShapeIndex:
    """The index of some rows of lines and polygons, made from their file; raises InvalidInput."""
    needed = points.as_points * (stop - start) // max(1, points.rows)
    if needed > (most := memory.references_at_once(backend().device)):
        raise InvalidInput(
            f"references: {stop - start} lines and polygons take as much memory as {needed} "
            f"points, and a worker has room for {most}: give it more, or a larger densify_m"
        )
    return kernels.ShapeIndex(stop - start, read_shapes(points, start, stop), backend().device)


def whole_index(
    sets: MatchSets, purpose: str, narrowed: Narrowed | None = None, *, copies: bool = False
) -> Any:
    """Index of all references of a match; raises InvalidInput if they do not fit at once."""
    references, rows = sets.references, sets.references.rows
    if len(pieces(references)) > 1:
        raise InvalidInput(
            f"references: {rows} are more than a worker searches at once, as {purpose}: give "
            "workers more memory, or split the references"
        )
    return resident_index(
        references, sets.options, (0, rows), narrowed, folder=sets.indexes, copies=copies
    )


class ResidentColumn(NamedTuple):
    """A column of a reference set, in row order."""

    values: pa.ChunkedArray
    widths: "int | np.ndarray"
    """How many bytes of memory each value takes; a number where all take the same."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes itself."""
        widths = 0 if isinstance(self.widths, int) else self.widths.nbytes
        return int(self.values.nbytes) + widths


def _refuse_too_long(references: Dataset, name: str) -> None:
    size, most = references.width([name]).total, memory.column_bytes()
    if size > most:
        raise CarriedTooLong(
            f"the column {name[:80]!r} of the references takes {size} bytes of memory, and a "
            f"worker has {most} for one: name another, or give workers more memory"
        )


def resident_column(references: Dataset, name: str) -> ResidentColumn:
    """A column of a reference set, read on first need; CarriedTooLong if it is too large."""
    _refuse_too_long(references, name)
    width = references.width([name])
    size = width.total

    def load() -> ResidentColumn:
        values = read_rows(references.file, 0, references.rows, [name])[name]
        same = value_bytes(pa.array([], values.type))
        if not isinstance(same, int):
            same = np.concatenate([same, *map(value_bytes, values.chunks)])
        return ResidentColumn(values, same)

    widths = 0 if width.row * references.rows == size else 8 * references.rows
    column: ResidentColumn = _columns.get((references.sha256, name), load, lambda: size + widths)
    return column


def resident_keys(references: Dataset, options: FilterOptions | None) -> Keys | None:
    """The groups and times of a reference set, read on first need; raises as `resident_column`."""
    if options is None:
        return None
    names = [*dict.fromkeys(options.of_references)]
    for name in names:
        _refuse_too_long(references, name)

    def load() -> Keys:
        # Not by `resident_column`, which would wait for room that this load holds.
        columns = read_rows(references.file, 0, references.rows, names)
        valid = np.ones(references.rows, bool)
        if references.invalid_rows:
            axes = read_rows(references.file, 0, references.rows, [references.lat, references.lon])
            valid = is_valid(*(axis.to_numpy() for axis in axes.columns))
        return Keys(options, columns, valid)

    by = options.reference_by, options.reference_time
    # The columns, groups and times of a row, and its time in a finer unit.
    needed_bytes = references.width(names).total + 24 * references.rows
    keys: Keys = _columns.get((references.sha256, by), load, lambda: needed_bytes)
    return keys


def is_resident(references: Dataset, columns: Iterable[str], how: Hashable = "sphere") -> bool:
    """Whether all of a reference set that a search needs is there, and some of its columns."""
    return all(_key(references, piece, how) in _indexes for piece in pieces(references)) and all(
        (references.sha256, name) in _columns for name in columns
    )


def forget_all() -> None:
    """Let go of all that is resident."""
    _indexes.clear()
    _columns.clear()
