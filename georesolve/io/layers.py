"""GeoPackage, FlatGeobuf and shapefiles, also in a ZIP archive, by GDAL.

A layer is read as a table with a GeoParquet column, in longitude and latitude on WGS 84: what is in
another CRS is transformed.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from georesolve.io.columns import Reading
from georesolve.io.crs import degrees_from, in_degrees
from georesolve.io.errors import InvalidInput, InvalidOption, UnsupportedFormat
from georesolve.io.extras import needed
from georesolve.io.formats import BATCH_ROWS, SHAPEFILE, Source, Table

_PURPOSE = "a GeoPackage, a FlatGeobuf or a shapefile"
_ZIP = b"PK"
_JOURNAL_MODE = 18
"""Where a file of SQLite says with two bytes whether it has a write-ahead log: 2, or 1."""
# What zipfile raises of one that is malformed, encrypted or packed in a way that it does not know.
_OF_THE_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, KeyError, NotImplementedError, RuntimeError, OSError, ValueError),
)


def refuse_layer(reading: Reading, file: str) -> None:
    """Refuse that a layer is named of what has none."""
    if reading.layer is not None:
        raise InvalidOption(
            f"{file}: it has no layers, and {reading.layer!r} is named as its layer: leave that "
            "out, or name it for the other table alone (observation_layer, reference_layer)"
        )


def close_journal(path: Path) -> None:
    """Mark a GeoPackage that QGIS, say, had open as one that it has not.

    SQLite would want to write files beside it, which no decoder may. What it has of the database is
    in the one file that came.
    """
    with path.open("r+b") as file:
        head = file.read(_JOURNAL_MODE + 2)
        if head.startswith(b"SQLite") and head.endswith(b"\2\2"):
            file.seek(_JOURNAL_MODE)
            file.write(b"\1\1")


def read_layer(source: Source) -> Table:
    """Open a file of layers: the one that is named, or the only one, or the only one of points."""
    raw = needed("pyogrio.raw", "gis", _PURPOSE)
    errors = needed("pyogrio.errors", "gis", _PURPOSE)
    path = _opened_at(source)
    try:
        layer = _layer(source, path)
        with ExitStack() as stack:
            meta, reader = stack.enter_context(
                raw.open_arrow(path, layer=layer, batch_size=BATCH_ROWS, use_pyarrow=True)
            )
            opened = stack.pop_all()
    except (errors.DataSourceError, errors.DataLayerError) as error:
        text = str(error).replace(path, source.file).replace(str(source.path), source.file)
        raise InvalidInput(
            f"{source.file}: not a readable layer: the file may be damaged or cut off, so save it "
            f"again; GDAL says: {text[:500]}"
        ) from None
    column = meta["geometry_name"] or "wkb_geometry"
    if column not in reader.schema.names:
        return Table(reader.schema, _batches(opened, reader, column, None))
    transformer = None
    about: dict[str, Any] = {"encoding": "WKB", "geometry_types": []}
    if meta["geometry_type"] not in (None, "Unknown"):
        about["geometry_types"] = [meta["geometry_type"]]
    if (crs := meta["crs"] or source.reading.crs) is None:
        about["crs"] = None
    else:
        transformer = degrees_from(crs, source.file)
    geo = {"version": "1.1.0", "primary_column": column, "columns": {column: about}}
    schema = reader.schema.with_metadata({"geo": json.dumps(geo)})
    return Table(schema, _batches(opened, reader, column, transformer))


def _opened_at(source: Source) -> str:
    """What GDAL opens: a file, or the shapefiles of a folder of a ZIP archive."""
    with source.path.open("rb") as handle:
        head = handle.read(len(SHAPEFILE))
    if head == SHAPEFILE and not source.path.with_suffix(".shx").exists():
        raise InvalidInput(
            f"{source.file}: a shapefile is several files, .shp, .shx, .dbf and .prj: give them "
            "as one ZIP archive"
        )
    if not head.startswith(_ZIP):
        return str(source.path)
    try:
        with zipfile.ZipFile(source.path) as archive:
            names = [PurePosixPath(name) for name in archive.namelist()]
            shapes = [one for one in names if one.suffix.lower() == ".shp" and one.name[0] != "."]
            # What else it may be GDAL would find out, and it reads formats that name other files.
            heads = {archive.open(str(one)).read(len(SHAPEFILE)) for one in shapes}
    except _OF_THE_ARCHIVE as error:
        raise InvalidInput(
            f"{source.file}: not a readable ZIP archive: it may be damaged or cut off, so make it "
            f"again ({error})"
        ) from None
    if heads != {SHAPEFILE}:
        what = "compressed with zip"
        raise UnsupportedFormat(
            f"{source.file}: the file is {what}, and holds no shapefile (.shp): add it, or send "
            "what it holds unpacked",
            [{"file": source.file, "detail": what}],
        )
    if len({one.parent for one in shapes}) > 1:
        listed = ", ".join(sorted(repr(str(one)) for one in shapes)[:20])
        raise InvalidInput(
            f"{source.file}: its shapefiles lie in several folders ({listed}): give those of one "
            "folder as an archive"
        )
    # GDAL knows no folder `.`.
    inside = shapes[0] if len(shapes) == 1 else shapes[0].parent
    return f"/vsizip/{{{source.path}}}/{inside}".removesuffix("/.")


def _layer(source: Source, path: str) -> str:
    pyogrio = needed("pyogrio", "gis", _PURPOSE)
    layers: list[tuple[str, str | None]] = pyogrio.list_layers(path).tolist()
    listed = ", ".join(repr(name) for name, _ in layers) or "none"
    places = [{"file": source.file, "layer": name, "detail": "a layer"} for name, _ in layers]
    wanted = source.reading.layer
    if wanted is not None:
        if wanted in [name for name, _ in layers]:
            return wanted
        detail = f"{source.file}: it has no layer {wanted!r}; its layers are: {listed}"
        raise InvalidOption(detail, places)
    of_points = [name for name, kind in layers if kind is not None and "Point" in kind]
    for names in ([name for name, _ in layers], of_points):
        if len(names) == 1:
            return names[0]
    option = f"{source.reading.prefix}layer"
    raise InvalidInput(
        f"{source.file}: it has several layers: {listed}: name one of them "
        f"as {option} (--{option.replace('_', '-')} of the command)",
        places,
    )


def _batches(
    opened: ExitStack, reader: pa.RecordBatchReader, column: str, transformer: Any
) -> Iterator[pa.RecordBatch]:
    with opened:
        yield from reader if transformer is None else in_degrees(reader, column, transformer)
