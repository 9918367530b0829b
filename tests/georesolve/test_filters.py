"""By group and in time from Python, by command and from Dask: what counts, and what is refused."""

import datetime as dt

import hypothesis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import georesolve
from georesolve import cli, kernels
from georesolve.engine import filter_encoding, in_memory
from georesolve.engine.durations import nanoseconds
from tests import oracle
from tests.kernels.point_sets import sphere

HOUR = dt.timedelta(hours=1)


def tables(n=400, m=300, seed=1):
    """Observations and references in some groups of two columns, in a day, some without values."""
    rng = np.random.default_rng(seed)
    made = []
    for size in (m, n):
        lat, lon = sphere(rng, size)
        seconds = rng.integers(0, 86_400, size)
        times = pd.Timestamp("2026-11-26") + pd.to_timedelta(seconds, "s")
        country = pd.Series(rng.choice(["a", "b", "ä", None], size, p=[0.5, 0.3, 0.1, 0.1]))
        kind = rng.integers(0, 3, size)
        made.append(pd.DataFrame({"lat": lat, "lon": lon, "country": country, "kind": kind,
                                  "t": times.astype("datetime64[s]")}))  # fmt: skip
    return made


def expected(observations, references, able, apart=None):
    """The nearest reference of those that `able` (m, n) allows, by haversine; -1 for none."""
    metres = oracle.haversine_m(*(observations[n].to_numpy()[:, None] for n in ("lat", "lon")),
                                *(references[n].to_numpy() for n in ("lat", "lon")))  # fmt: skip
    rank = metres if apart is None else np.abs(apart) * 1e9 + metres
    rank = np.where(able, rank, np.inf)
    return np.where(able.any(axis=1), rank.argmin(axis=1), -1)


def same(observations, references, *names):
    pairs = [(observations[n].to_numpy()[:, None], references[n].to_numpy()) for n in names]
    return np.all([(a == b) & ~pd.isna(a) for a, b in pairs], axis=0)


def apart_of(observations, references):
    there, here = (one["t"].to_numpy().astype("int64") for one in (references, observations))
    return there - here[:, None]


def rows_of(result):
    return pd.Series(result["reference"]).fillna(-1).to_numpy(np.int64)


def test_only_references_of_the_same_group_match():
    observations, references = tables()
    found = georesolve.nearest(observations, references, by=["country", "kind"])
    want = expected(observations, references, same(observations, references, "country", "kind"))
    np.testing.assert_array_equal(rows_of(found), want)
    missing = observations["country"].isna()
    assert (found["status"] == np.where(missing, "missing_value", "matched")).all()
    categories = references.assign(country=references["country"].astype("category"))
    assert georesolve.nearest(observations, categories, by=["country", "kind"]).equals(found)
    arrow = georesolve.nearest(
        pa.Table.from_pandas(observations), references.rename(columns={"kind": "sort"}),
        observation_by=["country", "kind"], reference_by=["country", "sort"],
    )  # fmt: skip
    assert rows_of({"reference": arrow["reference"].to_pandas()}).tolist() == want.tolist()


@pytest.mark.parametrize("direction", ["nearest", "backward", "forward"])
@pytest.mark.parametrize("rank_by", ["distance", "time"])
def test_only_references_of_the_window_match(direction, rank_by):
    observations, references = tables()
    options = {"time": "t", "max_time": "15min", "time_direction": direction}
    found = georesolve.nearest(
        observations.astype({"t": "datetime64[ms]"}), references, rank_by=rank_by, **options
    )
    apart = apart_of(observations, references)
    able = abs(apart) <= 900
    able &= {"nearest": True, "backward": apart <= 0, "forward": apart >= 0}[direction]
    want = expected(observations, references, able, apart if rank_by == "time" else None)
    np.testing.assert_array_equal(rows_of(found), want)
    matched = want >= 0
    told = found["time_apart"].dt.total_seconds().to_numpy()
    np.testing.assert_array_equal(told[matched], apart[matched, want[matched]])
    assert found["time_apart"].dtype == "timedelta64[ms]"
    assert np.isnan(told[~matched]).all()
    assert (found["status"] == np.where(matched, "matched", "beyond_limits")).all()


