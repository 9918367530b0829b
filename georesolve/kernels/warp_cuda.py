"""What a warp of 32 lanes does together: reductions, votes, and a sorted list of 64.

Functions of the GPU are `forceinline`: LLVM puts them into their callers after numba has typed and
lowered each once a process. With ``inline="always"`` numba does that again for every call, and of a
first answer's kernels that was nearly half of the time, for the same machine code.
"""

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import cuda, int64, types, uint32
from numba.cuda import libdevice
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.extending import overload
from numba.extending import intrinsic

from georesolve.kernels.coordinates_cuda import metres
from georesolve.kernels.distance import closer
from georesolve.kernels.sizes_cuda import WARP

ALL_LANES = 0xFFFFFFFF


def implements(function: Any, *kinds: Any) -> Any:
    """Register what a function does where its first argument is of one of some kinds.

    So a kernel is compiled for what it is given, and kept between processes: functions as arguments
    would miss numba's cache in each.
    """

    def register(implementation: Any) -> Any:
        def choose(*arguments: Any) -> Any:
            given = getattr(arguments[0], "instance_class", arguments[0])
            return implementation if given in kinds else None

        options = {"forceinline": True}
        overload(function, jit_options=options, strict=False, prefer_literal=True)(choose)
        return implementation

    return register


def by_type(*kinds: Any) -> Any:
    """Make a function one that `implements` adds to, and that does this for some kinds."""
    return lambda function: implements(function, *kinds)(function)


_INTEGER = ir.IntType(32)
_REDUCES = (8, 0)
"""Compute capability from which a warp finds the least of its integers in one instruction."""


def _reduction(name: str) -> Any:
    # The least or the largest of the warp's integers: in one instruction, or by five exchanges
    # between halves of it.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def call(text: str, constraints: str, operands: list[Any]) -> Any:
            kind = ir.FunctionType(_INTEGER, [operand.type for operand in operands])
            code = ir.InlineAsm(kind, text, constraints, side_effect=True)
            return builder.call(code, operands, attrs=("convergent",))

        value = arguments[0]
        if ConfigStack().top().compute_capability >= _REDUCES:
            text = f"redux.sync.{name}.s32 $0, $1, 0xffffffff;"
            return call(text, "=r,r", [value])
        sign = {"min": "<", "max": ">"}[name]
        for step in (16, 8, 4, 2, 1):
            text = f"shfl.sync.bfly.b32 $0, $1, {step}, 31, 0xffffffff;"
            other = call(text, "=r,r", [value])
            value = builder.select(builder.icmp_signed(sign, other, value), other, value)
        return value

    @intrinsic
    def reduce(typing_context, value):  # type: ignore[no-untyped-def]
        return types.int32(types.int32), generate

    return reduce


least_of_warp = _reduction("min")
largest_of_warp = _reduction("max")


@cuda.jit(device=True, forceinline=True)
def encode(value):  # type: ignore[no-untyped-def]
    """A float32 as an integer of the same order: atomics and reductions are of integers."""
    bits = libdevice.float_as_int(value)
    if bits < 0:
        bits = bits ^ 0x7FFFFFFF
    return bits


@cuda.jit(device=True, forceinline=True)
def decode(code):  # type: ignore[no-untyped-def]
    """The float32 that `encode` made an integer."""
    if code < 0:
        code = code ^ 0x7FFFFFFF
    return libdevice.int_as_float(code)


@cuda.jit(device=True, forceinline=True)
def warp_min(value):  # type: ignore[no-untyped-def]
    """The least of the warp's 32 numbers in float32, in every lane."""
    return decode(least_of_warp(encode(value)))


@cuda.jit(device=True, forceinline=True)
def warp_max(value):  # type: ignore[no-untyped-def]
    """The largest of the warp's 32 numbers in float32, in every lane."""
    return decode(largest_of_warp(encode(value)))


@cuda.jit(device=True, forceinline=True)
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


@cuda.jit(device=True, forceinline=True)
def ballot(condition):  # type: ignore[no-untyped-def]
    """A bit a lane, as uint32: numba's own ballot is signed, and its bit 31 would spread."""
    return uint32(cuda.ballot_sync(ALL_LANES, condition))


@cuda.jit(device=True, forceinline=True)
def first_lane(bits):  # type: ignore[no-untyped-def]
    """The lowest lane whose bit is set; bits must not be zero."""
    return uint32(cuda.ffs(uint32(bits)) - uint32(1))


@cuda.jit(device=True, forceinline=True)
def without_first(bits):  # type: ignore[no-untyped-def]
    """The bits without the lowest one that is set."""
    return uint32(bits & uint32(bits - uint32(1)))


