"""Types of results: they depend on the types of the tables alone, and no value changes."""

import datetime as dt
import decimal
from functools import partial

import dask
import dask.dataframe as dd
import duckdb
import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

import georesolve

NEAR_M = 10.0
INSTANTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
VALUES = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.just(2**60 + 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): WORDS,
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1)),
    pa.timestamp("us"): INSTANTS,
    pa.timestamp("us", "UTC"): INSTANTS.map(lambda one: one.replace(tzinfo=dt.UTC)),
    pa.duration("us"): st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999)),
    pa.decimal128(30, 2): st.integers(-(10**29), 10**29).map(
        lambda cents: decimal.Context(prec=30).scaleb(cents, -2)
    ),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from("ab"),
    pa.list_(pa.string()): st.lists(WORDS, min_size=1, max_size=2),
    pa.struct([("n", pa.int64())]): st.fixed_dictionaries({"n": st.integers(2**60, 2**61)}),
}
"""Values of each type that is attributes."""
QUESTIONS = {
    "nearest": partial(georesolve.nearest, max_distance_m=NEAR_M),
    "two": partial(georesolve.nearest, k=2, max_distance_m=NEAR_M),
    "within": partial(georesolve.within, distance_m=NEAR_M, how="left"),
}


def column_of(values, type):
    array = pa.array(values, type.value_type if pa.types.is_dictionary(type) else type)
    if not pa.types.is_dictionary(type):
        return array
    # The same categories for all values.
    words = pa.array(["a", "b"])
    indices = pa.compute.index_in(array, words).cast(type.index_type)
    return pa.DictionaryArray.from_arrays(indices, words)


def table_of(lat, values, type):
    columns = {"lat": lat, "lon": np.arange(len(lat)) * 0.0, "value": column_of(values, type)}
    return pa.table(columns)


def masked_type(type):
    name = "boolean" if type == pa.bool_() else f"{type}".title().replace("Ui", "UI")
    return pd.api.types.pandas_dtype(name) if is_whole(type) else None


def is_whole(type):
    return pa.types.is_integer(type) or type == pa.bool_()


def as_pandas(table):
    return table.to_pandas(types_mapper=masked_type, integer_object_nulls=True)


def as_arrays(table):
    columns = {name: table[name].to_numpy() for name in ("lat", "lon")}
    column = table["value"].combine_chunks()
    if is_whole(column.type):
        none = False if column.type == pa.bool_() else 0
        filled = np.array(column.fill_null(none))
        columns["value"] = np.ma.MaskedArray(filled, np.array(column.is_null()))
    else:
        columns["value"] = np.fromiter(column.to_pylist(), object, len(column))
    return columns


def as_geopandas(table):
    frame = as_pandas(table)
    points = geopandas.points_from_xy(frame.pop("lon"), frame.pop("lat"), crs=4326)
    return geopandas.GeoDataFrame(frame, geometry=points)


KINDS = {
    "pandas": as_pandas,
    "pandas on Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "geopandas": as_geopandas,
    "polars": pl.from_arrow,
    "lazy polars": lambda table: pl.from_arrow(table).lazy(),
    "arrow": lambda table: table,
    "arrays": as_arrays,
    "records": pa.Table.to_pylist,
    "lists": pa.Table.to_pydict,
}
WITHOUT_TYPES = ("records", "lists")
OF_OBJECTS = ("pandas", "geopandas", "arrays")
"""Kinds that hold bytes, dates and values as objects."""


