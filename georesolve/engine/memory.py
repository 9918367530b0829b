"""How much memory a worker has for a search, what a search takes of it, and what is garbage."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from georesolve.kernels import sizes_cuda
from georesolve.kernels.devices import Device

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
_MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Limits(NamedTuple):
    """What this process may use, and how many references at a time, if not what memory holds."""

    host_bytes: int = _MACHINE_BYTES
    device_bytes: int = _MACHINE_BYTES
    references_a_piece: int | None = None


_limits = _Limits()


def set_memory(device: Device, limit_bytes: int | None, references_a_piece: int | None) -> None:
    """Take note, in this process, of what it may use.

    `limit_bytes` is memory of the host, None for all of it; for searches on a GPU that one's
    counts. So many references are searched at a time, None for as many as memory holds.
    """
    global _limits
    available = host_bytes = limit_bytes or _MACHINE_BYTES
    if device == "cuda":
        # Here, because only a worker may import what touches a GPU.
        import cupy

        available = int(cupy.cuda.Device().mem_info[1])
    _limits = _Limits(host_bytes, available, references_a_piece)


@contextmanager
def in_pieces(n_references: int) -> Iterator[None]:
    """Search so many references at a time for a while."""
    global _limits
    before = _limits
    try:
        _limits = before._replace(references_a_piece=n_references)
        yield
    finally:
        _limits = before


def available_bytes() -> int:
    """Memory that searches may take: the device's, or on a CPU that of the process."""
    return _limits.device_bytes


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
    return int(_COLUMNS_SHARE * _limits.host_bytes)


def column_bytes() -> int:
    """Memory of the host that a single column of a reference set may take."""
    return int(_COLUMN_SHARE * _limits.host_bytes)


def references_at_once(device: Device) -> int:
    """References that are indexed and searched at a time."""
    if _limits.references_a_piece is not None:
        return _limits.references_a_piece
    million = 1_000_000
    return indexes_bytes() * million // search_bytes(device, million, 0, 1)


def keep_what_is_loaded() -> None:
    """Leave what there is by now out of all later collections of garbage, which begin here.

    To look through it takes 0.1 s, again and again, in which no thread runs; and most of a second
    when a process ends, or on a busy machine more than the 4 s after which Dask kills a worker.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
