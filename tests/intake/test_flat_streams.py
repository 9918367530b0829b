"""Arrow streams of plain columns are what pyarrow reads, and all others are left to it."""

import io
import random

import numpy as np
import pyarrow as pa
import pytest

from georesolve.intake.flat_streams import flat_table

DEGREES = np.random.default_rng(1).uniform(-90, 90, 50)
TEXTS = pa.array(["a", None, "", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "long" * 20] * 10)
PLAIN = pa.table(
    {
        "lat": DEGREES,
        "lon": pa.array(DEGREES, mask=DEGREES > 30),
        "id": TEXTS,
        "name": TEXTS.cast(pa.large_string()),
        **{str(type): pa.array(range(50), type) for type in (pa.int8(), pa.uint16(), pa.int64())},
        "single": pa.array([np.nan, None, 1.5, -0.0, 3.0] * 10, pa.float32()),
    }
)


def stream(table, chunk=None, **options):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, chunk)
    return sink.getvalue()


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("rows", [slice(0, 50), slice(13, 31), slice(0, 1), slice(0, 0)])
def test_plain_columns_are_read_as_pyarrow_does(rows, chunk):
    table = PLAIN.slice(rows.start, rows.stop - rows.start)
    content = stream(table, chunk)
    expected = pa.ipc.open_stream(content).read_all()
    if not expected.num_rows:
        # A stream without a batch has no rows to be quick about.
        assert flat_table(content) is None
        return
    for found in (flat_table(content), flat_table(bytearray(content))):
        assert found.schema.equals(expected.schema)
        for name in expected.column_names:
            own, others = (t[name].combine_chunks() for t in (found, expected))
            assert own.is_null().equals(others.is_null())
            assert str(own.to_pylist()) == str(others.to_pylist())


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.array(["a", "b"]).dictionary_encode()},
        {"id": pa.array([[1], [2]])},
        {"id": pa.array([{"a": 1}, {"a": 2}])},
        {"id": pa.array([True, False])},
        {"id": pa.array([b"a", b"b"])},
        {"id": pa.nulls(2)},
        {"id": pa.array([1, 2], pa.timestamp("s"))},
        {"id": pa.array([1, 2], pa.float16())},
        {},
    ],
)
def test_what_is_not_plain_is_left_to_the_reader_of_all(columns):
    assert flat_table(stream(pa.table(columns))) is None


def test_what_says_more_than_it_looks_is_left_to_the_reader_of_all():
    assert flat_table(stream(PLAIN, compression="zstd")) is None
    field = pa.field("id", pa.string(), metadata={"ARROW:extension:name": "geoarrow.wkt"})
    assert flat_table(stream(pa.table([TEXTS], pa.schema([field])))) is None
    assert flat_table(stream(PLAIN.replace_schema_metadata({"geo": "{}"}))) is None
    assert flat_table(stream(PLAIN.replace_schema_metadata({"pandas": "{}"}))) is not None
    assert flat_table(stream(pa.table([TEXTS, TEXTS], ["a", "a"]))) is None


def test_what_is_damaged_is_none_or_what_is_still_a_table():
    content = stream(PLAIN)
    for end in range(0, len(content) - 8, 5):
        flat_table(content[:end])
    dice = random.Random(7)
    for _ in range(5_000):
        damaged = bytearray(content)
        for _ in range(dice.choice((1, 1, 2, 8))):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        found = flat_table(damaged)
        if found is not None:
            found.validate(full=True)
            assert found.nbytes < 10 * len(content)


def test_offsets_that_lead_out_are_refused():
    # The offsets of the only column are the last numbers that the stream has before its text.
    content = stream(pa.table({"id": ["ab", "cd"]}))
    good = np.array([0, 2, 4], "<i4").tobytes()
    assert content.count(good) == 1
    for bad in ([0, 2, 400], [0, 4, 2], [-1, 2, 4], [2, 0, 4]):
        assert flat_table(content.replace(good, np.array(bad, "<i4").tobytes())) is None
    assert flat_table(content.replace(b"abcd", b"ab\xff\xff")) is None
