"""GeoPackage, FlatGeobuf and shapefiles, by GDAL: for files of one's own, not for the service.

A layer is read as a table with a GeoParquet column, in longitude and latitude on WGS 84: what is in
another CRS is transformed.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.extras import needed
from georesolve.intake.columns import Reading
from georesolve.intake.errors import InvalidInput, InvalidOption
from georesolve.intake.geometry import is_wgs_84
from georesolve.intake.representations import as_plain, plain_schema
from georesolve.intake.sources import BATCH_ROWS, Source, Table
from georesolve.workers.datasets import Coordinates, Dataset
from georesolve.workers.files import complete

_DRIVERS = {"gpkg": "GPKG", "fgb": "FlatGeobuf", "shp": "ESRI Shapefile"}
"""What GDAL calls formats, by their suffix."""
# An index would put the rows into an order of its own.
_WRITING = {"fgb": {"SPATIAL_INDEX": "NO"}}
_LONGEST_NAME = {"shp": 10}
LAYERS = tuple(_DRIVERS)
"""Suffixes of the formats that are written."""
_PURPOSE = "a GeoPackage, a FlatGeobuf or a shapefile"
_GEOMETRY = "geometry"


def refuse_layer(reading: Reading, file: str) -> None:
    """Refuse that a layer is named of what has none."""
    if reading.layer is not None:
        raise InvalidOption(
            f"{file}: it has no layers, and {reading.layer!r} is named as its layer: leave that "
            "out, or name it for the other table alone (observation_layer, reference_layer)"
        )


def read_layer(source: Source) -> Table:
    """Open a file of layers: the one that is named, or the only one, or the only one of points."""
    raw = needed("pyogrio.raw", "gis", _PURPOSE)
    errors = needed("pyogrio.errors", "gis", _PURPOSE)
    try:
        layer = _layer(source)
        with ExitStack() as stack:
            meta, reader = stack.enter_context(
                raw.open_arrow(source.path, layer=layer, batch_size=BATCH_ROWS, use_pyarrow=True)
            )
            opened = stack.pop_all()
    except (errors.DataSourceError, errors.DataLayerError) as error:
        text = str(error).replace(str(source.path), source.file)
        raise InvalidInput(f"{source.file}: not a readable layer: {text[:500]}") from None
    column = meta["geometry_name"] or "wkb_geometry"
    if column not in reader.schema.names:
        return Table(reader.schema, _batches(opened, reader, column, None))
    transformer = None
    about: dict[str, Any] = {"encoding": "WKB", "geometry_types": []}
    if meta["geometry_type"] not in (None, "Unknown"):
        about["geometry_types"] = [meta["geometry_type"]]
    if meta["crs"] is None:
        about["crs"] = None
    else:
        pyproj = needed("pyproj", "gis", _PURPOSE)
        crs = pyproj.CRS.from_user_input(meta["crs"])
        if not is_wgs_84(crs.to_json_dict()):
            transformer = pyproj.Transformer.from_crs(crs, "OGC:CRS84", always_xy=True)
    geo = {"version": "1.1.0", "primary_column": column, "columns": {column: about}}
    schema = reader.schema.with_metadata({"geo": json.dumps(geo)})
    return Table(schema, _batches(opened, reader, column, transformer))


def _layer(source: Source) -> str:
    pyogrio = needed("pyogrio", "gis", _PURPOSE)
    layers: list[tuple[str, str | None]] = pyogrio.list_layers(source.path).tolist()
    listed = ", ".join(repr(name) for name, _ in layers) or "none"
    wanted = source.reading.layer
    if wanted is not None:
        if wanted in [name for name, _ in layers]:
            return wanted
        raise InvalidOption(f"{source.file}: it has no layer {wanted!r}; its layers are: {listed}")
    of_points = [name for name, kind in layers if kind is not None and "Point" in kind]
    for names in ([name for name, _ in layers], of_points):
        if len(names) == 1:
            return names[0]
    option = f"{source.reading.prefix}layer"
    raise InvalidInput(
        f"{source.file}: of its layers ({listed}) {len(of_points)} hold points: name one of them "
        f"as {option} (--{option.replace('_', '-')} of the command)"
    )


def _batches(
    opened: ExitStack, reader: pa.RecordBatchReader, column: str, transformer: Any
) -> Iterator[pa.RecordBatch]:
    import shapely

    with opened:
        for batch in reader:
            if transformer is not None:
                place = batch.schema.get_field_index(column)
                shapes = shapely.from_wkb(batch[column].to_numpy(zero_copy_only=False))
                moved = shapely.transform(shapes, transformer.transform, interleaved=False)
                wkb = pa.array(shapely.to_wkb(moved), batch[column].type)
                batch = batch.set_column(place, batch.schema.field(place), wkb)
            yield batch


def write_layer(
    result: pq.ParquetFile, format: str, observations: Dataset, target: Path, temporary: Path
) -> None:
    """Write a result as a layer of points, those of the observations.

    Values are numbers and texts, as in CSV. It is written to `temporary`; of the several files of a
    shapefile the others appear beside the target.
    """
    raw = needed("pyogrio.raw", "gis", _PURPOSE)
    import shapely

    coordinates = Coordinates(observations)
    plain = plain_schema(result.schema_arrow)
    names = _short(plain.names, _LONGEST_NAME.get(format))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in result.iter_batches(BATCH_ROWS):
            lon, lat = coordinates.of(batch.column(0).to_numpy())
            shapes = shapely.points(lon - 360 * (lon > 180), lat)
            shapes[shapely.is_empty(shapes)] = None
            wkb = pa.array(shapely.to_wkb(shapes), pa.binary())
            yield as_plain(batch).rename_columns(names).append_column(_GEOMETRY, wkb)

    folder = temporary.with_name(f"{temporary.name}.parts")
    folder.mkdir()
    try:
        # GDAL tells by its name what a shapefile is, and would make a folder of any other.
        made = folder / f"{target.stem}.{format}"
        reader = pa.RecordBatchReader.from_batches(
            pa.schema(zip(names, plain.types, strict=True)).append(
                pa.field(_GEOMETRY, pa.binary())
            ),
            batches(),
        )
        raw.write_arrow(
            reader,
            made,
            layer=target.stem,
            driver=_DRIVERS[format],
            geometry_name=_GEOMETRY,
            geometry_type="Point",
            crs="EPSG:4326",
            **_WRITING.get(format, {}),
        )
        for part in folder.iterdir():
            if part != made:
                with complete(target.with_suffix(part.suffix)) as beside:
                    part.replace(beside)
        made.replace(temporary)
    finally:
        shutil.rmtree(folder)


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
