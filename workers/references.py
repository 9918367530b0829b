"""The reference sets resident on a worker, by content hash; the least recently used goes first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import kernels
from workers.datasets import ROW_GROUP, Dataset, read_rows
from workers.frames import backend
from workers.memory import references_at_once, resident_bytes

Piece = tuple[int, int]
"""A range of reference rows, the second not included."""

# A set is there under its hash and either a piece, for its index on the device, or the name of a
# column on the host.
_resident: OrderedDict[tuple[str, Piece | str], Any] = OrderedDict()
# A worker has a task and small jobs in hand at the same time: one of them loads a set, once.
_lock = threading.RLock()


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

    index: kernels.ReferenceIndex = _loaded((references.sha256, piece), build)
    return index


def resident_column(references: Dataset, name: str) -> pa.ChunkedArray:
    """A column of a reference set, in row order, read from its file on first need."""
    return _loaded(
        (references.sha256, name),
        lambda: read_rows(references.file, 0, references.rows, [name])[name],
    )


def _loaded(key: tuple[str, Piece | str], load: Callable[[], Any]) -> Any:
    with _lock:
        if key not in _resident:
            _resident[key] = load()
            _keep_to_budget()
        _resident.move_to_end(key)
        return _resident[key]


def _keep_to_budget() -> None:
    budget = resident_bytes()
    while len(_resident) > 1 and sum(int(held.nbytes) for held in _resident.values()) > budget:
        _resident.popitem(last=False)
