"""The geometries of a result as GeoJSON (RFC 7946): a point or a line a row, as text.

A result has rows of its two sets, and no coordinates: these are read from the sets, in step.
Longitudes beyond 180 become those of -180 to 0, which is exact in float64.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from georesolve.io.columns import Role
from georesolve.io.datasets import Coordinates, Dataset, rows_of
from georesolve.io.errors import NotRepresentable
from georesolve.io.result_files import Rows
from georesolve.kernels.query import is_valid
from georesolve.query import NEAR

PointSets = Callable[[Role], Dataset]
"""Gives one of the two sets of a result; raises Refused when it is not kept any more."""

_End = tuple[list[str], Callable[..., np.ndarray]]
"""Columns of a result, and what gives the longitudes and latitudes of an end by these."""

_ROWS = 1 << 20
"""Looked up at a time: references lie anywhere, so each time most of their file is decoded."""
_SHAPES = 1_024
"""Decoded at a time."""


class Shapes:
    """The lines and polygons of a result that has a row for each, in their order."""

    def __init__(self, dataset: Dataset) -> None:
        assert dataset.outlines is not None, "it has some"
        self._names = [dataset.outlines.column, dataset.lat, dataset.lon]
        self._batches = rows_of(dataset, self._names, _SHAPES)
        self._held = np.empty(0, object)

    def take(self, rows: int) -> pa.Array:
        """The next ones as JSON; null where there is none that is valid."""
        while self._held.size < rows:
            batch = next(self._batches)
            wkb, lat, lon = (batch[one].to_numpy(zero_copy_only=False) for one in self._names)
            self._held = np.append(self._held, np.where(is_valid(lat, lon), wkb, None))
        taken, self._held = self._held[:rows], self._held[rows:]
        texts = shapely.to_geojson(shapely.from_wkb(taken))
        return pc.fill_null(pa.array(texts, pa.large_string()), "null")


class Geometries:
    """The geometries of a result: points at the observations, or `lines` to their references."""

    def __init__(self, result: Rows, sets: PointSets, *, lines: bool) -> None:
        names = result.schema_arrow.names
        # The rows of a summary may be references.
        ends: list[_End] = [(names[:1], Coordinates(sets("observations")).of)]
        if lines and NEAR[0] in names:
            ends.append(([NEAR[1], NEAR[0]], lambda lon, lat: np.stack([lon, lat])))
        elif lines:
            if "reference" not in names[1:]:
                raise NotRepresentable(
                    f"a summary has a row for each {names[0]}, and no lines to references: take "
                    "points instead of lines"
                )
            if sets("references").outlines is not None:
                raise NotRepresentable(
                    "the references are lines or polygons, and the result does not say where they "
                    "are nearest: ask for it with near=true, or take points instead of lines"
                )
            ends.append((["reference"], Coordinates(sets("references")).of))
        self._write = _lines if lines else _points
        self._blocks = _blocks(result, ends)
        self._held = np.empty((2 * len(ends), 0))

    def take(self, rows: int) -> pa.Array:
        """The geometries of the next rows as JSON; null where a coordinate is missing."""
        while self._held.shape[1] < rows:
            self._held = np.concatenate([self._held, next(self._blocks)], axis=1)
        taken, self._held = self._held[:, :rows], self._held[:, rows:]
        return self._write(*taken)


def _blocks(result: Rows, ends: list[_End]) -> Iterator[np.ndarray]:
    """Longitudes and latitudes of the ends, for many rows at a time."""
    for batch in result.iter_batches(_ROWS, columns=[name for names, _ in ends for name in names]):

        def numbers(name: str, batch: pa.RecordBatch = batch) -> np.ndarray:
            column = batch[name]
            missing = np.nan if pa.types.is_floating(column.type) else -1
            return np.asarray(column.fill_null(missing).to_numpy())

        block = np.concatenate([of(*map(numbers, names)) for names, of in ends])
        block[::2] -= 360 * (block[::2] > 180)
        yield block


def _points(lon: np.ndarray, lat: np.ndarray) -> pa.Array:
    texts = joined('{"type":"Point","coordinates":', _position(lon, lat), "}")
    return _where(~np.isnan(lon), texts)


def _lines(lon: np.ndarray, lat: np.ndarray, to_lon: np.ndarray, to_lat: np.ndarray) -> pa.Array:
    """Lines the shorter way round, in two pieces where they cross the antimeridian.

    No piece of a line crosses it (RFC 7946, 3.1.9). A line is straight in degrees.
    """
    # An end on the antimeridian is on the side of the other one.
    lon = np.where((np.abs(to_lon - lon) > 180) & (np.abs(lon) == 180), -lon, lon)
    to_lon = np.where((np.abs(to_lon - lon) > 180) & (np.abs(to_lon) == 180), -to_lon, to_lon)
    texts = joined(
        '{"type":"LineString","coordinates":[',
        *(_position(lon, lat), ",", _position(to_lon, to_lat), "]}"),
    )
    cut = np.abs(to_lon - lon) > 180
    is_there = ~(np.isnan(lon) | np.isnan(to_lon))
    if cut.any():
        lon, lat, to_lon, to_lat = (one[cut] for one in (lon, lat, to_lon, to_lat))
        side, before, after = np.copysign(180.0, lon), 180 - np.abs(lon), 180 - np.abs(to_lon)
        at = lat + (to_lat - lat) * (before / (before + after))
        pieces = joined(
            '{"type":"MultiLineString","coordinates":[[',
            *(_position(lon, lat), ",", _position(side, at), "],["),
            *(_position(-side, at), ",", _position(to_lon, to_lat), "]]}"),
        )
        texts = pc.replace_with_mask(texts, pa.array(cut), pieces)
    return _where(is_there, texts)


def _position(lon: np.ndarray, lat: np.ndarray) -> pa.Array:
    # pyarrow writes as many digits as it takes to read the same number back.
    text = pa.large_string()
    return joined("[", pa.array(lon).cast(text), ",", pa.array(lat).cast(text), "]")


def joined(*pieces: str | pa.Array, null: str | None = None) -> pa.Array:
    """Texts put together row by row, nulls as `null`, or, where that is None, to null.

    64 bits count their bytes, as values may be long.
    """
    text = pa.large_string()
    parts = [pa.scalar(one, text) if isinstance(one, str) else one for one in pieces]
    handling = "emit_null" if null is None else "replace"
    return pc.binary_join_element_wise(
        *parts, pa.scalar("", text), null_handling=handling, null_replacement=null or ""
    )


def _where(is_there: np.ndarray, texts: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(is_there), texts, pa.scalar("null", pa.large_string()))
