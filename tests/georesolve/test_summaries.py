"""Sums, means, minima and maxima against Python's fractions, for each type and each path."""

import json
from decimal import Context, Decimal
from fractions import Fraction

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyogrio.raw
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

import georesolve
from georesolve import files
from georesolve.options import Options, WithinOptions

KINDS = ["sum", "mean", "min", "max"]
WIDE = Context(prec=100)
NUMBERS = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_infinity=False),
    pa.float64(): st.floats(allow_infinity=False),
    **{
        kind: st.integers(1 - 10**kind.precision, 10**kind.precision - 1).map(
            lambda digits, scale=kind.scale: Decimal(digits).scaleb(-scale, WIDE)
        )
        for kind in (pa.decimal32(7, 3), pa.decimal128(38, 10), pa.decimal256(76, 70))
    },
}
PLACES = pa.table({"lat": [0.0, 1.0, 2.0, 3.0], "lon": [0.0] * 4})


def at_places(values, places):
    """Table of references, a value for each, at the given latitudes."""
    return pa.table(
        {"lat": pa.array(places, pa.float64()), "lon": [0.0] * len(places), "size": values}
    )


def by_place(values, places):
    """Numbers at each of the places; neither None nor NaN is one."""
    numbers = [(value, at) for value, at in zip(values, places, strict=True) if value == value]
    return [[value for value, at in numbers if at == i and value is not None] for i in range(4)]


def fits(kind, total):
    """Tell whether a sum fits the type that sums of a type have."""
    if pa.types.is_floating(kind):
        return abs(total) < 2**1024 - 2**970
    if pa.types.is_decimal(kind):
        return abs(total) * 10**kind.scale < 10 ** (38 if kind.bit_width <= 128 else 76)
    return 0 <= total < 2**64 if kind == pa.uint64() else -(2**63) <= total < 2**63


def mean(kind, total, size):
    """Exact quotient; of floats the rounded sum is divided, unless it does not fit."""
    if pa.types.is_floating(kind) and fits(kind, total):
        return float(total) / size
    return float(total / size)


@st.composite
def columns(draw):
    """Draw a column of one type, and the place of each row."""
    kind = draw(st.sampled_from([*NUMBERS]))
    values = draw(st.lists(st.none() | NUMBERS[kind], min_size=1, max_size=12))
    places = draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    return pa.array(values, kind), places


@settings(max_examples=200)
@given(columns())
def test_summaries_are_those_of_fractions(drawn):
    sizes, places = drawn
    references = at_places(sizes, places)
    numbers = by_place(sizes.to_pylist(), places)
    totals = [sum(map(Fraction, one)) for one in numbers]
    result = georesolve.within(PLACES, references, 1, summary={"size": KINDS[1:]})
    assert result["size_min"].type == result["size_max"].type == sizes.type
    assert result["size_min"].to_pylist() == [min(one, default=None) for one in numbers]
    assert result["size_max"].to_pylist() == [max(one, default=None) for one in numbers]
    assert result["size_mean"].to_pylist() == [
        mean(sizes.type, total, len(one)) if one else None
        for total, one in zip(totals, numbers, strict=True)
    ]
    summary = {"size": ["sum"]}
    if not all(fits(sizes.type, total) for total in totals):
        with pytest.raises(georesolve.InvalidInput, match="a sum of the column 'size' is beyond"):
            georesolve.within(PLACES, references, 1, summary=summary)
        return
    sums = georesolve.within(PLACES, references, 1, summary=summary)["size_sum"].to_pylist()
    is_float = pa.types.is_floating(sizes.type)
    assert sums == [float(total) if is_float else total for total in totals]


@given(
    st.lists(st.from_regex(r"[+-]?[0-9]{1,30}(\.[0-9]{0,20})?", fullmatch=True), min_size=1),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.booleans(),
)
def test_text_is_summed_as_it_is_written(texts, kind, is_whole):
    if is_whole:
        texts = [text.partition(".")[0] for text in texts]
    exact = [Fraction(text.rstrip(".")) for text in texts]
    total, fit = sum(exact), all(-(2**63) <= one < 2**63 for one in exact)
    is_int = fit and not any("." in text for text in texts)
    references = at_places(pa.array([*texts, " n/a", None], kind), [0] * (len(texts) + 2))
    summary = {"size": ["mean", "min", "max"]}
    [*_, row] = georesolve.within(PLACES.slice(0, 1), references, 1, summary=summary).to_pylist()
    to_number = int if is_int else float
    kind = pa.int64() if is_int else pa.float64()
    assert row["size_mean"] == mean(kind, total, len(texts))
    assert row["size_min"] == to_number(min(exact))
    assert row["size_max"] == to_number(max(exact))
    if is_int and not fits(pa.int64(), total):
        with pytest.raises(georesolve.InvalidInput, match="is beyond 64 bits"):
            georesolve.within(PLACES, references, 1, summary={"size": ["sum"]})
        return
    result = georesolve.within(PLACES.slice(0, 1), references, 1, summary={"size": ["sum"]})
    assert result["size_sum"].type == (pa.int64() if is_int else pa.float64())
    assert result["size_sum"].to_pylist() == [to_number(total)]


