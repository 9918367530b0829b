"""`georesolve.nearest`: right answers for each kind of table, given back as that kind."""

import io
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import geopandas
import numba
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyproj
import pytest
from numba.core import event

import georesolve
from georesolve.engine.compilation import compiling
from georesolve.engine.result_rows import STATUSES
from tests import oracle
from tests.conftest import ROOT, points, sphere
from tests.kernels.point_sets import SETS

OBSERVATIONS = points(500, 1, name=[f"o{i}" for i in range(500)])
REFERENCES = points(300, 2, name=[f"r{i}" for i in range(300)], size=np.arange(300.0))
PANDAS = OBSERVATIONS.to_pandas().set_index(pd.Index(np.arange(500) * 3, name="when"))


def as_geopandas(table, crs=4326):
    frame = table.to_pandas()
    geometry = geopandas.points_from_xy(frame.pop("lon"), frame.pop("lat"))
    return geopandas.GeoDataFrame(frame, geometry=geometry, crs=crs)


class Stream:
    """A table of a library that knows the Arrow C stream interface and nothing else."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def without_points(frame):
    return pa.Table.from_pandas(pd.DataFrame(frame.drop(columns="geometry")))


KINDS = {
    "pandas": (PANDAS, pa.Table.from_pandas),
    "geopandas": (
        as_geopandas(OBSERVATIONS),
        without_points,
    ),
    "polars": (pl.from_arrow(OBSERVATIONS), pl.DataFrame.to_arrow),
    "arrow": (OBSERVATIONS, lambda table: table),
    "batches": (OBSERVATIONS.to_reader(64), lambda table: table),
    "stream": (Stream(OBSERVATIONS), lambda table: table),
}


@pytest.mark.parametrize("name", SETS)
def test_answers_are_those_of_the_oracle(name):
    references, observations = SETS[name]
    if not references[0].size:
        with pytest.raises(georesolve.InvalidInput, match="the table has no rows"):
            georesolve.nearest(observations, references)
        return
    given = georesolve.nearest(
        observations, references, on_invalid="null", coordinates="trust", columns=[]
    )
    valid = [
        (np.abs(lat) <= 90) & (lon >= -180) & (lon <= 360)
        for lat, lon in (references, observations)
    ]
    of = np.flatnonzero(valid[0])
    expected = np.full(observations[0].size, -1)
    metres = np.full(observations[0].size, np.nan)
    if of.size and valid[1].any():
        places = [degrees[valid[1]] for degrees in observations]
        rows, metres[valid[1]] = oracle.nearest(*places, *(degrees[of] for degrees in references))
        expected[valid[1]] = of[rows]
    assert given["observation"].tolist() == list(range(expected.size))
    np.testing.assert_allclose(given["distance_m"], metres, rtol=1e-9, atol=1e-3)
    assert ((given["reference"] >= 0) == (expected >= 0)).all()
    # Of references that are as near by the oracle's rounding, either may be the nearer one.
    other = np.flatnonzero(given["reference"] != expected)
    lat, lon = (degrees[given["reference"][other]] for degrees in references)
    again = oracle.haversine_m(observations[0][other], observations[1][other], lat, lon)
    np.testing.assert_allclose(again, metres[other], rtol=1e-9, atol=1e-3)
    missing = np.where(valid[1], "no_reference", "invalid_coordinate")
    assert given["status"].tolist() == np.where(expected >= 0, "matched", missing).tolist()


@pytest.mark.parametrize("max_distance_m", [None, 1e5])
def test_a_frame_of_pandas_can_be_written_to_and_is_its_own(max_distance_m):
    observations = PANDAS.assign(id=np.arange(500), size=np.arange(500.0))
    references = REFERENCES.to_pandas().assign(id=np.arange(300))
    given = observations.copy(), references.copy()
    matches = georesolve.nearest(
        observations,
        references,
        max_distance_m=max_distance_m,
        columns=["size"],
        observation_columns=["size"],
    )
    for name in matches.columns.drop("status"):
        matches.iloc[0, matches.columns.get_loc(name)] = 7
        assert matches[name].iloc[0] == 7
    pd.testing.assert_frame_equal(observations, given[0])
    pd.testing.assert_frame_equal(references, given[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"k": 3, "max_distance_m": 1e6}, {"how": "inner"}])
def test_each_kind_gets_the_same_rows_back(kind, options):
    table, to_arrow = KINDS[kind]
    if kind == "batches":
        table = OBSERVATIONS.to_reader(64)
    carried = {"columns": ["name", "size"], "observation_columns": ["name"], **options}
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, **carried)
    given = georesolve.nearest(table, REFERENCES, **carried)
    assert type(given) is (pa.Table if kind in ("batches", "stream") else type(table))
    arrow = to_arrow(given)
    for name in expected.column_names:
        mine, theirs = arrow[name].to_pylist(), expected[name].to_pylist()
        assert [None if value != value else value for value in mine] == theirs, name


@pytest.mark.parametrize("kind", ["pandas", "geopandas", "polars", "arrow", "stream"])
def test_each_kind_as_references(kind):
    made = {
        "pandas": REFERENCES.to_pandas,
        "geopandas": lambda: as_geopandas(REFERENCES),
        "polars": lambda: pl.from_arrow(REFERENCES),
        "arrow": lambda: REFERENCES,
        "stream": lambda: Stream(REFERENCES),
    }[kind]()
    given = georesolve.nearest(OBSERVATIONS, made, columns=["name"])
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, columns=["name"])
    # Some libraries have another type of text.
    assert given.cast(expected.schema).equals(expected)


def test_the_index_of_pandas_is_kept():
    given = georesolve.nearest(PANDAS, REFERENCES)
    assert given.index.equals(PANDAS.index)
    three = georesolve.nearest(PANDAS, REFERENCES, k=3)
    assert three.index.equals(PANDAS.index.repeat(3))
    near = georesolve.nearest(PANDAS, REFERENCES, how="inner", max_distance_m=3e5)
    assert 0 < len(near) < 500
    assert near.index.equals(PANDAS.index[near["observation"]])
    # An id that a row has none of leaves those of the others whole numbers.
    far = georesolve.nearest(PANDAS, REFERENCES, max_distance_m=3e5)
    assert str(far["reference_id"].dtype) == str(far["reference"].dtype) == "Int64"
    assert far["distance_m"].dtype == float
    assert list(far["status"].cat.categories) == list(STATUSES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_star_stands_for_all_columns(kind):
    table, to_arrow = KINDS[kind]
    if kind == "batches":
        table = OBSERVATIONS.to_reader(64)
    given = to_arrow(georesolve.nearest(table, REFERENCES, columns="*", observation_columns="*"))
    own = [name for name in given.column_names if name.startswith("observation_")]
    places = ["lat", "lon"]
    if kind == "geopandas":
        # As of a GeoParquet file.
        places = ["geometry", "geometry_lat", "geometry_lon"]
    assert sorted(own) == sorted(f"observation_{name}" for name in ["id", "name", *places])
    names = ["name", "lat", "lon", "size"]
    assert {name for name in given.column_names if name.startswith("reference_")} == {
        f"reference_{name}" for name in ["id", *names]
    }
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, columns=names)
    for name in names:
        assert given[f"reference_{name}"].to_pylist() == expected[f"reference_{name}"].to_pylist()
    index = georesolve.Index(REFERENCES)
    assert "reference_size" in georesolve.nearest(OBSERVATIONS, index, columns="*").column_names
    itself = georesolve.nearest(REFERENCES, REFERENCES, exclude_self=True, columns="*")
    assert "reference_size" in itself.column_names


def test_points_of_a_geodataframe_are_kept():
    frame = as_geopandas(OBSERVATIONS).rename_geometry("place")
    given = georesolve.nearest(frame, REFERENCES, k=2)
    assert given.crs == frame.crs
    assert (given.geometry.to_numpy() == np.repeat(frame.geometry.to_numpy(), 2)).all()


def test_a_pair_of_arrays_gives_arrays():
    lat, lon = sphere(40, 3)
    given = georesolve.nearest((lat.tolist(), lon), sphere(9, 4), max_distance_m=1e6)
    assert {name: column.dtype.kind for name, column in given.items()} == {
        "observation": "i",
        "reference": "i",
        "distance_m": "f",
        "status": "O",
    }
    assert ((given["reference"] == -1) == np.isnan(given["distance_m"])).all()
    assert set(given["status"]) == {"matched", "beyond_max_distance"}


def test_arrays_with_no_row_and_words_that_are_missing():
    kinds = pa.table({"lat": [1.0], "lon": [1.0], "kind": pa.array(["a"]).dictionary_encode()})
    given = georesolve.nearest(([1, 50], [1, 50]), kinds, max_distance_m=5, columns=["kind"])
    assert given["reference_kind"].tolist() == ["a", None]
    assert given["status"].tolist() == ["matched", "beyond_max_distance"]
    none = georesolve.nearest(([50], [50]), kinds, max_distance_m=5, how="inner")
    assert {name: column.tolist() for name, column in none.items()} == {name: [] for name in none}


def test_a_set_against_itself():
    given = georesolve.nearest(PANDAS, PANDAS, exclude_self=True)
    assert (given["reference"] != given["observation"]).all()
    copied = georesolve.nearest(PANDAS, PANDAS.copy(), exclude_self=True)
    assert copied.equals(given)


def test_progress_is_told():
    told = []
    lat, lon = sphere(200_000, 5)
    georesolve.nearest((lat, lon), sphere(9, 4), k=64, progress=lambda *now: told.append(now))
    assert told == [(131_072, 200_000), (200_000, 200_000)]


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


BAD = {
    "invalid rows": {"lat": [1.0, 95.0], "lon": [1.0, 2.0]},
    "swapped": {"lat": np.linspace(100, 170, 50), "lon": np.linspace(-40, 40, 50)},
    "metres": {"y": np.linspace(5e6, 6e6, 9), "x": np.linspace(3e5, 4e5, 9)},
    "radians": {"lat_rad": [0.1, 0.2], "lon_rad": [0.3, 0.4], "lat": [0.1, 0.2], "lon": [0.3, 0.4]},
    "ambiguous": {"lat": [1.0], "latitude": [1.0], "lon": [1.0]},
    "no columns": {"a": [1.0], "b": [1.0]},
    "text": {"lat": ["1.0"], "lon": [1.0]},
    "a missing column": {"lat": [1.0], "lon": [1.0]},
    "other sets": {"lat": [1.0], "lon": [1.0]},
}
OPTIONS = {
    "a missing column": {"observation_columns": ["name"]},
    "other sets": {"exclude_self": True},
    "radians": {"lat": "lat_rad", "lon": "lon_rad"},
}


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
@pytest.mark.parametrize("name", BAD)
def test_refusals_are_those_of_the_service(service, name, kind):
    table = pa.table(BAD[name])
    made = {"pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table)}.get(kind)
    options = OPTIONS.get(name, {})
    references = pa.table({**BAD[name], "q": BAD[name].get("lat", [0] * table.num_rows)})
    if name == "other sets":
        references = pa.table({"lat": [2.0], "lon": [1.0]})
    files = {"observations": parquet(table), "references": parquet(references)}
    answer = service.post("/resolve", files=files, params=options)
    assert answer.status_code == 400
    with pytest.raises((georesolve.InvalidInput, georesolve.InvalidOption)) as refused:
        georesolve.nearest(made() if made else table, references, **options)
    # pandas and polars have types of text of their own.
    ours = re.sub("large_string|string_view", "string", refused.value.detail)
    assert ours == answer.json()["detail"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k must be a whole number from 1 to 64, got 0"),
        ({"k": True}, "k must be a whole number"),
        ({"max_distance_m": -1}, "max_distance_m must be a finite number of metres"),
        ({"max_distance_m": float("inf")}, "max_distance_m must be a finite number of metres"),
        ({"max_distance_m": "50km"}, "max_distance_m must be a finite number of metres.*'50km'"),
        ({"columns": [1]}, r"columns must be names of columns, got \[1\]"),
        ({"how": "outer"}, "how must be one of left, inner, got 'outer'"),
        (
            {"columns": "name"},
            r"a list of names, or '\*' for all: write \['name'\]",
        ),
        ({"on_invalid": "drop"}, "on_invalid must be one of error, null"),
    ],
)
def test_options_that_are_not_allowed(options, words):
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.nearest(OBSERVATIONS, REFERENCES, **options)


def test_what_is_no_table():
    with pytest.raises(TypeError, match="observations: list is no table of points"):
        georesolve.nearest([1, 2], REFERENCES)
    with pytest.raises(TypeError, match=r"'max_distance' \(did you mean 'max_distance_m'"):
        georesolve.nearest(OBSERVATIONS, REFERENCES, max_distance=5)
    with pytest.raises(TypeError, match="there is no option 'kind'"):
        georesolve.nearest(OBSERVATIONS, REFERENCES, kind="sphere")
    with pytest.raises(TypeError, match=r"an Index has no option 'k': there are lat, .* by, time"):
        georesolve.Index(REFERENCES, k=5)
    with pytest.raises(ValueError, match=r"observations: lat and lon .* one shape \(n,\)"):
        georesolve.nearest(([1.0, 2.0], [1.0]), REFERENCES)


def projected(table, crs):
    """A frame in a CRS of metres, and a table of the degrees that pyproj makes of these."""
    lat, lon = table["lat"].to_numpy() * 0.9, table["lon"].to_numpy()
    frame = as_geopandas(pa.table({"lat": lat, "lon": lon})).to_crs(crs)
    back = pyproj.Transformer.from_crs(crs, 4326, always_xy=True)
    lon, lat = back.transform(frame.geometry.x.to_numpy(), frame.geometry.y.to_numpy())
    return frame, (lat, lon)


def test_each_frame_is_transformed_by_its_crs():
    """Web Mercator and an equal-area projection, as observations, references and an Index."""
    (left, ours), (right, theirs) = projected(OBSERVATIONS, 3857), projected(REFERENCES, 6933)
    expected = georesolve.nearest(ours, theirs)
    for references in (right, georesolve.Index(right)):
        found = georesolve.nearest(left, references)
        assert found.crs == "EPSG:3857"
        assert found.geometry.equals(left.geometry)
        assert found["reference"].tolist() == expected["reference"].tolist()
        np.testing.assert_array_equal(found["distance_m"], expected["distance_m"])
    pairs = georesolve.within(left, right, 300_000)
    assert len(pairs) == len(georesolve.within(ours, theirs, 300_000)["reference"]) > 0


def test_polygons_are_transformed_by_their_crs():
    """As `sjoin_nearest` does: corners are, and edges lead from one to the next."""
    areas = as_geopandas(REFERENCES.slice(0, 20)).to_crs(6933).buffer(50_000)
    right = geopandas.GeoDataFrame(geometry=areas)
    found = georesolve.nearest(OBSERVATIONS, right).to_pydict()
    expected = georesolve.nearest(OBSERVATIONS, right.to_crs(4326)).to_pydict()
    assert (found["reference"], found["distance_m"]) == (
        expected["reference"],
        expected["distance_m"],
    )


def test_a_frame_without_a_crs_is_taken_for_degrees():
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES)["distance_m"].to_numpy()
    left, right = as_geopandas(OBSERVATIONS, None), as_geopandas(REFERENCES, None)
    with pytest.warns(UserWarning, match="has no CRS") as warned:
        found = georesolve.nearest(left, right)
    assert [str(one.message).partition(":")[0] for one in warned] == ["observations", "references"]
    assert {one.filename for one in warned} == {__file__}
    assert found.crs is None
    np.testing.assert_array_equal(found["distance_m"], expected)
    metres = as_geopandas(OBSERVATIONS).to_crs(6933).set_crs(None, allow_override=True)
    with (
        pytest.warns(UserWarning, match="has no CRS"),
        pytest.raises(georesolve.InvalidInput, match="look like metres"),
    ):
        georesolve.nearest(metres, REFERENCES)


def test_the_first_call_loads_no_more_than_it_needs():
    """Neither Dask nor the service nor, where kernels are compiled, what numba compiles with.

    And `import georesolve` loads next to nothing.
    """
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
import georesolve
print(sorted(sys.modules.keys() & {"numpy", "numba", "pyarrow"}))
print(georesolve.nearest(([50.11], [8.68]), ([52.52, 48.86], [13.4, 2.35]))["reference"])
heavy = {"dask", "distributed", "pydantic", "fastapi", "sqlalchemy", "httpx", "geopandas", "polars"}
heavy |= {"scipy.linalg", "numba.np.linalg", "numba.typed.typedlist"}
print(sorted(sys.modules.keys() & heavy))
"""
    # The first may be the one that compiles.
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            # What drives a GPU loads more.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    assert ran.stdout.splitlines() == ["[]", "[0]", "[]"]


def test_a_bar_that_begins_while_another_thread_compiles_is_no_error():
    is_over, is_shown = Event(), Event()

    class Waiting(event.Listener):
        def on_start(self, event):
            pass

        def on_end(self, event):
            is_over.set()
            is_shown.wait()

    with ThreadPoolExecutor(1) as threads, event.install_listener("numba:compile", Waiting()):
        other = threads.submit(numba.njit(lambda x: x + 1), 1)
        is_over.wait()
        with compiling(shown=True):
            is_shown.set()
            assert other.result() == 2
