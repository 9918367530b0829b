"""Memory of sorts, indexes and answers that is used again when nobody holds it any more.

The system clears every page that a process touches for the first time, which for an answer takes as
long as a good part of its search. What an array of `kept` took goes to the next one of about its
size, once the array and all views of it are gone; up to `_MOST_BYTES` wait for that.
"""

import math
from contextlib import suppress
from typing import Any
from weakref import finalize

import numpy as np

_LINE = 64
"""Bytes of a cache line, with which all arrays begin."""
_LEAST_BYTES = 1 << 20
"""Smaller arrays are left to the allocator, which has such pieces at hand."""
_MOST_BYTES = 256 << 20
"""Bytes that are kept: an answer of 2^22 observations, an index of 2^20 references, and what two
sorts of as many take."""
_free: dict[int, np.ndarray] = {}
"""By address, what waits longest first. A step of it cannot be interrupted, a loop over it can."""


class _Loan:
    """What arrays refer to as long as they use a piece of memory."""

    def __init__(self, memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "data": (memory.ctypes.data, False),
            "shape": shape,
            "typestr": dtype.str,
        }
        finalize(self, _give_back, memory).atexit = False


def _give_back(memory: np.ndarray) -> None:
    if memory.nbytes > _MOST_BYTES:
        # It would drive out all others, and then go itself.
        return
    _free[memory.ctypes.data] = memory
    while sum(piece.nbytes for piece in _free.copy().values()) > _MOST_BYTES:
        # Another thread may have taken the last piece.
        with suppress(StopIteration, RuntimeError):
            _free.pop(next(iter(_free)), None)


def _taken(size: int) -> np.ndarray | None:
    for address, piece in _free.copy().items():
        if size <= piece.nbytes <= size + size // 4:
            memory = _free.pop(address, None)
            if memory is not None:
                return memory
    return None


def aligned(*shape: int, dtype: type = np.float64) -> np.ndarray:
    """Memory for an array that begins with a cache line, with anything in it."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + size].view(kind).reshape(shape)


def kept(*shape: int, dtype: type = np.float64) -> np.ndarray:
    """As `aligned`, of memory that was used before where there is some, and to be used again."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _LEAST_BYTES:
        return aligned(*shape, dtype=dtype)
    memory = _taken(size)
    return np.asarray(
        _Loan(aligned(size, dtype=np.uint8) if memory is None else memory, shape, kind)
    )
