"""One launch of a CUDA kernel on arrays of CuPy, on CuPy's stream, and the sizes of grids.

numba takes some 20 microseconds to find out the type and the address of an array of CuPy, for every
array of every launch: more than the kernels themselves run on small inputs. So arrays are handed
over already described, in the form that numba gives its own arrays.

CuPy is imported where it is called: the kernels compile on a machine that has none.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from numba import cuda, types
from numba.cuda.core.caching import CacheImpl
from numba.cuda.cudadrv.devicearray import _StridedLayoutShim, _StridedMemoryViewShim
from numba.np.numpy_support import from_dtype

from kernels.cache import keep_code_of_kernels

_C_CONTIGUOUS = _StridedLayoutShim(
    strides_in_bytes=None,
    is_contiguous_c=True,
    is_contiguous_f=False,
    is_contiguous_any=True,
)

_FEWEST_BLOCKS = 128
"""numba warns of fewer blocks than this; idle ones cost nothing, so small grids are filled up."""

# Two threads that launch a kernel for the first time would both load it, and numba forbids that.
_one_at_a_time = threading.Lock()

# All modules with kernels import this one.
keep_code_of_kernels(CacheImpl)


def blocks_for(n: int, per_block: int, most: int | None = None) -> int:
    """Blocks that cover n items, at least 128, at most `most` where the kernel strides."""
    blocks = max(_FEWEST_BLOCKS, -(-n // per_block))
    return blocks if most is None else min(blocks, most)


def resident_blocks(per_multiprocessor: int) -> int:
    """How many blocks the device runs at once, at so many on each of its multiprocessors."""
    return per_multiprocessor * int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


class _Argument:
    """A C-contiguous array of CuPy as numba describes its own device arrays."""

    __slots__ = ("_numba_type_", "_strided_memory_view_shim")
    __cuda_memory__ = True

    def __init__(self, array: Any) -> None:
        self._numba_type_ = _array_type(array.dtype, array.ndim)
        self._strided_memory_view_shim = _StridedMemoryViewShim(
            ptr=array.data.ptr,
            shape=array.shape,
            dtype=array.dtype,
            size=array.size,
            _layout=_C_CONTIGUOUS,
        )


@cache
def _array_type(dtype: Any, ndim: int) -> types.Array:
    return types.Array(from_dtype(dtype), ndim, "C")


def launch(kernel: Any, blocks: Any, threads: Any, *arguments: Any) -> None:
    """Start a kernel on CuPy's current stream; returns at once.

    Parameters
    ----------
    kernel : numba CUDA kernel
        Compiled on its first launch.
    blocks, threads : int or tuple of int
        Shape of the grid and of a block.
    *arguments : C-contiguous array of CuPy, or number
        What the kernel takes.
    """
    import cupy as cp

    pointer = cp.cuda.get_current_stream().ptr
    stream = cuda.external_stream(pointer) if pointer else 0
    with _one_at_a_time, nullcontext() if kernel.overloads else _without_collector():
        kernel[blocks, threads, stream](
            *[_Argument(a) if isinstance(a, cp.ndarray) else a for a in arguments]
        )


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
