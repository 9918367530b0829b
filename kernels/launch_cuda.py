"""One launch of a CUDA kernel on arrays of CuPy, at the price of a launch.

Given an array of CuPy, numba synchronises the device once for each argument of each launch and
types it anew. Wrapped beforehand, without that synchronisation, an argument costs a few
microseconds; the order of work is kept because the kernel goes to CuPy's current stream.

CuPy is imported where it is called: the kernels compile on a machine that has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import cuda

if TYPE_CHECKING:
    import cupy as cp

_FEWEST_BLOCKS = 128
"""numba warns of fewer blocks than this; idle ones cost nothing, so small grids are filled up."""


def blocks_for(n: int, per_block: int, most: int | None = None) -> int:
    """Blocks that cover n items, at least 128, at most `most` where the kernel strides."""
    blocks = max(_FEWEST_BLOCKS, -(-n // per_block))
    return blocks if most is None else min(blocks, most)


def resident_blocks(per_multiprocessor: int) -> int:
    """How many blocks the device runs at once, at so many on each of its multiprocessors."""
    return per_multiprocessor * int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def view(array: cp.ndarray) -> Any:
    """An array of CuPy as numba's kernels take it fastest; the memory is shared."""
    return cuda.as_cuda_array(array, sync=False)


def launch(kernel: Any, blocks: Any, threads: Any, *arguments: Any) -> None:
    """Start a kernel on CuPy's current stream; returns at once.

    Parameters
    ----------
    kernel : numba CUDA kernel
        Compiled on its first launch.
    blocks, threads : int or tuple of int
        Shape of the grid and of a block.
    *arguments : array of CuPy, result of `view`, or number
        What the kernel takes.
    """
    import cupy as cp

    stream = cp.cuda.get_current_stream().ptr
    kernel[blocks, threads, stream](
        *[view(a) if isinstance(a, cp.ndarray) else a for a in arguments]
    )
