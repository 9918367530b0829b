"""Instructions of a CPU that loops in Python do not reach: whole vectors of boxes, and prefetch.

LLVM vectorises a loop only behind checks that its arrays do not overlap. For eight boxes those cost
more than the work, so it is written here as vectors from the start; a machine without such wide
ones gets several narrower instructions. Squared chords and bounds are made by the very steps of
`kernels.distance.squared_chord`, and the nearest one is what `kernels.distance.closer` says.

Arrays of these functions, by name, all float64 unless told otherwise:

- ``boxes`` (n, 6, 8): least x, y, z and greatest x, y, z of a node's eight; ``box`` (6,): of one.
- ``points`` (n_leaves, 3, 8) and ``rows`` (n_leaves, 8): x, y, z of a leaf's references, of which
  NaN pads the last, and their rows, ascending.
- ``lanes`` (>= 4, >= 16): rows x, y, z and the greatest squared chord that matters, a column for
  each of sixteen points.
- ``keys`` (m + 1, 16) and ``new`` (8, 8), int64: sorted lists of keys, one a column. A key is a
  squared chord whose last `NUMBER_BITS` bits are the number of a reference.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce, wraps
from operator import or_
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_DOUBLE = ir.DoubleType()
_BYTE = ir.IntType(8)
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_FOUR = ir.VectorType(_DOUBLE, 4)
_EIGHT = ir.VectorType(_DOUBLE, 8)
_SIXTEEN = ir.VectorType(_DOUBLE, 16)
_EIGHT_KEYS = ir.VectorType(_LONG, 8)
_SIXTEEN_KEYS = ir.VectorType(_LONG, 16)
_EIGHT_ROWS = ir.VectorType(_INT, 8)
_PREFETCH = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
_READ = 0
_WRITE = 1
_KEEP = 3
_DATA = 1
NUMBER_BITS = 12
"""Bits of a key that are a number; the squared chord above them keeps 40 of its 52."""
NUMBER = (1 << NUMBER_BITS) - 1
NOTHING = 0x4014_0000_0000_0000
"""Key of what is not there: of number 0, and farther than anything, as `boxes_cpu.ALL` is."""
_SORT = [
    *((0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7), (0, 1), (2, 3)),
    *((4, 5), (6, 7), (2, 4), (3, 5), (1, 4), (3, 6), (1, 2), (3, 4), (5, 6)),
]
"""Comparisons that sort eight entries."""
_CORNERS = (0, 1, 4, 5)
"""Lanes of a cell's corners, counted from its first: rows of corners are four lanes long."""
_NINE = 0b0111_0111_0111
"""Lanes that are the first corner of a cell."""
_MERGE = [
    *((0, 4), (1, 5), (2, 6), (3, 7), (0, 2), (1, 3), (4, 6), (5, 7)),
    *((0, 1), (2, 3), (4, 5), (6, 7)),
]
"""Comparisons that sort eight entries which rise and fall once."""


_WIDE = {
    types.Integer: types.intp,
    types.IntegerLiteral: types.intp,
    types.Float: types.float64,
}
"""What numbers become that are given to a function."""


def _operator(name: str) -> "Callable[[_Value, Any], _Value]":
    """An operator of a `_Value` by its instruction, which of real numbers begins with an f."""

    def write(self: "_Value", other: Any) -> "_Value":
        real = "f" * (self.is_real and name in ("add", "sub", "mul"))
        return self._written(getattr(self.builder, real + name), other)

    return write


def _comparison(how: str) -> "Callable[[_Value, Any], _Value]":
    def write(self: "_Value", other: Any) -> "_Value":
        compare = self.builder.fcmp_ordered if self.is_real else self.builder.icmp_signed
        return _Value(self.builder, compare(how, self.ir, self._constant(other)))

    return write


