"""Canonical datasets: what is stored, that its bytes depend on the content alone, what is read."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georesolve.io.datasets import (
    ROW_GROUP,
    column_sizes,
    read_rows,
    write_dataset,
)
from tests.conftest import points, store_points


def test_summary(tmp_path):
    table = pa.table(
        {
            "name": ["a", "b", "c", "d", "e"],
            "lat": pa.array([1.0, None, 91.0, np.inf, -90.0]),
            "lon": [180.0, 0.0, 0.0, 0.0, 360.0],
        }
    )
    dataset = store_points(table, tmp_path / "d.parquet")
    assert (dataset.rows, dataset.invalid_rows, dataset.valid_rows) == (5, 3, 2)
    assert dataset.bbox == (180.0, -90.0, 360.0, 1.0)
    assert [row.row for row in dataset.first_invalid] == [1, 2, 3]
    assert dataset.columns == ("name", "lat", "lon")
    assert pq.read_table(dataset.file)["lat"].null_count == 0


def test_nothing_valid_has_no_bbox(tmp_path):
    table = pa.table({"lat": [100.0] * 20, "lon": [0.0] * 20})
    dataset = store_points(table, tmp_path / "d.parquet")
    assert dataset.bbox is None
    assert dataset.invalid_rows == 20
    assert len(dataset.first_invalid) == 10


def test_no_rows(tmp_path):
    dataset = store_points(points(0, 0), tmp_path / "d.parquet")
    assert dataset.rows == 0
    assert read_rows(dataset.file, 0, 0, ["lat"]).num_rows == 0


@pytest.mark.parametrize("cut", [1_000, ROW_GROUP, 100_001, 10**6])
def test_bytes_do_not_show_how_the_input_was_cut(tmp_path, cut):
    table = points(3 * ROW_GROUP + 17, 1, name=[f"n{i % 97}" for i in range(3 * ROW_GROUP + 17)])
    whole = store_points(table, tmp_path / "whole.parquet")
    pieces = table.to_batches(max_chunksize=cut)
    cut_up = write_dataset(
        table.schema, pieces, tmp_path / "cut.parquet", lat="lat", lon="lon", id="id"
    )
    assert cut_up.sha256 == whole.sha256
    assert pq.read_table(cut_up.file).replace_schema_metadata().to_pydict() == table.to_pydict()


@given(st.data())
def test_any_range_of_rows(tmp_path_factory, data):
    rows = 2 * ROW_GROUP + 5
    path = tmp_path_factory.getbasetemp() / "ranges.parquet"
    if not path.exists():
        store_points(points(rows, 2), path)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    ids = read_rows(path, start, stop, ["id"])["id"].to_numpy()
    np.testing.assert_array_equal(ids, np.arange(start, stop) + 1_000_000)


def test_every_byte_of_a_file_belongs_to_a_column(tmp_path):
    rows = 1000
    random = np.random.default_rng(6)
    texts = pa.array([f"a text that takes its room {i}" for i in range(rows)])
    numbers = pa.array(range(rows))
    records = pa.StructArray.from_arrays([numbers, texts], ["b", "c"])
    further = {
        "a.b": texts,
        "a": records,
        ".": numbers,
        "maps": pa.array(
            [{"key": [i]} for i in range(rows)], pa.map_("string", pa.list_(pa.int64()))
        ),
        "uuids": pa.array([random.bytes(16) for _ in range(rows)], pa.uuid()),
        "tensors": pa.FixedShapeTensorArray.from_numpy_ndarray(random.random((rows, 2, 2))),
        "category": texts.dictionary_encode(),
    }
    dataset = store_points(points(rows, 6, **further), tmp_path / "d.parquet")
    sizes = {name: size.stored for name, size in column_sizes(dataset.file).items()}
    assert set(sizes) == {"id", "lat", "lon", *further}
    assert min(sizes.values()) >= rows
    # What is random does not get smaller.
    for name, bytes_a_row in {"lat": 8, "uuids": 16, "tensors": 32}.items():
        assert 0.9 * bytes_a_row * rows < sizes[name] < 1.3 * bytes_a_row * rows
    # What is left is the foot of the file.
    assert sum(sizes.values()) < dataset.file.stat().st_size < sum(sizes.values()) + 20_000


def test_a_footer_is_parsed_once_and_anew_when_its_file_is_replaced(tmp_path):
    path = tmp_path / "d.parquet"
    first = points(100, 1)
    store_points(first, path)
    assert read_rows(path, 0, 100, ["lat"])["lat"].equals(first["lat"])
    then = path.stat()
    # Its end is destroyed so that it looks as before: what is read on does without.
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(bytes(8))
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert read_rows(path, 10, 20, ["lat"])["lat"].to_pylist() == first["lat"].to_pylist()[10:20]

    second = points(100, 2)
    store_points(second, tmp_path / "other.parquet")
    (tmp_path / "other.parquet").replace(path)
    assert read_rows(path, 0, 100, ["lat"])["lat"].equals(second["lat"])
