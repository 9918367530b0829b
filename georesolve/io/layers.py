"""GeoPackage, FlatGeobuf and shapefiles, also in a ZIP archive, by GDAL.

A layer is read as a table with a GeoParquet column, in longitude and latitude on WGS 84: what is in
another CRS is transformed.
"""

import json
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from georesolve.io.columns import Reading
from georesolve.io.crs import degrees_from, in_degrees
from georesolve.io.errors import InvalidInput, InvalidOption, UnsupportedFormat, wrong
from georesolve.io.extras import needed
from georesolve.io.formats import BATCH_ROWS, SHAPEFILE, BadCell, Source, Table, bad_cells

_PURPOSE = "a GeoPackage, a FlatGeobuf or a shapefile"
_ZIP = b"PK"
_WITHOUT_ZONE = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
_OFFSET = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"
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
        ).mended_by(file, {"layer": ""})


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
    losses = _of_journal(source.path)
    try:
        with warnings.catch_warnings():
            if losses:
                # GDAL warns, too, that it leaves out the log.
                warnings.simplefilter("ignore", RuntimeWarning)
            layer = _layer(source, path)
            opening = partial(raw.open_arrow, path, layer, batch_size=BATCH_ROWS, use_pyarrow=True)
            with ExitStack() as stack:
                meta, reader = stack.enter_context(opening())
                schema = reader.schema
                # GDAL decodes text of another encoding only where the encoding is named.
                has_encoding = meta["encoding"] not in (None, "UTF-8")
                if has_encoding:
                    opening = partial(opening, encoding=meta["encoding"])
                clocks = [field.name for field in schema if field.type in _WITHOUT_ZONE]
                zoned = _zoned(source, opening, clocks) if clocks else []
                if has_encoding or zoned:
                    stack.close()
                    meta, reader = stack.enter_context(opening(datetime_as_string=bool(zoned)))
                opened = stack.pop_all()
    except (errors.DataSourceError, errors.DataLayerError) as error:
        text = str(error).replace(path, source.file).replace(str(source.path), source.file)
        raise InvalidInput(
            f"{source.file}: not a readable layer: the file may be damaged or cut off, so save it "
            f"again; GDAL says: {text[:500]}"
        ) from None
    for name in zoned:
        at = schema.get_field_index(name)
        schema = schema.set(at, schema.field(at).with_type(pa.timestamp("ms", "UTC")))
    batches = _checked(opened, reader, schema, source)
    column = meta["geometry_name"] or "wkb_geometry"
    if column not in schema.names:
        return Table(schema, batches, warnings=losses)
    transformer = None
    about: dict[str, Any] = {"encoding": "WKB", "geometry_types": []}
    if meta["geometry_type"] not in (None, "Unknown"):
        about["geometry_types"] = [meta["geometry_type"]]
    if (crs := meta["crs"] or source.reading.crs) is None:
        about["crs"] = None
    else:
        transformer = degrees_from(crs, source.file)
    if transformer is not None:
        transformer.warnings += losses
        losses, batches = transformer.warnings, in_degrees(batches, column, transformer)
    geo = {"version": "1.1.0", "primary_column": column, "columns": {column: about}}
    return Table(schema.with_metadata({"geo": json.dumps(geo)}), batches, warnings=losses)


def _opened_at(source: Source) -> str:
    """What GDAL opens: a file, or the shapefiles of a folder of a ZIP archive."""
    with source.path.open("rb") as handle:
        head = handle.read(len(SHAPEFILE))
    indexes = (source.path.with_suffix(suffix) for suffix in (".shx", ".SHX"))
    if head == SHAPEFILE and not any(index.exists() for index in indexes):
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
    ways: list[dict[str, str | None]] = [{"layer": name} for name, _ in layers]
    wanted = source.reading.layer
    if wanted is not None:
        if wanted in [name for name, _ in layers]:
            return wanted
        detail = f"{source.file}: it has no layer {wanted!r}; its layers are: {listed}"
        raise InvalidOption(detail, places).mended_by(source.file, *ways)
    of_points = [name for name, kind in layers if kind is not None and "Point" in kind]
    for names in ([name for name, _ in layers], of_points):
        if len(names) == 1:
            return names[0]
    option = f"{source.reading.prefix}layer"
    raise InvalidInput(
        f"{source.file}: it has several layers: {listed}: name one of them "
        f"as {option} (--{option.replace('_', '-')} of the command)",
        places,
    ).mended_by(source.file, *ways)