EXACT = {
    "decimal": (pa.array([Decimal(2**53 + 1)] * 2, pa.decimal128(20)), Decimal(2**54 + 2)),
    "int64": (pa.array([2**53 + 1] * 2), 2**54 + 2),
    "uint64": (pa.array([2**63 + 1, 2**62], pa.uint64()), 2**63 + 2**62 + 1),
    "text": (pa.array([str(2**53 + 1)] * 2), 2**54 + 2),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_path_sums_exactly(name, tmp_path):
    sizes, total = EXACT[name]
    place, table = PLACES.slice(0, 1), at_places(sizes, [0, 0])
    summary = {"size": KINDS}
    expected = georesolve.within(place, table, 1, summary=summary)
    largest = max(map(type(total), sizes.to_pylist()))
    assert expected["size_sum"].to_pylist() == [total]
    assert expected["size_max"].to_pylist() == [largest]
    columns = expected.select([f"size_{kind}" for kind in KINDS])

    def check(result):
        assert result.select(columns.column_names).equals(columns)

    check(georesolve.nearest(place, table, k=2, summary=summary))
    check(georesolve.within(table, place, 1, summary=summary, summary_by="reference"))
    zone = pa.table({"g": [shapely.to_wkb(shapely.box(-1, -1, 1, 1))]})
    by_zone = {"summary": summary, "summary_by": "reference", "reference_geometry": "g"}
    check(georesolve.within(table, zone, 1, **by_zone))
    paths = [tmp_path / "place.parquet", tmp_path / "table.parquet"]
    pq.write_table(place, paths[0])
    pq.write_table(table, paths[1])
    out = tmp_path / "out.parquet"
    files.resolve(*paths, out, WithinOptions(distance_m=1, summary=summary))
    check(pq.read_table(out))
    files.resolve(*paths, out, Options(k=2, summary=summary))
    check(pq.read_table(out))
    files.resolve(*paths, tmp_path / "out.json", WithinOptions(distance_m=1, summary=summary))
    [row] = json.loads((tmp_path / "out.json").read_text())
    assert type(total)(row["size_sum"]) == total
    files.resolve(*paths, tmp_path / "out.csv", WithinOptions(distance_m=1, summary=summary))
    convert = pa.csv.ConvertOptions(column_types={"size_sum": pa.string()})
    [text] = pa.csv.read_csv(tmp_path / "out.csv", convert_options=convert)["size_sum"].to_pylist()
    assert type(total)(text) == total


def test_a_mean_fits_where_its_sum_does_not():
    for sizes in (pa.array([2**63 - 1] * 3), pa.array([1.7e308] * 3), pa.array([str(2**62)] * 3)):
        table = at_places(sizes, [0] * 3)
        result = georesolve.within(PLACES.slice(0, 1), table, 1, summary={"size": ["mean"]})
        assert result["size_mean"].to_pylist() == [float(sizes[0].as_py())]


def test_collections_know_the_type_of_a_sum_of_text():
    observations = dd.from_pandas(PLACES.to_pandas(), npartitions=2)
    summary = {"size": KINDS}
    for sizes in (["1.5", "2"], ["1", "9007199254740993"], pd.Categorical(["1.5", "2"])):
        table = pd.DataFrame({"lat": [0.0, 0.0], "lon": np.zeros(2), "size": sizes})
        result = georesolve.within(observations, table, 1, summary=summary)
        expected = georesolve.within(PLACES.to_pandas(), table, 1, summary=summary)
        pd.testing.assert_frame_equal(result.compute(), expected)
        pd.testing.assert_series_equal(result.dtypes, expected.dtypes)
        collection = dd.from_pandas(table, npartitions=1)
        with pytest.raises(georesolve.InvalidInput, match="'size' of a collection of references"):
            georesolve.within(observations, collection, 1, summary=summary)


@pytest.mark.parametrize("suffix", ["gpkg", "fgb", "shp"])
def test_layers_have_all_digits_of_unsigned_integers(suffix, tmp_path):
    table = at_places(pa.array([2**64 - 1, 0], pa.uint64()), [0, 0])
    pq.write_table(table, tmp_path / "table.parquet")
    options = WithinOptions(distance_m=1, summary={"size": ["sum"]})
    paths = [tmp_path / "table.parquet"] * 2
    files.resolve(*paths, tmp_path / f"out.{suffix}", options)
    _, layer = pyogrio.raw.read_arrow(tmp_path / f"out.{suffix}")
    assert layer["size_sum"].to_pylist() == [str(2**64 - 1)] * 2