class _Value:
    """A number, or a vector of numbers or of truths: its operators write instructions."""

    def __init__(self, builder: Any, ir_value: Any) -> None:
        self.builder, self.ir = builder, ir_value
        is_vector = isinstance(ir_value.type, ir.VectorType)
        self.count = ir_value.type.count if is_vector else 0
        self.is_real = (ir_value.type.element if is_vector else ir_value.type) == _DOUBLE

    def _written(self, write: Callable[..., Any], *others: Any) -> "_Value":
        return _Value(self.builder, write(self.ir, *(self._constant(other) for other in others)))

    def _constant(self, other: Any) -> Any:
        if isinstance(other, _Value):
            return other.ir
        return ir.Constant(self.ir.type, [other] * self.count if self.count else other)

    __add__, __sub__, __mul__ = _operator("add"), _operator("sub"), _operator("mul")
    __and__, __or__, __xor__ = _operator("and_"), _operator("or_"), _operator("xor")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    equals, differs, _exceeds = _comparison("=="), _comparison("!="), _comparison(">")

    def at_most_unsigned(self, other: "_Value") -> "_Value":
        return self._written(lambda *both: self.builder.icmp_unsigned("<=", *both), other)

    def choose(self, these: "_Value", others: Any) -> "_Value":
        """These where a truth holds, and the others elsewhere."""
        chosen = self.builder.select(self.ir, these.ir, these._constant(others))
        return _Value(self.builder, chosen)

    def least(self, other: Any) -> "_Value":
        return (self < other).choose(self, other)

    def greatest(self, other: Any) -> "_Value":
        return self._exceeds(other).choose(self, other)

    def as_kind(self, kind: Any) -> "_Value":
        """The same bits as a value of another kind."""
        return self._written(lambda value: self.builder.bitcast(value, kind))

    def every(self, kind: Any) -> "_Value":
        """A vector of this number."""
        builder = self.builder
        one = builder.insert_element(ir.Constant(kind, ir.Undefined), self.ir, _INT(0))
        zeros = ir.Constant(ir.VectorType(_INT, kind.count), [0] * kind.count)
        return _Value(builder, builder.shuffle_vector(one, one, zeros))

    def joined(self, other: "_Value", *chosen: int) -> "_Value":
        """A vector of chosen numbers of this one and the other."""
        places = ir.Constant(ir.VectorType(_INT, len(chosen)), list(chosen))
        return self._written(lambda *both: self.builder.shuffle_vector(*both, places), other)

    def bits(self) -> "_Value":
        """Truths as the bits of a number."""
        return self.as_kind(ir.IntType(self.count)).widened()

    def truths(self, count: int) -> "_Value":
        """The lowest bits of a number as truths."""
        lowest = self._written(lambda value: self.builder.trunc(value, ir.IntType(count)))
        return lowest.as_kind(ir.VectorType(ir.IntType(1), count))

    def widened(self) -> "_Value":
        kind = ir.VectorType(_LONG, self.count) if self.count else _LONG
        return self._written(lambda value: self.builder.zext(value, kind))

    def ones(self) -> "_Value":
        """How many bits of a number are set."""
        return self._written(self.builder.ctpop)

    def packed(self, chosen: "_Value") -> "_Value":
        """The chosen ones of eight numbers, one after the other, and anything after them."""
        module, name = self.builder.module, "llvm.experimental.vector.compress.v8f64"
        kind = ir.FunctionType(_EIGHT, [_EIGHT, chosen.ir.type, _EIGHT])
        function = module.globals.get(name) or ir.Function(module, kind, name)
        rest = ir.Constant(_EIGHT, ir.Undefined)
        return _Value(self.builder, self.builder.call(function, [self.ir, chosen.ir, rest]))

    def extreme(self, how: str) -> "_Value":
        """The least or the greatest number of a vector, none of them NaN."""
        module, element = self.builder.module, self.ir.type.element
        kind, flags = ("f64", ("nnan",)) if self.is_real else (element.intrinsic_name, ())
        name = f"llvm.vector.reduce.{how}.v{self.count}{kind}"
        function = module.globals.get(name)
        function = function or ir.Function(module, ir.FunctionType(element, [self.ir.type]), name)
        return _Value(self.builder, self.builder.call(function, [self.ir], fastmath=flags))


