"""One launch of a CUDA kernel on arrays of CuPy, on CuPy's stream, and the sizes of grids.

numba compiles kernels, CuPy launches them. A launch by numba takes some 70 microseconds of Python,
more than most kernels run on small inputs; this one takes a tenth of that, because it asks nothing
that it knows: every argument is a number of 8 bytes, or an array as numba's machine code takes it.

CuPy is imported where it is called: the kernels compile on a machine that has none.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.cuda.core.caching import CacheImpl
from numba.np.numpy_support import from_dtype

from georesolve.kernels.cache import keep_code_of_kernels

THREADS = 256
"""Threads a block of kernels that `stride` starts."""
_MOST_WORDS = 256
"""Words of all arguments of a kernel: a number is one, an array five and two for each axis."""

# Two threads that launch a kernel for the first time would both load it, and numba forbids that.
_one_at_a_time = threading.Lock()

# All modules with kernels import this one.
keep_code_of_kernels(CacheImpl)


def blocks_for(n: int, per_block: int, most: int | None = None) -> int:
    """Blocks that cover n items, at least one, at most `most` where the kernel strides."""
    blocks = max(1, -(-n // per_block))
    return blocks if most is None else min(blocks, most)


@cache
def _multiprocessors(device: int) -> int:
    import cupy as cp

    return int(cp.cuda.Device(device).attributes["MultiProcessorCount"])


def resident_blocks(per_multiprocessor: int) -> int:
    """How many blocks the device runs at once, at so many on each of its multiprocessors."""
    import cupy as cp

    return per_multiprocessor * _multiprocessors(cp.cuda.runtime.getDevice())


def stride(kernel: Any, n: int, *arguments: Any, per_multiprocessor: int = 8) -> None:
    """Start a kernel whose threads stride over n items, with as many as the device runs at once."""
    blocks = blocks_for(n, THREADS, resident_blocks(per_multiprocessor))
    launch(kernel, blocks, THREADS, *arguments)


def launch(kernel: Any, blocks: Any, threads: Any, *arguments: Any) -> None:
    """Start a kernel on CuPy's current stream; returns at once.

    It is compiled on its first launch. Grid and block have one or two axes; arguments are
    C-contiguous arrays of CuPy, integers, booleans, or named tuples of such. Another array raises
    ValueError: compiled code would read it as if it were contiguous.
    """
    import cupy as cp

    signature: list[np.dtype[Any] | int | type] = []
    values: list[int] = []

    def take(arguments: tuple[Any, ...]) -> None:
        # Types are compared by themselves: what takes a microsecond here is a part of small
        # searches.
        for argument in arguments:
            kind = type(argument)
            if kind is cp.ndarray:
                shape = argument.shape
                if argument.size and not argument.flags.c_contiguous:
                    raise ValueError(
                        f"kernel {kernel.py_func.__name__} got an array of shape {shape} and "
                        f"strides {argument.strides}; arrays must be C-contiguous: copy it with "
                        "cupy.ascontiguousarray"
                    )
                signature.extend((argument.dtype, len(shape)))
                # Owner and parent, which are Python objects and none here; then the array itself.
                values.extend((0, 0, argument.size, argument.itemsize, argument.data.ptr))
                values.extend(shape)
                values.extend(argument.strides)
            elif isinstance(argument, tuple):
                signature.append(kind)
                take(argument)
            else:
                signature.append(bool if kind is bool or kind is np.bool_ else int)
                values.append(int(argument))

    take(arguments)
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1)
    block = threads if isinstance(threads, tuple) else (threads, 1)
    code = _loaded(kernel, cp.cuda.runtime.getDevice(), tuple(signature))
    struct.pack_into(f"{len(values)}q", _sent.words, 0, *values)
    cp.cuda.driver.launchKernel(
        code, *grid, 1, *block, 1, 0,
        cp.cuda.get_current_stream().ptr, _sent.addresses_at, 0,
    )  # fmt: skip


class _Sent(threading.local):
    """Where a thread puts what it gives to a kernel; the driver has copied it when a launch ends.

    `words` are the arguments, as machine code takes them, one after the other; at `addresses_at`
    is an array of their addresses.
    """

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * _MOST_WORDS)()
        first = ctypes.addressof(self.words)
        addresses = range(first, first + ctypes.sizeof(self.words), ctypes.sizeof(ctypes.c_int64))
        self._addresses = (ctypes.c_void_p * _MOST_WORDS)(*addresses)
        self.addresses_at = ctypes.addressof(self._addresses)


_sent = _Sent()


@cache
def _loaded(kernel: Any, device: int, signature: tuple[np.dtype[Any] | int | type, ...]) -> int:
    """The address of a kernel's machine code on a device, compiled or taken from numba's cache."""
    argument_types: list[Any] = []
    tuples: list[tuple[int, Any]] = []
    for each in signature:
        if isinstance(each, np.dtype):
            argument_types.append(from_dtype(each))
        elif isinstance(each, int):
            argument_types[-1] = types.Array(argument_types[-1], each, "C")
        elif issubclass(each, tuple):
            tuples.append((len(argument_types), each))
        else:
            argument_types.append(types.boolean if each is bool else types.int64)
    for first, each in reversed(tuples):
        held = slice(first, first + len(each._fields))
        argument_types[held] = [types.BaseTuple.from_types(tuple(argument_types[held]), each)]
    with _one_at_a_time, _without_collector():
        return int(kernel.compile(tuple(argument_types))._codelibrary.get_cufunc().handle)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hold Python's garbage collector while numba compiles.

    It makes millions of small objects that live until it is done: looking through them again and
    again took a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