def test_groups_whose_references_have_no_time_match_nothing():
    n = 40
    sets = {"lat": [0.0] * n, "lon": np.arange(float(n)), "g": np.arange(n)}
    references = pa.table({**sets, "t": pa.array([0] + [None] * (n - 1), pa.timestamp("s"))})
    observations = pa.table({**sets, "t": pa.array([0] * n, pa.timestamp("s"))})
    for options in ({"max_time": "1h"}, {"rank_by": "time"}):
        found = georesolve.nearest(observations, references, by="g", time="t", **options)
        assert found["reference"].to_pylist() == [0] + [None] * (n - 1)
        assert found["status"].to_pylist() == ["matched"] + ["no_reference"] * (n - 1)
    asked = {"by": "g", "time": "t", "max_time": "1h"}
    assert georesolve.within(observations, references, 1e6, **asked).num_rows == 1


def test_within_and_summaries_count_what_matches():
    observations, references = tables()
    able = same(observations, references, "country") & (
        abs(apart_of(observations, references)) <= 3600
    )
    options = {"by": "country", "time": "t", "max_time": HOUR}
    metres = oracle.haversine_m(*(observations[n].to_numpy()[:, None] for n in ("lat", "lon")),
                                *(references[n].to_numpy() for n in ("lat", "lon")))  # fmt: skip
    counts = (able & (metres <= 5e6)).sum(axis=1)
    pairs = georesolve.within(observations, references, 5e6, **options)
    np.testing.assert_array_equal(np.bincount(pairs["observation"], minlength=len(counts)), counts)
    summed = georesolve.within(observations, references, 5e6, summary={"count": True}, **options)
    np.testing.assert_array_equal(summed["count"], counts)
    nearest = georesolve.nearest(
        observations, references, k=9, max_distance_m=5e6, summary={"count": True}, **options
    )
    np.testing.assert_array_equal(nearest["count"], np.minimum(counts, 9))


