"""Reductions within a warp of 32 lanes, by shuffles: no shared memory, no barrier."""

from numba import cuda, uint32

from kernels.distance import closer

WARP = 32
ALL_LANES = 0xFFFFFFFF


@cuda.jit(device=True, inline="always")
def warp_min(value):  # type: ignore[no-untyped-def]
    """The least of the warp's 32 values, in every lane."""
    step = WARP // 2
    while step > 0:
        other = cuda.shfl_xor_sync(ALL_LANES, value, step)
        if other < value:
            value = other
        step //= 2
    return value


@cuda.jit(device=True, inline="always")
def warp_max(value):  # type: ignore[no-untyped-def]
    """The largest of the warp's 32 values, in every lane."""
    step = WARP // 2
    while step > 0:
        other = cuda.shfl_xor_sync(ALL_LANES, value, step)
        if other > value:
            value = other
        step //= 2
    return value


@cuda.jit(device=True, inline="always")
def warp_closest(chord2, row):  # type: ignore[no-untyped-def]
    """The closest of the warp's 32 candidates, in every lane; equals go to the lowest row."""
    step = WARP // 2
    while step > 0:
        other_chord2 = cuda.shfl_xor_sync(ALL_LANES, chord2, step)
        other_row = cuda.shfl_xor_sync(ALL_LANES, row, step)
        if closer(other_chord2, other_row, chord2, row):
            chord2 = other_chord2
            row = other_row
        step //= 2
    return chord2, row


@cuda.jit(device=True, inline="always")
def ballot(condition):  # type: ignore[no-untyped-def]
    """A bit a lane, as uint32: numba's own ballot is signed, and its bit 31 would spread."""
    return uint32(cuda.ballot_sync(ALL_LANES, condition))


@cuda.jit(device=True, inline="always")
def first_lane(bits):  # type: ignore[no-untyped-def]
    """The lowest lane whose bit is set; bits must not be zero."""
    return uint32(cuda.ffs(uint32(bits)) - uint32(1))


@cuda.jit(device=True, inline="always")
def without_first(bits):  # type: ignore[no-untyped-def]
    """The bits without the lowest one that is set."""
    return uint32(bits & uint32(bits - uint32(1)))
