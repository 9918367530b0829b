"""The reference sets resident on a worker, by content hash; the least recently used goes first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import kernels
from workers.datasets import ROW_GROUP, Dataset, read_rows
from workers.frames import backend
from workers.memory import references_at_once, resident_bytes, search_bytes

Piece = tuple[int, int]
"""A range of reference rows, the second not included."""

# A set is there under its hash and either a piece, for its index on the device, or the name of a
# column on the host.
_resident: OrderedDict[tuple[str, Piece | str], Any] = OrderedDict()
# A worker has tasks and small jobs in hand at the same time: what both need is loaded once, and who
# needs something else does not wait for it, unless the two would take more memory than there is.
_lock = threading.Lock()
_loading: dict[tuple[str, Piece | str], Future[Any]] = {}
_freed = threading.Condition(_lock)
# What is being built takes so many bytes.
_building: dict[tuple[str, Piece | str], int] = {}


def pieces(references: Dataset) -> list[Piece]:
    """The ranges of a reference set that are searched one after the other: one, if it fits."""
    at_once = references_at_once(backend().device)
    if references.rows <= at_once:
        return [(0, references.rows)]
    # Whole row groups, so that none is decoded twice.
    groups = -(-references.rows // ROW_GROUP)
    number = -(-groups // max(1, at_once // ROW_GROUP))
    size = -(-groups // number) * ROW_GROUP
    return [
        (start, min(start + size, references.rows)) for start in range(0, references.rows, size)
    ]


def resident_index(references: Dataset, piece: Piece) -> kernels.ReferenceIndex:
    """The index of a piece of a reference set, made from its file on first need."""

    def build() -> kernels.ReferenceIndex:
        lat, lon = references.lat, references.lon
        frame = backend().read(references.file, *piece, [lat, lon])
        return kernels.build_index(frame[lat].values, frame[lon].values)

    needed = search_bytes(backend().device, piece[1] - piece[0], 0, 1)
    index: kernels.ReferenceIndex = _loaded((references.sha256, piece), build, needed)
    return index


def resident_column(references: Dataset, name: str) -> pa.ChunkedArray:
    """A column of a reference set, in row order, read from its file on first need."""
    return _loaded(
        (references.sha256, name),
        lambda: read_rows(references.file, 0, references.rows, [name])[name],
    )


def is_resident(references: Dataset, columns: Iterable[str]) -> bool:
    """Whether all of a reference set that a search needs is there, and some of its columns."""
    ranges, names = _needed(references, columns)
    with _lock:
        return all((references.sha256, part) in _resident for part in (*ranges, *names))


def load_all(references: Dataset, columns: Iterable[str]) -> None:
    """Have all of a reference set that a search needs ready, and some of its columns."""
    ranges, names = _needed(references, columns)
    for piece in ranges:
        resident_index(references, piece)
    for name in names:
        resident_column(references, name)


def forget_all() -> None:
    """Let go of all that is resident."""
    with _lock:
        _resident.clear()


def _needed(references: Dataset, columns: Iterable[str]) -> tuple[list[Piece], set[str]]:
    ranges = pieces(references)
    # Distances to what is merged are measured from the coordinates.
    measured = (references.lat, references.lon) if len(ranges) > 1 else ()
    return ranges, {*columns, *measured}


def _loaded(key: tuple[str, Piece | str], load: Callable[[], Any], needed: int = 0) -> Any:
    with _lock:
        if key in _resident:
            return _used(key)
        of_another = _loading.get(key)
        if of_another is None:
            loading = _loading[key] = Future()
    if of_another is not None:
        return of_another.result()
    try:
        with _room_for(key, needed):
            held = load()
        with _lock:
            _resident[key] = held
            _keep_to(resident_bytes(), least=1)
        loading.set_result(held)
    except BaseException as error:
        # It is that of all who wait.
        loading.set_exception(error)
        raise
    finally:
        with _lock:
            del _loading[key]
    return held


def _used(key: tuple[str, Piece | str]) -> Any:
    _resident.move_to_end(key)
    return _resident[key]


@contextmanager
def _room_for(key: tuple[str, Piece | str], needed: int) -> Iterator[None]:
    """Wait until what others build leaves room, and make some."""
    with _freed:
        _freed.wait_for(
            lambda: not _building or sum(_building.values()) + needed <= resident_bytes()
        )
        _building[key] = needed
        _keep_to(resident_bytes() - sum(_building.values()), least=0)
    try:
        yield
    finally:
        with _freed:
            del _building[key]
            _freed.notify_all()


def _keep_to(budget: int, *, least: int) -> None:
    """Let go of what was used longest ago until the rest takes so many bytes."""
    while len(_resident) > least and sum(int(held.nbytes) for held in _resident.values()) > budget:
        _resident.popitem(last=False)