def test_every_door_gives_the_same_rows(service, tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    observations, references = tables()
    options = {"by": "country", "time": "t", "max_time": "1h"}
    found = georesolve.nearest(observations, references, **options)
    index = georesolve.Index(references, by="country", time="t")
    assert index.nearest(observations, **options).equals(found)
    later = georesolve.nearest(dd.from_pandas(observations, npartitions=3), references, **options)
    assert later.compute()["reference"].tolist() == found["reference"].tolist()
    paths = [tmp_path / name for name in ("o.parquet", "r.parquet", "m.parquet")]
    for path, table in zip(paths, (observations, references), strict=False):
        table.to_parquet(path)
    flags = ["--by", "country", "--time", "t", "--max-time", "1h", "--quiet"]
    names = [str(path) for path in paths[:2]]
    assert cli.main(["nearest", *names, "-o", str(paths[2]), *flags]) == 0
    table = pq.read_table(paths[2])
    assert table["reference"].to_pylist() == rows_or_none(found)
    told = found["time_apart"].dt.total_seconds()
    assert table["time_apart"].to_pandas().dt.total_seconds().equals(told)
    csv = tmp_path / "m.csv"
    assert cli.main(["nearest", *names, "-o", str(csv), *flags]) == 0
    np.testing.assert_array_equal(pa.csv.read_csv(csv)["time_apart"].to_pandas(), 1000 * told)
    assert cli.main(["within", *names, "-d", "90km", "-o", str(csv), *flags]) == 0
    by_server = [*names, "-o", str(csv), *flags, "--server", str(service.base_url)]
    assert cli.main(["nearest", *by_server]) == 0
    np.testing.assert_array_equal(pa.csv.read_csv(csv)["time_apart"].to_pandas(), 1000 * told)
    with georesolve.Client(str(service.base_url)) as client:
        by_client = client.nearest(observations, references, **options | {"max_time": HOUR})
    assert by_client["reference"].tolist() == found["reference"].tolist()


def test_a_number_of_the_command_is_for_times_that_are_numbers(tmp_path):
    table = pa.table({"lat": [0.0] * 4, "lon": [0.0] * 4, "t": [0, 1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    csv = tmp_path / "m.csv"
    for length, rows in (("1.5", 10), ("2", 14), ("0", 4)):
        line = ["within", *[str(tmp_path / "a.parquet")] * 2, "-d", "1m", "-o", str(csv), "--quiet"]
        assert cli.main([*line, "--time", "t", "--max-time", length]) == 0
        assert pa.csv.read_csv(csv).num_rows == rows


def test_threads_of_dask_build_one_index(monkeypatch):
    dd = pytest.importorskip("dask.dataframe")
    observations, references = tables()
    built, build = [], filter_encoding.build_filtered_index
    # The real one, and how many rows it was given.
    monkeypatch.setattr(
        filter_encoding,
        "build_filtered_index",
        lambda lat, *given, **options: built.append(lat.size) or build(lat, *given, **options),
    )
    monkeypatch.setattr(kernels, "build_index", None)
    frame = dd.from_pandas(observations, npartitions=8)
    later = georesolve.nearest(frame, references, by="country", time="t", max_time="1h", near=True)
    found = later.compute(scheduler="threads", num_workers=8)
    assert built.count(len(references)) == 1
    able = same(observations, references, "country")
    able &= np.abs(apart_of(observations, references)) <= 3600
    np.testing.assert_array_equal(rows_of(found), expected(observations, references, able))


def rows_or_none(found):
    return [None if pd.isna(row) else int(row) for row in found["reference"]]


def test_a_set_against_itself_by_group():
    observations, _ = tables()
    found = georesolve.nearest(observations, observations, by="country", exclude_self=True)
    able = same(observations, observations, "country")
    np.fill_diagonal(able, val=False)
    np.testing.assert_array_equal(rows_of(found), expected(observations, observations, able))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"by": "lat"}, "holds double, and by takes text"),
        ({"by": "nowhere"}, "there is no column 'nowhere'"),
        ({"observation_by": "country", "reference_by": "kind"}, "never equal"),
        ({"observation_by": ["country", "kind"], "reference_by": "kind"}, "one by one"),
        ({"time": "t"}, "restricts nothing"),
        ({"rank_by": "time"}, "are for times"),
        ({"max_time": "1h"}, "are for times"),
        ({"observation_time": "t", "max_time": "1h"}, "time is of both sets"),
        ({"time": "country", "max_time": "1h"}, "in CSV and JSON times are text"),
        ({"time": "t", "max_time": "soon"}, "such as '15min'"),
        ({"time": "t", "max_time": ["1h"]}, "a timedelta .*or a number"),
        ({"time": "t", "max_time": 5}, "a number is for times that are numbers"),
        ({"time": "kind", "max_time": "5s"}, "give a number"),
        ({"observation_time": "t", "reference_time": "kind", "max_time": 5}, "of one kind"),
    ],
)
def test_what_cannot_be_compared_is_refused(options, says):
    observations, references = tables(20, 20)
    with pytest.raises((georesolve.InvalidInput, georesolve.InvalidOption), match=says):
        georesolve.nearest(observations, references, **options)


