"""Coordinates in another CRS as longitudes and latitudes on WGS 84, by PROJ."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from georesolve.io.columns import Columns, Reading, unlike
from georesolve.io.errors import InvalidOption, wrong
from georesolve.io.extras import needed
from georesolve.io.geometry import decode_wkb, is_wgs_84
from georesolve.io.numbers import degrees


class ToDegrees:
    """Transformation to longitude and latitude on WGS 84, and warnings about its accuracy.

    `warnings` grow while coordinates are transformed.
    """

    def __init__(self, crs: Any, file: str) -> None:
        pyproj = needed("pyproj", "gis", "another CRS")
        self._between = pyproj.Transformer.from_crs(crs, "OGC:CRS84", always_xy=True)
        self._exact = None
        self._file = file
        # PROJ shows which of several operations was the last one, not which were used.
        self._may_be_ballpark = any(
            word in self._between.description for word in ("Ballpark", "unavailable")
        )
        if self._may_be_ballpark:
            with suppress(pyproj.exceptions.ProjError):
                self._exact = pyproj.Transformer.from_crs(
                    crs, "OGC:CRS84", always_xy=True, allow_ballpark=False
                )
        self.crs = crs
        self.warnings: list[str] = []

    def transform(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Longitudes and latitudes, infinite where the CRS does not reach."""
        lon, lat = self._between.transform(x, y)
        if self._may_be_ballpark and self._takes_ballpark(x, y, lon, lat):
            self._may_be_ballpark = False
            self.warnings.append(
                f"{self._file}: PROJ knows no transformation of some rows from the datum of "
                f"{self.crs.name[:80]!r} to WGS 84 and takes a ballpark one, which leaves out the "
                "shift between the two: its accuracy is unknown, and distances may be wrong by "
                "hundreds of metres. Declare the CRS by its code, such as EPSG:27700, if it has "
                "one, and see that the rows lie where it is used"
            )
        return lon, lat

    def _takes_ballpark(
        self, x: np.ndarray, y: np.ndarray, lon: np.ndarray, lat: np.ndarray
    ) -> bool:
        is_there = np.isfinite(lon) & np.isfinite(lat)
        if self._exact is None:
            return bool(is_there.any())
        exact = self._exact.transform(x, y)
        return bool(((exact[0] != lon) | (exact[1] != lat))[is_there].any())


def degrees_from(crs: Any, file: str) -> ToDegrees | None:
    """Transformation to longitude and latitude on WGS 84; None where they are that."""
    pyproj = needed("pyproj", "gis", "another CRS")
    try:
        source = pyproj.CRS.from_user_input(crs)
        if source.is_compound:
            # Heights are not transformed.
            source = source.sub_crs_list[0]
        if is_wgs_84(source.to_json_dict()):
            return None
        if not (source.is_geographic or source.is_projected):
            raise InvalidOption(
                f"{file}: the CRS {source.name[:80]!r} has no longitudes and latitudes, nor a "
                "plane for them: name one such as EPSG:25832"
            ).mended_by(file, {"crs": None})
        return ToDegrees(source, file)
    except pyproj.exceptions.ProjError:
        raise InvalidOption(
            f"{file}: PROJ knows no way from the CRS {str(crs)[:80]!r} to degrees: name one such "
            "as EPSG:25832"
        ).mended_by(file, {"crs": None}) from None


def in_degrees(
    batches: Iterator[pa.RecordBatch], column: str, transformer: ToDegrees
) -> Iterator[pa.RecordBatch]:
    """The same batches with a column of WKB on WGS 84; values that are no WKB stay unchanged."""
    for batch in batches:
        place = batch.schema.get_field_index(column)
        values = batch[column].to_numpy(zero_copy_only=False)
        shapes, flaws = decode_wkb(values)
        moved = shapely.transform(shapes, transformer.transform, interleaved=False)
        wkb = shapely.to_wkb(moved)
        wkb[[*flaws]] = values[[*flaws]]
        field = batch.schema.field(place)
        storage = getattr(field.type, "storage_type", field.type)
        yield batch.set_column(place, field.with_type(storage), pa.array(wkb, storage))


def with_degrees(
    batches: Iterator[pa.RecordBatch],
    names: Collection[str],
    columns: Columns,
    reading: Reading,
    file: str,
) -> tuple[Iterator[pa.RecordBatch], Columns, Sequence[str]]:
    """Batches with two more columns, longitudes and latitudes; the columns to read; warnings.

    The warnings are complete once all batches have been read. Where the CRS of the reading has
    degrees already, batches and columns stay unchanged. A table of degrees is refused where the CRS
    has metres, unless its coordinates are trusted.
    """
    if (transformer := degrees_from(reading.crs, file)) is None:
        return batches, columns, ()
    lon, lat = unlike(names, ("lon", "lat"), "degrees_")

    def moved() -> Iterator[pa.RecordBatch]:
        named = transformer.crs
        rows, may_be_degrees = 0, reading.coordinates == "check" and named.is_projected
        for batch in batches:
            x, y = (degrees(batch[name]) for name in (columns.lon, columns.lat))
            if may_be_degrees:
                some = np.isfinite(x) & np.isfinite(y) & ((x != 0) | (y != 0))
                rows += int(np.count_nonzero(some))
                may_be_degrees = (abs(x[some]) <= 360).all() and (abs(y[some]) <= 90).all()
            for name, axis in zip((lon, lat), transformer.transform(x, y), strict=True):
                # PROJ gives infinity beyond the area of the CRS: such a row is invalid.
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
            ).mended_by(file, {"crs": None}, {"coordinates": "trust"})

    return moved(), columns._replace(lon=lon, lat=lat), transformer.warnings
