"""Hostile files: each is refused, or read right, and the service answers the next request."""

import gzip
import io
import json
import struct
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from georesolve.io.columns import Reading
from georesolve.io.formats import Source
from georesolve.service.errors import InvalidInput, TooLarge
from georesolve.service.receiving.decoders import decode_in_child, open_decoders
from georesolve.service.receiving.decoding import Limits
from tests.conftest import roles_of

own_decoders = cache(open_decoders)
LIMITS = Limits(memory_bytes=512 << 20, seconds=60, rows=10**6, columns=256)
N = 400
GOOD = pa.table(
    {
        "lat": np.linspace(-80, 80, N),
        "lon": np.linspace(-170, 170, N),
        "name": pa.array([f"name {i % 7}" for i in range(N)]).dictionary_encode(),
        "tags": pa.array([[str(i), None] for i in range(N)]),
    }
)


def parquet(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table, new=pa.ipc.new_stream, **options):
    sink = io.BytesIO()
    with new(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def offsets(*ends):
    """A stream whose texts have other offsets."""
    content = arrow(with_column(["ab", "cd"]))
    right = np.array([0, 2, 4], "<i4").tobytes()
    assert content.count(right) == 1
    return content.replace(right, np.array(ends, "<i4").tobytes())


def geojson(**feature):
    point = {"type": "Point", "coordinates": [1, 2]}
    feature = {"type": "Feature", "geometry": point, **feature}
    return json.dumps({"type": "FeatureCollection", "features": [feature]}).encode()


def with_column(column, name="bomb"):
    zeros = np.zeros(len(column))
    return pa.table({"lat": zeros, "lon": zeros, name: column})


def forged(content, place, value):
    """A file with other bytes at a place, counted from its end if negative."""
    place %= len(content)
    return content[:place] + value + content[place + len(value) :]


def decode(tmp_path, content, format, **limits):
    path = tmp_path / "received"
    path.write_bytes(content)
    source = Source(path, format, Reading(), "points")
    target = tmp_path / "dataset.parquet"
    return decode_in_child(source, target, replace(LIMITS, **limits), own_decoders())[0]


def bad_text():
    buffers = [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    return pa.Array.from_buffers(pa.string(), 1, buffers)


def nested(depth):
    array = pa.array([1])
    for _ in range(depth):
        array = pa.ListArray.from_arrays([0, 1], array)
    return with_column(array)


def footer_with(content, **counts):
    """Parquet whose footer lies: the numbers of the row group are written again, as varints."""
    for old, new in counts.values():
        old_bytes, new_bytes = zigzag(old), zigzag(new)
        assert len(old_bytes) == len(new_bytes), "the footer must keep its length"
        (length,) = struct.unpack("<I", content[-8:-4])
        start = len(content) - 8 - length
        footer = content[start:]
        assert old_bytes in footer
        content = content[:start] + footer.replace(old_bytes, new_bytes)
    return content


def zigzag(number):
    value, out = number << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


PARQUET, STREAM, FILE = parquet(GOOD), arrow(GOOD), arrow(GOOD, pa.ipc.new_file)
PLAIN = parquet(GOOD, compression="none", use_dictionary=False)
LINES = b"lat,lon,name\n" + b"1,2,a\n" * 50

REFUSED = {
    "half a Parquet": (PARQUET[: len(PARQUET) // 2], "parquet"),
    "Parquet without its end": (PARQUET[:-1], "parquet"),
    "only the marks of Parquet": (b"PAR1PAR1", "parquet"),
    "a footer of no bytes": (forged(PARQUET, -8, bytes(4)), "parquet"),
    "a footer longer than the file": (forged(PARQUET, -8, b"\xff\xff\xff\x7f"), "parquet"),
    "a footer of the whole file": (
        forged(PARQUET, -8, struct.pack("<I", len(PARQUET) - 8)),
        "parquet",
    ),
    "more rows than there are": (footer_with(PLAIN, rows=(N, N + 1)), "parquet"),
    "a schema a hundred deep": (parquet(nested(100)), "parquet"),
    # It takes more than a second to make, and each process of tests loads this file.
    "a schema thousands deep": (lambda: parquet(nested(3000)), "parquet"),
    "text that is not UTF-8": (parquet(with_column(bad_text())), "parquet"),
    "a NUL in a name": (parquet(with_column([1], "a\0b")), "parquet"),
    "a name without end": (parquet(with_column([1], "n" * 100_000)), "parquet"),
    "half a stream": (STREAM[: len(STREAM) // 2], "arrow"),
    "a file without its end": (FILE[:-3], "arrow"),
    "a footer beyond the file": (forged(FILE, -10, b"\xff\xff\xff\x7f"), "arrow"),
    "a footer of less than nothing": (forged(FILE, -10, b"\xfe\xff\xff\xff"), "arrow"),
    "a message of two gigabytes": (forged(STREAM, 4, b"\xff\xff\xff\x7f"), "arrow"),
    "Arrow text that is not UTF-8": (arrow(with_column(bad_text())), "arrow"),
    "offsets that lead out": (offsets(0, 2, 400), "arrow"),
    "offsets that fall": (offsets(0, 4, 2), "arrow"),
    "offsets below zero": (offsets(-1, 2, 4), "arrow"),
    "gzip": (gzip.compress(LINES), "csv"),
    "zip": (b"PK\3\4" + LINES, "csv"),
    "a line of 20 MB": (b"lat,lon,name\n1,2," + b"x" * 20_000_000, "csv"),
    "a header of 20 MB": (b"lat,lon," + b"x" * 20_000_000 + b"\n1,2,3\n", "csv"),
    "a hundred thousand columns": (
        b"lat,lon," + b",".join(b"c%d" % i for i in range(100_000)) + b"\n1,2\n",
        "csv",
    ),
    "nothing but newlines": (b"\n" * 100_000, "csv"),
    "nothing but NUL": (bytes(100_000), "csv"),
    "NUL in a number": (b"lat,lon\n1\0,2\n", "csv"),
    "NUL in a header": (b"lat,lon,a\0b\n1,2,3\n", "csv"),
    "a quote that is not closed": (b'lat,lon,name\n1,2,a\n3,4,"b\n5,6,c\n', "csv"),
    "a quote closed by another": (b'lat,lon,name\n1,2,a\n3,4,"b\n5,6,"c"\n7,8,d\n', "csv"),
    "a quote in the header": (b'lat,lon,"name\n1,2,a\n3,4,b\n', "csv"),
    "a quote in the first column": (b'name,lat,lon\n"a,1,2\nb,3,4\n', "csv"),
    "a million brackets": (b"[" * 1_000_000, "geojson"),
    "deep coordinates": (
        geojson().replace(b"[1, 2]", b"[" * 900 + b"]" * 900),
        "geojson",
    ),
    "a deep property": (
        geojson(properties={"a": 0}).replace(b"0}", b"[" * 900 + b"]" * 900 + b"}"),
        "geojson",
    ),
    "a number without end": (geojson().replace(b"[1,", b"[1" + b"0" * 5_000 + b","), "geojson"),
    "half a character": (geojson(properties={"a": "\ud800"}), "geojson"),
}  # fmt: skip


def refused(name):
    content, format = REFUSED[name]
    return content() if callable(content) else content, format


@pytest.mark.parametrize("name", REFUSED)
def test_bad_files_are_refused(tmp_path, name):
    bad = refused(name)
    with pytest.raises((InvalidInput, TooLarge)) as caught:
        decode(tmp_path, *bad)
    assert caught.value.detail.startswith("points: ")
    assert str(tmp_path) not in caught.value.detail
    assert len(caught.value.detail) < 700


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a quote that is not closed", "the row that starts in line 3 has a quote"),
        ("a quote closed by another", "the row that starts in line 3 has a quote"),
        ("a quote in the header", "first line is no header"),
        ("text that is not UTF-8", "UTF8"),
    ],
)
def test_refusals_say_what_to_do(tmp_path, name, message):
    with pytest.raises(InvalidInput, match=message):
        decode(tmp_path, *refused(name))


def test_quotes_and_newlines_that_are_right(tmp_path):
    content = b'lat,lon,name\n1,2,"two\nlines, ""quoted"""\n3,4,5" pipe\n5,6,"\r\n"\n'
    dataset = decode(tmp_path, content, "csv")
    names = pq.read_table(dataset.file)["name"].to_pylist()
    assert names == ['two\nlines, "quoted"', '5" pipe', "\r\n"]


def test_many_properties_are_refused_before_they_are_a_table(tmp_path):
    feature = geojson()[len('{"type": "FeatureCollection", "features": [') : -2]
    features = [feature[:-1] + b', "properties": {"p%d": 1}}' % i for i in range(20_000)]
    content = b'{"type": "FeatureCollection", "features": [%s]}' % b", ".join(features)
    with pytest.raises(TooLarge, match="20002 columns are more than the limit of 256"):
        decode(tmp_path, content, "geojson", seconds=30)


def long_text():
    """400 MB of one value, again and again."""
    return with_column(pa.array(["x" * 1_000_000] * 400, pa.large_string()))


BOMBS = {
    "zstd": (lambda: parquet(long_text(), compression="zstd", use_dictionary=False), "parquet"),
    "gzip": (lambda: parquet(long_text(), compression="gzip", use_dictionary=False), "parquet"),
    "dictionary": (lambda: parquet(long_text()), "parquet"),
    "Arrow": (
        lambda: arrow(long_text(), options=pa.ipc.IpcWriteOptions(compression="zstd")),
        "arrow",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_at_the_limit_of_memory(tmp_path, name):
    make, format = BOMBS[name]
    content = make()
    assert len(content) < 2_000_000
    with pytest.raises(TooLarge, match="more than the limit of 256 MiB of memory"):
        decode(tmp_path, content, format, memory_bytes=256 << 20)


def test_a_dictionary_stays_one(tmp_path):
    # Two gigabytes of text by its rows, one megabyte as it is sent, kept and read again.
    repeated = pa.DictionaryArray.from_arrays(np.zeros(2_000, np.int32), ["x" * 1_000_000])
    dataset = decode(tmp_path, arrow(with_column(repeated)), "arrow", memory_bytes=256 << 20)
    assert dataset.file.stat().st_size < 2_000_000


def registered(service, content, name):
    """What the service says of a file, which must be a refusal or a dataset that is right."""
    answer = service.post("/datasets", files={"file": (name, content)})
    if answer.status_code in (200, 201):
        url = answer.headers["location"]
        data = service.get(f"{url}/data.parquet").content
        table = pq.read_table(io.BytesIO(data))
        assert table.num_rows == answer.json()["rows"]
        table.validate(full=True)
        assert service.delete(url).status_code == 204
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert 400 <= answer.status_code < 500, answer.text
        assert "/incoming/" not in answer.text
    return answer


def incoming(service):
    return list((service.log.with_suffix("") / "incoming").glob("*/*"))


def test_a_bomb_is_in_the_child_and_not_in_the_service(service):
    [process] = roles_of(service.process, "front")
    before = process.memory_info().rss
    answer = service.post("/datasets", files={"file": ("bomb.parquet", BOMBS["zstd"][0]())})
    assert answer.status_code == 201, "it is within the limit of this service"
    assert process.memory_info().rss - before < 200 << 20
    assert service.delete(answer.headers["location"]).status_code == 204
    assert not incoming(service)


@st.composite
def mutations(draw):
    """Some bytes written over, cut out or put in, at places counted in thousandths of a file."""
    places = st.floats(0, 1, allow_nan=False)
    pieces = st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\xff" * 4, b"\xff\xff\xff\x7f", bytes(8), b"\x80" * 10, b'"', b"\n"]),
    )
    kinds = st.sampled_from(["over", "out", "in"])
    return draw(st.lists(st.tuples(kinds, places, pieces), min_size=1, max_size=4))


def mutated(content, changes):
    for kind, place, piece in changes:
        at = int(place * len(content))
        rest = at if kind == "in" else at + len(piece)
        content = content[:at] + (b"" if kind == "out" else piece) + content[rest:]
    return content


ORIGINALS = {
    "points.parquet": PARQUET,
    "plain.parquet": PLAIN,
    "points.arrows": STREAM,
    "points.arrow": FILE,
    "points.csv": LINES.replace(b"a\n", b'"a, ""b"""\n'),
    "points.geojson": geojson(properties={"name": "a", "n": 1}),
}


def check_mutated(service, name, changes):
    answer = registered(service, mutated(ORIGINALS[name], changes), name)
    assert changes or answer.status_code == 201
    assert not incoming(service)


SETTINGS = settings(
    # `tests/faults` draws many more, and others.
    max_examples=8,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", ORIGINALS)
@SETTINGS
@example([])
@given(changes=mutations())
def test_mutated_files(service, name, changes):
    check_mutated(service, name, changes)