def test_a_zone_on_one_side_alone_is_refused_and_zones_are_instants():
    observations, references = tables(50, 50)
    zoned = references.assign(t=references["t"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    with pytest.raises(georesolve.InvalidInput, match="of one kind"):
        georesolve.nearest(observations, zoned, time="t", max_time="1h")
    own = observations.assign(t=observations["t"].dt.tz_localize("UTC"))
    found = georesolve.nearest(own, zoned, time="t", max_time="1h")
    plain = georesolve.nearest(observations, references, time="t", max_time="1h")
    assert found["reference"].equals(plain["reference"])


def test_dates_and_whole_numbers_are_times():
    day = np.datetime64("2026-11-26")
    table = {"lat": [0.0, 0.0, 0.0], "lon": [0.0, 1.0, 2.0]}
    dates = pa.table(table | {"t": (day + np.arange(3)).astype("datetime64[D]")})
    found = georesolve.nearest(dates, dates, time="t", max_time="1d", allow_exact=False)
    assert found["reference"].to_pylist() == [1, 0, 1]
    assert found["time_apart"].to_pylist() == [dt.timedelta(days=d) for d in (1, -1, -1)]
    numbers = {**{name: np.array(one) for name, one in table.items()}, "t": np.array([1, 5, 20])}
    found = georesolve.nearest(numbers, numbers, time="t", max_time=4, allow_exact=False)
    assert found["reference"].tolist() == [1, 0, -1]
    assert found["time_apart"].tolist()[:2] == [4, -4]


INT64 = st.sampled_from([-(2**63), 1 - 2**63, -1, 0, 1, 2**63 - 2, 2**63 - 1]) | st.integers(
    -(2**63), 2**63 - 1
)


@hypothesis.settings(max_examples=150)
@hypothesis.given(
    st.lists(st.none() | INT64, min_size=1, max_size=5),
    st.lists(st.none() | INT64, min_size=1, max_size=5),
    st.sampled_from([0, 1, 2**62, 2**63 - 2, 2**63 - 1]),
    st.sampled_from(["backward", "forward", "nearest"]),
    st.booleans(),
)
def test_every_int64_is_a_time(here, there, max_time, direction, allow_exact):
    """All rows are at one place, so the first row that matches is the nearest."""
    sets = [
        pa.table({"lat": [0.0] * len(t), "lon": [0.0] * len(t), "t": pa.array(t, pa.int64())})
        for t in (here, there)
    ]
    able = [
        [
            row
            for row, time in enumerate(there)
            if None not in (time, now)
            and abs(time - now) <= max_time
            and (time <= now or direction != "backward")
            and (time >= now or direction != "forward")
            and (time != now or allow_exact)
        ]
        for now in here
    ]
    options = {"time": "t", "max_time": max_time, "time_direction": direction}
    options["allow_exact"] = allow_exact
    try:
        counts = georesolve.within(*sets, 1, summary={"count": True}, **options)["count"]
        result = georesolve.nearest(*sets, **options)
    except georesolve.InvalidInput:
        times_of = [[time for time in times if time is not None] for times in (here, there)]
        assert max_time == 2**63 - 1
        assert max(abs(a - b) for a in times_of[0] for b in times_of[1]) > max_time
        return
    assert counts.to_pylist() == [len(rows) for rows in able]
    first = [rows[0] if rows else None for rows in able]
    assert result["reference"].to_pylist() == first
    assert result["time_apart"].to_pylist() == [
        None if row is None else there[row] - now for row, now in zip(first, here, strict=True)
    ]
    assert [one == "missing_value" for one in result["status"].to_pylist()] == [
        one is None for one in here
    ]


def test_times_too_far_apart_are_refused_with_both_rows(monkeypatch):
    monkeypatch.setattr(in_memory, "RESULT_ROWS", 1)
    dates = [
        np.array(["2000-01-01", one], "datetime64[ns]") for one in ("1700-01-01", "2262-01-01")
    ]
    sets = [
        {"lat": [0.0, 1.0], "lon": [0.0, 1.0], name: one}
        for name, one in zip("ab", dates, strict=True)
    ]
    options = {"observation_time": "a", "reference_time": "b"}
    words = (
        "column 'a' of the observations holds 1700-01-01.* in row 1 and the column 'b' of the "
        "references holds 2262-01-01.* in row 1, 17734982400000000000 ns apart, where 64 bits hold "
        "9223372036854775807 ns: cast both columns to a coarser unit"
    )
    with pytest.raises(georesolve.InvalidInput, match=words) as refused:
        georesolve.nearest(*sets, time_direction="forward", **options)
    places = [(one["file"], one["column"], one["row"]) for one in refused.value.errors]
    assert places == [("observations", "a", 1), ("references", "b", 1)]
    with pytest.raises(georesolve.InvalidInput, match="max_time='110000d' is beyond 64 bits"):
        georesolve.within(*sets, 2e7, max_time="110000d", summary={"count": True}, **options)
    coarse = [
        one | {name: one[name].astype("datetime64[us]")}
        for name, one in zip("ab", sets, strict=True)
    ]
    counts = georesolve.within(*coarse, 2e7, max_time="110000d", summary={"count": True}, **options)
    assert counts["count"].tolist() == [2, 1]


def test_a_time_that_does_not_fit_is_refused_with_its_row(monkeypatch):
    monkeypatch.setattr(in_memory, "RESULT_ROWS", 1)
    table = {"lat": [0.0, 1.0, 2.0], "lon": [0.0, 1.0, 2.0]}
    fine = pa.table({**table, "t": pa.array([0, 1, 2], pa.timestamp("ns"))})
    old = pa.table({**table, "t": pa.array([0, None, -(10**16)], pa.timestamp("us"))})
    for sets, role in (((old, fine), "observations"), ((fine, old), "references")):
        with pytest.raises(
            georesolve.InvalidInput, match=r"holds 1653-02.* in row 2: .*\[ns\]"
        ) as refused:
            georesolve.nearest(*sets, time="t", max_time="1d")
        [place] = refused.value.errors
        assert (place["file"], place["column"], place["row"]) == (role, "t", 2)


def test_the_ellipsoid_knows_no_groups():
    table = {"lat": [1.0], "lon": [2.0], "country": ["NO"], "at": [7]}
    refused = pytest.raises(ValueError, match="on the sphere alone: leave out earth='wgs84'")
    with refused:
        georesolve.nearest(table, table, by="country", earth="wgs84")
    with refused:
        georesolve.Index(table, time="at", earth="wgs84")


@pytest.mark.parametrize("by", [[], (name for name in ["g"]), {"g"}])
def test_what_names_no_columns_in_an_order_is_refused(by):
    table = {"lat": [1.0], "lon": [2.0], "g": [1]}
    with pytest.raises(ValueError, match="must be the name of a column, or a list of some"):
        georesolve.nearest(table, table, by=by)


def test_lengths_of_numpy_beyond_64_bits_of_nanoseconds():
    assert nanoseconds(np.timedelta64(250_000, "D")) == 250_000 * 86_400 * 10**9
    assert nanoseconds(np.timedelta64(3, "10s")) == 30 * 10**9
    assert nanoseconds(np.timedelta64(1, "M")) is None


INTEGERS = (pa.int8(), pa.uint32(), pa.int64(), pa.uint64(), pa.decimal128(38), pa.decimal128(9))
NUMBERS = st.sampled_from([-(2**63), -1, 0, 5, 127, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1])


def cells(type):
    """Columns of integers and missing values that fit a type."""

    def fits(number):
        try:
            pa.array([number], type)
        except (pa.ArrowInvalid, OverflowError):
            return False
        return True

    return st.lists(st.none() | NUMBERS.filter(fits), min_size=1, max_size=6)


@given(st.tuples(*[st.sampled_from(INTEGERS)] * 2), st.data())
@settings(max_examples=60, deadline=None)
def test_equal_numbers_are_equal_whatever_their_types(types, data):
    here, there = (data.draw(cells(type)) for type in types)
    tables = [
        pa.table(
            {"lat": [1.0] * len(values), "lon": [1.0] * len(values), "cell": pa.array(values, type)}
        )
        for values, type in zip((here, there), types, strict=True)
    ]
    matches = georesolve.nearest(*tables, by="cell").to_pydict()
    expected = [there.index(one) if one is not None and one in there else None for one in here]
    assert matches["reference"] == expected
    none = ["missing_value" if one is None else "no_reference" for one in here]
    assert matches["status"] == [
        status if row is None else "matched" for row, status in zip(expected, none, strict=True)
    ]


def test_cells_of_polars_and_arrays():
    cells = [2**64 - 1, 2**63]
    frame = pl.DataFrame({"lat": [0.0, 0.0], "lon": [0.0, 0.0]})
    wide = frame.with_columns(cell=pl.Series(cells, dtype=pl.Int128))
    arrays = {"lat": [0.0, 0.0], "lon": [0.0, 0.0], "cell": np.array(cells[::-1], np.uint64)}
    assert georesolve.nearest(wide, arrays, by="cell")["reference"].to_list() == [1, 0]
    assert georesolve.nearest(arrays, wide, by="cell")["reference"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["c", "b", "a"])])
