"""The sorted list of an observation's nearest references, held by one lane of a GPU.

An entry is a *key*, 32 bits in a register, and a *place*, where the reference stands among the
tree's points, in shared memory. The upper bits of a key are those of the squared chord in float32,
the lower ones the *slot* of its place. Keeping keys in order takes the least and the largest of two
integers, two instructions a key, where chords and rows in full width would take about twenty; and
nothing moves but keys: a newcomer takes the slot of the entry that it drives out.

float32 keeps the order of chords, but some that differ become equal. So where the upper bits of the
last key are those of a newcomer or of another entry, `drives_out` compares chords in float64, then
rows; and `store` puts the entries into their exact order, nearly always the order of their keys.
"""

import math
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import cuda, float32, int32, int64, types, uint32
from numba.core import cgutils
from numba.cuda import libdevice
from numba.extending import intrinsic

from georesolve.kernels.coordinates_cuda import metres
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import ALL_LANES, ballot

COLUMNS = WARP + 1
"""Width of the table of places, a column a lane: one more, so that rows begin in other banks."""
NO_KEY = 0x7FFFFFFF
"""Key of a lane whose list stays as it is: above all others."""
FREE = 0x7F000000
"""Key of a slot without a reference: as a float32, larger than any squared chord."""
_TAKEN = -0x80000000
"""Key of a slot beyond the k that are wanted: it comes first and is never driven out."""

_INTEGER = ir.IntType(32)