def _of_journal(path: Path) -> list[str]:
    """Warning about a GeoPackage whose write-ahead log SQLite cannot read, if it has one.

    To read the log, SQLite writes to the folder of the database.
    """
    log = Path(f"{path}-wal")
    if not log.exists() or not log.stat().st_size or os.access(path.parent, os.W_OK):
        return []
    return [
        f"{path.name}: its newest rows may be missing: they are in {log.name}, which cannot be "
        "read in a folder that cannot be written to. Close the programs that have the file open, "
        "or copy both files elsewhere"
    ]


def _zoned(source: Source, opening: Callable[..., Any], columns: list[str]) -> list[str]:
    """Columns of times that say their offset from UTC, of which GDAL else gives the clock alone.

    A column in which some times say none is refused.
    """
    firsts: dict[str, dict[bool, int]] = {name: {} for name in columns}
    row = 0
    with opening(columns=columns, read_geometry=False, datetime_as_string=True) as (_, reader):
        for batch in reader:
            for name, first in firsts.items():
                has_offset = pc.match_substring_regex(batch[name], _OFFSET)
                for is_zoned in {True, False} - first.keys():
                    if (at := pc.index(has_offset, is_zoned).as_py()) >= 0:
                        first[is_zoned] = row + at
            row += batch.num_rows
    for name, first in firsts.items():
        if len(first) > 1:
            detail = f"its time has no offset from UTC, and that of row {first[True]} has one"
            message = (
                f"the column {name!r}: row {first[False]}: {detail}: give all of them one, or none"
            )
            raise wrong(source.file, detail, message, column=name, row=first[False])
    return [name for name, first in firsts.items() if True in first]


def _checked(
    opened: ExitStack, reader: pa.RecordBatchReader, schema: pa.Schema, source: Source
) -> Iterator[pa.RecordBatch]:
    """Batches of a layer in their types, whose text is UTF-8."""
    row = 0
    with opened:
        for batch in reader:
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid:
                raise _undecoded(batch, row, source) from None
            row += batch.num_rows
            columns = [
                array if array.type == field.type else _times(array, field.type)
                for array, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _times(texts: pa.Array, type: pa.TimestampType) -> pa.Array:
    """Times in the text of ISO 8601; of a format that has UTC alone they need not say so."""
    if type.tz is not None:
        has_offset = pc.match_substring_regex(texts, _OFFSET)
        texts = pc.if_else(has_offset, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(type)


def _undecoded(batch: pa.RecordBatch, first_row: int, source: Source) -> InvalidInput:
    """Refusal of text that is not UTF-8, with its first places."""
    cells = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_string(array.type):
            continue
        for row, value in enumerate(array.cast(pa.binary()).to_pylist(), first_row):
            text = (value or b"").decode(errors="replace")
            if text.encode() != (value or b""):
                cells.append(BadCell(name, row, f"the value {text[:80]!r} is not UTF-8"))
    if not cells:
        return InvalidInput(f"{source.file}: not a readable layer: save it again")
    refusal = bad_cells(source, cells, len({cell.row for cell in cells}))
    advice = "save the layer as UTF-8, or correct the .cpg of a shapefile (ISO-8859-1 for Latin-1)"
    return InvalidInput(f"{refusal.detail}: {advice}", refusal.errors)