@cuda.jit(device=True, forceinline=True)
def of_lane(lane, x, y, z):  # type: ignore[no-untyped-def]
    """The (x, y, z) of one lane, in every lane."""
    return (
        cuda.shfl_sync(ALL_LANES, x, lane),
        cuda.shfl_sync(ALL_LANES, y, lane),
        cuda.shfl_sync(ALL_LANES, z, lane),
    )


@cuda.jit(device=True, forceinline=True)
def _shifted(chord2, row, new_chord2, new_row, before_chord2, before_row, follows):  # type: ignore[no-untyped-def]
    # One place of a sorted list after an insertion: as it was, the new entry, or its predecessor.
    if not closer(new_chord2, new_row, chord2, row):
        return chord2, row
    if follows and closer(new_chord2, new_row, before_chord2, before_row):
        return before_chord2, before_row
    return new_chord2, new_row


class WarpList(NamedTuple):
    """A sorted list of 64 that a warp holds: a lane has places `lane` and ``32 + lane``."""

    low_chord2: float
    low_row: int
    high_chord2: float
    high_row: int


@cuda.jit(device=True, forceinline=True)
def no_list():  # type: ignore[no-untyped-def]
    """The list that holds nothing."""
    return WarpList(math.inf, int64(-1), math.inf, int64(-1))


@cuda.jit(device=True, forceinline=True)
def _list_insert(held, new_chord2, new_row):  # type: ignore[no-untyped-def]
    lane = cuda.threadIdx.x
    last_chord2 = cuda.shfl_sync(ALL_LANES, held.low_chord2, WARP - 1)
    last_row = cuda.shfl_sync(ALL_LANES, held.low_row, WARP - 1)
    before_chord2 = cuda.shfl_up_sync(ALL_LANES, held.high_chord2, 1)
    before_row = cuda.shfl_up_sync(ALL_LANES, held.high_row, 1)
    if lane == 0:
        before_chord2 = last_chord2
        before_row = last_row
    high_chord2, high_row = _shifted(
        held.high_chord2, held.high_row, new_chord2, new_row, before_chord2, before_row, True
    )
    before_chord2 = cuda.shfl_up_sync(ALL_LANES, held.low_chord2, 1)
    before_row = cuda.shfl_up_sync(ALL_LANES, held.low_row, 1)
    low_chord2, low_row = _shifted(
        held.low_chord2, held.low_row, new_chord2, new_row, before_chord2, before_row, lane > 0
    )
    return WarpList(low_chord2, low_row, high_chord2, high_row)


@cuda.jit(device=True, forceinline=True)
def list_place(place, low, high):  # type: ignore[no-untyped-def]
    """What the list holds at a place."""
    return cuda.shfl_sync(ALL_LANES, high if place >= WARP else low, place % WARP)


@cuda.jit(device=True, forceinline=True)
def list_merge(k, held, chord2, row):  # type: ignore[no-untyped-def]
    """Insert those of the lanes' 32 candidates that come before the list's k-th.

    A candidate whose chord is not below infinity is none.
    """
    worst_chord2 = list_place(k - 1, held.low_chord2, held.high_chord2)
    worst_row = list_place(k - 1, held.low_row, held.high_row)
    candidates = ballot(chord2 < math.inf and closer(chord2, row, worst_chord2, worst_row))
    while candidates != uint32(0):
        lane = first_lane(candidates)
        candidates = without_first(candidates)
        held = _list_insert(
            held, cuda.shfl_sync(ALL_LANES, chord2, lane), cuda.shfl_sync(ALL_LANES, row, lane)
        )
    return held


@cuda.jit(device=True, forceinline=True)
def list_of(k, pieces, chords2, rows, piece, place):  # type: ignore[no-untyped-def]
    """The list of k candidates of each of so many pieces, from a piece and place of a table on."""
    held = no_list()
    for first in range(0, pieces * k, WARP):
        at = first + cuda.threadIdx.x
        chord2 = math.inf
        row = int64(-1)
        if at < pieces * k:
            chord2 = chords2[piece + at // k, place + at % k]
            row = rows[piece + at // k, place + at % k]
        held = list_merge(k, held, chord2, row)
    return held


@cuda.jit(device=True, forceinline=True)
def list_store(k, held, rows, chords2, in_metres):  # type: ignore[no-untyped-def]
    """Write the list's first k entries, with `in_metres` metres in the place of chords."""
    lane = cuda.threadIdx.x
    low, high = held.low_chord2, held.high_chord2
    if in_metres:
        low, high = metres(low), metres(high)
    if lane < k:
        rows[lane] = held.low_row
        chords2[lane] = low
    if WARP + lane < k:
        rows[WARP + lane] = held.high_row
        chords2[WARP + lane] = high
