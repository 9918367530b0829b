"""Lines and polygons as a search takes them: arcs, and an index of them."""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from georesolve.kernels.devices import Device, implementation
from georesolve.kernels.query import Degrees
from georesolve.query import Earth


class Shapes(NamedTuple):
    """The shapes of some rows, as arcs: arrays over arcs, polygons and straight edges.

    The first of two ends is the western one, of equal longitudes the southern. Longitudes of arcs
    are from -180 up to, not including, 180; the way from west to east is less than half of the
    globe, unless both ends are poles, or one. Rows and polygons ascend; `polygon` is the one that
    an arc bounds, -1 for none. `holds_south` says whether a polygon without the arcs that bound it
    would be all of the globe. Edges have longitudes from -180 to 360; there are none where arcs are
    edges themselves. `room` is how far arcs are from straight edges, in radians.
    """

    row: np.ndarray
    lat_deg: np.ndarray
    lon_deg: np.ndarray
    polygon: np.ndarray
    polygon_row: np.ndarray
    holds_south: np.ndarray
    edge_polygon: np.ndarray
    edge_lat_deg: np.ndarray
    edge_lon_deg: np.ndarray
    room: np.ndarray

    def some(self, rows: np.ndarray) -> "Shapes":
        """Those of some rows, which ascend, as rows from 0 on."""
        own, of = np.isin(self.row, rows), np.isin(self.polygon_row, rows)
        edge = of[self.edge_polygon]
        # No polygon has the number -1, and keeps it.
        number = np.append(np.cumsum(of) - 1, -1)
        return Shapes(
            np.searchsorted(rows, self.row[own]), self.lat_deg[own], self.lon_deg[own],
            number[self.polygon[own]],
            np.searchsorted(rows, self.polygon_row[of]), self.holds_south[of],
            number[self.edge_polygon[edge]], self.edge_lat_deg[edge], self.edge_lon_deg[edge],
            self.room,
        )  # fmt: skip


class BoxTree(NamedTuple):
    """Boxes of eight things, and of eight boxes.

    `items` (n, 2) are the things in the order of the boxes of the lowest level; `boxes` and
    `levels` are as in `boxes_cpu.Tree`.
    """

    items: np.ndarray
    boxes: np.ndarray
    levels: np.ndarray


class Polygons(NamedTuple):
    """What says whether polygons hold a point; see `holds`.

    Of polygon p the bins `first[p]` up to `first[p + 1]` divide `span[p]`: its first longitude,
    degrees eastwards from there, and bins a degree. `starts` (n_bins + 1,) says where the edges of
    a bin begin in `edge`. Edges are arcs up to, not including, the number `straight`, and lines in
    degrees from there on. `lat_deg` (n_edges, 2) are the least and the greatest latitude of an arc,
    and the latitudes of the ends of a line.
    """

    row: np.ndarray
    holds_south: np.ndarray
    first: np.ndarray
    span: np.ndarray
    starts: np.ndarray
    edge: np.ndarray
    straight: int
    lon_deg: np.ndarray
    lat_deg: np.ndarray


_ROWS = "rows of shapes"
"""The array that only an index of shapes has: of one number."""


class ShapeIndex:
    """Shapes ready to be searched: what `kernels.nearest` and `within` take for a `ReferenceIndex`.

    It is built on a CPU, of `shapes`; a GPU gets a copy, `resident`, with its first search. `arcs`
    are float64 of shape (n_arcs, 16); `stretches` and `areas` are trees of ranges of arcs and of
    polygons. `device` is where it is searched.
    """

    whole = True
    earth: Earth = "sphere"

    def __init__(
        self, n_references: int, shapes: Shapes, device: Device = "cpu", built: Any = None
    ) -> None:
        self.n_references, self.shapes, self.device = n_references, shapes, device
        self.resident: tuple[Any, ...] | None = None
        self.arcs, self.stretches, self.areas, self.polygons = built or implementation(
            "cpu", "outlines"
        ).build(shapes)

    @property
    def nbytes(self) -> int:
        """Memory that the index holds, in bytes."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, np.ndarray]:
        """All that the index is made of, by name: see `kernels.index_of`."""
        parts = (self.shapes, (self.arcs,), self.stretches, self.areas, self.polygons)
        each = [np.asarray(array) for part in parts for array in part]
        return {_ROWS: np.array(self.n_references), **{str(i): one for i, one in enumerate(each)}}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "ShapeIndex | None":
        """The index on a CPU whose `arrays` these are; None where they are of another one."""
        if _ROWS not in arrays:
            return None
        rows, *each = arrays.values()
        left: Any = iter(each)
        kinds: tuple[Any, ...] = (Shapes, None, BoxTree, BoxTree, Polygons)
        shapes, *built = (
            next(left) if kind is None else kind(*islice(left, len(kind._fields))) for kind in kinds
        )
        built[-1] = built[-1]._replace(straight=int(built[-1].straight))
        return cls(int(rows), shapes, built=built)


def nearest_points(
    index: ShapeIndex, observations: Degrees, reference: np.ndarray, distance_m: np.ndarray
) -> Degrees:
    """Where a shape is nearest to an observation, of pairs of them that are so far apart.

    It is the observation where the distance is 0, and NaN where the reference is -1.
    """
    found: Degrees = implementation("cpu", "shapes").points(
        index, observations, reference, distance_m
    )
    return found
