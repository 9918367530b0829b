"""The formats of a result: Parquet as it is stored, and the others made from it, batch by batch.

Whatever the format, the rows, their order and the names of their columns are those of the Parquet
file. JSON is an array with an object a row, a row a line: what `pandas.read_json` and JavaScript
make a table of. Numbers are the shortest text that reads back the same. What there is not is an
empty field in CSV and null in JSON, as NaN and infinity are there. Times are written as ISO 8601
has them, bytes in base64, and lists and records as JSON, in CSV too.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

_BATCH_ROWS = 8_192
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


def _write_arrow(result: pq.ParquetFile, sink: BinaryIO) -> None:
    with pa.ipc.new_stream(sink, result.schema_arrow) as writer:
        for batch in result.iter_batches(_BATCH_ROWS):
            writer.write_batch(batch)


def _write_csv(result: pq.ParquetFile, sink: BinaryIO) -> None:
    types = [_text_or_plain(field.type) for field in result.schema_arrow]
    schema = pa.schema(zip(result.schema_arrow.names, types, strict=True))
    with pa.csv.CSVWriter(sink, schema) as writer:
        for batch in result.iter_batches(_BATCH_ROWS):
            columns = [
                _plain(array) if _is_plain(array.type) else _each_as_json(array)
                for array in batch.columns
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _text_or_plain(type: pa.DataType) -> pa.DataType:
    return _plain(pa.array([], type)).type if _is_plain(type) else pa.string()


def _write_json(result: pq.ParquetFile, sink: BinaryIO) -> None:
    separator = "[\n"
    for rows in _rows_as_json(result):
        sink.write((separator + ",\n".join(rows)).encode())
        separator = ",\n"
    sink.write(b"[]\n" if separator == "[\n" else b"\n]\n")


def _rows_as_json(result: pq.ParquetFile) -> Iterator[list[str]]:
    names = [json.dumps(name, ensure_ascii=False) for name in result.schema_arrow.names]
    # 64 bits count the bytes of a batch: values may be long.
    text = pa.large_string()
    before = [pa.scalar(f"{'{' if i == 0 else ','}{name}:", text) for i, name in enumerate(names)]
    end, nothing = pa.scalar("}", text), pa.scalar("", text)
    for batch in result.iter_batches(_BATCH_ROWS):
        values = [_as_json(array).cast(text).fill_null("null") for array in batch.columns]
        pieces = [piece for pair in zip(before, values, strict=True) for piece in pair]
        if batch.num_rows:
            yield pc.binary_join_element_wise(*pieces, end, nothing).to_pylist()


def _as_json(array: pa.Array) -> pa.Array:
    """Values as JSON texts, null where they are null in JSON."""
    if not _is_plain(array.type):
        return _each_as_json(array)
    array = _plain(array)
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_finite(array), array, None).cast(pa.string())
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(pa.string())
    texts = array.cast(pa.large_string())
    # Almost no text has anything to escape, and those that have are slow.
    if pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py():
        return _each_as_json(texts)
    quote, nothing = (pa.scalar(piece, pa.large_string()) for piece in ('"', ""))
    return pc.binary_join_element_wise(quote, texts, quote, nothing)


def _is_plain(type: pa.DataType) -> bool:
    """Whether values of a type are one number, one time or one text each."""
    if pa.types.is_dictionary(type):
        return _is_plain(type.value_type)
    return not pa.types.is_nested(type)


def _plain(array: pa.Array) -> pa.Array:
    """Numbers as they are, all else as text."""
    type = array.type
    if pa.types.is_dictionary(type):
        return _plain(array.dictionary_decode())
    if pa.types.is_float16(type):
        return array.cast(pa.float32())
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type):
        return array
    if pa.types.is_timestamp(type):
        return pc.replace_substring(array.cast(pa.string()), " ", "T")
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return pa.array([x and _base64(x) for x in array.to_pylist()], pa.large_string())
    if pa.types.is_fixed_size_binary(type):
        return _plain(array.cast(pa.binary()))
    return array.cast(pa.large_string())


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


class Format(NamedTuple):
    """A format of results.

    Attributes
    ----------
    media_type, suffix
        What it is called in HTTP and in a file name.
    parameters
        What may follow its media type in a request and still means it.
    write
        Makes it from a Parquet file; None for that itself.
    """

    media_type: str
    suffix: str
    write: Callable[[pq.ParquetFile, BinaryIO], None] | None = None
    parameters: Mapping[str, str] = MappingProxyType({})

    @property
    def name(self) -> str:
        """What a result in it is called as a file."""
        return f"matches.{self.suffix}"


PARQUET = Format("application/vnd.apache.parquet", "parquet")
FORMATS = (
    PARQUET,
    Format("application/vnd.apache.arrow.stream", "arrows", _write_arrow),
    Format("text/csv", "csv", _write_csv, {"charset": "utf-8", "header": "present"}),
    Format("application/json", "json", _write_json, {"charset": "utf-8"}),
)
"""All formats. Of several that a client likes equally well it gets the first."""
