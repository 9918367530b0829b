"""What an index of lines and polygons is made of: trees of boxes around them, and what they hold.

Rows of arcs
------------
A shape is a row of references: some arcs, which a line is made of or which bound a polygon. A point
is an arc of no length. Answers are made of whole arcs. Boxes are around *stretches*: up to eight
arcs that follow each other, or a part of a long one. They have room for the bulge of the arcs and
for `arcs.MARGIN`. A box without that margin is at most as far as the true nearest point of what it
holds. The margin is more than the root of a computed squared chord and of a computed bound can be
off together, so a box whose bound is beyond the worst best holds nothing that could win or tie.

What a polygon holds
--------------------
A point is in a polygon if the meridian from it to the south pole meets an odd number of its edges,
or an even one where the polygon `holds_south`. Edges are its arcs, or straight lines in degrees,
which the arcs follow: then the polygon holds what it holds in the plane. An edge meets the
meridians from its western end up to, not including, its eastern end, by longitudes that are
compared, and never computed with. A point whose latitude is beyond those of an edge is above or
below it. For the others a sign says so: that of `arcs.above` can only be wrong of a point that is
on the arc, whose distance is 0 anyway; where that of a straight edge may be wrong, the point is on
the edge. Edges are found by bins of longitudes, so that a country of many takes little more than a
building. `areas` is a tree of the boxes around what polygons hold.
"""

import math

import numpy as np
from numba import njit

from georesolve.kernels.arcs import ARC, MARGIN, above, put_arc
from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.boxes_cpu import FAR, WIDTH, fill_nodes, levels_over
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.order_cpu import ROW, scratch, sort
from georesolve.kernels.passes import check_passes
from georesolve.kernels.shapes import BoxTree, Polygons, Shapes

_CHAIN = 8
"""Arcs of a stretch."""
_LONGEST = 0.25
"""Radians of a stretch."""
_FEW = 16
"""Arcs of a polygon that are looked at without bins."""
_MOST_IN_BINS = 3
"""How often an edge stands in the bins of a polygon, on average, besides once."""
_SLACK_DEG = 1e-9
"""More than what longitudes are rounded by where bins begin and end."""


def build(shapes: Shapes) -> tuple[np.ndarray, BoxTree, BoxTree, Polygons]:
    """The arcs of shapes, the trees of their stretches and areas, and what says what is in."""
    arcs = _arcs(shapes)
    items, boxes = _stretches(arcs, shapes.row, shapes.polygon)
    stretches = _tree(items, boxes)
    numbers = np.arange(shapes.polygon_row.size + 1)
    polygon, lat_deg, lon_deg, straight = _boundaries(shapes, arcs)
    first, span, starts, edge = _bins(_ranges(polygon, numbers.size - 1), lon_deg)
    polygons = Polygons(
        shapes.polygon_row, shapes.holds_south, first, span, starts, edge, straight,
        lon_deg, lat_deg,
    )  # fmt: skip
    boxes = np.empty((numbers.size - 1, 6))
    ranges = _ranges(shapes.polygon, numbers.size - 1)
    _fill_areas(ranges, arcs, polygons, shapes.room.max(initial=0.0), boxes)
    return arcs, stretches, _tree(np.stack([numbers[:-1], numbers[1:]], axis=1), boxes), polygons


