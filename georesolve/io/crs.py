"""Coordinates in another CRS as longitudes and latitudes on WGS 84, by PROJ."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from georesolve.io.columns import Columns, Reading, unlike
from georesolve.io.errors import InvalidOption, wrong
from georesolve.io.extras import needed
from georesolve.io.geometry import is_wgs_84
from georesolve.io.numbers import degrees


def degrees_from(crs: Any, file: str) -> Any:
    """What transforms to longitude and latitude on WGS 84; None where they are that."""
    pyproj = needed("pyproj", "gis", "another CRS")
    try:
        found = pyproj.CRS.from_user_input(crs)
        if is_wgs_84(found.to_json_dict()):
            return None
        if not (found.is_geographic or found.is_projected):
            raise InvalidOption(
                f"{file}: the CRS {found.name[:80]!r} has no longitudes and latitudes, nor a plane "
                "for them: name one such as EPSG:25832"
            )
        return pyproj.Transformer.from_crs(found, "OGC:CRS84", always_xy=True)
    except pyproj.exceptions.ProjError:
        raise InvalidOption(
            f"{file}: PROJ knows no way from the CRS {str(crs)[:80]!r} to degrees: name one such "
            "as EPSG:25832"
        ) from None


def in_degrees(
    batches: Iterator[pa.RecordBatch], column: str, transformer: Any
) -> Iterator[pa.RecordBatch]:
    """The same batches with a column of WKB on WGS 84; who reads it tells of what is no WKB."""
    for batch in batches:
        with suppress(shapely.errors.GEOSException):
            place = batch.schema.get_field_index(column)
            shapes = shapely.from_wkb(batch[column].to_numpy(zero_copy_only=False))
            moved = shapely.transform(shapes, transformer.transform, interleaved=False)
            wkb = pa.array(shapely.to_wkb(moved), batch[column].type)
            batch = batch.set_column(place, batch.schema.field(place), wkb)
        yield batch


def with_degrees(
    batches: Iterator[pa.RecordBatch],
    names: Collection[str],
    columns: Columns,
    reading: Reading,
    file: str,
) -> tuple[Iterator[pa.RecordBatch], Columns]:
    """Batches with longitudes and latitudes behind what they have, and the columns they are then.

    Where the CRS of the reading has them already, both stay as they are. A table that has degrees,
    where they are to be metres, is refused unless they are trusted.
    """
    if (transformer := degrees_from(reading.crs, file)) is None:
        return batches, columns
    lon, lat = unlike(names, ("lon", "lat"), "degrees_")

    def moved() -> Iterator[pa.RecordBatch]:
        named = transformer.source_crs
        rows, may_be_degrees = 0, reading.coordinates == "check" and named.is_projected
        for batch in batches:
            x, y = (degrees(batch[name]) for name in (columns.lon, columns.lat))
            if may_be_degrees:
                some = np.isfinite(x) & np.isfinite(y) & ((x != 0) | (y != 0))
                rows += int(np.count_nonzero(some))
                may_be_degrees = (abs(x[some]) <= 360).all() and (abs(y[some]) <= 90).all()
            for name, axis in zip((lon, lat), transformer.transform(x, y), strict=True):
                # Where the CRS does not reach, PROJ gives infinity: such a row is invalid.
                valid = pa.array(np.where(np.isfinite(axis), axis, np.nan))
                batch = batch.append_column(name, valid)
            yield batch
        if may_be_degrees and rows > 1:
            raise wrong(
                file,
                "degrees, where a projected CRS is named",
                f"all of {rows} rows look like degrees, and the CRS that is named, "
                f"{named.name[:80]!r}, is projected: where it is that of the other table, name it "
                "with observation_crs or reference_crs; or, if they are in it, send the option "
                "coordinates=trust",
                column=columns.lat,
            )

    return moved(), columns._replace(lon=lon, lat=lat)