# Lists are tuples, and these three functions are written out by the compiler, key by key: registers
# have no index, and loops over them are not unrolled when they are long.
@intrinsic(prefer_literal=True)
def no_keys(typing_context, places, k):  # type: ignore[no-untyped-def]
    """The keys of an empty list of so many places, of which k are wanted."""
    count = places.literal_value
    keys = types.UniTuple(types.int32, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.sub(_INTEGER(count), builder.trunc(arguments[1], _INTEGER))
        # Through a move that the compiler does not see through: else it would keep the keys of an
        # empty list in registers all the while.
        move = ir.FunctionType(_INTEGER, [_INTEGER])
        first = builder.asm(move, "mov.b32 $0, $1;", "=r,r", [first], side_effect=True)
        values = [
            builder.select(
                builder.icmp_signed("<", _INTEGER(slot), first),
                _INTEGER(_TAKEN | slot),
                _INTEGER(FREE | slot),
            )
            for slot in range(count)
        ]
        return cgutils.pack_array(builder, values)

    return keys(places, types.int64), generate


@intrinsic
def insert(typing_context, keys, key):  # type: ignore[no-untyped-def]
    """The keys with a new one instead of the last; `NO_KEY` leaves them as they are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, new = cgutils.unpack_tuple(builder, arguments[0]), arguments[1]

        def least(a: Any, b: Any) -> Any:
            return builder.select(builder.icmp_signed("<", a, b), a, b)

        def largest(a: Any, b: Any) -> Any:
            return builder.select(builder.icmp_signed(">", a, b), a, b)

        values = [least(old[0], new)]
        for before, value in pairwise(old):
            values.append(least(value, largest(before, new)))
        return cgutils.pack_array(builder, values)

    return keys(keys, types.int32), generate


@intrinsic
def line_up(typing_context, keys, found, lane):  # type: ignore[no-untyped-def]
    """Put the lane's places, `found[slot, lane]`, into the order of their keys."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old = cgutils.unpack_tuple(builder, arguments[0])
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data

        def at(slot: Any) -> Any:
            i = builder.add(builder.mul(slot, _INTEGER(COLUMNS)), arguments[2])
            return builder.gep(data, [builder.zext(i, ir.IntType(64))])

        slots = [builder.and_(key, _INTEGER(len(old) - 1)) for key in old]
        places = [builder.load(at(slot)) for slot in slots]
        for i, place in enumerate(places):
            builder.store(place, at(_INTEGER(i)))
        return context.get_dummy_value()

    return types.void(keys, found, types.uint32), generate


@cuda.jit(device=True, forceinline=True)
def key_of(chord2, slots):  # type: ignore[no-untyped-def]
    """The upper bits of a squared chord's key; `slots` is the mask of the lower ones."""
    return libdevice.float_as_int(float32(chord2)) & int32(~slots)


@cuda.jit(device=True, forceinline=True)
def largest_of_key(key, slots):  # type: ignore[no-untyped-def]
    """The largest squared chord, in float32, that a key may stand for."""
    return libdevice.int_as_float(key | int32(slots))


@cuda.jit(device=True, forceinline=True)
def clear(found, lane):  # type: ignore[no-untyped-def]
    """Leave no place in a lane's slots."""
    for slot in range(found.shape[0]):
        found[slot, lane] = -1


@cuda.jit(device=True, forceinline=True)
def _entry(points, x, y, z, at):  # type: ignore[no-untyped-def]
    chord2 = math.inf
    row = int64(-1)
    if at >= 0:
        chord2 = squared_chord(x, y, z, points[at, 0], points[at, 1], points[at, 2])
        row = int64(points[at, 3])
    return chord2, row


@cuda.jit(device=True, forceinline=True)
def drives_out(points, x, y, z, chord2, row, found, lane, k, slot):  # type: ignore[no-untyped-def]
    """Whether a newcomer is closer than the farthest entry, which is put into the last key's slot.

    The keys stay as they are: of all that may be the farthest, the upper bits are equal.
    """
    worst_chord2 = -1.0
    worst_row = int64(-1)
    worst_slot = slot
    for other in range(found.shape[0] - k, found.shape[0]):
        other_chord2, other_row = _entry(points, x, y, z, found[other, lane])
        if closer(worst_chord2, worst_row, other_chord2, other_row):
            worst_chord2 = other_chord2
            worst_row = other_row
            worst_slot = int32(other)
    place = found[slot, lane]
    found[slot, lane] = found[worst_slot, lane]
    found[worst_slot, lane] = place
    return closer(chord2, int64(row), worst_chord2, worst_row)


@cuda.jit(device=True, forceinline=True)
def store(  # type: ignore[no-untyped-def]
    points, x, y, z, row, writes, width, found, k, measure, reference, chord2
):
    """Write the entries, lined up, of the warp's first `width` lanes, in their exact order.

    With `measure`, metres stand in for squared chords.
    """
    lane = cuda.threadIdx.x
    places = found.shape[0]
    first = places - k
    writers = ballot(writes)
    last_chord2 = -1.0
    last_row = int64(-1)
    ordered = True
    cuda.syncwarp()
    # All lanes write entries of one observation after those of another: whole sectors of memory.
    for start in range(0, places * width, WARP):
        owner = (start + lane) // places
        place = (start + lane) % places
        new_chord2, new_row = _entry(
            points,
            cuda.shfl_sync(ALL_LANES, x, owner),
            cuda.shfl_sync(ALL_LANES, y, owner),
            cuda.shfl_sync(ALL_LANES, z, owner),
            found[place, owner],
        )
        before_chord2 = cuda.shfl_up_sync(ALL_LANES, new_chord2, 1)
        before_row = cuda.shfl_up_sync(ALL_LANES, new_row, 1)
        if lane == 0:
            before_chord2 = last_chord2
            before_row = last_row
        last_chord2 = cuda.shfl_sync(ALL_LANES, new_chord2, WARP - 1)
        last_row = cuda.shfl_sync(ALL_LANES, new_row, WARP - 1)
        at = cuda.shfl_sync(ALL_LANES, int64(row), owner)
        if place >= first and (writers >> uint32(owner)) & uint32(1) != uint32(0):
            if place > first and closer(new_chord2, new_row, before_chord2, before_row):
                ordered = False
            if measure:
                new_chord2 = metres(new_chord2)
            reference[at, place - first] = new_row
            chord2[at, place - first] = new_chord2
    if cuda.all_sync(ALL_LANES, ordered):
        return
    cuda.syncwarp()
    if writes:
        _store_sorted(points, x, y, z, found, lane, first, reference[row], chord2[row])
        if measure:
            for i in range(k):
                chord2[row, i] = metres(chord2[row, i])


@cuda.jit(device=True, forceinline=True)
def _store_sorted(points, x, y, z, found, lane, first, rows, chords2):  # type: ignore[no-untyped-def]
    # By insertion: the order of keys is off by little where it is off at all.
    before_chord2 = -1.0
    before_row = int64(-1)
    for i in range(rows.size):
        chord2, row = _entry(points, x, y, z, found[first + i, lane])
        j = i
        if closer(chord2, row, before_chord2, before_row):
            while j > 0 and closer(chord2, row, chords2[j - 1], rows[j - 1]):
                chords2[j] = chords2[j - 1]
                rows[j] = rows[j - 1]
                j -= 1
        else:
            before_chord2 = chord2
            before_row = row
        rows[j] = row
        chords2[j] = chord2
