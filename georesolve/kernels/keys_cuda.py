"""The list of an observation's nearest references, held by one lane of a GPU.

An entry is a *key*, 32 bits, and a *place*, where the reference stands among the tree's points;
both lie in shared memory, at the entry's *slot*. The upper bits of a key are those of the squared
chord in float32, the lower ones the slot. Comparing keys takes one instruction, where chords and
rows in full width would take about ten; and nothing moves: a newcomer takes the slot of the entry
that it drives out.

Slots are in *bundles* of one, four or eight, and the largest key of each bundle, its *head*, is in
a register; heads are in order. The last head is the farthest entry. The largest key that its bundle
has after it was driven out is found among the others, and takes its place among the heads. With 64
keys in registers and in order, a newcomer took 128 instructions, and registers were all there was.

float32 keeps the order of chords, but some that differ become equal. So where the upper bits of the
last key are those of a newcomer or of another entry, `_drives_out` compares chords in float64, then
rows; and `_settle` puts entries whose keys are equal but for their slots into their exact order.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from llvmlite import ir
from numba import cuda, float32, int32, int64, types, uint32
from numba.core import cgutils
from numba.cuda import libdevice
from numba.extending import intrinsic

from georesolve.kernels.collectors_cuda import (
    effort,
    farthest,
    may_enter,
    nothing,
    offer,
    write,
)
from georesolve.kernels.coordinates_cuda import metres_or_none
from georesolve.kernels.distance import closer, half_chord, squared_chord
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import ALL_LANES, ballot, implements, largest_of_warp

COLUMNS = WARP + 1
"""Width of the table of places, a column a lane: one more, so that rows begin in other banks."""
NO_KEY = 0x7FFFFFFF
"""Key of a lane whose list stays as it is: above all others."""
FREE = 0x7F000000
"""Key of a slot without a reference: as a float32, larger than any squared chord."""
_TIES = 2
"""Ties that are told at a time: they are settled in the time of a leaf without any."""
_TAKEN = -0x80000000
"""Key of a slot beyond the k that are wanted: it comes first and is never driven out."""

_INTEGER = ir.IntType(32)


# Heads are a tuple, and these functions are written out by the compiler, key by key: registers
# have no index, and loops over them are not unrolled when they are long.
@intrinsic(prefer_literal=True)
def _no_heads(typing_context, places, bundle, k):  # type: ignore[no-untyped-def]
    """The heads of an empty list of so many places, of which k are wanted."""
    count = places.literal_value
    size = bundle.literal_value
    heads = types.UniTuple(types.int32, count // size)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.sub(_INTEGER(count), builder.trunc(arguments[2], _INTEGER))
        # Through a move that the compiler does not see through: else it would keep the heads of an
        # empty list in registers all the while.
        move = ir.FunctionType(_INTEGER, [_INTEGER])
        first = builder.asm(move, "mov.b32 $0, $1;", "=r,r", [first], side_effect=True)
        values = [
            builder.select(
                builder.icmp_signed("<", _INTEGER(slot), first),
                _INTEGER(_TAKEN | slot),
                _INTEGER(FREE | slot),
            )
            for slot in range(size - 1, count, size)
        ]
        return cgutils.pack_array(builder, values)

    return heads(places, bundle, types.int64), generate


@intrinsic
def _insert(typing_context, heads, head):  # type: ignore[no-untyped-def]
    """The heads with a new one instead of the last; `NO_KEY` leaves them as they are."""

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

    return heads(heads, types.int32), generate


def _comparisons(count: int) -> Iterator[tuple[int, int]]:
    # Batcher's merging of odd and even places, https://doi.org/10.1145/1468075.1468121.
    width = 1
    while width < count:
        step = width
        while step > 0:
            for start in range(step % width, count - step, 2 * step):
                for i in range(start, min(start + step, count - step)):
                    if i // (2 * width) == (i + step) // (2 * width):
                        yield i, i + step
            step //= 2
        width *= 2


@intrinsic(prefer_literal=True)
def _line_up(typing_context, table, found, lane, places):  # type: ignore[no-untyped-def]
    """Put a lane's keys, `table[slot, lane]`, and its places, `found[slot, lane]`, into order."""
    count = places.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(64)
        keys_data, places_data = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:2], arguments[:2], strict=True)
        )

        def at(data: Any, columns: int, slot: Any) -> Any:
            i = builder.add(builder.mul(slot, _INTEGER(columns)), arguments[2])
            return builder.gep(data, [builder.zext(i, wide)])

        numbers = [_INTEGER(slot) for slot in range(count)]
        keys = [builder.load(at(keys_data, WARP, slot)) for slot in numbers]
        for i, j in _comparisons(count):
            before = builder.icmp_signed("<", keys[i], keys[j])
            keys[i], keys[j] = (
                builder.select(before, keys[i], keys[j]),
                builder.select(before, keys[j], keys[i]),
            )
        slots = [builder.and_(key, _INTEGER(count - 1)) for key in keys]
        lined_up = [builder.load(at(places_data, COLUMNS, slot)) for slot in slots]
        for slot, key, place in zip(numbers, keys, lined_up, strict=True):
            builder.store(key, at(keys_data, WARP, slot))
            builder.store(place, at(places_data, COLUMNS, slot))
        return context.get_dummy_value()

    return types.void(table, found, types.uint32, places), generate