class _Array:
    """An array that is read and written a vector at a time, from the place of its indices on."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder, self._context, self._kind = builder, context, kind
        self._view = context.make_array(kind)(context, builder, value)

    @property
    def length(self) -> _Value:
        return _Value(self.builder, self.builder.extract_value(self._view.shape, 0))

    def place(self, *indices: Any) -> Any:
        """The address of an element."""
        numbers = tuple(i.ir if isinstance(i, _Value) else _LONG(i) for i in indices)
        return cgutils.get_item_pointer(
            self._context, self.builder, self._kind, self._view, numbers, wraparound=False
        )

    def load(self, kind: Any, *indices: Any) -> _Value:
        address = self.builder.bitcast(self.place(*indices), kind.as_pointer())
        return _Value(self.builder, self.builder.load(address, align=8))

    def one(self, *indices: Any) -> _Value:
        return _Value(self.builder, self.builder.load(self.place(*indices)))

    def every(self, kind: Any, *indices: Any) -> _Value:
        return self.one(*indices).every(kind)

    def store(self, value: _Value, *indices: Any) -> None:
        address = self.builder.bitcast(self.place(*indices), value.ir.type.as_pointer())
        self.builder.store(value.ir, address, align=8)

    def prefetch(self, use: int, *indices: Any) -> None:
        module, name = self.builder.module, "llvm.prefetch.p0"
        function = module.globals.get(name) or ir.Function(module, _PREFETCH, name)
        address = self.builder.bitcast(self.place(*indices), _BYTE.as_pointer())
        self.builder.call(function, [address, *map(_INT, (use, _KEEP, _DATA))])


def _written(returns: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function for compiled code, of one that writes its instructions with the builder.

    Its arguments are arrays, whole numbers and numbers; it gives the value that is returned.
    """

    def decorate(write: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given = (
                _Array(context, builder, kind, value)
                if isinstance(kind, types.Array)
                else _Value(builder, value)
                for kind, value in zip(signature.args, arguments, strict=True)
            )
            answer = write(builder, *given)
            if isinstance(answer, tuple):
                values = [value.ir for value in answer]
                return context.make_tuple(builder, signature.return_type, values)
            return context.get_dummy_value() if answer is None else answer.ir

        # Numba reads the names of the arguments from `write`, and takes its builder for a context.
        @wraps(write)
        def typed(_: Any, *kinds: Any) -> tuple[Any, Any]:
            wide = (_WIDE.get(type(kind), kind) for kind in kinds)
            return returns(*wide), generate

        return intrinsic(typed)

    return decorate


def _square(own: Iterable[_Value], there: Iterable[_Value]) -> _Value:
    """Squared chords of points, given by their three coordinates."""
    apart = (a - b for a, b in zip(own, there, strict=True))
    return reduce(_Value.__add__, (difference * difference for difference in apart))


def _bound(sides: Iterable[tuple[_Value, _Value, _Value, _Value]]) -> _Value:
    """Least squared chord of boxes: (least, greatest, other least, other greatest) an axis."""
    gaps = (
        (least - other_greatest).greatest(other_least - greatest).greatest(0.0)
        for least, greatest, other_least, other_greatest in sides
    )
    return reduce(_Value.__add__, (gap * gap for gap in gaps))


def _exchange(keys: list[_Value], pairs: list[tuple[int, int]]) -> None:
    """Put the lesser of two keys, of eight points each, before the other."""
    for i, j in pairs:
        before = keys[i] < keys[j]
        keys[i], keys[j] = before.choose(keys[i], keys[j]), before.choose(keys[j], keys[i])


def _columns(points: list[_Value]) -> list[_Value]:
    """Vectors of all x, all y and all z of points, of which each is a vector of four."""
    columns = []
    for axis in range(3):
        pairs = zip(points[::2], points[1::2], strict=True)
        parts = [a.joined(b, axis, 4 + axis) for a, b in pairs]
        while len(parts) > 1:
            both = range(2 * parts[0].count)
            parts = [a.joined(b, *both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        columns.append(parts[0])
    return columns


@_written(types.int64)
def children_within(builder, boxes, node, box, worst):  # type: ignore[no-untyped-def]
    """Which of a node's eight boxes may hold something at most `worst` from a box, as bits."""
    eight = [boxes.load(_EIGHT, node, side, 0) for side in range(6)]
    own = [box.every(_EIGHT, side) for side in range(6)]
    bound = _bound((eight[a], eight[a + 3], own[a], own[a + 3]) for a in range(3))
    return (bound <= worst.every(_EIGHT)).bits()


@_written(types.int64)
def children_inside(builder, boxes, node, box, worst):  # type: ignore[no-untyped-def]
    """Which of a node's eight boxes hold nothing that is farther than `worst` from a box, as bits.

    No two of their points differ by more on an axis than the far sides do, and rounding keeps
    that order, so the bound is at least every squared chord as computed.
    """
    sides = ((boxes.load(_EIGHT, node, a, 0), boxes.load(_EIGHT, node, a + 3, 0)) for a in range(3))
    own = [box.every(_EIGHT, side) for side in range(6)]
    apart = (
        (own[a + 3] - least).greatest(greatest - own[a])
        for a, (least, greatest) in enumerate(sides)
    )
    bound = reduce(_Value.__add__, (most * most for most in apart))
    return (bound <= worst.every(_EIGHT)).bits()


@_written(types.int64)
def lanes_within(builder, lanes, boxes, node, child):  # type: ignore[no-untyped-def]
    """Which of 16 points may find something in a node's box at most their best, as bits."""
    *points, best = (lanes.load(_SIXTEEN, row, 0) for row in range(4))
    box = [boxes.every(_SIXTEEN, node, side, child) for side in range(6)]
    bound = _bound((box[a], box[a + 3], point, point) for a, point in enumerate(points))
    return (bound <= best).bits()


def _references(
    own: list[_Value], points: _Array, rows: _Array, leaf: Any
) -> Iterator[tuple[_Value, _Value]]:
    """Squared chords of points from each reference of a leaf, and its row for each of them."""
    kind = own[0].ir.type
    for j in range(8):
        there = [points.every(kind, leaf, axis, j) for axis in range(3)]
        yield _square(own, there), rows.every(kind, leaf, j)


def _keep_best(
    lanes: _Array,
    references: Iterable[tuple[_Value, _Value]],
    best: _Value,
    best_row: _Value,
    able: list[_Value] | None = None,
) -> _Value:
    """Have points keep what `closer` prefers of a leaf's references, where they are able to.

    Their best squared chord is the fourth row of the lanes, its row the fifth. Returns the greatest
    of these chords. The leaf's first reference is none of the NaN that pad it.
    """
    near: Any = None
    near_row = best_row
    for j, (square, row) in enumerate(references):
        if near is None:
            near, near_row = able[j].choose(square, float("inf")) if able else square, row
            continue
        # Rows ascend, so "less" leaves ties with the lowest one; NaN pads, and is none.
        nearer = (square < near) & able[j] if able else square < near
        near, near_row = nearer.choose(square, near), nearer.choose(row, near_row)
    better = (near < best) | (near.equals(best) & (near_row < best_row))
    best = better.choose(near, best)
    lanes.store(best, 3, 0)
    lanes.store(better.choose(near_row, best_row), 4, 0)
    return best.extreme("fmax")


@_written(types.float64)
def compare_leaf(builder, points, rows, leaf, lanes):  # type: ignore[no-untyped-def]
    """Compare a leaf's eight references with 16 points, as `_keep_best` says."""
    *own, best, best_row = (lanes.load(_SIXTEEN, row, 0) for row in range(5))
    return _keep_best(lanes, _references(own, points, rows, leaf), best, best_row)


@_written(types.float64)
def compare_in_time(builder, points, rows, times, leaf, lanes):  # type: ignore[no-untyped-def]
    """As `compare_leaf`, of references whose time is in the window of a point.

    The bits of the sixth and the seventh row of the lanes are its least time and its length.
    """
    *own, best, best_row, least, width = (lanes.load(_SIXTEEN, row, 0) for row in range(7))
    least, width = least.as_kind(_SIXTEEN_KEYS), width.as_kind(_SIXTEEN_KEYS)
    able = [(times.every(_SIXTEEN_KEYS, leaf, j) - least).at_most_unsigned(width) for j in range(8)]
    return _keep_best(lanes, _references(own, points, rows, leaf), best, best_row, able)


@_written(types.float64)
def compare_two(builder, points, rows, leaf, lanes, one, more):  # type: ignore[no-untyped-def]
    """As `compare_leaf`, but the fourth row of the lanes is a bound: c (one + more c) of the best.

    The sixth row is the second least squared chord, and the seventh the best one, c.
    """
    *own, _, best_row, second, best = (lanes.load(_SIXTEEN, row, 0) for row in range(7))
    references = _references(own, points, rows, leaf)
    near, near_row = next(references)
    for square, row in references:
        nearer = square < near
        second = nearer.choose(near, square).least(second)
        near, near_row = nearer.choose(square, near), nearer.choose(row, near_row)
    better = (near < best) | (near.equals(best) & (near_row < best_row))
    # A leaf that is looked at again has the best one again.
    others = near_row.differs(best_row)
    second = others.choose(better.choose(best, near).least(second), second)
    best = better.choose(near, best)
    bound = best * (one.every(_SIXTEEN) + more.every(_SIXTEEN) * best)
    lanes.store(bound, 3, 0)
    lanes.store(better.choose(near_row, best_row), 4, 0)
    lanes.store(second, 5, 0)
    lanes.store(best, 6, 0)
    return bound.extreme("fmax")


@_written(types.boolean)
def sort_leaf(builder, points, rows, leaf, lanes, half, own, seen, numbers, first, new):  # type: ignore[no-untyped-def]
    """Sort a leaf's eight references for the eight points of a half, nearest first, into `new`.

    A reference becomes a key. Its number counts from `first`, a multiple of 8, among all that the
    eight points have seen: ``seen`` (2, n, 8) takes its squared chords, and ``numbers`` (2, n) its
    row. ``own`` (16,) is a row for each point that it does not find. Returns whether a reference is
    at most a point's bound from it; if none is, nothing is written.
    """
    lane = half * 8
    *point, worst = (lanes.load(_EIGHT, row, lane) for row in range(4))
    left_out = own.load(_EIGHT, lane)
    keys, squares, within = [], [], []
    for j, (square, row) in enumerate(_references(point, points, rows, leaf)):
        found = (square <= worst) & row.differs(left_out)
        key = square.as_kind(_EIGHT_KEYS) & ~NUMBER | (first | j).every(_EIGHT_KEYS)
        keys.append(found.choose(key, NOTHING))
        squares.append(square)
        within.append(found)
    some = reduce(or_, within).bits().differs(0)
    with builder.if_then(some.ir):
        for j, square in enumerate(squares):
            seen.store(square, half, first | j, 0)
        numbers.store(rows.load(_EIGHT, leaf, 0), half, first)
        _exchange(keys, _SORT)
        for j, key in enumerate(keys):
            new.store(key, j, 0)
    return some


@_written(types.void)
def merge_eight(builder, keys, first, half, new):  # type: ignore[no-untyped-def]
    """Merge the new keys of the eight points of a half into eight entries of their lists.

    What falls out of these is left in `new`, for the eight entries after them. Where there are
    none, the least of it is kept behind the list.
    """
    lane = half * 8
    own = [first + j for j in range(8)]
    behind = keys.length - 1
    is_last = behind <= first + 8

    def fall_out(fallen: list[_Value]) -> None:
        keys.store(reduce(_Value.least, fallen, keys.load(_EIGHT_KEYS, behind, lane)), behind, lane)

    least_new = new.load(_EIGHT_KEYS, 0, 0)
    moves = (least_new < keys.load(_EIGHT_KEYS, own[7], lane)).bits().differs(0)
    with builder.if_else(moves.ir) as (some, none):
        with some:
            # The nearer halves of two sorted rows, one of them reversed, rise and fall once.
            entries = [keys.load(_EIGHT_KEYS, entry, lane) for entry in own]
            entries += [new.load(_EIGHT_KEYS, 7 - j, 0) for j in range(8)]
            _exchange(entries, [(j, 8 + j) for j in range(8)])
            nearer, others = entries[:8], entries[8:]
            _exchange(nearer, _MERGE)
            for entry, key in zip(own, nearer, strict=True):
                keys.store(key, entry, lane)
            with builder.if_else(is_last.ir) as (last, more):
                with last:
                    fall_out(others)
                with more:
                    _exchange(others, _MERGE)
                    for j, key in enumerate(others):
                        new.store(key, j, 0)
        with none, builder.if_then(is_last.ir):
            fall_out([least_new])


@_written(types.float64)
def bound_by_keys(builder, keys, entry, lanes):  # type: ignore[no-untyped-def]
    """Make the greatest chords that an entry's keys can have the bounds; returns the greatest."""
    bound = (keys.load(_SIXTEEN_KEYS, entry, 0) | NUMBER).as_kind(_SIXTEEN)
    lanes.store(bound, 3, 0)
    return bound.extreme("fmax")


@_written(types.int64)
def keys_tied(builder, keys, entry):  # type: ignore[no-untyped-def]
    """Which of 16 points have a key that only its number tells from the next one, as bits."""
    differ = keys.load(_SIXTEEN_KEYS, entry, 0) ^ keys.load(_SIXTEEN_KEYS, entry + 1, 0)
    return (differ & ~NUMBER).equals(0).bits()


def _members(points: _Array, rows: _Array, leaf: Any, lanes: _Array, lane: Any) -> list[_Value]:
    """A leaf's squared chords from a lane, its rows, and which of them are within the bound.

    Rows 4 and 5 of the lanes are a row that is left out and the least that is not.
    """
    *point, bound, own, least = (lanes.every(_EIGHT, row, lane) for row in range(6))
    square = _square(point, [points.load(_EIGHT, leaf, axis, 0) for axis in range(3)])
    row = rows.load(_EIGHT, leaf, 0)
    return [square, row, (square <= bound) & row.differs(own) & (least <= row)]


@_written(types.int64)
def members_matching(builder, points, rows, leaf, lanes, lane, chord2):  # type: ignore[no-untyped-def]
    """Which of a leaf's eight references those are, as bits; ``chord2`` takes all eight chords."""
    square, _, found = _members(points, rows, leaf, lanes, lane)
    chord2.store(square, 0)
    return found.bits()


@_written(types.float64)
def compare_times(builder, points, rows, times, leaf, lanes, windows):  # type: ignore[no-untyped-def]
    """As `compare_leaf`, of what 16 points match by windows as those of `times_within`.

    The sixth row of the lanes is a row that each leaves out.
    """
    *own, best, best_row, left_out = (lanes.load(_SIXTEEN, row, 0) for row in range(6))
    least, greatest, ignores, now = (windows.load(_SIXTEEN_KEYS, row, 0) for row in range(4))
    able = []
    for j in range(8):
        time, row = times.every(_SIXTEEN_KEYS, leaf, j), rows.every(_SIXTEEN, leaf, j)
        is_other = (time ^ now | ignores).differs(0)
        matches = (least <= time) & (time <= greatest) & is_other
        able.append(matches & row.differs(left_out))
    return _keep_best(lanes, _references(own, points, rows, leaf), best, best_row, able)


@_written(types.int64)
def times_within(builder, times, leaf, windows, lane):  # type: ignore[no-untyped-def]
    """Which of a leaf's eight times (n, 8) lie in a lane's window, as bits.

    Rows of ``windows`` (4, 16) are the minimum, the maximum, 0 where the time of the last row does
    not match, else -1, and that time.
    """
    time = times.load(_EIGHT_KEYS, leaf, 0)
    least, greatest, ignores, now = (windows.every(_EIGHT_KEYS, row, lane) for row in range(4))
    is_other = (time ^ now | ignores).differs(0)
    return ((least <= time) & (time <= greatest) & is_other).bits()


@_written(types.int64)
def members_within(builder, points, rows, leaf, lanes, lane, able):  # type: ignore[no-untyped-def]
    """How many of a leaf's references, by the bits of the able ones, are in a lane's bound."""
    *_, found = _members(points, rows, leaf, lanes, lane)
    return (found.bits() & able).ones()


@_written(types.int64)
def pack_members(builder, points, rows, leaf, lanes, lane, able, chord2, row, end):  # type: ignore[no-untyped-def]
    """Write the squared chords and rows of those references from an end on, and move the end.

    Of ``chord2`` and ``row`` eight places are written over, however few they are.
    """
    *values, found = _members(points, rows, leaf, lanes, lane)
    found = found & able.truths(8)
    for value, array in zip(values, (chord2, row), strict=True):
        array.store(value.packed(found), end)
    return end + found.bits().ones()


@_written(types.void)
def rank_32(builder, chord2, row, first, n, at, ranks):  # type: ignore[no-untyped-def]
    """Count for each of 32 places of ``ranks`` how many of n entries come before it.

    Entries begin at `first`, and the 32 at `first + at`; they are in the order of `closer`.
    """
    parts = range(0, 32, 8)
    own = [tuple(array.load(_EIGHT, first + at + j) for array in (chord2, row)) for j in parts]
    sums = [cgutils.alloca_once_value(builder, _EIGHT_KEYS([0] * 8)) for _ in parts]
    with cgutils.for_range(builder, n.ir) as loop:
        entry = first + _Value(builder, loop.index)
        c, r = chord2.every(_EIGHT, entry), row.every(_EIGHT, entry)
        for (own_c, own_r), place in zip(own, sums, strict=True):
            before = (c < own_c) | (c.equals(own_c) & (r < own_r))
            builder.store(builder.add(builder.load(place), before.widened().ir), place)
    for j, place in zip(parts, sums, strict=True):
        ranks.store(_Value(builder, builder.load(place)), at + j)


@_written(types.int64)
def lanes_near(builder, points, leaf, member, lanes, chord2, entry):  # type: ignore[no-untyped-def]
    """Which of 16 points have a leaf's reference within their bound, as bits.

    ``chord2`` (n, 16) takes the squared chords of all points in the line of the entry.
    """
    *own, bound = (lanes.load(_SIXTEEN, row, 0) for row in range(4))
    square = _square(own, [points.every(_SIXTEEN, leaf, axis, member) for axis in range(3)])
    chord2.store(square, entry, 0)
    return (square <= bound).bits()


@_written(types.void)
def bound_cells(builder, corners, near, bounds):  # type: ignore[no-untyped-def]
    """Find the reference whose farthest corner of a cell is nearest, among those of its corners.

    Lanes are the corners of three by three cells, four in a row; a cell is the lane of its first.
    ``corners`` and ``near`` (>= 3, 24) are x, y, z of each, and of the reference nearest to it.
    ``bounds`` (4, 16) takes the squared chords of that reference at the four corners of each cell.
    """

    def points(array: _Array, lane: int) -> list[_Value]:
        return [array.load(_SIXTEEN, axis, lane) for axis in range(3)]

    places = [points(corners, lane) for lane in _CORNERS]
    least, chosen = None, []
    for lane in _CORNERS:
        reference = points(near, lane)
        chords = [_square(place, reference) for place in places]
        most = chords[0].greatest(chords[1]).greatest(chords[2].greatest(chords[3]))
        if least is None:
            least, chosen = most, chords
            continue
        better = most < least
        least = better.choose(most, least)
        chosen = [better.choose(new, old) for new, old in zip(chords, chosen, strict=True)]
    for corner, value in enumerate(chosen):
        bounds.store(value, corner, 0)


@_written(types.int64)
def cells_within(builder, chord2, entry, bounds):  # type: ignore[no-untyped-def]
    """Which of three by three cells have a corner within its bound, as bits of 16 lanes.

    ``chord2`` (n, 16) are squared chords of the corners, of which the line after the entry's is
    read, too.
    """
    within = [
        chord2.load(_SIXTEEN, entry, lane) <= bounds.load(_SIXTEEN, corner, 0)
        for corner, lane in enumerate(_CORNERS)
    ]
    return reduce(or_, within).bits() & _NINE


@_written(types.Tuple((types.float64, types.int64)))
def nearest_of_eight(builder, vectors, table, cell, x, y, z):  # type: ignore[no-untyped-def]
    """Squared chord and row of what is nearest to a point, the lowest row of equally near ones.

    ``table`` (m, 8), int32, are the rows of a cell's references, of which one may come more than
    once; ``vectors`` (n, 4) begin with x, y, z.
    """
    parts = [vectors.load(_FOUR, table.one(cell, j).widened(), 0) for j in range(8)]
    square = _square((value.every(_EIGHT) for value in (x, y, z)), _columns(parts))
    least = square.extreme("fmin")
    same = square.equals(least.every(_EIGHT))
    rows = same.choose(table.load(_EIGHT_ROWS, cell, 0), 2**31 - 1)
    return least, rows.extreme("smin").widened()


@intrinsic
def borrowed(typing_context, given):  # type: ignore[no-untyped-def]
    """The same array, or tuple of them, without its owner, whom the caller holds on to.

    Numba counts who holds an array whenever a view of it is made, and threads that count at once
    wait for each other: that took from two fifths of a search to several times as long as it.
    """
    return given(given), _without_owners


def _without_owners(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return _borrowed(context, builder, signature.return_type, arguments[0])


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        members = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
        made = [_borrowed(context, builder, *member) for member in members]
        return context.make_tuple(builder, kind, made)
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    array.parent = cgutils.get_null_value(array.parent.type)
    return array._getvalue()


@_written(types.int64)
def lowest_bit(builder, bits):  # type: ignore[no-untyped-def]
    """Place of the lowest bit that is set; there is one."""
    return _Value(builder, builder.cttz(bits.ir, ir.Constant(ir.IntType(1), 1)))


@_written(types.void)
def load_lanes(builder, points, places, lanes, boxes, box):  # type: ignore[no-untyped-def]
    """Write x, y and z of 16 of the points (n, 4) into the lanes, and the box around them.

    It becomes a line of ``boxes`` (m, 8), which ends in two more numbers.
    """
    parts = [points.load(_FOUR, places.one(lane), 0) for lane in range(16)]

    def extreme(choose: Callable[[_Value, _Value], _Value]) -> _Value:
        least = parts
        while len(least) > 1:
            least = [choose(*pair) for pair in zip(least[::2], least[1::2], strict=True)]
        return least[0]

    both = extreme(_Value.least).joined(extreme(_Value.greatest), 0, 1, 2, 4, 5, 6, 3, 7)
    boxes.store(both, box, 0)
    for axis, row in enumerate(_columns(parts)):
        lanes.store(row, axis, 0)


@_written(types.float64)
def greatest_of_16(builder, lanes, row):  # type: ignore[no-untyped-def]
    """Greatest value of a row of 16, none of them NaN."""
    return lanes.load(_SIXTEEN, row, 0).extreme("fmax")


@_written(types.void)
def prefetch_for_write(builder, array, i, j):  # type: ignore[no-untyped-def]
    """Ask for the cache line of ``array[i, j]``, which is soon to be written."""
    array.prefetch(_WRITE, i, j)


@_written(types.void)
def prefetch_one(builder, array, i):  # type: ignore[no-untyped-def]
    """Ask for the cache line of ``array[i]``, which is soon to be read."""
    array.prefetch(_READ, i)


@_written(types.void)
def prefetch_for_read(builder, array, i, j):  # type: ignore[no-untyped-def]
    """Ask for the cache line of ``array[i, j]``, which other cores may have, too."""
    array.prefetch(_READ, i, j)


@_written(types.void)
def prefetch_leaf(builder, points, rows, leaf):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of a leaf, which is soon to be read."""
    for axis in range(3):
        points.prefetch(_READ, leaf, axis, 0)
    rows.prefetch(_READ, leaf, 0)


@_written(types.void)
def prefetch_node(builder, boxes, node):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of a node's boxes, which are soon to be read."""
    for side in range(6):
        boxes.prefetch(_READ, node, side, 0)
