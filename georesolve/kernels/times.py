"""Which times an observation may match, for loops of a CPU and kernels of a GPU."""

from numba import njit

from georesolve.kernels.filters import GREATEST, LEAST


@njit(inline="always")
def window_of(time: int, before: int, after: int) -> tuple[int, int]:
    """The least and the greatest of the times that an observation of a time may match."""
    # No time is beyond 64 bits on the way.
    least, greatest = LEAST, GREATEST
    if before < GREATEST and time >= LEAST + before:
        least = time - before
    if after < GREATEST and time <= GREATEST - after:
        greatest = time + after
    return least, greatest
