"""Large files are decoded in ranges by several processes: what is made of them does not show it."""

import json
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely

from georesolve.io import errors, normalized
from georesolve.io.columns import Reading
from georesolve.io.formats import Source
from georesolve.io.local_files import sha256_of
from georesolve.io.points import Bounds
from georesolve.service.errors import InvalidInput, StorageFull, TooLarge
from georesolve.service.receiving import decoders
from georesolve.service.receiving.decoding import Limits, cut, decode_to

N = 400_000
"""Rows for as many ranges as there are cores: each has 131 072 at least."""
CORES = 3
own_decoders = cache(decoders.open_decoders)
LIMITS = Limits(memory_bytes=2 << 30, seconds=120, rows=10**6, columns=10)


@pytest.fixture
def tasks(monkeypatch):
    """Three cores, files of any size, and what processes were asked to do."""
    done = []
    answer_to = decoders._answer_to

    def noted(task, kind, room):
        done.append(task)
        return answer_to(task, kind, room)

    monkeypatch.setattr(decoders, "_answer_to", noted)
    monkeypatch.setattr(decoders, "_LARGE_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CORES))
    return done


@cache
def table():
    rng = np.random.default_rng(4)
    return pa.table(
        {
            "id": np.arange(N),
            "name": np.char.add("n", (np.arange(N) % 5000).astype(str)),
            "lat": rng.uniform(-90, 90, N),
            "lon": rng.uniform(-180, 180, N),
        }
    )


def decode(path, format, **reading):
    source, target = Source(path, format, Reading(**reading), "points"), path.with_suffix(".out")
    dataset, digest = decoders.decode_in_child(source, target, LIMITS, own_decoders())
    return replace(dataset, digest=digest.count(target))


def in_this_process(path, format, **reading):
    source = Source(path, format, Reading(**reading), "points")
    target = path.with_suffix(".once")
    dataset = normalized.decode(source, target, Bounds()).dataset
    return replace(dataset, digest=sha256_of(target))


def check(path, format, tasks, ranges, **reading):
    """That a file becomes what it becomes in one go, and how many ranges it was decoded in."""
    decoded, expected = decode(path, format, **reading), in_this_process(path, format, **reading)
    # As texts: of coordinates that are NaN, none equals another.
    assert repr(replace(decoded, file=expected.file)) == repr(expected)
    # The process that finds ranges decodes none of them.
    assert sum(task.function is decode_to for task in tasks) == ranges
    left = {one.name for one in path.parent.iterdir()}
    assert left == {path.name, path.with_suffix(".out").name, path.with_suffix(".once").name}


def with_bad_rows():
    """Some rows are invalid, null or at (0, 0), in the first range and in others."""
    points = table().to_pandas()
    for first in (10, 250_000, N - 10):
        points.loc[first : first + 6, "lat"] = np.nan
        points.loc[first + 7, "lon"] = 720.0
        points.loc[first + 8 : first + 9, ["lat", "lon"]] = 0.0
    return pa.Table.from_pandas(points)


@pytest.mark.parametrize("rows", [65_536, 100_000, 131_072])
def test_row_groups_of_any_size(tmp_path, tasks, rows):
    pq.write_table(table(), tmp_path / "f", row_group_size=rows)
    check(tmp_path / "f", "parquet", tasks, CORES)


def test_rows_that_are_kept_though_they_are_invalid(tmp_path, tasks):
    pq.write_table(with_bad_rows(), tmp_path / "f", row_group_size=50_000)
    check(tmp_path / "f", "parquet", tasks, CORES, on_invalid="null")


def test_points_in_a_geometry_column(tmp_path, tasks):
    points = table()
    wkb = shapely.to_wkb(shapely.points(points["lon"].to_numpy(), points["lat"].to_numpy()))
    points = pa.table({"id": points["id"], "geometry": pa.array(wkb, pa.binary())})
    about = {"columns": {"geometry": {"encoding": "WKB", "geometry_types": ["Point"]}}}
    geo = json.dumps({"version": "1.1.0", "primary_column": "geometry", **about})
    points = points.replace_schema_metadata({"geo": geo})
    pq.write_table(points, tmp_path / "f", row_group_size=90_000)
    check(tmp_path / "f", "parquet", tasks, CORES)


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("rows", [1_000, 77_777, N])
def test_batches_of_any_size(tmp_path, tasks, new, rows):
    points = table()
    with new(tmp_path / "f", points.schema) as writer:
        writer.write_table(points, max_chunksize=rows)
    check(tmp_path / "f", "arrow", tasks, CORES)


CSV = {
    "plain": lambda text: text,
    "without quotes": lambda text: text.replace(b'"', b""),
    "last line open": lambda text: text[:-1],
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "of Windows": lambda text: text.replace(b"\n", b"\r\n"),
    "of Excel": lambda text: b"sep=,\n" + text,
}


@pytest.mark.parametrize("written", CSV)
def test_lines(tmp_path, tasks, written):
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table(), sink)
    (tmp_path / "f").write_bytes(CSV[written](sink.getvalue().to_pybytes()))
    check(tmp_path / "f", "csv", tasks, CORES)


