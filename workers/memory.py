"""How much memory a worker has for a search, and what a search takes of it."""

import os
from contextlib import AbstractContextManager

import dask

from georesolve.kernels import sizes_cuda
from georesolve.kernels.devices import Device

_AVAILABLE = "georesolve.available-bytes"
_HOST = "georesolve.host-bytes"
_PIECE = "georesolve.references-a-piece"
_INDEXES_SHARE = 0.4
"""For reference sets; the rest is for observations, answers, and a set that is being indexed."""
_COLUMNS_SHARE = 0.2
"""For columns of reference sets that results carry."""
_COLUMN_SHARE = 0.5
"""For a single one of them, which is read whatever else there is."""
# On a CPU, by `tracemalloc`.
_CPU_BYTES_A_REFERENCE = 90
_CPU_BYTES_AN_OBSERVATION = 62
_CPU_BYTES_A_NEIGHBOUR = 44
_COORDINATES_BYTES = 16


def set_memory(device: Device, limit_bytes: int | None, references_a_piece: int | None) -> None:
    """Take note, in this process, of what it may use.

    Parameters
    ----------
    limit_bytes
        Host memory that the process may take; None for all of it. For searches on a GPU that one's
        counts.
    references_a_piece
        References that are searched at a time; None for as many as memory holds.
    """
    available = limit_bytes
    if device == "cuda":
        # Here, because only a worker may import what touches a GPU.
        import cupy

        available = int(cupy.cuda.Device().mem_info[1])
    dask.config.set({_HOST: limit_bytes, _AVAILABLE: available, _PIECE: references_a_piece})


def in_pieces(n_references: int) -> AbstractContextManager[None]:
    """Search so many references at a time for a while."""
    pieces: AbstractContextManager[None] = dask.config.set({_PIECE: n_references})
    return pieces


def available_bytes() -> int:
    """Memory that searches may take: the device's, or on a CPU that of the process."""
    return _limit(_AVAILABLE)


def _limit(name: str) -> int:
    limit = dask.config.get(name, None)
    return int(limit or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def search_bytes(device: Device, n_references: int, n_observations: int, k: int) -> int:
    """Memory that coordinates, an index and one search take at most, in bytes."""
    coordinates = (n_references + n_observations) * _COORDINATES_BYTES
    if device == "cuda":
        return coordinates + sizes_cuda.search_bytes(n_references, n_observations, k)
    return n_references * _CPU_BYTES_A_REFERENCE + n_observations * (
        _CPU_BYTES_AN_OBSERVATION + k * _CPU_BYTES_A_NEIGHBOUR
    )


def indexes_bytes() -> int:
    """Memory that reference sets may take together once they are indexed."""
    return int(_INDEXES_SHARE * available_bytes())


def columns_bytes() -> int:
    """Memory of the host that columns of reference sets may take together."""
    return int(_COLUMNS_SHARE * _limit(_HOST))


def column_bytes() -> int:
    """Memory of the host that a single column of a reference set may take."""
    return int(_COLUMN_SHARE * _limit(_HOST))


def references_at_once(device: Device) -> int:
    """References that are indexed and searched at a time."""
    piece: int | None = dask.config.get(_PIECE, None)
    if piece is not None:
        return piece
    million = 1_000_000
    return indexes_bytes() * million // search_bytes(device, million, 0, 1)
