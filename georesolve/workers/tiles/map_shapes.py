"""Lines and polygons as a map draws them: those in view, simplified, and no more than it can."""

from contextlib import suppress
from functools import lru_cache

import numpy as np
import shapely

from georesolve.io.datasets import Content, Dataset, read_rows
from georesolve.io.geometry import decode_wkb

_MOST_BYTES = 32 << 20
"""Of larger sets none are drawn: in memory they take three times as much."""
_MOST_POINTS = 20_000
_PIXELS = 1024
"""That a view is taken to be wide: what is closer is not told apart."""
_TURN_DEG = 360.0
_LINE = 1
_GRID_DEG = 1e-7

View = tuple[float, float, float, float]
"""West, south, east and north in degrees; a map that has been turned goes on beyond 180."""


def shapes_in(points: Dataset, view: View) -> tuple[int | None, list[str]]:
    """How many lines and polygons of a set are in a view, and features of the largest of them.

    Of too large a set neither is known.
    """
    assert points.outlines is not None, "there are some"
    column = points.outlines.column
    if points.width([column]).total > _MOST_BYTES:
        return None, []
    shapes, tree = _loaded(points.file, points.rows, column)
    west, south, east, north = view
    found, rows = [np.empty(0, object)], [np.empty(0, np.int64)]
    for turn in np.arange(np.floor(west / _TURN_DEG) - 1, np.ceil(east / _TURN_DEG) + 1):
        own = west - turn * _TURN_DEG, south, east - turn * _TURN_DEG, north
        at = np.sort(tree.query(shapely.box(*own)))
        drawn = _simplified(shapes[at], own)
        is_there = ~shapely.is_empty(drawn)
        by = np.array([turn * _TURN_DEG, 0.0])
        found.append(shapely.transform(drawn[is_there], by.__add__))
        rows.append(at[is_there])
    drawn, reference = np.concatenate(found), np.concatenate(rows)
    # Where there are too many, the largest are seen best.
    order = np.argsort(-_sizes(drawn), kind="stable")
    fits = shapely.get_num_coordinates(drawn)[order].cumsum() <= _MOST_POINTS
    short = shapely.set_precision(drawn[order[fits]], _GRID_DEG, "pointwise")
    texts = shapely.to_geojson(short)
    return len(drawn), [
        f'{{"type":"Feature","geometry":{text},"properties":{{"reference":{row}}}}}'
        for text, row in zip(texts, reference[order[fits]].tolist(), strict=True)
    ]


def _simplified(shapes: np.ndarray, view: View) -> np.ndarray:
    """What is in a view or beside it, and may be empty, with what pixels tell apart."""
    west, south, east, north = view
    wide, high = east - west, north - south
    # Not where rings cross themselves.
    with suppress(shapely.errors.GEOSException):
        # What is cut off ends beyond what is seen.
        shapes = shapely.clip_by_rect(shapes, west - wide, south - high, east + wide, north + high)
    plain = shapely.simplify(shapes, wide / _PIXELS, preserve_topology=False)
    # Polygons smaller than a pixel became empty.
    drawn: np.ndarray = np.where(shapely.is_empty(plain), _boxes(shapes), plain)
    return drawn


def _boxes(shapes: np.ndarray) -> np.ndarray:
    """Return bounding boxes, one for each part: islands on both sides of 180 degrees are small."""
    boxes: np.ndarray = shapely.envelope(shapes)
    has_parts = shapely.get_num_geometries(shapes) > 1
    parts, owners = shapely.get_parts(shapes[has_parts], return_index=True)
    parts = shapely.envelope(parts)
    are_areas = shapely.get_dimensions(parts) > _LINE
    boxes[has_parts] = shapely.multipolygons(
        parts[are_areas], indices=owners[are_areas], out=boxes[has_parts]
    )
    return boxes


def _sizes(shapes: np.ndarray) -> np.ndarray:
    """Return the diagonal of the largest part of each shape, in degrees."""
    parts, owners = shapely.get_parts(shapes, return_index=True)
    low, high = shapely.bounds(parts).reshape(-1, 2, 2).swapaxes(0, 1)
    sizes = np.zeros(len(shapes))
    np.maximum.at(sizes, owners, np.hypot(*(high - low).T))
    return sizes


@lru_cache(2)
def _loaded(file: Content, rows: int, column: str) -> tuple[np.ndarray, shapely.STRtree]:
    wkb = read_rows(file, 0, rows, [column])[column].to_numpy()
    shapes = shapely.force_2d(decode_wkb(wkb)[0])
    # A tree leaves out what is missing; points are drawn where observations have them.
    return shapes, shapely.STRtree(np.where(shapely.get_dimensions(shapes) < _LINE, None, shapes))
