"""Instructions of a CPU that loops in Python do not reach: whole vectors of boxes, and prefetch.

LLVM vectorises a loop only behind checks that its arrays do not overlap. For eight boxes those cost
more than the work, so it is written here as vectors from the start; a machine without such wide
ones gets several narrower instructions. Squared chords and bounds are made by the very steps of
`kernels.distance.squared_chord`, and the nearest one is what `kernels.distance.closer` says.
"""

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
_KEYS = ir.VectorType(_LONG, 8)
_PREFETCH = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
_REDUCE = ir.FunctionType(_DOUBLE, [_SIXTEEN])
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


def _address(context: Any, builder: Any, array_type: Any, array: Any, *indices: Any) -> Any:
    view = context.make_array(array_type)(context, builder, array)
    indices = tuple(_LONG(i) if isinstance(i, int) else i for i in indices)
    return cgutils.get_item_pointer(context, builder, array_type, view, indices, wraparound=False)


def _load(builder: Any, address: Any, vector: Any) -> Any:
    return builder.load(builder.bitcast(address, vector.as_pointer()), align=8)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=8)


def _call(builder: Any, name: str, kind: Any, arguments: Any, flags: tuple[str, ...] = ()) -> Any:
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments, fastmath=flags)


def _prefetch(builder: Any, address: Any, use: int) -> None:
    address = builder.bitcast(address, _BYTE.as_pointer())
    _call(builder, "llvm.prefetch.p0", _PREFETCH, [address, *map(_INT, (use, _KEEP, _DATA))])


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT(0))
    zeros = ir.Constant(ir.VectorType(_INT, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, one, zeros)


def _max(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _bound(builder: Any, sides: Any, vector: Any) -> Any:
    """Least squared chord of boxes: (least, greatest, other least, other greatest) an axis."""
    zero = ir.Constant(vector, [0.0] * vector.count)
    square = None
    for least, greatest, other_least, other_greatest in sides:
        above = builder.fsub(least, other_greatest)
        below = builder.fsub(other_least, greatest)
        gap = _max(builder, _max(builder, above, below), zero)
        product = builder.fmul(gap, gap)
        square = product if square is None else builder.fadd(square, product)
    return square


def _square(builder: Any, own: Any, there: Any) -> Any:
    """Squared chords of points, given by their three coordinates."""
    square = None
    for a, b in zip(own, there, strict=True):
        apart = builder.fsub(a, b)
        product = builder.fmul(apart, apart)
        square = product if square is None else builder.fadd(square, product)
    return square


def _comes_before(builder: Any, new: Any, other: Any) -> Any:
    """Where one (squared chord, row) comes before another in the order of `closer`."""
    nearer = builder.fcmp_ordered("<", new[0], other[0])
    tied = builder.fcmp_ordered("==", new[0], other[0])
    lower = builder.fcmp_ordered("<", new[1], other[1])
    return builder.or_(nearer, builder.and_(tied, lower))


def _ordered(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    before = builder.icmp_signed("<", a, b)
    return builder.select(before, a, b), builder.select(before, b, a)


def _exchange(builder: Any, keys: list[Any], pairs: list[tuple[int, int]]) -> None:
    """Put the lesser of two keys, of eight points each, before the other."""
    for i, j in pairs:
        keys[i], keys[j] = _ordered(builder, keys[i], keys[j])


def _all_of(key: int) -> Any:
    return ir.Constant(_KEYS, [key] * 8)


def _joined(builder: Any, a: Any, b: Any, *chosen: int) -> Any:
    kind = ir.VectorType(_INT, len(chosen))
    return builder.shuffle_vector(a, b, ir.Constant(kind, list(chosen)))


def _columns(builder: Any, points: list[Any]) -> list[Any]:
    """Vectors of all x, all y and all z of points, of which each is a vector of four."""
    columns = []
    for axis in range(3):
        pairs = zip(points[::2], points[1::2], strict=True)
        parts = [_joined(builder, a, b, axis, 4 + axis) for a, b in pairs]
        while len(parts) > 1:
            both = range(2 * parts[0].type.count)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [_joined(builder, a, b, *both) for a, b in pairs]
        columns.append(parts[0])
    return columns


def _bits(builder: Any, mask: Any, count: int) -> Any:
    return builder.zext(builder.bitcast(mask, ir.IntType(count)), _LONG)


@intrinsic
def children_within(typing_context, boxes, node, box, worst):  # type: ignore[no-untyped-def]
    """Which of eight boxes may hold something at most `worst` from a box, as bits.

    Parameters
    ----------
    boxes : float64 array, shape (n, 6, 8)
        Least x, y, z and greatest x, y, z of eight boxes a row.
    node : int
        Which eight.
    box : float64 array, shape (6,)
        The box that is compared with them.
    worst : float
        A squared chord.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        boxes_type, _, box_type, _ = signature.args
        boxes, node, box, worst = arguments
        eight = [
            _load(builder, _address(context, builder, boxes_type, boxes, node, side, 0), _EIGHT)
            for side in range(6)
        ]
        own = [
            _splat(builder, builder.load(_address(context, builder, box_type, box, side)), _EIGHT)
            for side in range(6)
        ]
        sides = [(eight[a], eight[a + 3], own[a], own[a + 3]) for a in range(3)]
        bound = _bound(builder, sides, _EIGHT)
        within = builder.fcmp_ordered("<=", bound, _splat(builder, worst, _EIGHT))
        return _bits(builder, within, 8)

    return types.int64(boxes, types.intp, box, types.float64), generate


@intrinsic
def lanes_within(typing_context, lanes, boxes, node, child):  # type: ignore[no-untyped-def]
    """Which of 16 points may find something in a box at most their best, as bits.

    Parameters
    ----------
    lanes : float64 array, shape (>= 4, 16)
        Rows x, y, z and the best squared chord of each point.
    boxes : float64 array, shape (n, 6, 8)
        Least x, y, z and greatest x, y, z of eight boxes a row.
    node, child : int
        Which eight, and which of them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes_type, boxes_type, _, _ = signature.args
        lanes, boxes, node, child = arguments
        x, y, z, best = (
            _load(builder, _address(context, builder, lanes_type, lanes, row, 0), _SIXTEEN)
            for row in range(4)
        )
        box = [
            _splat(
                builder,
                builder.load(_address(context, builder, boxes_type, boxes, node, side, child)),
                _SIXTEEN,
            )
            for side in range(6)
        ]
        sides = [(box[a], box[a + 3], point, point) for a, point in enumerate((x, y, z))]
        bound = _bound(builder, sides, _SIXTEEN)
        return _bits(builder, builder.fcmp_ordered("<=", bound, best), 16)

    return types.int64(lanes, boxes, types.intp, types.intp), generate


@intrinsic
def compare_leaf(typing_context, points, rows, leaf, lanes):  # type: ignore[no-untyped-def]
    """Compare a leaf's eight references with 16 points, which keep what `closer` prefers.

    Returns the greatest of their best squared chords.

    Parameters
    ----------
    points : float64 array, shape (n_leaves, 3, 8)
        x, y and z of the references of each leaf; the first is none of the NaN that pad it.
    rows : float64 array, shape (n_leaves, 8)
        Their rows, ascending.
    leaf : int
        Which leaf.
    lanes : float64 array, shape (5, 16)
        Rows x, y, z, best squared chord and its row of each point.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        points_type, rows_type, _, lanes_type = signature.args
        points, rows, leaf, lanes = arguments
        places = [_address(context, builder, lanes_type, lanes, row, 0) for row in range(5)]
        *own, best, best_row = (_load(builder, place, _SIXTEEN) for place in places)

        def every(array_type: Any, array: Any, *indices: Any) -> Any:
            address = _address(context, builder, array_type, array, leaf, *indices)
            return _splat(builder, builder.load(address), _SIXTEEN)

        def reference(j: int) -> tuple[Any, Any]:
            there = [every(points_type, points, axis, j) for axis in range(3)]
            return _square(builder, own, there), every(rows_type, rows, j)

        near, near_row = reference(0)
        for j in range(1, 8):
            # Rows ascend, so "less" leaves ties with the lowest one.
            square, row = reference(j)
            nearer = builder.fcmp_ordered("<", square, near)
            near = builder.select(nearer, square, near)
            near_row = builder.select(nearer, row, near_row)
        better = _comes_before(builder, (near, near_row), (best, best_row))
        best = builder.select(better, near, best)
        _store(builder, best, places[3])
        _store(builder, builder.select(better, near_row, best_row), places[4])
        return _call(builder, "llvm.vector.reduce.fmax.v16f64", _REDUCE, [best], ("nnan",))

    return types.float64(points, rows, types.intp, lanes), generate


@intrinsic
def sort_leaf(typing_context, points, rows, leaf, lanes, half, own, seen, numbers, first, new):  # type: ignore[no-untyped-def]
    """Sort a leaf's eight references for each of eight points, nearest first.

    A reference becomes a key: its squared chord, whose last `NUMBER_BITS` bits are its number among
    all that the eight points have seen. Returns whether one of them is at most a point's bound from
    it; if none is, nothing is written.

    Parameters
    ----------
    points : float64 array, shape (n_leaves, 3, 8)
        x, y and z of the references of each leaf; NaN is as far as nothing is.
    rows : float64 array, shape (n_leaves, 8)
        Their rows.
    leaf : int
        Which leaf.
    lanes : float64 array, shape (4, 16)
        Rows x, y, z and the greatest squared chord of each point.
    half : int
        Which eight of the points: 0 or 1.
    own : float64 array, shape (16,)
        A row for each point that it does not find.
    seen : float64 array, shape (2, n, 8)
        Takes the squared chords of the eight points of each half, by number.
    numbers : float64 array, shape (2, n)
        Takes the rows, by number.
    first : int
        Number of the first of the eight references, a multiple of 8.
    new : int64 array, shape (8, 8)
        Takes eight keys of each point.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        points, rows, leaf, lanes, half, own, seen, numbers, first, new = arguments
        lane = builder.mul(half, _LONG(8))

        def line(array_type: Any, array: Any, *indices: Any) -> Any:
            return _load(builder, _address(context, builder, array_type, array, *indices), _EIGHT)

        def every(array_type: Any, array: Any, *indices: Any) -> Any:
            address = _address(context, builder, array_type, array, leaf, *indices)
            return _splat(builder, builder.load(address), _EIGHT)

        *point, worst = (line(kinds[3], lanes, row, lane) for row in range(4))
        left_out = line(kinds[5], own, lane)
        keys, squares = [], []
        within = None
        for j in range(8):
            there = [every(kinds[0], points, axis, j) for axis in range(3)]
            square, row = _square(builder, point, there), every(kinds[1], rows, j)
            found = builder.fcmp_ordered("<=", square, worst)
            found = builder.and_(found, builder.fcmp_ordered("!=", row, left_out))
            within = found if within is None else builder.or_(within, found)
            number = _splat(builder, builder.or_(first, _LONG(j)), _KEYS)
            key = builder.and_(builder.bitcast(square, _KEYS), _all_of(~NUMBER))
            squares.append(square)
            keys.append(builder.select(found, builder.or_(key, number), _all_of(NOTHING)))
        some = builder.icmp_unsigned("!=", _bits(builder, within, 8), _LONG(0))
        with builder.if_then(some):
            for j, square in enumerate(squares):
                number = builder.or_(first, _LONG(j))
                place = _address(context, builder, kinds[6], seen, half, number, 0)
                _store(builder, square, place)
            row = _load(builder, _address(context, builder, kinds[1], rows, leaf, 0), _EIGHT)
            _store(builder, row, _address(context, builder, kinds[7], numbers, half, first))
            _exchange(builder, keys, _SORT)
            for j, key in enumerate(keys):
                _store(builder, key, _address(context, builder, kinds[9], new, j, 0))
        return some

    kinds = (points, rows, types.intp, lanes, types.intp, own, seen, numbers, types.intp, new)
    return types.boolean(*kinds), generate


@intrinsic
def merge_eight(typing_context, keys, first, half, new):  # type: ignore[no-untyped-def]
    """Merge eight sorted keys of each of eight points into eight entries of their lists.

    What falls out of these is left for the eight entries after them; where there are none, the
    least of it is kept behind the list.

    Parameters
    ----------
    keys : int64 array, shape (m + 1, 16)
        A sorted list in each column, and the least key that fell out of it.
    first : int
        The first of the eight entries.
    half : int
        Which eight of the points: 0 or 1.
    new : int64 array, shape (8, 8)
        Keys that are merged; takes those that fell out.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys_type, _, _, new_type = signature.args
        keys, first, half, new = arguments
        lane = builder.mul(half, _LONG(8))

        def place(j: Any) -> Any:
            return _address(context, builder, keys_type, keys, j, lane)

        def new_place(j: int) -> Any:
            return _address(context, builder, new_type, new, j, 0)

        own = [place(builder.add(first, _LONG(j))) for j in range(8)]
        length = context.make_array(keys_type)(context, builder, keys).shape
        behind = builder.sub(builder.extract_value(length, 0), _LONG(1))
        is_last = builder.icmp_signed(">=", builder.add(first, _LONG(8)), behind)

        def fall_out(fallen: list[Any]) -> None:
            least = _load(builder, place(behind), _KEYS)
            for key in fallen:
                least = _ordered(builder, least, key)[0]
            _store(builder, least, place(behind))

        least_new = _load(builder, new_place(0), _KEYS)
        before = builder.icmp_signed("<", least_new, _load(builder, own[7], _KEYS))
        moves = builder.icmp_unsigned("!=", _bits(builder, before, 8), _LONG(0))
        with builder.if_else(moves) as (some, none):
            with some:
                # The nearer halves of two sorted rows, one of them reversed, rise and fall once.
                entries = [_load(builder, address, _KEYS) for address in own]
                entries += [_load(builder, new_place(7 - j), _KEYS) for j in range(8)]
                _exchange(builder, entries, [(j, 8 + j) for j in range(8)])
                nearer, others = entries[:8], entries[8:]
                _exchange(builder, nearer, _MERGE)
                for address, key in zip(own, nearer, strict=True):
                    _store(builder, key, address)
                with builder.if_else(is_last) as (last, more):
                    with last:
                        fall_out(others)
                    with more:
                        _exchange(builder, others, _MERGE)
                        for j, key in enumerate(others):
                            _store(builder, key, new_place(j))
            with none, builder.if_then(is_last):
                fall_out([least_new])
        return context.get_dummy_value()

    return types.void(keys, types.intp, types.intp, new), generate


@intrinsic
def bound_by_keys(typing_context, keys, entry, lanes):  # type: ignore[no-untyped-def]
    """Write the greatest squared chord that a key of each of 16 points can have; returns the most.

    Parameters
    ----------
    keys : int64 array, shape (m, 16)
        Keys as `sort_leaf` makes them.
    entry : int
        Which line of them.
    lanes : float64 array, shape (4, 16)
        Takes the squared chords in its last row.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys_type, _, lanes_type = signature.args
        keys, entry, lanes = arguments
        kind = ir.VectorType(_LONG, 16)
        key = _load(builder, _address(context, builder, keys_type, keys, entry, 0), kind)
        bound = builder.or_(key, ir.Constant(kind, [NUMBER] * 16))
        bound = builder.bitcast(bound, _SIXTEEN)
        _store(builder, bound, _address(context, builder, lanes_type, lanes, 3, 0))
        return _call(builder, "llvm.vector.reduce.fmax.v16f64", _REDUCE, [bound], ("nnan",))

    return types.float64(keys, types.intp, lanes), generate


@intrinsic
def keys_tied(typing_context, keys, entry):  # type: ignore[no-untyped-def]
    """Which of 16 points have a key that only its number tells from the next one, as bits.

    Parameters
    ----------
    keys : int64 array, shape (m, 16)
        Keys as `sort_leaf` makes them.
    entry : int
        Which line of them; there is one after it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys, entry = arguments
        kind = ir.VectorType(_LONG, 16)
        lines = (entry, builder.add(entry, _LONG(1)))
        keys_type = signature.args[0]
        places = (_address(context, builder, keys_type, keys, line, 0) for line in lines)
        differ = builder.xor(*(_load(builder, place, kind) for place in places))
        tied = builder.icmp_unsigned("<=", differ, ir.Constant(kind, [NUMBER] * 16))
        return _bits(builder, tied, 16)

    return types.int64(keys, types.intp), generate


@intrinsic
def lanes_near(typing_context, points, leaf, member, lanes, chord2, entry):  # type: ignore[no-untyped-def]
    """Which of 16 points have a leaf's reference within their bound, as bits.

    Parameters
    ----------
    points : float64 array, shape (n_leaves, 3, 8)
        x, y and z of the references of each leaf; NaN is near to nothing.
    leaf, member : int
        Which leaf, and which of its references.
    lanes : float64 array, shape (4, >= 16)
        Rows x, y, z and the greatest squared chord of each point.
    chord2 : float64 array, shape (n, 16)
        Takes the squared chords of all points.
    entry : int
        In which line.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        points_type, _, _, lanes_type, chord2_type, _ = signature.args
        points, leaf, member, lanes, chord2, entry = arguments
        *own, bound = (
            _load(builder, _address(context, builder, lanes_type, lanes, row, 0), _SIXTEEN)
            for row in range(4)
        )
        places = [
            _address(context, builder, points_type, points, leaf, axis, member) for axis in range(3)
        ]
        there = [_splat(builder, builder.load(place), _SIXTEEN) for place in places]
        square = _square(builder, own, there)
        _store(builder, square, _address(context, builder, chord2_type, chord2, entry, 0))
        return _bits(builder, builder.fcmp_ordered("<=", square, bound), 16)

    kinds = (points, types.intp, types.intp, lanes, chord2, types.intp)
    return types.int64(*kinds), generate


@intrinsic
def bound_cells(typing_context, corners, near, bounds):  # type: ignore[no-untyped-def]
    """Find the reference whose farthest corner of a cell is nearest, among those of its corners.

    Lanes are the corners of three by three cells, four in a row; a cell is the lane of its first.

    Parameters
    ----------
    corners, near : float64 array, shape (>= 3, 24)
        Rows x, y, z of each corner, and of the reference nearest to it.
    bounds : float64 array, shape (4, 16)
        Takes the squared chords of that reference at the four corners of each cell.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        corners_type, near_type, bounds_type = signature.args
        corners, near, bounds = arguments

        def points(kind: Any, array: Any, lane: int) -> list[Any]:
            rows = (_address(context, builder, kind, array, axis, lane) for axis in range(3))
            return [_load(builder, row, _SIXTEEN) for row in rows]

        places = [points(corners_type, corners, lane) for lane in _CORNERS]
        least, chosen = None, []
        for lane in _CORNERS:
            reference = points(near_type, near, lane)
            chords = [_square(builder, place, reference) for place in places]
            most = _max(builder, _max(builder, *chords[:2]), _max(builder, *chords[2:]))
            if least is None:
                least, chosen = most, chords
                continue
            better = builder.fcmp_ordered("<", most, least)
            least = builder.select(better, most, least)
            pairs = zip(chords, chosen, strict=True)
            chosen = [builder.select(better, new, old) for new, old in pairs]
        for corner, value in enumerate(chosen):
            _store(builder, value, _address(context, builder, bounds_type, bounds, corner, 0))
        return context.get_dummy_value()

    return types.void(corners, near, bounds), generate


@intrinsic
def cells_within(typing_context, chord2, entry, bounds):  # type: ignore[no-untyped-def]
    """Which of three by three cells have a corner within its bound, as bits of 16 lanes.

    Parameters
    ----------
    chord2 : float64 array, shape (n, 16)
        Squared chords of the corners from something, a line each; the line after it is read, too.
    entry : int
        Which line.
    bounds : float64 array, shape (4, 16)
        Greatest squared chords of each cell's corners.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        chord2_type, _, bounds_type = signature.args
        chord2, entry, bounds = arguments
        within = None
        for corner, lane in enumerate(_CORNERS):
            own = _address(context, builder, chord2_type, chord2, entry, lane)
            bound = _address(context, builder, bounds_type, bounds, corner, 0)
            sides = (_load(builder, place, _SIXTEEN) for place in (own, bound))
            here = builder.fcmp_ordered("<=", *sides)
            within = here if within is None else builder.or_(within, here)
        return builder.and_(_bits(builder, within, 16), _LONG(_NINE))

    return types.int64(chord2, types.intp, bounds), generate


@intrinsic
def nearest_of_eight(typing_context, vectors, table, cell, x, y, z):  # type: ignore[no-untyped-def]
    """Squared chord and row of what is nearest to a point among eight references.

    Of equally near ones it is the lowest row.

    Parameters
    ----------
    vectors : float64 array, shape (n, 4)
        x, y, z of references, and anything.
    table : int32 array, shape (m, 8)
        Rows of references, not negative; one may come more than once.
    cell : int
        Which eight.
    x, y, z : float
        The point.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors_type, table_type, *_ = signature.args
        vectors, table, cell, *point = arguments
        first = _address(context, builder, table_type, table, cell, 0)
        parts = []
        for j in range(8):
            row = builder.zext(builder.load(builder.gep(first, [_INT(j)])), _LONG)
            place = _address(context, builder, vectors_type, vectors, row, 0)
            parts.append(_load(builder, place, _FOUR))
        there = _columns(builder, parts)
        square = _square(builder, [_splat(builder, value, _EIGHT) for value in point], there)
        kind = ir.FunctionType(_DOUBLE, [_EIGHT])
        least = _call(builder, "llvm.vector.reduce.fmin.v8f64", kind, [square], ("nnan",))
        same = builder.fcmp_ordered("==", square, _splat(builder, least, _EIGHT))
        eight = ir.VectorType(_INT, 8)
        rows = _load(builder, first, eight)
        rows = builder.select(same, rows, ir.Constant(eight, [2**31 - 1] * 8))
        kind = ir.FunctionType(_INT, [eight])
        row = _call(builder, "llvm.vector.reduce.smin.v8i32", kind, [rows])
        answer = [least, builder.zext(row, _LONG)]
        return context.make_tuple(builder, signature.return_type, answer)

    pair = types.Tuple((types.float64, types.int64))
    kinds = (vectors, table, types.intp, types.float64, types.float64, types.float64)
    return pair(*kinds), generate


@intrinsic
def lowest_bit(typing_context, bits):  # type: ignore[no-untyped-def]
    """Place of the lowest bit that is set; there is one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def load_lanes(typing_context, points, places, lanes, boxes, box):  # type: ignore[no-untyped-def]
    """Write x, y and z of 16 points into the lanes, and the box around them.

    Parameters
    ----------
    points : float64 array, shape (n, 4)
        x, y, z and anything.
    places : int64 array, shape (16,)
        Which points.
    lanes : float64 array, shape (>= 3, 16)
        Takes rows x, y, z.
    boxes : float64 array, shape (m, 8)
        Takes least x, y, z, greatest x, y, z and two more numbers.
    box : int
        In which line of the boxes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        points_type, places_type, lanes_type, boxes_type, _ = signature.args
        points, places, lanes, boxes, box = arguments
        parts = []
        for lane in range(16):
            place = builder.load(_address(context, builder, places_type, places, lane))
            address = _address(context, builder, points_type, points, place, 0)
            parts.append(_load(builder, address, _FOUR))

        def extreme(compare: str) -> Any:
            least = parts
            while len(least) > 1:
                pairs = zip(least[::2], least[1::2], strict=True)
                least = [
                    builder.select(builder.fcmp_ordered(compare, a, b), a, b) for a, b in pairs
                ]
            return least[0]

        around = _joined(builder, extreme("<"), extreme(">"), 0, 1, 2, 4, 5, 6, 3, 7)
        _store(builder, around, _address(context, builder, boxes_type, boxes, box, 0))
        for axis, row in enumerate(_columns(builder, parts)):
            _store(builder, row, _address(context, builder, lanes_type, lanes, axis, 0))
        return context.get_dummy_value()

    return types.void(points, places, lanes, boxes, types.intp), generate


@intrinsic
def greatest_of_16(typing_context, lanes, row):  # type: ignore[no-untyped-def]
    """Greatest value of a row of 16, none of them NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments, 0)
        values = [_load(builder, address, _SIXTEEN)]
        return _call(builder, "llvm.vector.reduce.fmax.v16f64", _REDUCE, values, ("nnan",))

    return types.float64(lanes, types.intp), generate


@intrinsic
def prefetch_for_write(typing_context, array, i, j):  # type: ignore[no-untyped-def]
    """Ask for the cache line of ``array[i, j]``, which is soon to be written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        _prefetch(builder, address, _WRITE)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@intrinsic
def prefetch_for_read(typing_context, array, i, j):  # type: ignore[no-untyped-def]
    """Ask for the cache line of ``array[i, j]``, which other cores may have, too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        _prefetch(builder, address, _READ)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@intrinsic
def prefetch_leaf(typing_context, points, rows, leaf):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of a leaf, which is soon to be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        points, rows, leaf = arguments
        for axis in range(3):
            line = _address(context, builder, signature.args[0], points, leaf, axis, 0)
            _prefetch(builder, line, _READ)
        _prefetch(builder, _address(context, builder, signature.args[1], rows, leaf, 0), _READ)
        return context.get_dummy_value()

    return types.void(points, rows, types.intp), generate


@intrinsic
def prefetch_node(typing_context, boxes, node):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of a node's boxes, which are soon to be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for side in range(6):
            line = _address(context, builder, signature.args[0], *arguments, side, 0)
            _prefetch(builder, line, _READ)
        return context.get_dummy_value()

    return types.void(boxes, types.intp), generate