def test_categories_of_polars_compare_by_value(kind, tmp_path):
    text = pl.DataFrame({"lat": [0.0] * 3, "lon": [0.0] * 3, "kind": ["c", None, "a"]})
    frame = text.with_columns(pl.col("kind").cast(kind))
    frame.write_ipc(path := tmp_path / "frame.arrow")
    for observations in (frame, frame.lazy(), str(path)):
        for references in (frame.reverse(), text.reverse(), georesolve.Index(text.reverse())):
            matches = georesolve.nearest(observations, references, by="kind", columns=["kind"])
            assert [*matches["reference"].to_numpy()[[0, 2]]] == [2, 0]
            pairs = georesolve.within(observations, references, 1.0, by="kind", how="left")
            statuses = pa.array(pairs["status"]).to_pylist()
            assert statuses == ["matched", "missing_value", "matched"]


@pytest.mark.parametrize(
    ("observations", "references", "words", "row"),
    [
        ((pa.uint64(), 1, 2**63 + 7), (pa.int64(), 1), rf"'at' holds {2**63 + 7} in row 1", 1),
        (
            (pa.timestamp("s"), 5, 2**38),
            (pa.timestamp("ns"), 1),
            r"'at' holds 10680-\S+ \S+ in row 1: allowed is what timestamp\[ns\] holds",
            1,
        ),
    ],
)
def test_times_that_64_bits_do_not_hold(observations, references, words, row):
    tables = [
        pa.table(
            {"lat": [1.0] * len(values), "lon": [1.0] * len(values), "at": pa.array(values, type)}
        )
        for type, *values in (observations, references)
    ]
    for first, second, role in ((*tables, "observations"), (*tables[::-1], "references")):
        with pytest.raises(georesolve.InvalidInput, match=rf"{role}: .*{words}") as refused:
            georesolve.nearest(first, second, time="at", rank_by="time")
        [place] = refused.value.errors
        assert (place["file"], place["column"], place["row"]) == (role, "at", row)