@cuda.jit(device=True, forceinline=True)
def _key_of(chord2, slots):  # type: ignore[no-untyped-def]
    """The upper bits of a squared chord's key; `slots` is the mask of the lower ones."""
    return libdevice.float_as_int(float32(chord2)) & int32(~slots)


class Several(NamedTuple):
    """Keeps the nearest references of (x, y, z), a list; what is kept are its heads, and ties.

    `found` and `table` are places and keys, of the slots' lanes; `slots` is the mask of a slot.
    """

    x: float
    y: float
    z: float
    k: int
    slots: int
    bundle: int
    points: Any
    found: Any
    table: Any


@cuda.jit(device=True, forceinline=True)
def _entry(points, x, y, z, at):  # type: ignore[no-untyped-def]
    # What no place has is loaded from the first, so that no branch keeps two entries from being
    # fetched at a time.
    some = max(at, int32(0))
    chord2 = squared_chord(x, y, z, points[some, 0], points[some, 1], points[some, 2])
    row = int64(points[some, 3])
    return (chord2, row) if at >= 0 else (math.inf, int64(-1))


@cuda.jit(device=True, forceinline=True)
def _own_entry(collector, slot):  # type: ignore[no-untyped-def]
    at = collector.found[slot, uint32(cuda.threadIdx.x)]
    return _entry(collector.points, collector.x, collector.y, collector.z, at)


@cuda.jit(device=True, forceinline=True)
def _drives_out(collector, chord2, row, slot, last):  # type: ignore[no-untyped-def]
    """Whether a newcomer is closer than the farthest entry, which is put into a slot.

    That slot's key is the last one, of upper bits `last`. Keys stay as they are: of all entries
    that may be the farthest, the upper bits are equal, and no others are looked at.
    """
    found, lane = collector.found, uint32(cuda.threadIdx.x)
    worst_chord2 = -1.0
    worst_row = int64(-1)
    worst_slot = slot
    for other in range(collector.table.shape[0]):
        if collector.table[other, lane] & int32(~collector.slots) == last or other == slot:
            other_chord2, other_row = _own_entry(collector, other)
            if closer(worst_chord2, worst_row, other_chord2, other_row):
                worst_chord2 = other_chord2
                worst_row = other_row
                worst_slot = int32(other)
    place = found[slot, lane]
    found[slot, lane] = found[worst_slot, lane]
    found[worst_slot, lane] = place
    return closer(chord2, int64(row), worst_chord2, worst_row)


@cuda.jit(device=True, forceinline=True)
def _settle(collector):  # type: ignore[no-untyped-def]
    """Put a lane's places, lined up, into their exact order: keys may be equal, and chords not."""
    found, table, lane = collector.found, collector.table, uint32(cuda.threadIdx.x)
    mask = int32(~collector.slots)
    for i in range(1, table.shape[0]):
        upper = table[i, lane] & mask
        if upper == table[i - 1, lane] & mask and 0 <= upper < FREE:
            place = found[i, lane]
            chord2, row = _own_entry(collector, i)
            j = i
            while j > 0 and table[j - 1, lane] & mask == upper:
                before_chord2, before_row = _own_entry(collector, j - 1)
                if not closer(chord2, row, before_chord2, before_row):
                    break
                found[j, lane] = found[j - 1, lane]
                j -= 1
            found[j, lane] = place


@intrinsic
def _together(typing_context, one, other):  # type: ignore[no-untyped-def]
    # Two numbers as they are, which the compiler must have both before it uses either: so that the
    # chains of arithmetic behind them run side by side, and not one after the other's root.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        double = ir.DoubleType()
        pair = ir.LiteralStructType([double, double])
        code = ir.InlineAsm(
            ir.FunctionType(pair, [double, double]),
            "mov.f64 $0, $2; mov.f64 $1, $3;", "=d,=d,d,d", side_effect=True,
        )  # fmt: skip
        both = builder.call(code, arguments)
        values = [builder.extract_value(both, i) for i in range(2)]
        return cgutils.pack_array(builder, values)

    return types.UniTuple(types.float64, 2)(types.float64, types.float64), generate


