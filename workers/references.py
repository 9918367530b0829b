"""The reference sets resident on a worker, by content hash; the least recently used goes first."""

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
    """

    def __init__(self, references: Dataset) -> None:
        lat, lon = references.lat, references.lon
        frame = backend().read(references.path, 0, references.rows, [lat, lon])
        self.index = kernels.build_index(frame[lat].values, frame[lon].values)
        self._references = references
        self._columns: dict[str, pa.ChunkedArray] = {}

    def column(self, name: str) -> pa.ChunkedArray:
        """A column to carry into results, in row order, read on first need."""
        if name not in self._columns:
            table = read_rows(self._references.path, 0, self._references.rows, [name])
            self._columns[name] = table[name]
        return self._columns[name]

    @property
    def nbytes(self) -> int:
        """Bytes held on the device and on the host."""
        return self.index.nbytes + sum(int(column.nbytes) for column in self._columns.values())


# A worker runs one task at a time, so no lock is needed.
_resident: OrderedDict[str, Resident] = OrderedDict()


def resident(references: Dataset) -> Resident:
    """The reference set, loaded from its file on first need."""
    if references.sha256 not in _resident:
        _resident[references.sha256] = Resident(references)
    _resident.move_to_end(references.sha256)
    while len(_resident) > 1 and sum(r.nbytes for r in _resident.values()) > _BUDGET_BYTES:
        _resident.popitem(last=False)
    return _resident[references.sha256]
