"""The formats of a result: Parquet as it is stored, and the others made from it, batch by batch.

`docs/input-output.md` has what they look like. Values that no text can be made of are refused with
the name of their column.
"""

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import shapely

from georesolve.io.column_sizes import value_bytes
from georesolve.io.errors import NotRepresentable, RowTooWide
from georesolve.io.geometry import geometries_of
from georesolve.io.result_files import Rows
from georesolve.io.result_geometries import (
    Geometries,
    PointSets,
    Shapes,
    joined,
)

_BATCH_ROWS = 8_192
_BATCH_BYTES = 4 << 20
"""Memory that a batch takes, if it is not a single row: as objects of Python it takes tenfold."""
_READ_ROWS = 1_024
"""Decoded at a time: what a row group carries in memory is bounded, so these take a part of it."""
_TEXT_BYTES = 32 << 20
"""Memory that a row may take of which text is made."""
_SHOWN_CHARACTERS, _SHOWN_POINTS = 1_000, 50
"""Of a text and of a geometry that is looked at."""
_OUT_OF_RANGE = "<value out of range"
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


def _arrow(result: Rows, sets: PointSets) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, result.schema_arrow) as writer:
        for batch in _batches(result):
            writer.write_batch(batch)
            yield _taken(sink)
    yield _taken(sink)


def _csv(result: Rows, sets: PointSets) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.csv.CSVWriter(sink, plain_schema(result.schema_arrow)) as writer:
        for batch in _batches(result, _TEXT_BYTES):
            writer.write_batch(as_plain(batch))
            yield _taken(sink)
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    """What was written, which is forgotten here."""
    content = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return content


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """What `as_plain` makes of batches of a schema."""
    columns = [pa.nulls(0, type) for type in schema.types]
    return as_plain(pa.RecordBatch.from_arrays(columns, schema=schema)).schema


def as_plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a result as CSV has them: numbers, and texts of all else."""
    # The writer puts texts into quotes itself.
    return _converted(batch, lambda one: (_plain if _is_plain(one.type) else _each_as_json)(one))


def shortened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows to look at: of long texts the begin, of large geometries how many points they have.

    Values that no text can be made of are told as that: the other columns are seen all the same.
    """
    as_text = {**_AS_WKT, "WKB": _as_short_wkt}
    return _converted(batch, _begin, as_text, otherwise="(no text can be made of it)")


def _begin(array: pa.Array) -> pa.Array:
    if not (is_plain := _is_plain(array.type)):
        # As it will be: what cannot be written is told of here.
        _each_as_json(array)
    plain = _plain(array) if is_plain else array
    if not pa.types.is_large_string(plain.type):
        return plain
    begin = pc.utf8_slice_codeunits(plain, 0, _SHOWN_CHARACTERS)
    cut = joined(begin, "...")
    return pc.if_else(pc.greater(pc.utf8_length(plain), _SHOWN_CHARACTERS), cut, plain)


def _as_short_wkt(array: pa.Array) -> pa.Array:
    shapes = _shapes_of(array)
    counts = shapely.get_num_coordinates(shapes)
    told = [
        f"{one.geom_type} of {points} points" if points > _SHOWN_POINTS else None
        for one, points in zip(shapes, counts, strict=True)
    ]
    shapes[counts > _SHOWN_POINTS] = None
    return pc.coalesce(_wkt(shapes), pa.array(told, pa.large_string()))


def _json(result: Rows, sets: PointSets) -> Iterator[bytes]:
    yield from _array(_rows_as_json(result))
    yield b"\n"


def _features_as_json(result: Rows, sets: PointSets, *, lines: bool) -> Iterator[bytes]:
    has_shapes = not lines and sets("observations").outlines is not None
    geometries = Shapes(sets("observations")) if has_shapes else None
    pieces = _array(_features(result, geometries or Geometries(result, sets, lines=lines)))
    yield b'{"type":"FeatureCollection","features":' + next(pieces)
    yield from pieces
    yield b"}\n"


def features(result: Rows, sets: PointSets, *, lines: bool) -> Iterator[str]:
    """Each row of a result as a feature of GeoJSON."""
    for texts in _features(result, Geometries(result, sets, lines=lines)):
        yield from texts.to_pylist()


def _array(batches: Iterable[pa.Array]) -> Iterator[bytes]:
    separator = "[\n"
    for texts in batches:
        yield (separator + ",\n".join(texts.to_pylist())).encode()
        separator = ",\n"
    yield b"[]" if separator == "[\n" else b"\n]"


def _features(result: Rows, geometries: Geometries | Shapes) -> Iterator[pa.Array]:
    for rows in _rows_as_json(result):
        geometry = geometries.take(len(rows))
        yield joined('{"type":"Feature","geometry":', geometry, ',"properties":', rows, "}")