@pytest.mark.parametrize("length", ["2W", "1D12h", "PT15M", "00:15:00"])
def test_lengths_of_time_that_only_pandas_reads(length):
    moment = pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("s"))
    table = pa.table({"lat": [1.0], "lon": [1.0], "at": moment})
    with pytest.raises(georesolve.InvalidOption, match=r"pandas\.Timedelta\(.*got"):
        georesolve.nearest(table, table, time="at", max_time=length)
    matches = georesolve.nearest(table, table, time="at", max_time=pd.Timedelta(length))
    assert matches["reference"].to_pylist() == [0]


@pytest.mark.parametrize("unit", ["W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
def test_lengths_of_each_unit_of_numpy(unit):
    """A span of seven days or of 1000 ns, in each unit, and one of the unit less."""
    span = np.timedelta64(7, "D") if unit in "WDhms" else np.timedelta64(10**6, "ns")
    times = [np.datetime64(0, "ns"), np.datetime64(0, "ns") + span]
    pair = [{"lat": [0.0], "lon": [0.0], "t": np.array([time])} for time in times]
    most = span.astype(f"timedelta64[{unit}]")
    for length, statuses in ((most, ["matched"]), (most - 1, ["beyond_limits"])):
        result = georesolve.nearest(*pair, time="t", max_time=length)
        assert result["status"].tolist() == statuses


@pytest.mark.parametrize("unit", ["M", "Y"])
def test_months_and_years_are_no_length(unit):
    table = {"lat": [0.0], "lon": [0.0], "t": np.array([0], "datetime64[s]")}
    for size in (0, 1, -1):
        length = np.timedelta64(size, unit)
        with pytest.raises(georesolve.InvalidOption, match=r"max_time must be .* give days"):
            georesolve.nearest(table, table, time="t", max_time=length)
