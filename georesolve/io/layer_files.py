"""Results as GeoPackage, FlatGeobuf and shapefile, by GDAL."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.datasets import Coordinates, Dataset
from georesolve.io.extras import needed
from georesolve.io.formats import BATCH_ROWS
from georesolve.io.geometry import geometries_of, is_wgs_84
from georesolve.io.local_files import complete
from georesolve.io.result_formats import as_plain, plain_schema

_DRIVERS = {"gpkg": "GPKG", "fgb": "FlatGeobuf", "shp": "ESRI Shapefile"}
"""What GDAL calls formats, by their suffix."""
# An index would put the rows into an order of its own.
_WRITING = {"fgb": {"SPATIAL_INDEX": "NO"}}
_LONGEST_NAME = {"shp": 10}
LAYERS = tuple(_DRIVERS)
"""Suffixes of the formats that are written."""
_PURPOSE = "a GeoPackage, a FlatGeobuf or a shapefile"
_GEOMETRY = "geometry"


def write_layer(
    result: pq.ParquetFile, format: str, observations: Dataset, target: Path, temporary: Path
) -> None:
    """Write a result as a layer of points, those of the observations.

    A row a reference has the geometry of it that the result carries, such as a polygon, if any.
    Values are numbers and texts, as in CSV. It is written to `temporary`; of the several files of a
    shapefile the others appear beside the target.
    """
    raw = needed("pyogrio.raw", "gis", _PURPOSE)
    import shapely

    coordinates = Coordinates(observations)
    by_reference = result.schema_arrow.names[0] == "reference"
    own = [
        name
        for name, about in geometries_of(result.schema_arrow).items()
        if by_reference and ("crs" not in about or is_wgs_84(about["crs"]))
    ][:1]
    rest = [one for one in result.schema_arrow.names if one not in own]
    plain = plain_schema(pa.schema([result.schema_arrow.field(one) for one in rest]))
    names = _short(plain.names, _LONGEST_NAME.get(format))
    # GDAL has no unsigned integers of 64 bits and would round them to float64.
    types = [pa.large_string() if one == pa.uint64() else one for one in plain.types]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in result.iter_batches(BATCH_ROWS):
            if own:
                wkb = batch[own[0]].cast(pa.binary())
            else:
                lon, lat = coordinates.of(batch.column(0).to_numpy())
                shapes = shapely.points(lon - 360 * (lon > 180), lat)
                shapes[shapely.is_empty(shapes)] = None
                wkb = pa.array(shapely.to_wkb(shapes), pa.binary())
            named = as_plain(batch.select(rest)).rename_columns(names)
            columns = [array.cast(kind) for array, kind in zip(named.columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays([*columns, wkb], [*names, _GEOMETRY])

    with TemporaryDirectory(prefix=f"{temporary.name}.", dir=temporary.parent) as folder:
        # GDAL tells by its name what a shapefile is, and would make a folder of any other.
        made = Path(folder) / f"{target.stem}.{format}"
        reader = pa.RecordBatchReader.from_batches(
            pa.schema([*zip(names, types, strict=True), (_GEOMETRY, pa.binary())]),
            batches(),
        )
        raw.write_arrow(
            reader,
            made,
            layer=target.stem,
            driver=_DRIVERS[format],
            geometry_name=_GEOMETRY,
            geometry_type="Unknown" if own else "Point",
            crs="EPSG:4326",
            **_WRITING.get(format, {}),
        )
        for part in made.parent.iterdir():
            if part != made:
                with complete(target.with_suffix(part.suffix)) as beside:
                    part.replace(beside)
        made.replace(temporary)


def _short(names: list[str], longest: int | None) -> list[str]:
    """Names of no more characters than a format has for them, as `obs` and `ref`; all differ."""
    if longest is None:
        return names
    short: list[str] = []
    for name in names:
        start = name.replace("observation", "obs", 1).replace("reference", "ref", 1)
        found = start[:longest]
        for number in count(1):
            if found not in short:
                break
            found = f"{start[: longest - 1 - len(str(number))]}_{number}"
        short.append(found)
    return short
