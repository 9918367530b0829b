"""The reference sets resident on a worker, by content hash; the least recently used goes first."""

import threading
from collections import OrderedDict

import pyarrow as pa

import kernels
from workers.datasets import Dataset, read_rows
from workers.frames import backend

_BUDGET_BYTES = 2 << 30
"""Memory that resident sets may hold together; the one in use always stays."""


class Resident:
    """A reference set ready for use: its index on the device, its carried columns on the host.

    Attributes
    ----------
    index : kernels.ReferenceIndex
        On the device of the worker.
    columns
        Columns that were carried into results so far, in row order.
    """

    def __init__(self, references: Dataset) -> None:
        lat, lon = references.lat, references.lon
        frame = backend().read(references.file, 0, references.rows, [lat, lon])
        self.index = kernels.build_index(frame[lat].values, frame[lon].values)
        # Not the dataset: this content may outlive the file that it was first read from.
        self.columns: dict[str, pa.ChunkedArray] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held on the device and on the host."""
        return self.index.nbytes + sum(int(column.nbytes) for column in self.columns.values())


_resident: OrderedDict[str, Resident] = OrderedDict()
# A worker has a task and small jobs in hand at the same time: one of them loads a set, once.
_lock = threading.RLock()


def resident_index(references: Dataset) -> kernels.ReferenceIndex:
    """The index of a reference set, made from its file on first need."""
    return _loaded(references).index


def resident_column(references: Dataset, name: str) -> pa.ChunkedArray:
    """A column of a reference set, in row order, read from its file on first need."""
    columns = _loaded(references).columns
    with _lock:
        if name not in columns:
            columns[name] = read_rows(references.file, 0, references.rows, [name])[name]
            _keep_to_budget()
        return columns[name]


def _loaded(references: Dataset) -> Resident:
    with _lock:
        if references.sha256 not in _resident:
            _resident[references.sha256] = Resident(references)
        _resident.move_to_end(references.sha256)
        _keep_to_budget()
        return _resident[references.sha256]


def _keep_to_budget() -> None:
    while len(_resident) > 1 and sum(r.nbytes for r in _resident.values()) > _BUDGET_BYTES:
        _resident.popitem(last=False)