@cuda.jit(device=True, forceinline=True)
def _entry_of(collector, stage, place, owner):  # type: ignore[no-untyped-def]
    at = collector.found[place, owner]
    return _entry(collector.points, stage[0, owner], stage[1, owner], stage[2, owner], at)


@implements(nothing, Several)
def _(collector, places, bundle):  # type: ignore[no-untyped-def]
    lane = uint32(cuda.threadIdx.x)
    found, table = collector.found, collector.table
    for slot in range(table.shape[0]):
        key = int32(FREE | slot)
        if slot < table.shape[0] - collector.k:
            key = int32(_TAKEN | slot)
        table[slot, lane] = key
        found[slot, lane] = -1
    return _no_heads(places, bundle, collector.k), int32(0)


@implements(offer, Several)
def _(collector, kept, able, chord2, row, place):  # type: ignore[no-untyped-def]
    heads, ties = kept
    slots, found, table = collector.slots, collector.found, collector.table
    lane = uint32(cuda.threadIdx.x)
    code = _key_of(chord2, slots)
    farthest_key = heads[-1]
    last = farthest_key & int32(~slots)
    enters = able and code <= last
    if cuda.any_sync(ALL_LANES, enters):
        head = int32(NO_KEY)
        if enters:
            slot = farthest_key & int32(slots)
            # The largest key of the slot's bundle but for its own, which is taken away.
            rest = int32(_TAKEN)
            if collector.bundle > 1:
                table[slot, lane] = rest
                first = slot & int32(-collector.bundle)
                for i in range(collector.bundle):
                    rest = max(rest, table[first + i, lane])
            # Keys of equal upper bits do not say which is the farthest.
            before = max(rest, heads[-2]) & int32(~slots)
            if (code == last or before == last) and last < int32(FREE):
                ties = int32(ties + 1)
                enters = _drives_out(collector, chord2, row, slot, last)
            key = farthest_key
            if enters:
                found[slot, lane] = place
                key = code | slot
                head = max(key, rest)
            table[slot, lane] = key
        heads = _insert(heads, head)
    return heads, ties


@implements(farthest, Several)
def _(collector, kept):  # type: ignore[no-untyped-def]
    # The largest that the last key may stand for.
    return libdevice.int_as_float(kept[0][-1] | int32(collector.slots))


@implements(may_enter, Several)
def _(collector, kept, lane, chord2):  # type: ignore[no-untyped-def]
    last = cuda.shfl_sync(ALL_LANES, kept[0][-1], lane)
    return _key_of(chord2, collector.slots) <= last & int32(~collector.slots)


@implements(effort, Several)
def _(collector, kept):  # type: ignore[no-untyped-def]
    heads, ties = kept
    most_ties = largest_of_warp(ties)
    if most_ties >= int32(_TIES):
        return most_ties, (heads, int32(0))
    return int32(0), (heads, ties)


@implements(write, Several)
def _(collector, places, kept, row, writes, width, stage, k, measure, reference, chord2):  # type: ignore[no-untyped-def]
    lane = uint32(cuda.threadIdx.x)
    _line_up(collector.table, collector.found, lane, places)
    _settle(collector)
    cuda.syncwarp()
    n_places = uint32(places)
    first = n_places - uint32(k)
    writers = ballot(writes)
    stage[0, lane] = collector.x
    stage[1, lane] = collector.y
    stage[2, lane] = collector.z
    cuda.syncwarp()
    # All lanes write entries of one observation after those of another: whole sectors of memory.
    # Two entries a lane at a time: each takes a chain of sixty steps, which wait for each other.
    for start in range(0, n_places * uint32(width), 2 * WARP):
        entry = uint32(start) + lane
        owner, place = entry // n_places, entry % n_places
        other = entry + uint32(WARP)
        other_owner, other_place = other // n_places, other % n_places
        value, value_row = _entry_of(collector, stage, place, owner)
        other_value, other_row = _entry_of(collector, stage, other_place, other_owner)
        if measure:
            half, other_half = _together(half_chord(value), half_chord(other_value))
            value = metres_or_none(half, value)
            other_value = metres_or_none(other_half, other_value)
        at = cuda.shfl_sync(ALL_LANES, int64(row), owner)
        other_at = cuda.shfl_sync(ALL_LANES, int64(row), other_owner)
        if place >= first and (writers >> owner) & uint32(1) != uint32(0):
            reference[at, place - first] = value_row
            chord2[at, place - first] = value
        if other_place >= first and (writers >> other_owner) & uint32(1) != uint32(0):
            reference[other_at, other_place - first] = other_row
            chord2[other_at, other_place - first] = other_value
