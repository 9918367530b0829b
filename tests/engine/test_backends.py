"""What a worker reads of point sets, on its device: coordinates, and what they say."""

import os

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.engine import backends
from georesolve.engine.backends import backend, read_points
from georesolve.io.columns import Reading
from georesolve.io.points import Bounds
from georesolve.io.source_files import SourceFailed
from georesolve.io.urls import Sources

ROWS = 50_000


@pytest.fixture(autouse=True)
def worker(device):
    with dask.config.set({"dataframe.backend": "cudf" if device == "cuda" else "pandas"}):
        yield


def files(folder, lat, lon, **reading):
    """A set of two files with small row groups."""
    table = pa.table({"id": np.arange(len(lat)), "lat": lat, "lon": lon})
    half = len(table) // 2
    for name, own in (("a", table.slice(0, half)), ("b", table.slice(half))):
        pq.write_table(own, folder / f"{name}.parquet", row_group_size=7_000)
    href = f"file://{folder}/"
    return Sources(href, Bounds()).dataset(href, Reading(**reading), "observations")


def drawn(seed=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(-90, 90, ROWS), rng.uniform(-180, 180, ROWS)


def on_host(degrees):
    return [backend().to_host(axis) for axis in degrees]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, ROWS), (0, 1), (6_999, 7_001), (20_000, 30_000), (ROWS - 1, ROWS)]
)
def test_any_rows_of_files(tmp_path, device, monkeypatch, start, stop):
    """On a GPU none of them passes through the host's reader."""
    lat, lon = drawn()
    dataset = files(tmp_path, lat, lon)
    if device == "cuda":
        monkeypatch.delattr(backends, "read_rows")
    degrees, evidence = read_points(dataset, start, stop)
    for read, given in zip(on_host(degrees), (lat, lon), strict=True):
        assert read.tobytes() == given[start:stop].tobytes()
    own = lat[start:stop], lon[start:stop]
    assert evidence.bbox == (own[1].min(), own[0].min(), own[1].max(), own[0].max())
    assert (evidence.seen, evidence.valid) == (stop - start, stop - start)


def test_device_and_host_say_the_same_of_files(tmp_path):
    lat, lon = drawn()
    lat[:3], lon[:3] = np.round(lat[:3]), np.round(lon[:3])
    dataset = files(tmp_path, lat, lon)
    told = read_points(dataset, 0, ROWS)[1]
    table = backends.read_rows(dataset.file, 0, ROWS, ["lat", "lon"])
    assert told.as_json() == dataset.file.evidence(table).as_json()


@pytest.mark.parametrize("kind", [pa.float32(), pa.int16(), pa.decimal128(9, 4)])
def test_numbers_of_other_types(tmp_path, kind):
    lat, lon = (pa.array(axis.round(2)).cast(kind, safe=False) for axis in drawn())
    degrees, _ = read_points(files(tmp_path, lat, lon), 100, 40_000)
    for read, given in zip(on_host(degrees), (lat, lon), strict=True):
        wanted = given.cast(pa.float64()).to_numpy()[100:40_000]
        assert read.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("bad", [None, 91.0, np.nan])
def test_a_row_that_is_no_point(tmp_path, bad):
    """It is refused with file, row group and row, or read where such rows are kept."""
    axes = [axis.tolist() for axis in drawn()]
    axes[0][30_001] = bad
    lat, lon = (pa.array(axis, pa.float64()) for axis in axes)
    with pytest.raises(SourceFailed, match=r"b\.parquet: row group 0, row 5001 of it"):
        read_points(files(tmp_path, lat, lon), 20_000, 40_000)
    (read, _), evidence = read_points(files(tmp_path, lat, lon, on_invalid="null"), 20_000, 40_000)
    wanted = np.array([np.nan if one is None else one for one in axes[0][20_000:40_000]])
    assert backend().to_host(read).tobytes() == wanted.tobytes()
    assert evidence.invalid_rows == 1


def test_a_damaged_file_is_named(tmp_path):
    dataset = files(tmp_path, *drawn())
    path = tmp_path / "b.parquet"
    content = bytearray(path.read_bytes())
    content[4:100_000] = b"\xff" * 99_996
    look = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(look.st_atime_ns, look.st_mtime_ns))
    with pytest.raises(SourceFailed, match=r"b\.parquet: it cannot be read"):
        read_points(dataset, 20_000, 40_000)