def _rows_as_json(result: Rows) -> Iterator[pa.Array]:
    """The rows as objects of JSON."""
    keys = [json.dumps(name, ensure_ascii=False) for name in result.schema_arrow.names]
    before = [f"{'{' if i == 0 else ','}{key}:" for i, key in enumerate(keys)]
    for batch in _batches(result, _TEXT_BYTES):
        if batch.num_rows:
            values = _converted(batch, _as_json).columns
            pieces = (piece for pair in zip(before, values, strict=True) for piece in pair)
            yield joined(*pieces, "}", null="null")


def _batches(result: Rows, most_row_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
    """All rows, in batches of so many that they take little memory."""
    for read in _read(result):
        each = np.zeros(read.num_rows, np.int64)
        for column in read.columns:
            each += value_bytes(column)
        widest = int(each.max(initial=0))
        if most_row_bytes is not None and widest > most_row_bytes:
            raise RowTooWide(
                f"a row of the result takes {widest} bytes of memory, and one of which text is "
                f"made may take {most_row_bytes}: take the result as Parquet or Arrow"
            )
        ends, start = np.cumsum(each), 0
        while start < read.num_rows:
            most = ends[start] - each[start] + _BATCH_BYTES
            stop = max(start + 1, int(np.searchsorted(ends, most, "right")))
            yield read.slice(start, stop - start)
            start = stop


def _read(result: Rows) -> Iterator[pa.RecordBatch]:
    """All rows, in batches of `_BATCH_ROWS`, or fewer where those decoded so far take much."""
    held: list[pa.RecordBatch] = []
    size = 0
    # To wake threads takes longer than to decode so few rows.
    for batch in result.iter_batches(_READ_ROWS, use_threads=False):
        held.append(batch)
        size += batch.nbytes
        if len(held) * _READ_ROWS >= _BATCH_ROWS or size > _BATCH_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _converted(
    batch: pa.RecordBatch,
    convert: Callable[[pa.Array], pa.Array],
    as_text: "dict[str, Callable[[pa.Array], pa.Array]] | None" = None,
    otherwise: str | None = None,
) -> pa.RecordBatch:
    """Convert columns one by one, those that hold geometries as WKT.

    One that cannot be converted is refused, or has the text `otherwise` in each row.
    """
    names, geometries = batch.schema.names, geometries_of(batch.schema)
    converted = []
    for array, name in zip(batch.columns, names, strict=True):
        try:
            encoding = geometries.get(name, {}).get("encoding", "")
            as_wkt = (as_text or _AS_WKT).get(encoding, lambda array: array)
            converted.append(convert(as_wkt(array)))
        # What pyarrow and Python raise of a time zone that they do not know, of a time out of
        # their range, of a record with two members of one name.
        # NotImplementedError is shapely's, of curves.
        except (
            *(pa.ArrowException, ValueError, OverflowError),
            *(NotImplementedError, shapely.errors.ShapelyError),
        ) as error:
            if otherwise is not None:
                converted.append(pa.array([otherwise] * len(array), pa.large_string()))
                continue
            detail = f"{str(array.type)[:200]}: {str(error)[:200]}"
            raise NotRepresentable(
                f"the column {name[:80]!r} has values that cannot be written as text ({detail}): "
                "take the result as Parquet or Arrow, or leave the column out",
                [{"column": name, "detail": detail}],
            ) from error
    return pa.RecordBatch.from_arrays(converted, names)


def _points_as_wkt(array: pa.Array) -> pa.Array:
    """GeoArrow's points; null where there is none."""
    # Not `array.field`: below a null point there may lie numbers all the same.
    axes = [
        pc.struct_field(array, field.name).to_numpy(zero_copy_only=False) for field in array.type
    ]
    shapes = shapely.points(np.stack(axes, axis=-1))
    shapes[array.is_null().to_numpy(zero_copy_only=False)] = None
    return _wkt(shapes)


def _shapes_of(wkb: pa.Array) -> np.ndarray:
    # Coordinates that are NaN are as good as others.
    with np.errstate(invalid="ignore"):
        shapes: np.ndarray = shapely.from_wkb(wkb.to_numpy(zero_copy_only=False))
    return shapes


def _wkt(shapes: np.ndarray) -> pa.Array:
    # The fewest digits that read back as the same numbers: -1 stands for 16, which are too few.
    return pa.array(shapely.to_wkt(shapes, rounding_precision=20), pa.large_string())


_AS_WKT: dict[str, Callable[[pa.Array], pa.Array]] = {
    "WKB": lambda array: _wkt(_shapes_of(array)),
    "point": _points_as_wkt,
}
"""By their encoding in GeoParquet."""


def _as_json(array: pa.Array) -> pa.Array:
    """Values as JSON texts, null where they are null in JSON."""
    if not _is_plain(array.type):
        return _each_as_json(array)
    array = _plain(array)
    if pa.types.is_floating(array.type):
        numbers = array.to_numpy(zero_copy_only=False)
        # With numpy: a call of `pyarrow.compute` takes as long as all else of a short answer.
        if not (finite := np.isfinite(numbers)).all():
            array = pa.array(numbers, mask=~finite)
    texts = array.cast(pa.large_string())
    if _is_number(array.type):
        return texts
    # Almost no text has anything to escape, and those that have are slow.
    if pc.match_substring_regex(texts, _NEEDS_ESCAPE).true_count:
        return _each_as_json(texts)
    return joined('"', texts, '"')


def _is_plain(type: pa.DataType) -> bool:
    """Whether values of a type are one number, one time or one text each."""
    if pa.types.is_dictionary(type):
        return _is_plain(type.value_type)
    if isinstance(type, pa.BaseExtensionType):
        return _is_plain(type.storage_type)
    return not pa.types.is_nested(type)


def _is_number(type: pa.DataType) -> bool:
    """Whether JSON has values of a type as they are."""
    is_it = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(one(type) for one in is_it)


def _plain(array: pa.Array) -> pa.Array:
    """Numbers as they are, all else as text."""
    type = array.type
    if pa.types.is_dictionary(type):
        return _plain(array.dictionary_decode())
    if isinstance(type, pa.UuidType):
        return pa.array([x and str(x) for x in array.to_pylist()], pa.large_string())
    if isinstance(type, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_float16(type):
        return array.cast(pa.float32())
    if _is_number(type):
        return array
    if pa.types.is_duration(type):
        # So many of its unit, which the schema of a result says.
        return array.cast(pa.int64())
    if pa.types.is_temporal(type):
        return _times(array)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return pa.array([x and _base64(x) for x in array.to_pylist()], pa.large_string())
    if pa.types.is_fixed_size_binary(type):
        return _plain(array.cast(pa.binary()))
    return array.cast(pa.large_string())


def _times(array: pa.Array) -> pa.Array:
    """Times as text; raises ValueError of one that is out of range.

    For such a one pyarrow writes just that, or anything if it has a zone.
    """
    type = array.type
    texts = array.cast(pa.large_string())
    without_zone = array.cast(pa.timestamp(type.unit)) if getattr(type, "tz", None) else array
    beyond = pc.starts_with(without_zone.cast(pa.large_string()), _OUT_OF_RANGE)
    if pc.any(beyond).as_py():
        raise ValueError(f"{array.filter(beyond)[0].value} is out of range")
    if not pa.types.is_timestamp(type):
        return texts
    texts = pc.replace_substring(texts, " ", "T")
    if type.tz is None:
        return texts
    # pyarrow writes +0100, RFC 3339 wants +01:00.
    return pc.replace_substring_regex(texts, r"([+-]\d\d)(\d\d)$", r"\1:\2")


def _each_as_json(array: pa.Array) -> pa.Array:
    values = (None if value is None else _one_as_json(value) for value in array.to_pylist())
    return pa.array(values, pa.large_string())


def _one_as_json(value: Any) -> str:
    try:
        return json.dumps(value, default=_json_value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(value, default=_json_value)
        return _one_as_json(json.loads(text, parse_constant=lambda _: None))


def _json_value(value: Any) -> str:
    if isinstance(value, bytes):
        return _base64(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@dataclass(frozen=True, eq=False)
class Format:
    """A format of results.

    `pieces` makes it from the rows of a result and, where it has coordinates, from the two sets, a
    batch of rows at a time; None for Parquet itself. `parameters` may follow its media type in a
    request that still means it. The features of GeoJSON have a `geometry`: `point` or `line`.
    """

    media_type: str
    suffix: str
    pieces: Callable[[Rows, PointSets], Iterator[bytes]] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    geometry: str = ""

    @property
    def name(self) -> str:
        """What a result in it is called as a file."""
        return f"matches.{self.suffix}"

    @property
    def address(self) -> str:
        """Where it is, below the results of a job."""
        return f"{self.name}?geometry={self.geometry}" if self.geometry else self.name

    @property
    def ending(self) -> str:
        """What its file ends in, beside others of the same result."""
        return f"{self.geometry}.{self.suffix}" if self.geometry else self.suffix

    @property
    def is_text(self) -> bool:
        """Whether a person can read it."""
        return "charset" in self.parameters


def up_to(most_bytes: int, pieces: Iterator[bytes]) -> bytes | None:
    """All pieces together; None when they are more than so many bytes."""
    made = bytearray()
    for piece in pieces:
        made += piece
        if len(made) > most_bytes:
            return None
    return bytes(made)


def _geojson(geometry: str) -> Format:
    pieces = partial(_features_as_json, lines=geometry == "line")
    parameters = {"charset": "utf-8", "geometry": geometry}
    return Format("application/geo+json", "geojson", pieces, parameters, geometry)


PARQUET = Format("application/vnd.apache.parquet", "parquet")
ARROW = Format("application/vnd.apache.arrow.stream", "arrows", _arrow)
CSV = Format("text/csv", "csv", _csv, {"charset": "utf-8", "header": "present"})
JSON = Format("application/json", "json", _json, {"charset": "utf-8"})
POINTS, LINES = _geojson("point"), _geojson("line")
FORMATS = (PARQUET, ARROW, CSV, JSON, POINTS)
"""One of each media type. Of several that a client likes equally well it gets the first."""