@cache
def rows_of_csv():
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table().drop_columns("name").append_column("name", [["x"] * N]), sink)
    return sink.getvalue().to_pybytes().replace(b'"', b"").split(b"\n")


def lines(row, text):
    """A CSV file with a line of its own somewhere behind the first range."""
    rows = rows_of_csv()
    return b"\n".join([*rows[: row + 1], text, *rows[row + 2 :]])


IN_ONE_GO = {
    "a line end in quotes": b'7,1.5,2.5,"x\ny"',
    "many line ends in quotes": b'7,1.5,2.5,"' + b"\n7,7,7,7" * 70_000 + b'"',
    "text among whole numbers": b"seven,1.5,2.5,x",
    "a blank line": b"",
    "no number": b"7,NA,2.5,x",
}


@pytest.mark.parametrize("what", IN_ONE_GO)
def test_what_cannot_be_cut_is_decoded_in_one_go(tmp_path, tasks, what):
    (tmp_path / "f").write_bytes(lines(N // 2, IN_ONE_GO[what]))
    check(tmp_path / "f", "csv", tasks, CORES + 1, on_invalid="null")


def test_one_row_group_is_decoded_in_one_go(tmp_path, tasks):
    pq.write_table(table(), tmp_path / "f", row_group_size=N)
    check(tmp_path / "f", "parquet", tasks, 1)


def test_dictionaries_are_decoded_in_one_go(tmp_path, tasks):
    points = table().append_column("kind", table()["name"].dictionary_encode())
    pq.write_table(points, tmp_path / "f", row_group_size=65_536)
    check(tmp_path / "f", "parquet", tasks, 1)


REFUSED = {
    "a row with too many fields": (b"7,1.5,2.5,x,y", f"row {N - 10}: 5 fields"),
    "a coordinate that is no number": (b"7,north,2.5,x", f"row {N - 10}: the value 'north'"),
    "an invalid coordinate": (b"7,95.5,2.5,x", f"the first one row {N - 10}"),
    "an open quote": (b'7,1.5,2.5,"x', f"line {N - 8} has a quote that is not closed"),
    "text in another encoding": (b"7,1.5,2.5,\xe4", "is not UTF-8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_errors_tell_the_row_of_the_file(tmp_path, tasks, what):
    text, error = REFUSED[what]
    (tmp_path / "f").write_bytes(lines(N - 10, text))
    with pytest.raises(InvalidInput, match=error):
        decode(tmp_path / "f", "csv")
    assert [one.name for one in tmp_path.iterdir()] == ["f"]


def test_the_evidence_is_that_of_all_rows(tmp_path, tasks):
    """Only the last range has longitudes beyond 90; only all rows show that axes are swapped."""
    lat, lon = np.full(N, 10.5), np.linspace(-80, 80, N)
    lon[-1000:] = np.linspace(100, 150, 1000)
    pq.write_table(pa.table({"lat": lon, "lon": lat}), tmp_path / "f", row_group_size=65_536)
    reading = {"on_invalid": "null"}
    lon[: N // 3] = np.linspace(100, 150, N // 3)
    pq.write_table(pa.table({"lat": lon, "lon": lat}), tmp_path / "g", row_group_size=65_536)
    assert decode(tmp_path / "f", "parquet", **reading).invalid_rows == 1000
    with pytest.raises(InvalidInput) as told:
        decode(tmp_path / "g", "parquet", **reading)
    with pytest.raises(errors.InvalidInput) as expected:
        in_this_process(tmp_path / "g", "parquet", **reading)
    assert (told.value.detail, told.value.errors) == (expected.value.detail, expected.value.errors)
    assert sum(task.function is cut for task in tasks) == 2


def test_ranges_share_the_limits_of_one_file(tmp_path, tasks):
    points = table()
    pq.write_table(points, tmp_path / "f", row_group_size=65_536)
    source = Source(tmp_path / "f", "parquet", Reading(), "points")
    target = tmp_path / "out"
    with pytest.raises(TooLarge, match=f"{N} rows are more than the limit of {N - 1}"):
        decoders.decode_in_child(source, target, replace(LIMITS, rows=N - 1), own_decoders())
    with pytest.raises(StorageFull, match="more than the 1000000 bytes"):
        decoders.decode_in_child(
            source, target, replace(LIMITS, written_bytes=10**6), own_decoders()
        )
    assert [one.name for one in tmp_path.iterdir()] == ["f"]