def _boundaries(shapes: Shapes, arcs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Polygon, latitudes and longitudes of boundaries, and the number of the first straight one.

    Polygons of one set may be bounded by arcs, others by straight edges in degrees.
    """
    is_straight = np.zeros(shapes.polygon_row.size, bool)
    is_straight[shapes.edge_polygon] = True
    of_edges = shapes.edge_polygon, shapes.edge_lat_deg, shapes.edge_lon_deg
    if shapes.edge_polygon.size and is_straight.all():
        return *of_edges, 0
    of_arcs = shapes.polygon, _bands(shapes, arcs), shapes.lon_deg
    if not shapes.edge_polygon.size:
        return *of_arcs, shapes.row.size
    bounding = np.where(np.append(is_straight, False)[shapes.polygon], -1, shapes.polygon)
    polygon, lat_deg, lon_deg = map(
        np.concatenate, zip((bounding, *of_arcs[1:]), of_edges, strict=True)
    )
    return polygon, lat_deg, lon_deg, shapes.row.size


@njit(inline="always")
def eastwards(lon, west):  # type: ignore[no-untyped-def]
    """Degrees from a longitude eastwards; farther east is never fewer."""
    apart = total(lon, -west)
    return apart if apart >= 0.0 else total(apart, 360.0)


@njit(inline="always")
def holds(polygons, arcs, polygon, x, y, z, lat, lon):  # type: ignore[no-untyped-def]
    """Whether a polygon holds a point that is on none of its arcs; lon from -180 up to 180."""
    inside = polygons.holds_south[polygon]
    apart = eastwards(lon, polygons.span[polygon, 0])
    if apart > polygons.span[polygon, 1]:
        return inside
    first = polygons.first[polygon]
    number = polygons.first[polygon + 1] - first
    # Of no bins none is looked at.
    bin = first + min(int(product(apart, polygons.span[polygon, 2])), number - 1)
    for at in range(polygons.starts[bin], polygons.starts[bin + 1]):
        edge = polygons.edge[at]
        ends, lats = polygons.lon_deg[edge], polygons.lat_deg[edge]
        if edge >= polygons.straight:
            side = _side(ends[0], ends[1], lats[0], lats[1], lat, lon)
            if side == 0:
                return True
            inside ^= side > 0
            continue
        west, east = ends[0], ends[1]
        meets = (west <= lon) & (lon < east) if west <= east else (west <= lon) | (lon < east)
        if meets and lat >= lats[0]:
            inside ^= lat > lats[1] or above(x, y, z, arcs[edge])
    return inside


@njit(inline="always")
def _side(west, east, lat_west, lat_east, lat, lon):  # type: ignore[no-untyped-def]
    """1 above a straight edge, 0 on it, -1 if the meridian to the south pole does not meet it."""
    # The second is the same 360 degrees on: these differences of longitudes are exact.
    here = (west <= lon) & (lon < east)
    turned = total(west, -360.0)
    there = (east > 180.0) & (lon < total(east, -360.0)) & ((west < 180.0) | (turned <= lon))
    if not (here | there) or lat < min(lat_west, lat_east):
        return -1
    if lat > max(lat_west, lat_east):
        return 1
    apart = total(lon if here else total(lon, 360.0), -west)
    left = product(total(east, -west), total(lat, -lat_west))
    right = product(total(lat_east, -lat_west), apart)
    height = total(left, -right)
    # Six roundings, and that of a longitude beyond 180.
    lost = total(
        product(2.0**-50, total(abs(left), abs(right))),
        product(1e-13, abs(total(lat_east, -lat_west))),
    )
    return 1 if height > lost else (0 if height >= -lost else -1)


def _arcs(shapes: Shapes) -> np.ndarray:
    degrees = shapes.lat_deg, shapes.lon_deg
    ends = [unit_vectors(*(one[:, end].copy() for one in degrees)) for end in (0, 1)]
    arcs = np.empty((shapes.row.size, ARC))
    _put_arcs(*ends, arcs)
    return arcs


@njit(cache=True, nogil=True, error_model="numpy")
def _put_arcs(a, b, arcs):  # type: ignore[no-untyped-def]
    for i in range(arcs.shape[0]):
        put_arc(arcs[i], a[i, 0], a[i, 1], a[i, 2], b[i, 0], b[i, 1], b[i, 2])


def _bands(shapes: Shapes, arcs: np.ndarray) -> np.ndarray:
    """Between which latitudes arcs lie: those of their ends, unless they bulge beyond them."""
    bands = np.stack([shapes.lat_deg.min(axis=1), shapes.lat_deg.max(axis=1)], axis=1)
    normal = arcs[:, 6:9]
    # The northernmost point of the great circle, and whether it is between the ends.
    length = np.sqrt((normal**2).sum(axis=1))
    is_slanted = (length > 1e-11) & (shapes.lon_deg[:, 0] != shapes.lon_deg[:, 1])
    cosine = np.minimum(np.abs(normal[:, 2]) / np.maximum(length, 1e-11), 1)
    apex = np.degrees(np.arccos(cosine)) + 1e-5
    for sign, side, extreme in ((1, 1, np.maximum), (-1, 0, np.minimum)):
        # Northwards at the western end and southwards at the eastern one, or the other way round.
        at_a, at_b = (
            sign * (normal[:, 0] * arcs[:, end + 1] - normal[:, 1] * arcs[:, end]) for end in (0, 3)
        )
        bulges = is_slanted & (at_a >= -1e-14 * length) & (at_b <= 1e-14 * length)
        bands[bulges, side] = extreme(bands[bulges, side], sign * apex[bulges])
    return bands


@njit(inline="always")
def _add_arc(box, ax, ay, az, bx, by, bz):  # type: ignore[no-untyped-def]
    """Have a box hold an arc of less than a radian, and the margin."""
    chord2 = (ax - bx) ** 2 + (ay - by) ** 2 + (az - bz) ** 2
    # An arc is nowhere farther from its chord than in its middle: 1 - sqrt(1 - chord2 / 4).
    room = chord2 / 7.0 + MARGIN
    box[0] = min(box[0], min(ax, bx) - room)
    box[1] = min(box[1], min(ay, by) - room)
    box[2] = min(box[2], min(az, bz) - room)
    box[3] = max(box[3], max(ax, bx) + room)
    box[4] = max(box[4], max(ay, by) + room)
    box[5] = max(box[5], max(az, bz) + room)


@njit(nogil=True, error_model="numpy")
def _add_part(box, arc, angle, part, parts):  # type: ignore[no-untyped-def]
    """Have a box hold one of the equal parts of an arc, be there one or many."""
    if parts == 1:
        _add_arc(box, arc[0], arc[1], arc[2], arc[3], arc[4], arc[5])
    else:
        ax, ay, az = _between(arc, angle, part / parts)
        bx, by, bz = _between(arc, angle, (part + 1) / parts)
        _add_arc(box, ax, ay, az, bx, by, bz)


@njit(inline="always")
def _start(box):  # type: ignore[no-untyped-def]
    box[:3] = FAR
    box[3:] = -FAR


@njit(inline="always")
def _angle(arc):  # type: ignore[no-untyped-def]
    chord2 = (arc[0] - arc[3]) ** 2 + (arc[1] - arc[4]) ** 2 + (arc[2] - arc[5]) ** 2
    return 2.0 * math.asin(min(1.0, 0.5 * math.sqrt(chord2)))


@njit(inline="always")
def _middle(arc):  # type: ignore[no-untyped-def]
    x, y, z = arc[0] + arc[3], arc[1] + arc[4], arc[2] + arc[5]
    length = math.sqrt(x * x + y * y + z * z)
    return x / length, y / length, z / length


@njit(nogil=True, error_model="numpy")
def _between(arc, angle, share):  # type: ignore[no-untyped-def]
    """A point of an arc, by its share of the angle: of either half by itself, which is exacter."""
    x, y, z = _middle(arc)
    if share <= 0.5:
        share, other, half = 1.0 - 2.0 * share, 0, 0.5 * angle
    else:
        share, other, half = 2.0 * share - 1.0, 3, 0.5 * angle
    whole, own = math.sin(half), math.sin(half * share)
    rest = math.sin(half * (1.0 - share))
    return (
        (own * arc[other] + rest * x) / whole,
        (own * arc[other + 1] + rest * y) / whole,
        (own * arc[other + 2] + rest * z) / whole,
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_stretches(arcs, row, polygon, longest, items, boxes):  # type: ignore[no-untyped-def]
    """Write the stretches of arcs, if there is memory for them; returns how many they are."""
    fills = items.shape[0] > 0
    box = np.empty(6)
    made = 0
    first = 0
    while first < arcs.shape[0]:
        angle = _angle(arcs[first])
        parts = max(1, math.ceil(angle / longest))
        stop = first + 1
        while (
            parts == 1
            and stop < arcs.shape[0]
            and stop < first + _CHAIN
            and row[stop] == row[first]
            and polygon[stop] == polygon[first]
        ):
            angle += _angle(arcs[stop])
            if angle > longest:
                break
            stop += 1
        for part in range(parts):
            if fills:
                _start(box)
                for i in range(first, stop):
                    _add_part(box, arcs[i], angle, part, parts)
                items[made, 0], items[made, 1] = first, stop
                boxes[made] = box
            made += 1
        first = stop
    return made


def _stretches(
    arcs: np.ndarray, row: np.ndarray, polygon: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    chords = np.sqrt(((arcs[:, :3] - arcs[:, 3:6]) ** 2).sum(axis=1))
    # So long that few arcs are cut, and not many times.
    longest = float(np.clip(_CHAIN * chords.mean(), 1e-6, _LONGEST)) if row.size else _LONGEST
    none = np.empty((0, 2), np.int64), np.empty((0, 6))
    n = _fill_stretches(arcs, row, polygon, longest, *none)
    made = np.empty((n, 2), np.int64), np.empty((n, 6))
    written = _fill_stretches(arcs, row, polygon, longest, *made)
    check_passes(np.array([n]), np.array([written]), "index of shapes")
    return made


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_lowest(order, items, boxes, sorted_items, nodes):  # type: ignore[no-untyped-def]
    for place in range(nodes.shape[0] * WIDTH):
        node, child = place // WIDTH, place % WIDTH
        nodes[node, :3, child] = FAR
        nodes[node, 3:, child] = -FAR
        if place < items.shape[0]:
            at = order[place] & ROW
            nodes[node, :, child] = boxes[at]
            sorted_items[place] = items[at]


def _tree(items: np.ndarray, boxes: np.ndarray) -> BoxTree:
    n = len(items)
    memory = scratch(n)
    memory.points[:, :3] = boxes[:, :3] + boxes[:, 3:]
    # The middle of what is around the globe has no direction.
    lengths = np.linalg.norm(memory.points[:, :3], axis=1, keepdims=True)
    memory.points[:, :3] /= np.maximum(lengths, 1e-9)
    order = memory.order[: sort(memory, WIDTH) if n else 0]
    levels = levels_over(n)
    tree = BoxTree(np.empty_like(items), np.empty((levels[-1], 6, WIDTH)), levels)
    if n:
        _fill_lowest(order, items, boxes, tree.items, tree.boxes[: levels[1]])
        fill_nodes(tree.boxes, tree.levels)
    return tree


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_bins(ranges, lon_deg, first, span, starts, edge):  # type: ignore[no-untyped-def]
    """Count the edges of bins in `starts`, or write them where there is memory for them."""
    for polygon in range(ranges.shape[0]):
        n_bins = first[polygon + 1] - first[polygon]
        west, extent, scale = span[polygon]
        for i in range(ranges[polygon, 0], ranges[polygon, 1]):
            if lon_deg[i, 0] == lon_deg[i, 1]:
                continue
            apart = eastwards(_canonical(lon_deg[i, 0]), west)
            low = min(int(apart * scale), n_bins - 1)
            apart += eastwards(lon_deg[i, 1], lon_deg[i, 0]) + _SLACK_DEG
            high = int(apart * scale)
            # Bins of all longitudes go on at the first one.
            high = min(high, low + n_bins - 1 if extent >= 360.0 else n_bins - 1)
            for bin in range(low, high + 1):
                at = first[polygon] + bin % n_bins
                if edge.size:
                    starts[at] -= 1
                    edge[starts[at]] = i
                else:
                    starts[at] += 1


@njit(inline="always")
def _canonical(lon):  # type: ignore[no-untyped-def]
    """A longitude from -180 up to 180; exact."""
    return lon - 360.0 if lon >= 180.0 else lon


@njit(cache=True, nogil=True, error_model="numpy")
def _measure_bins(ranges, lon_deg, first, span):  # type: ignore[no-untyped-def]
    for polygon in range(ranges.shape[0]):
        start, stop = ranges[polygon]
        west, east, spans, crosses = 360.0, -180.0, 0.0, False
        for i in range(start, stop):
            west, east = min(west, lon_deg[i, 0]), max(east, lon_deg[i, 1])
            spans += eastwards(lon_deg[i, 1], lon_deg[i, 0])
            crosses |= lon_deg[i, 1] < lon_deg[i, 0]
        if crosses:
            west, east = -180.0, 180.0
        n, extent = stop - start, east - west + _SLACK_DEG
        n_bins = 1
        if n > _FEW and spans > 0.0:
            n_bins = max(1, min(n, int(_MOST_IN_BINS * n * extent / spans)))
        span[polygon, 0], span[polygon, 1] = _canonical(west), extent
        span[polygon, 2] = n_bins / extent
        first[polygon + 1] = first[polygon] + n_bins


def _ranges(polygon: np.ndarray, n: int) -> np.ndarray:
    """Where the arcs of each of n polygons begin and end; each has some."""
    owned = np.flatnonzero(polygon >= 0)
    owned = owned[np.argsort(polygon[owned], kind="stable")]
    first = owned[np.searchsorted(polygon[owned], np.arange(n))]
    return np.stack([first, first + np.bincount(polygon[owned], minlength=n)], axis=1)


def _bins(ranges: np.ndarray, lon_deg: np.ndarray) -> tuple[np.ndarray, ...]:
    n = len(ranges)
    first, span = np.zeros(n + 1, np.int64), np.empty((n, 3))
    _measure_bins(ranges, lon_deg, first, span)
    starts = np.zeros(first[-1] + 1, np.int64)
    _fill_bins(ranges, lon_deg, first, span, starts, np.empty(0, np.int64))
    counts, starts = starts, np.cumsum(starts)
    edge, ends = np.empty(starts[-1], np.int64), starts.copy()
    _fill_bins(ranges, lon_deg, first, span, starts, edge)
    check_passes(counts, ends - starts, "bin of polygons")
    return first, span, starts, edge


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_areas(ranges, arcs, polygons, room, boxes):  # type: ignore[no-untyped-def]
    for polygon in range(ranges.shape[0]):
        box = boxes[polygon]
        _start(box)
        for i in range(ranges[polygon, 0], ranges[polygon, 1]):
            angle = _angle(arcs[i])
            parts = max(1, math.ceil(angle / _LONGEST))
            for part in range(parts):
                _add_part(box, arcs[i], angle, part, parts)
        box[:3] -= room
        box[3:] += room
        # What it holds goes beyond its arcs where it holds an end of an axis.
        for axis in range(3):
            for sign in (-1.0, 1.0):
                x, y, z = sign * (axis == 0), sign * (axis == 1), sign * (axis == 2)
                lat = 90.0 * z
                lon = 90.0 * y if axis == 1 else (-180.0 if x < 0.0 else 0.0)
                if holds(polygons, arcs, polygon, x, y, z, lat, lon):
                    if sign < 0.0:
                        box[axis] = -1.0 - MARGIN
                    else:
                        box[3 + axis] = 1.0 + MARGIN