def plain(value):
    """Python value of a cell; None if it is missing."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if value is None or value is np.ma.masked or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, list | np.ndarray | pl.Series):
        return [plain(one) for one in value]
    if isinstance(value, pd.Timedelta):
        return value.to_pytimedelta()
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        # numpy has no zones.
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    value = value.item() if isinstance(value, np.generic) else value
    return None if value != value else value


def values_of(matches, name):
    if isinstance(matches, list):
        return [plain(row[name]) for row in matches]
    column = matches[name]
    if isinstance(column, pa.ChunkedArray):
        return [plain(value) for value in column.to_pylist()]
    if isinstance(column, np.ndarray):
        column = column.astype(object) if column.dtype.kind in "mM" else column
    return [plain(value) for value in column]


def types_of(matches):
    if isinstance(matches, list):
        return [*matches[0]]
    if isinstance(matches, dict):
        return [(name, type(one), one.dtype) for name, one in matches.items()]
    if isinstance(matches, pa.Table):
        return [(field.name, field.type) for field in matches.schema]
    if isinstance(matches, pl.DataFrame):
        return [*matches.schema.items()]
    # polars tells values of no more categories than there are.
    types = matches.dtypes.items()
    return [(name, "category" if one == "category" else one) for name, one in types]


@st.composite
def sets(draw):
    """Two tables of one type, and the references that the observations match."""
    type = draw(st.sampled_from([*VALUES]))
    n = draw(st.integers(1, 4))
    cell = VALUES[type] | st.none() if draw(st.booleans()) else VALUES[type]
    references = draw(st.lists(cell, min_size=n, max_size=n))
    places = st.integers(0, n - 1) | st.none() if draw(st.booleans()) else st.integers(0, n - 1)
    matched = draw(st.lists(places, min_size=1, max_size=5))
    observations = draw(st.lists(cell, min_size=len(matched), max_size=len(matched)))
    lat = [50.0 if place is None else float(place) for place in matched]
    tables = table_of(lat, observations, type), table_of(np.arange(n) * 1.0, references, type)
    return type, tables, matched


@given(sets(), st.sampled_from([*KINDS]), st.sampled_from([*KINDS]), st.sampled_from([*QUESTIONS]))
@settings(max_examples=150, deadline=None)
def test_values_come_back_and_types_do_not_depend_on_them(drawn, kind, of_references, question):
    type, tables, matched = drawn
    are_missing = any(table["value"].null_count == len(table) for table in tables)
    if are_missing or type == pa.uint64() or pa.types.is_decimal(type):
        # Objects and lists have the types of their values, if they have any.
        objects = WITHOUT_TYPES if is_whole(type) else (*WITHOUT_TYPES, *OF_OBJECTS)
        kind = "arrow" if kind in objects else kind
        of_references = "polars" if of_references in objects else of_references
    resolve = partial(QUESTIONS[question], columns=["value"], observation_columns=["value"])
    matches = resolve(KINDS[kind](tables[0]), KINDS[of_references](tables[1]))
    place = {"observation": values_of(matches, "observation"), "reference": []}
    place["reference"] = [
        None if row is None or row < 0 else row for row in values_of(matches, "reference")
    ]
    each = 2 if question == "two" else 1
    assert place["observation"] == [row for row in range(len(matched)) for _ in range(each)]
    assert place["reference"][::each] == matched
    for table, role in zip(tables, ("observation", "reference"), strict=True):
        values = [plain(value) for value in table["value"].to_pylist()]
        expected = [None if row is None else values[row] for row in place[role]]
        assert values_of(matches, f"{role}_value") == expected
    some = next(iter(examples(type)))
    complete = [table_of([0.0, 1.0], [some, some], type) for _ in range(2)]
    usual = resolve(KINDS[kind](complete[0]), KINDS[of_references](complete[1]))
    assert types_of(matches) == types_of(usual)


def examples(type):
    names = {"int": 1, "uint": 1, "bool": True, "float": 1.5, "double": 1.5}
    values = {
        pa.string(): "a",
        pa.binary(): b"a",
        pa.date32(): dt.date(2020, 1, 1),
        pa.timestamp("us"): dt.datetime(2020, 1, 1),
        pa.timestamp("us", "UTC"): dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        pa.duration("us"): dt.timedelta(1),
        pa.decimal128(30, 2): decimal.Decimal("1.50"),
        pa.dictionary(pa.int8(), pa.string()): "a",
        pa.list_(pa.string()): ["a"],
        pa.struct([("n", pa.int64())]): {"n": 1},
    }
    yield values.get(type) or names[str(type).rstrip("0123456789")]


@given(sets(), st.sampled_from(["pandas", "geopandas", "pandas on Arrow"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_partitions_of_dask_have_the_types_of_meta(drawn, kind, are_both):
    _, tables, matched = drawn
    frames = [KINDS[kind](table) for table in tables]
    if kind == "geopandas":
        pytest.importorskip("dask_geopandas")
    with dask.config.set({"dataframe.convert-string": False, "scheduler": "sync"}):
        observations = dd.from_pandas(frames[0], npartitions=len(matched))
        references = dd.from_pandas(frames[1], npartitions=1) if are_both else frames[1]
        resolve = partial(QUESTIONS["nearest"], columns=["value"], observation_columns=["value"])
        matches = resolve(observations, references)
        for number in range(matches.npartitions):
            part = matches.partitions[number].compute()
            assert types_of(part) == types_of(dd.utils.make_meta(matches))
            row = part["observation"].iloc[0]
            assert part["reference_value"].isna().all() or matched[row] is not None


ODD = {
    "periods": (pd.period_range("2020-01", periods=2, freq="M"), "period[M]"),
    "intervals": (pd.interval_range(0.0, 2.0), "interval[float64, right]"),
    "intervals of whole numbers": (pd.interval_range(0, 2), object),
    "categories of intervals": (pd.Categorical(pd.interval_range(0, 2)), object),
    "lengths of time": (pd.to_timedelta(["1h", "2h"]).as_unit("s"), "timedelta64[s]"),
    "sparse": (pd.arrays.SparseArray([2**60 + 1, 0]), "Int64"),
    "words": (np.array(["a", "b"], np.dtypes.StringDType()), "str"),
    "lists with gaps": (pd.Series([[2**60 + 1, None], [1]]), object),
}
"""Columns of pandas, and the type that those of references have in results."""


@pytest.mark.parametrize("name", ODD)
def test_types_of_pandas_alone(name):
    values, of_references = ODD[name]
    frame = pd.DataFrame({"lat": [0.0, 1.0], "lon": 0.0}).assign(value=values)
    for far in (0.0, 60.0):
        observations = frame.assign(lat=[0.0, 1.0 + far])
        matches = georesolve.nearest(
            observations,
            frame,
            max_distance_m=NEAR_M,
            columns=["value"],
            observation_columns=["value"],
        )
        pd.testing.assert_series_equal(
            matches["observation_value"], frame["value"], check_names=False
        )
        assert matches["reference_value"].dtype == of_references
        assert matches["reference_value"].isna().tolist() == [False, far > 0]
        first = matches["reference_value"].iloc[0]
        if isinstance(first, dict):
            first = pd.Interval(first["left"], first["right"])
        assert plain(first) == plain(frame["value"].iloc[0])


def test_a_result_against_references_is_its_own():
    sites = pd.DataFrame({"lat": [0.0, 1.0], "lon": 0.0, "id": [2**60 + 1, 5], "size": [1.5, 2.5]})
    visits = {"lat": [0.0], "lon": [0.0]}
    matches = georesolve.within(
        visits, sites, 10.0, summary={"count": True}, summary_by="reference", columns=["size"]
    )
    assert matches["reference_id"].tolist() == [2**60 + 1, 5]
    assert (matches["reference_id"].dtype, matches["count"].dtype) == (np.int64, "Int64")
    matches.loc[0, ["reference_id", "reference_size"]] = 7
    assert (sites["id"].iloc[0], sites["size"].iloc[0]) == (2**60 + 1, 1.5)


def test_hidden_values_of_arrays_are_no_ids():
    references = {"lat": [0.0], "lon": [0.0], "id": np.array([5], np.uint16)}
    matches = georesolve.nearest(([0.0, 9.0], [0.0, 0.0]), references, max_distance_m=1)
    assert matches["reference_id"].tolist() == [5, None]
    assert matches["reference_id"].data.tolist() == [5, 2**16 - 1]
    assert matches["reference"].tolist() == [0, -1]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_types_that_a_library_has_not_are_refused_by_name(kind):
    intervals = duckdb.connect().sql("SELECT 0.0 lat, 0.0 lon, INTERVAL 1 MONTH span")
    observations = pd.DataFrame({"lat": [0.0], "lon": [0.0]})
    if kind == "pandas":
        matches = georesolve.nearest(observations, intervals, columns=["span"])
        assert matches["reference_span"].iloc[0].kwds["months"] == 1
        return
    with pytest.raises(georesolve.InvalidInput, match=r"polars has no type .*'reference_span'"):
        georesolve.nearest(pl.from_pandas(observations), intervals, columns=["span"])


class WKB(pa.ExtensionType):
    """The type of a library that registers it with pyarrow."""

    def __init__(self, metadata=b"{}"):
        self._told = metadata
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self):
        return self._told

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls(serialized)


def geometries_of(kind, shapes, crs="{}"):
    """Table of shapes from DuckDB or a library with an extension type."""
    if kind == "duckdb":
        texts = ", ".join(f"('{shape.wkt}'::GEOMETRY)" for shape in shapes)
        return duckdb.connect().sql(f"SELECT * FROM (VALUES {texts}) shapes(place)")
    storage = pa.array(shapely.to_wkb(shapes), pa.binary())
    if kind == "registered":
        return pa.table({"place": pa.ExtensionArray.from_storage(WKB(crs.encode()), storage)})
    metadata = {"ARROW:extension:name": kind, "ARROW:extension:metadata": crs}
    return pa.table([storage], pa.schema([pa.field("place", pa.binary(), metadata=metadata)]))


PLACES = [shapely.Point(8, 50), shapely.Point(-70, -33), shapely.Point(0, 0)]
GEOMETRIES = ["duckdb", "registered", "geoarrow.wkb", "ogc.wkb"]


@pytest.mark.parametrize("kind", GEOMETRIES)
def test_geometries_are_found_by_their_extension_type(kind):
    degrees = {"lat": [50.0, -33.0, 0.0], "lon": [8.0, -70.0, 0.0]}
    make = partial(geometries_of, kind)
    assert georesolve.nearest(make(PLACES), degrees)["reference"].to_pylist() == [0, 1, 2]
    for references in (make(PLACES[::-1]), georesolve.Index(make(PLACES[::-1]))):
        assert georesolve.nearest(degrees, references)["reference"].tolist() == [2, 1, 0]
    zones = [shapely.box(7, 49, 9, 51), shapely.LineString([(-80, -33), (-60, -33)])]
    matches = georesolve.nearest(degrees, make(zones), max_distance_m=5e5)
    assert matches["reference"].tolist() == [0, 1, -1]
    with pytest.raises(georesolve.InvalidInput, match="'place': row 0 holds a Polygon"):
        georesolve.nearest(make(zones), degrees)
    attributes = georesolve.nearest(make(PLACES), make(PLACES), columns=["place"])
    assert attributes["reference_place"].to_pylist() == [*shapely.to_wkb(PLACES)]


@pytest.mark.parametrize("kind", ["registered", "geoarrow.wkb"])
def test_the_crs_of_an_extension_type_counts(kind):
    frame = geopandas.GeoSeries(PLACES[:1], crs=4326).to_crs(25832)
    metadata = f'{{"crs": {frame.crs.to_json()}}}'
    table = geometries_of(kind, frame.tolist(), metadata)
    matches = georesolve.nearest(table, ([50.0], [8.0]))["distance_m"].to_pylist()
    assert matches == pytest.approx([0], abs=1e-3)


def test_columns_of_coordinates_and_several_geometries():
    table = geometries_of("geoarrow.wkb", PLACES)
    field = table.schema.field("place")
    both = table.append_column("lat", pa.array([1.0] * 3)).append_column("lon", pa.array([2.0] * 3))
    matches = georesolve.nearest(both, ([1.0], [2.0]))
    assert matches["distance_m"].to_pylist() == [0, 0, 0]
    twice = table.append_column(field.with_name("home"), table["place"])
    metadata = r"observations: several .*'place', 'home'.*observation_geometry="
    with pytest.raises(georesolve.InvalidInput, match=metadata):
        georesolve.nearest(twice, ([50.0], [8.0]))
    matches = georesolve.nearest(twice, ([50.0], [8.0]), observation_geometry="home")
    assert matches["distance_m"].to_pylist()[0] == 0
    with pytest.raises(georesolve.InvalidInput, match=r"references: .* reference_geometry=\.\.\."):
        georesolve.nearest(
            ([1.0], [2.0]), table.replace_schema_metadata().cast(pa.schema({"place": pa.binary()}))
        )


def test_arrays_whose_rows_have_no_kernel():
    lat = pa.array([0.0, 1.0])
    runs = pa.compute.run_end_encode(pa.array(["a", "a"], pa.string()))
    views = pa.array([{"w": ["x"]}, None], pa.struct([("w", pa.list_(pa.string_view()))]))
    pairs = pa.array([[("k", "x")], None], pa.map_(pa.string(), pa.string_view()))
    table = pa.table({"lat": lat, "lon": lat, "runs": runs, "views": views, "pairs": pairs})
    matches = georesolve.nearest(table, table, columns="*", observation_columns="*", k=2)
    for role in ("observation", "reference"):
        for name in ("runs", "views", "pairs"):
            values = table[name].to_pylist()
            assert matches[f"{role}_{name}"].to_pylist() == [
                values[i] for i in matches[role].to_pylist()
            ]
