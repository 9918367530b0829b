"""Lines and polygons of a geometry column: what is none is refused with its row and the reason."""

from typing import Any, get_args

import numpy as np
import pyarrow as pa
import shapely

from georesolve.intake.columns import Edges, Reading
from georesolve.intake.errors import InvalidInput, wrong_geometry
from georesolve.kernels.query import is_valid
from georesolve.kernels.shapes import Shapes
from georesolve.workers.sets.datasets import Edging, Outlines
from georesolve.workers.sets.evidence import Evidence
from georesolve.workers.sets.shapes import outline_of, shapes_of, together

FINEST_M = 1e-3
"""As near arcs may have to follow edges: an edge of 10 degrees is 100 000 of them then."""


class ShapeReader:
    """Takes the lines and polygons of a geometry column, batch by batch.

    `about` is what GeoParquet says of the column. They are checked, and not kept unless `keeps`:
    what is written as a dataset is read of that again.
    """

    def __init__(self, about: dict[str, Any], reading: Reading, column: str, file: str) -> None:
        edges = reading.edges or about.get("edges") or "planar"
        if edges not in get_args(Edges):
            raise InvalidInput(
                f"{file}: the geometry column {column!r} says that its edges are {edges!r}: known "
                f"are {' and '.join(get_args(Edges))}; say which with the option edges"
            )
        oriented = about.get("orientation") == "counterclockwise"
        densify_m = reading.densify_m or about.get("densify_m") or Edging().densify_m
        if not isinstance(densify_m, int | float) or not FINEST_M <= densify_m < np.inf:
            raise InvalidInput(
                f"{file}: arcs are to follow edges within {densify_m!r} metres: give densify_m as "
                f"a number from {FINEST_M} on"
            )
        self.edging = Edging(edges, float(densify_m), oriented)
        self.keeps = True
        self.ends = Evidence()
        """What the ends of edges say."""
        self._keeps_invalid = reading.on_invalid == "null"
        self._column, self._file = column, file
        self._arcs = self._rows = 0
        self._taken: list[tuple[int, int, Shapes]] = []

    def outlines(self, rows: int) -> Outlines | None:
        """What is told of a set of so many rows, None if all are points."""
        arcs = self._arcs + rows - self._rows
        return Outlines(self._column, self.edging, arcs) if self._rows else None

    def take(self, geometries: np.ndarray, first_row: int) -> tuple[pa.Array, pa.Array]:
        """Take the shapes of some rows; where each of them begins, longitudes and latitudes."""
        outline = outline_of(geometries, self.edging)
        if outline.flaws and not self._keeps_invalid:
            first, why = next(iter(outline.flaws.items()))
            row, more = first_row + first, len(outline.flaws) - 1
            others = f" (as do {more} more)" if more else ""
            detail = (
                f"row {row}{others} holds no shape: {why}; mend such rows, or keep them "
                "with the option on_invalid=null"
            )
            raise wrong_geometry(self._file, self._column, detail, row)
        self.ends.add(outline.edges.lat.ravel(), outline.edges.lon.ravel())
        self._rows += len(geometries)
        self._arcs += int(outline.arcs.sum())
        if self.keeps:
            stop = first_row + len(geometries)
            self._taken.append((first_row, stop, shapes_of(outline, self.edging)))
        return pa.array(outline.lon), pa.array(outline.lat)

    def shapes(self, lat_deg: np.ndarray, lon_deg: np.ndarray) -> Shapes | None:
        """All shapes, those of rows that were not taken being points; None if all rows are."""
        if not self._taken:
            return None
        parts: list[tuple[int, Shapes]] = []
        row = 0
        for start, stop, shapes in [*self._taken, (lat_deg.size, lat_deg.size, None)]:
            lat, lon = lat_deg[row:start], lon_deg[row:start]
            points = shapely.points(lon, lat)
            points[~is_valid(lat, lon)] = None
            parts.append((row, shapes_of(outline_of(points, self.edging), self.edging)))
            if shapes is not None:
                parts.append((start, shapes))
            row = stop
        return together(parts)
