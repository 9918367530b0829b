"""Tables as users have them: each kind is taken or refused in words, with table, column and row."""

import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import shapely
from hypothesis import given as drawn
from hypothesis import strategies as st

import georesolve
from georesolve import files
from georesolve.client import ServiceRefused
from georesolve.options import Options

LAT, LON = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
HIDDEN = np.array([False, True, False])
REFERENCES = LAT, LON
STATUSES = ["matched", "invalid_coordinate", "matched"]


@pytest.fixture(params=["in process", "by a service"])
def nearest(request):
    """A search by two doors."""
    if request.param == "in process":
        yield georesolve.nearest
        return
    service = request.getfixturevalue("service")
    with georesolve.Client(str(service.base_url)) as client:
        yield client.nearest


def listed(matches, name):
    if isinstance(matches, list):
        return [row[name] for row in matches]
    column = matches[name]
    if isinstance(column, np.ma.MaskedArray):
        return column.tolist()
    return column.to_list() if isinstance(column, pl.Series) else [*np.asarray(column)]


def masked(values):
    return np.ma.MaskedArray(values, HIDDEN)


MASKED = {
    "a pair": (masked(LAT), LON),
    "whole numbers": (masked([1, 2, 3]), masked([4, 5, 6])),
    "named": {"lat": LAT, "lon": masked(LON)},
    "pandas": pd.DataFrame({"lat": pd.array([1, None, 3], "Int64"), "lon": LON}),
    "arrow in pandas": pd.DataFrame({"lat": pd.array(LAT), "lon": [4.0, None, 6.0]}).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "series": (pd.Series([1, None, 3], dtype="Float64"), pd.Series(LON)),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_is_masked_is_missing(nearest, name):
    given = MASKED[name]
    with pytest.raises(
        (ValueError, ServiceRefused), match=r"observations.* 1 of 3 rows have invalid coordinates"
    ):
        nearest(given, REFERENCES)
    matches = nearest(given, REFERENCES, on_invalid="null")
    assert listed(matches, "status") == STATUSES


POINTS = geopandas.points_from_xy(LON, LAT, crs=4326)
NUMBERS = np.array([LAT, LON]).T
TAKEN = {
    "named arrays": {"lat": np.array(LAT), "lon": np.array(LON)},
    "an array whose columns are named": {"lat": NUMBERS[:, 0], "lon": NUMBERS[:, 1]},
    "lists and ids": {"id": ["a", "b", "c"], "lat": LAT, "lon": LON},
    "big-endian": {"lat": np.array(LAT, ">f8"), "lon": np.array(LON, ">f4")},
    "float16": {"lat": np.array(LAT, np.float16), "lon": np.array([4, 5, 6], ">i2")},
    "objects": {"lat": np.array(LAT, object), "lon": LON},
    "a series of points": geopandas.GeoSeries(POINTS, index=list("xyz")),
    "records": [{"lat": lat, "lon": lon} for lat, lon in zip(LAT, LON, strict=True)],
    "a lazy frame": pl.LazyFrame({"lat": LAT, "lon": LON}),
    "sparse": pd.DataFrame({"lat": pd.arrays.SparseArray(LAT), "lon": pd.arrays.SparseArray(LON)}),
    "long doubles": (np.array(LAT, np.longdouble), np.array(LON, np.longdouble)),
    "types of polars": pl.DataFrame(
        {
            "id": pl.Series([2**80, None, -5], dtype=pl.Int128),
            "lat": pl.Series(LAT, dtype=pl.Decimal(10, 2)),
            "lon": LON,
            "kind": pl.Series(["a", None, "a"], dtype=pl.Enum(["b", "a"])),
            "tags": [[{"word": "x"}], None, []],
        }
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_kinds_that_are_taken(nearest, name):
    given = TAKEN[name]
    matches = nearest(given, REFERENCES)
    assert listed(matches, "reference") == [0, 1, 2]
    assert listed(nearest(REFERENCES, given), "distance_m") == [0.0, 0.0, 0.0]
    if isinstance(given, geopandas.GeoSeries):
        assert isinstance(matches, geopandas.GeoDataFrame)
        assert matches.index.tolist() == ["x", "y", "z"]
        assert matches.geometry.tolist() == given.tolist()
    if isinstance(given, pl.LazyFrame):
        assert isinstance(matches, pl.DataFrame)


REFUSED = {
    "text": ({"lat": [1.0, "x", 3.0], "lon": LON}, r"observations.*'lat'.*row 1.*'x'"),
    "text in pandas": (
        pd.DataFrame({"lat": [1.0, "x", 3.0], "lon": LON}),
        r"observations.*'lat'.*row 1.*'x'",
    ),
    "all text": ({"lat": ["a", "b", "c"], "lon": LON}, r"observations.*'lat' holds .*not numbers"),
    "mixed ids": (
        pd.DataFrame({"id": [1, "b", 3], "lat": LAT, "lon": LON}),
        r"observations.*'id'.*row 1.*'b'",
    ),
    "mixed ids in a list": ({"id": [1, "b", 3], "lat": LAT, "lon": LON}, r"'id'.*row 1.*'b'"),
    "a large id": (
        pd.DataFrame({"id": [1, 2**70, 3], "lat": LAT, "lon": LON}),
        rf"observations.*'id'.*row 1.*{2**70}.*64 bits",
    ),
    "a large negative id": ({"id": [2**63, -1, 3], "lat": LAT, "lon": LON}, r"'id'.*row 1.*-1"),
    "a truth among ids": ({"id": [5, True, 3], "lat": LAT, "lon": LON}, r"'id'.*row 1.*True"),
    "ids that floats do not hold": (
        {"id": [0.5, 2**53 + 1, 3], "lat": LAT, "lon": LON},
        rf"'id'.*row 1.*{2**53 + 1}",
    ),
    "long doubles that doubles do not hold": (
        {"lat": np.array(LAT, np.longdouble) / 3, "lon": LON},
        r"observations.*'lat'.*row 0.*0\.3333",
    ),
    "numbers of 128 bits": (
        pl.DataFrame(
            {"id": pl.Series([1, 2**127 - 1, 3], dtype=pl.Int128), "lat": LAT, "lon": LON}
        ),
        rf"observations.*'id'.*row 1.*{2**127 - 1}",
    ),
    "objects of polars": (
        pl.DataFrame({"id": pl.Series([1, 2, 3], dtype=pl.Object), "lat": LAT, "lon": LON}),
        r"observations.*'id'.*row 0",
    ),
    "complex": ({"lat": np.array(LAT, complex), "lon": LON}, r"'lat'.*row 0.*\(1\+0j\)"),
    "lists": ({"lat": [1.0, [2.0], 3.0], "lon": LON}, r"observations.*'lat'.*row 1.*\[2.0\]"),
    "two lengths": ({"lat": LAT, "lon": LON[:2]}, r"observations.*\(3,\).*\(2,\)"),
    "two axes": ({"lat": NUMBERS, "lon": NUMBERS}, r"observations.*one shape \(n,\).*\(3, 2\)"),
    "an array of pairs": (NUMBERS, r"ndarray is no .*\{'lat': a\[:, 0\], 'lon': a\[:, 1\]\}"),
    "a record without a key": ([{"lat": 1.0, "lon": 2.0}, {"lat": 1.0}], r"record 1 has no 'lon'"),
    "a record with another": ([{"lat": 1.0, "lon": 2.0}, {"lat": 1, "lon": 2, "n": 3}], r"key 'n'"),
    "no record": ([{"lat": 1.0, "lon": 2.0}, 5], "record 1 is 5: give an object"),
    "text in a record": ([{"lat": 1, "lon": 2}, {"lat": "x", "lon": 2}], r"'lat'.*row 1.*'x'"),
    "a list of numbers": ([1.0, 2.0, 3.0], r"list is no .*\[\{'lat': ..., 'lon': ...\}\]"),
    "a series": (pd.Series(LAT), "Series is no "),
    "a name twice": (pd.DataFrame([[1, 2, 3]], columns=["lat", "lon", "lon"]), "'lon'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_kinds_that_are_refused_in_words(nearest, name):
    given, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError, ServiceRefused), match=words) as caught:
        nearest(given, REFERENCES)
    assert "pyarrow" not in type(caught.value).__module__


def test_the_place_of_an_error_is_told():
    with pytest.raises(georesolve.InvalidInput) as caught:
        georesolve.nearest({"lat": [1.0, 2.0, "x"], "lon": LON}, REFERENCES)
    [place] = caught.value.errors
    assert (place["file"], place["column"], place["row"]) == ("observations", "lat", 2)


def test_an_arrow_file_of_polars(nearest, tmp_path):
    words = pl.Series(["a", "b", None], dtype=pl.Categorical)
    frame = pl.DataFrame({"lat": LAT, "lon": LON, "kind": words, "tags": [["x"], [], None]})
    frame.write_ipc(path := tmp_path / "frame.arrow")
    matches = nearest(str(path), str(path), by="kind", columns=["kind", "tags"])
    assert matches["reference"].to_pylist() == [0, 1, None]
    assert matches["reference_tags"].to_pylist() == [["x"], [], None]


def test_categories_of_polars_in_arrays(nearest):
    words = pl.Series(["a", "b", None], dtype=pl.Categorical)
    references = pl.DataFrame({"lat": LAT, "lon": LON, "kind": words})
    matches = nearest({"lat": LAT, "lon": LON}, references, columns=["kind"])
    assert pa.array(matches["reference_kind"]).to_pylist() == ["a", "b", None]


def test_of_a_lazy_frame_no_more_is_computed_than_is_needed():
    def refuse(values):
        raise AssertionError("this column is not needed")

    lazy = pl.LazyFrame({"lat": LAT, "lon": LON, "name": [str(value) for value in LAT]})
    lazy = lazy.with_columns(costly=pl.col("lat").map_elements(refuse, return_dtype=pl.Float64))
    found = georesolve.nearest(lazy, lazy, observation_columns=["name"])
    assert isinstance(found, pl.DataFrame)
    assert found["observation_name"].to_list() == [str(value) for value in LAT]
    with pytest.raises(AssertionError, match="this column is not needed"):
        georesolve.nearest(lazy, lazy, observation_columns=["costly"])


INTEGERS = st.integers(-(2**65), 2**65) | st.sampled_from(
    [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]
)


@drawn(
    st.lists(INTEGERS, min_size=1, max_size=4)
    | st.lists(INTEGERS | st.none(), min_size=1, max_size=4)
    | st.lists(INTEGERS | st.floats(-10, 10), min_size=1, max_size=4)
)
def test_integers_of_a_list_keep_their_value_or_are_refused(numbers):
    sets = {"lat": [0.0] * len(numbers), "lon": [float(i) for i in range(len(numbers))]}
    records = [{"lat": 0.0, "lon": float(i), "n": number} for i, number in enumerate(numbers)]
    integers = [one for one in numbers if isinstance(one, int)]
    fits = all(-(2**63) <= one < 2**63 for one in integers) or all(
        0 <= one < 2**64 for one in integers
    )
    for table in ({**sets, "n": numbers}, records):
        try:
            matches = georesolve.nearest(table, table, columns=["n"])
        except georesolve.InvalidInput as refused:
            [place] = refused.errors
            assert place["column"] == "n"
            assert len(integers) < len(numbers) or not fits
            continue
        result = [None if one != one else one for one in listed(matches, "reference_n")]
        assert result == numbers
        if integers == numbers:
            assert not any(isinstance(one, float | np.floating) for one in result)


@pytest.mark.parametrize("columns", [["geometry_lat"], ["geometry_lat", "geometry_lon"]])
def test_columns_called_as_the_coordinates_of_a_geometry(columns, tmp_path):
    more = {name: [80.0, 81.0] for name in columns}
    points = [shapely.Point(8, 50), shapely.Point(9, 51)]
    frame = geopandas.GeoDataFrame(more, geometry=points, crs=4326)
    arrow = pa.table({**more, "geometry": shapely.to_wkb(points)})
    frame.to_parquet(tmp_path / "points.parquet")
    kinds = [(frame, {}), (arrow, {"geometry": "geometry"}), (tmp_path / "points.parquet", {})]
    for table, options in kinds:
        for names in (columns, "*"):
            matches = georesolve.nearest(table, table, columns=names, **options)
            assert listed(matches, "distance_m") == [0.0, 0.0]
            for name in columns:
                assert listed(matches, f"reference_{name}") == [80.0, 81.0]
    path = str(tmp_path / "points.parquet")
    matches = georesolve.Index(frame).nearest(frame, columns=columns)
    assert listed(matches, "reference_geometry_lat") == [80.0, 81.0]
    files.resolve(path, path, tmp_path / "out.geojson", Options(columns=columns))


def test_a_date_with_a_time_of_day_is_refused(tmp_path):
    table = pa.table({"lat": LAT, "lon": LON, "d": pa.array([0, None, 86_400_001], pa.date64())})
    for options in ({"columns": ["d"]}, {"by": "d"}, {"time": "d", "max_time": "1d"}):
        with pytest.raises(georesolve.InvalidInput, match=r"date64 1970-01-02 00:00:00.001.*row 2"):
            georesolve.nearest(table, table, **options)
    assert listed(georesolve.nearest(table, table), "distance_m") == [0.0] * 3
    with pa.ipc.new_file(tmp_path / "points.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(georesolve.InvalidInput, match="not represent a whole number of days"):
        georesolve.nearest(tmp_path / "points.arrow", table.drop_columns("d"))
    days = table.set_column(2, "d", table["d"].cast(pa.date32(), safe=False).cast(pa.date64()))
    matches = georesolve.nearest(days, days, columns=["d"])
    assert matches["reference_d"].equals(days["d"])
