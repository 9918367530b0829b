"""`georesolve.within`: all pairs and their number, for each kind of table, file and command."""

import json
import math
from dataclasses import replace
from decimal import Decimal

import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import cli, files
from georesolve.engine import in_memory, plan, questions
from georesolve.options import WithinOptions
from tests import oracle
from tests.conftest import points, sphere
from tests.kernels.point_sets import SETS

OBSERVATIONS = points(800, 1, radius=np.linspace(0, 2e6, 800), name=[f"o{i}" for i in range(800)])
REFERENCES = points(300, 2, name=[f"r{i}" for i in range(300)])
AS_THEY_ARE = {"on_invalid": "null", "coordinates": "trust"}


def metres(observations, references):
    """Between each and each; NaN where a coordinate is not valid."""
    sides = []
    for lat, lon in (observations, references):
        valid = (np.abs(lat) <= 90) & (lon >= -180) & (lon <= 360)
        sides.append([np.where(valid, degrees, np.nan) for degrees in (lat, lon)])
    (lat, lon), others = sides
    return oracle.haversine_m(lat[:, None], lon[:, None], *others)


def degrees(table):
    return table["lat"].to_numpy(), table["lon"].to_numpy()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("distance_m", [0.0, 300.0, 400_000.0])
def test_pairs_are_those_of_the_oracle(name, distance_m):
    references, observations = SETS[name]
    observations = tuple(axis[:200] for axis in observations)
    if not references[0].size:
        with pytest.raises(georesolve.InvalidInput, match="the table has no rows"):
            georesolve.within(observations, references, distance_m)
        return
    sets = observations, references
    given = georesolve.within(*sets, distance_m, **AS_THEY_ARE)
    between = metres(*sets)
    found = np.zeros(between.shape, bool)
    found[given["observation"], given["reference"]] = True
    # Each pair once, and all that are surely there; textbooks round at the edge.
    assert found.sum() == given["reference"].size
    assert found[between < distance_m - 1e-3].all()
    assert not found[~(between <= distance_m + 1e-3)].any()
    near = between[given["observation"], given["reference"]]
    np.testing.assert_allclose(given["distance_m"], near, rtol=1e-9, atol=1e-3)
    # Nearest first. Chords that differ may be the same metres: the next test has the rows of ties.
    steps = np.diff(given["observation"])
    assert (steps >= 0).all()
    assert (np.diff(given["distance_m"])[steps == 0] >= 0).all()
    assert set(given["status"]) <= {"matched"}
    counts = georesolve.within(*sets, distance_m, summary={"count": True}, **AS_THEY_ARE)
    valid = ~np.isnan(between).all(axis=1) if not np.isnan(between).all() else None
    if valid is not None:
        assert counts["count"][valid].tolist() == found.sum(axis=1)[valid].tolist()
        assert (np.ma.getmaskarray(counts["count"]) == ~valid).all()


@pytest.mark.parametrize("distance_m", [0.0, 250_000.0, 1_000_000.0])
def test_it_holds_what_nearest_does_within_a_limit(distance_m):
    options = {"columns": ["name"], "observation_columns": ["name"]}
    ranked = georesolve.nearest(
        OBSERVATIONS, REFERENCES, k=64, max_distance_m=distance_m, how="inner", **options
    )
    pairs = georesolve.within(OBSERVATIONS, REFERENCES, distance_m, **options)
    assert pairs.equals(ranked.drop_columns("rank"))
    one = georesolve.nearest(OBSERVATIONS, REFERENCES, max_distance_m=distance_m, **options)
    all_rows = georesolve.within(OBSERVATIONS, REFERENCES, distance_m, how="left", **options)
    alone = [row for row in all_rows.to_pylist() if row["reference"] is None]
    assert alone == [row for row in one.to_pylist() if row["reference"] is None]
    assert all_rows.filter(all_rows["reference"].is_valid()).equals(pairs)
    assert all_rows["observation"].to_pylist() == sorted(all_rows["observation"].to_pylist())


def test_all_of_many_at_one_place(tmp_path):
    """Trees keep no more of them than an answer of `nearest` can name."""
    lat, lon = np.repeat(sphere(3, 1), 500, axis=1)
    index = georesolve.Index((lat, lon), device="cpu")
    index.save(tmp_path / "index.parquet")
    opened = georesolve.Index.open(tmp_path / "index.parquet", device="cpu")
    assert opened.within((lat[:1], lon[:1]), 0)["reference"].tolist() == list(range(500))
    assert index.nearest((lat[:1], lon[:1]), k=64)["reference"].tolist() == list(range(64))
    given = index.within((lat[600:601], lon[600:601]), 0)
    assert given["reference"].tolist() == list(range(500, 1000))
    assert index.within((lat, lon), 1, summary={"count": True})["count"].tolist() == [500] * 1500


def test_a_distance_each():
    given = georesolve.within(OBSERVATIONS, REFERENCES, "radius")
    between = metres(degrees(OBSERVATIONS), degrees(REFERENCES))
    expected = np.nonzero(between <= OBSERVATIONS["radius"].to_numpy()[:, None])
    pairs = np.lexsort((given["reference"], given["observation"]))
    assert given["observation"].to_numpy()[pairs].tolist() == expected[0].tolist()
    assert given["reference"].to_numpy()[pairs].tolist() == expected[1].tolist()
    assert "observation_radius" not in given.column_names
    for kind in (OBSERVATIONS.to_pandas(), pl.from_arrow(OBSERVATIONS)):
        again = georesolve.within(kind, REFERENCES, "radius")
        assert again["reference"].to_list() == given["reference"].to_pylist()


@pytest.mark.parametrize(
    ("radius", "words"),
    [
        ([1.0, None], "'radius' holds None in row 1, where it must hold 0 or more metres"),
        ([1.0, float("nan")], "holds nan in row 1"),
        ([-1.0, 5.0], "holds -1.0 in row 0"),
        ([1.0, float("inf")], "holds inf in row 1"),
        (["2.5", "5 km"], "holds '5 km' in row 1"),
        ([True, False], "'radius' holds bool, not numbers: give metres as numbers"),
    ],
)
def test_a_bad_distance_is_named(tmp_path, radius, words):
    table = pa.table({"lat": [1.0, 2.0], "lon": [1.0, 2.0], "radius": radius})
    with pytest.raises(georesolve.InvalidInput, match=words) as refused:
        georesolve.within(table, REFERENCES, "radius")
    assert refused.value.errors[0]["column"] == "radius"
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(REFERENCES, tmp_path / "b.parquet")
    with pytest.raises(georesolve.InvalidInput, match=words):
        files.resolve(
            *(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "pairs.parquet"),
            WithinOptions(distance_m="radius"),
        )
    assert not (tmp_path / "pairs.parquet").exists()


@pytest.mark.parametrize("name", ["distances", "cities"])
def test_a_set_against_itself(name):
    table = OBSERVATIONS if name == "distances" else SETS["cities"][0]
    distance_m = "radius" if name == "distances" else 500.0
    both = georesolve.within(table, table, distance_m)
    others = georesolve.within(table, table, distance_m, exclude_self=True)
    once = georesolve.within(table, table, distance_m, once=True)
    rows = [
        list(zip(np.array(one["observation"]), np.array(one["reference"]), strict=True))
        for one in (both, others, once)
    ]
    assert rows[1] == [(i, j) for i, j in rows[0] if i != j]
    assert rows[2] == [(i, j) for i, j in rows[0] if i < j]
    counts = georesolve.within(table, table, distance_m, once=True, summary={"count": True})
    assert np.array(counts["count"]).sum() == len(rows[2])


def test_each_kind_gets_its_own_back():
    expected = georesolve.within(OBSERVATIONS, REFERENCES, 1e6)
    rows = expected["observation"].to_numpy()
    frame = OBSERVATIONS.to_pandas().set_index(pd.Index(np.arange(800) * 3, name="when"))
    given = georesolve.within(frame, REFERENCES, 1e6)
    assert given.index.equals(frame.index.take(rows))
    geometry = geopandas.points_from_xy(frame["lon"], frame["lat"], crs=4326)
    placed = geopandas.GeoDataFrame(frame[["name"]], geometry=geometry)
    given = georesolve.within(placed, REFERENCES, 1e6)
    assert (given.geometry.to_numpy() == placed.geometry.to_numpy()[rows]).all()
    given = georesolve.within(pl.from_arrow(OBSERVATIONS), REFERENCES, 1e6)
    assert given["distance_m"].to_list() == expected["distance_m"].to_pylist()
    counts = georesolve.within(frame, REFERENCES, 1e6, summary={"count": True})
    assert counts.index.equals(frame.index)
    assert counts["count"].tolist() == np.bincount(rows, minlength=800).tolist()


def test_as_many_pairs_as_observations():
    """Their index is not that of the observations, although there are as many."""
    frame = pd.DataFrame({"lat": [0.0, 50.0], "lon": [0.0, 50.0]}, index=["a", "b"])
    given = georesolve.within(frame, ([0.0, 0.0], [0.0, 0.1]), 50_000)
    assert given.index.tolist() == ["a", "a"]


def test_pairs_come_in_parts_that_a_gpu_holds(monkeypatch):
    """Of which there is none here: the parts are the same."""
    options = {"how": "left", "observation_columns": ["name"]}
    expected = georesolve.within(OBSERVATIONS, REFERENCES, 1e6, **options)
    parts = []
    monkeypatch.setattr(
        in_memory.Search,
        "_fitting",
        lambda self, batch, options: parts.append(0) or self.within(options).parts(batch, 100),
    )
    given = georesolve.within(OBSERVATIONS, REFERENCES, 1e6, **options)
    assert given.combine_chunks().equals(expected.combine_chunks())
    assert given.num_rows > 1000 * len(parts)


def test_one_row_and_itself_have_no_other_reference():
    table = pa.table({"lat": [1.0], "lon": [2.0]})
    for own in ({"once": True}, {"exclude_self": True}):
        given = georesolve.within(table, table, 5, how="left", **own)
        assert given["status"].to_pylist() == ["no_reference"]


def test_whole_numbers_up_to_the_largest_are_summed():
    most = pa.array([2**63 - 1], pa.uint64())
    table = pa.table({"lat": [1.0], "lon": [2.0], "size": most})
    given = georesolve.within(table, table, 5, summary={"count": ["count"], "size": ["sum"]})
    assert given.to_pylist()[0]["size_sum"] == 2**63 - 1
    counted = pa.table({"lat": [1.0], "lon": [2.0], "count": [7]})
    asked = {"count": ["count", "sum"]}
    given = georesolve.within(counted, counted, 5, summary=asked).to_pylist()[0]
    assert (given["count"], given["count_sum"]) == (1, 7)


def test_no_observations_have_columns():
    given = georesolve.within(OBSERVATIONS.slice(0, 0), REFERENCES, 5, columns=["name"])
    whole = georesolve.within(OBSERVATIONS, REFERENCES, 1e6, columns=["name"])
    assert given.schema == whole.schema
    assert given.num_rows == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"distance_m": -1},
            "distance_m must be a finite number of metres, 0 or more, or the name",
        ),
        ({"distance_m": float("inf")}, "distance_m must be a finite number"),
        ({"distance_m": True}, "distance_m must be a finite number"),
        ({"distance_m": None}, "distance_m must be a finite number of metres"),
        ({"distance_m": "reach"}, "no column 'reach' in the observations, and a distance is a"),
        ({"once": True}, "once is for a set resolved against itself"),
        ({"once": 2}, "once must be True or False, got 2"),
        ({"exclude_self": True}, "exclude_self is for a set resolved against itself"),
        ({"how": "outer"}, "how must be one of left, inner"),
        ({"columns": ["size"]}, "columns: there is no column 'size'"),
        ({"summary": "count"}, "summary must be a dict such as {'count': True, .* got 'count'"),
        ({"summary": {"count": False}}, "summary makes sum, mean, min, max of a column"),
        (
            {"summary": {"name": ["median"]}},
            r"write {'name': \['sum'\]}, got {'name': \['median'\]}",
        ),
        ({"summary": {"size": ["sum"]}}, "summary: there is no column 'size'"),
        ({"summary": {3: ["sum"]}}, "summary: there is no column '3'"),
        ({"summary": {"id": [["sum"]]}}, "summary makes sum, mean, min, max of a column"),
        ({"summary_by": "reference"}, "summary_by is for a summary"),
        (
            {"summary": {"count": True}, "summary_by": "row"},
            "summary_by must be one of observation",
        ),
        ({"summary": {"count": True}, "columns": ["name"]}, "columns is for pairs, and a summary"),
        ({"summary": {"count": True}, "near": True}, "near is for pairs, and a summary has none"),
        ({"near": "yes"}, "near must be True or False, got 'yes'"),
    ],
)
def test_options_that_are_not_allowed(options, words):
    asked = {"distance_m": 5.0, **options}
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.within(OBSERVATIONS, REFERENCES, **asked)


@pytest.mark.parametrize("summary", [None, {"count": True}, {"id": ["sum"], "count": True}])
def test_options_can_be_changed(summary):
    asked = WithinOptions(distance_m=5, summary=summary)
    assert replace(asked, distance_m=7) == WithinOptions(distance_m=7, summary=summary)


def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match="there is no option 'k'"):
        georesolve.within(OBSERVATIONS, REFERENCES, 5, k=3)
    with pytest.raises(georesolve.InvalidOption, match="reference_lat says how references are"):
        georesolve.Index(REFERENCES).within(OBSERVATIONS, 5, reference_lat="lat")


@pytest.fixture
def paths(tmp_path):
    observations, references = tmp_path / "observations.parquet", tmp_path / "references.csv"
    pq.write_table(OBSERVATIONS, observations)
    pa.csv.write_csv(REFERENCES, references)
    return observations, references, tmp_path / "pairs.parquet"


OPTIONS = {
    "pairs": {"distance_m": 1e6, "columns": ["name"], "observation_columns": ["name"]},
    "left": {"distance_m": 2e5, "how": "left"},
    "each": {"distance_m": "radius", "columns": "*", "algorithm": "brute"},
    "counts": {"distance_m": 1e6, "summary": {"count": True}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_bytes_of_a_file_do_not_depend_on_batches(paths, monkeypatch, options):
    in_memory = georesolve.within(*paths[:2], **options)
    summary = files.resolve(*paths, WithinOptions(**options))
    whole = paths[2].read_bytes()
    assert pq.read_table(paths[2]).to_pylist() == in_memory.to_pylist()
    statuses = in_memory["status"].to_pylist()
    assert summary.counts["matched"] == statuses.count("matched")
    left = georesolve.within(*paths[:2], **{**options, "how": "left"})["status"].to_pylist()
    assert summary.counts == {name: left.count(name) for name in summary.counts}
    monkeypatch.setattr(files, "_COUNTED_ROWS", 61)
    for module in (files, questions):
        monkeypatch.setattr(module, "MADE_PAIRS", 97)
    told = []
    files.resolve(*paths, WithinOptions(**options), progress=lambda *now: told.append(now))
    assert paths[2].read_bytes() == whole
    assert told[0] == (0, 800)
    assert told[-1] == (800, 800)


def test_row_groups_have_so_many_pairs(paths, monkeypatch):
    monkeypatch.setattr(plan, "PAIR_ROW_GROUP", 500)
    summary = files.resolve(*paths, WithinOptions(distance_m=1e6))
    with pq.ParquetFile(paths[2]) as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert set(groups[:-1]) == {500}
    assert sum(groups) == summary.counts["matched"] > 1000


@pytest.mark.parametrize("suffix", ["csv", "json", "geojson", "arrows"])
def test_other_formats_have_the_same_rows(paths, suffix):
    for options in OPTIONS.values():
        files.resolve(*paths, WithinOptions(**options))
        files.resolve(*paths[:2], paths[2].with_suffix(f".{suffix}"), WithinOptions(**options))
    if suffix == "csv":
        rows = pa.csv.read_csv(paths[2].with_suffix(".csv"))["observation"]
        assert rows.equals(pq.read_table(paths[2])["observation"])


def within(*arguments):
    return cli.main(["within", *map(str, arguments)])


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["-d", "1000km", "--columns", "name"], {"distance_m": 1e6, "columns": ["name"]}),
        (["-d", "radius", "--how", "left"], {"distance_m": "radius", "how": "left"}),
        (["--distance", "300mi", "--count"], {"distance_m": 482_803.2, "summary": {"count": True}}),
    ],
)
def test_the_command(paths, capsys, flags, options):
    assert within(*paths[:2], "-o", paths[2], *flags) == 0
    given = paths[2].read_bytes()
    summary = files.resolve(*paths, WithinOptions(**options))
    assert given == paths[2].read_bytes()
    said = capsys.readouterr()
    assert said.out == ""
    assert "800 observations, 300 references" in said.err
    assert f"{summary.counts['matched']:,}\n" in said.err


def test_the_command_with_a_set_and_itself(paths):
    assert within(paths[0], paths[0], "-d", "500km", "--once", "-o", paths[2], "--quiet") == 0
    expected = georesolve.within(OBSERVATIONS, OBSERVATIONS, 5e5, once=True)
    assert pq.read_table(paths[2])["reference"].equals(expected["reference"])


def test_wrong_usage_of_the_command(paths, capsys):
    for flags, words in (
        (["-d", "10 parsecs"], "'10 parsecs' is not a distance: write a number and one of m, km"),
        ([], "the following arguments are required: -d/--distance"),
    ):
        with pytest.raises(SystemExit):
            within(*paths[:2], "-o", paths[2], *flags)
        assert words in capsys.readouterr().err
    assert within(*paths[:2], "-o", paths[2], "-d", "5m", "--summary", "id") == 1
    assert "summary makes sum, mean, min, max of a column" in capsys.readouterr().err
    assert within(*paths[:2], "-o", paths[2], "-d", "reach") == 1
    assert "there is no column 'reach'" in capsys.readouterr().err
    assert not paths[2].exists()


WHOLE = np.array([2**62, -(2**62), 7, 2**40 + 1] * 75, np.int64)
FLOATS = np.random.default_rng(3).choice([1e300, -1e300, 1.0, 1e-300, 5e-324, 0.1, 3e16], 300)
SUMMED = REFERENCES.append_column("whole", pa.array(WHOLE // 1000)).append_column(
    "part", pa.array(FLOATS, mask=np.arange(300) % 7 == 0)
)


def made(kind, values):
    """What a summary makes of some values, with the numbers of Python."""
    known = [value for value in values if value is not None and value == value]
    if kind == "sum":
        return sum(known) if all(isinstance(one, int) for one in known) else math.fsum(known)
    if not known:
        return None
    return (
        made("sum", known) / len(known) if kind == "mean" else {"min": min, "max": max}[kind](known)
    )


KINDS = ["sum", "mean", "min", "max"]
SUMMARY = {"count": True, "whole": KINDS, "part": ["max", "sum"]}


def test_a_summary_is_made_of_the_pairs(monkeypatch):
    pairs = georesolve.within(OBSERVATIONS, SUMMED, "radius", columns=["whole", "part"])
    of_each = [([], []) for _ in range(800)]
    for row in pairs.to_pylist():
        for values, name in zip(of_each[row["observation"]], ("whole", "part"), strict=True):
            values.append(row[f"reference_{name}"])
    expected = {
        "count": [len(whole) for whole, _ in of_each],
        **{f"whole_{kind}": [made(kind, whole) for whole, _ in of_each] for kind in KINDS},
        "part_max": [made("max", part) for _, part in of_each],
        "part_sum": [float(made("sum", part)) for _, part in of_each],
    }
    for _ in range(2):
        given = georesolve.within(
            OBSERVATIONS, SUMMED, "radius", summary=SUMMARY, observation_columns=["name"]
        )
        assert given.column_names == [
            *("observation", *expected, "status", "observation_id", "observation_name")
        ]
        for name, values in expected.items():
            assert given[name].to_pylist() == values, name
        assert {str(given[f"whole_{kind}"].type) for kind in ("sum", "min", "max")} == {"int64"}
        # Again from other batches.
        monkeypatch.setattr(questions, "MADE_PAIRS", 13)
    # And in any order of the references.
    order = np.random.default_rng(5).permutation(300)
    again = georesolve.within(OBSERVATIONS, SUMMED.take(order), "radius", summary=SUMMARY)
    assert again.select([*expected]).equals(given.select([*expected]))


def test_a_summary_of_nothing():
    places = {"lat": [0.0, 50.0, np.nan], "lon": [0.0, 50.0, 0.0]}
    kinds = ["sum", "mean", "min", "max"]
    given = georesolve.within(
        pa.table(places),
        pa.table({"lat": [0.0, 0.0], "lon": [0.0, 0.1], "size": [None, np.nan]}),
        20_000,
        summary={"count": True, "size": kinds},
        on_invalid="null",
    )
    assert given.to_pylist() == [
        {"observation": row, "count": count, "size_sum": total, "size_mean": None,
         "size_min": None, "size_max": None, "status": status}
        for row, count, total, status in (
            (0, 2, 0.0, "matched"),
            (1, 0, 0.0, "beyond_max_distance"),
            (2, None, None, "invalid_coordinate"),
        )
    ]  # fmt: skip


def test_a_summary_by_reference():
    """A row a reference, those without an observation included."""
    visits = OBSERVATIONS.append_column("size", pa.array(np.arange(800)))
    summary = {"count": True, "size": ["sum", "max"]}
    given = georesolve.within(
        visits, REFERENCES, 1e6, summary=summary, summary_by="reference", columns=["name"]
    )
    pairs = georesolve.within(visits, REFERENCES, 1e6, observation_columns=["size"])
    of = [[] for _ in range(300)]
    for row in pairs.select(["reference", "observation_size"]).to_pylist():
        of[row["reference"]].append(row["observation_size"])
    assert given.to_pylist() == [
        {
            "reference": row,
            "count": len(sizes),
            "size_sum": sum(sizes),
            "size_max": max(sizes, default=None),
            "status": "matched" if sizes else "beyond_max_distance",
            "reference_id": 1_000_000 + row,
            "reference_name": f"r{row}",
        }
        for row, sizes in enumerate(of)
    ]
    frame = REFERENCES.to_pandas().set_index("name")
    given = georesolve.within(visits, frame, 1e6, summary=summary, summary_by="reference")
    assert given.index.equals(frame.index)
    assert given["count"].tolist() == [len(sizes) for sizes in of]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "geojson", "gpkg"])
def test_summaries_by_the_command(paths, tmp_path, suffix):
    out = tmp_path / f"sums.{suffix}"
    flags = ["--count", "--summary", "id:sum", "--summary", "id:mean", "--summary-by", "reference"]
    assert within(*paths[:2], "-d", "1000km", *flags, "-o", out, "--columns", "name") == 0
    options = {"summary": {"count": True, "id": ["sum", "mean"]}, "summary_by": "reference"}
    expected = georesolve.within(*paths[:2], 1e6, **options, columns=["name"])
    if suffix == "gpkg":
        given = geopandas.read_file(out)
        assert given["id_sum"].tolist() == expected["id_sum"].to_pylist()
        np.testing.assert_allclose(given.geometry.y, REFERENCES["lat"].to_numpy())
    elif suffix != "geojson":
        read = {"parquet": pq.read_table, "csv": pa.csv.read_csv}[suffix]
        assert read(out).to_pylist() == expected.to_pylist()
    if suffix == "parquet":
        told = json.loads(pq.read_schema(out).metadata[b"georesolve"])["options"]
        assert told["columns"] == ["name"]
        assert told["summary"] == {"count": ["count"], "id": ["sum", "mean"]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([2**63 - 1, 1]), "a sum of the column 'size' is beyond 64 bits"),
        (pa.array([1.7e308, 1.7e308]), "a sum of the column 'size' is beyond 64 bits"),
        (pa.array([1.0, float("inf")]), "the column 'size' holds inf in row 1"),
        (pa.array([2**64 - 1, 1], pa.uint64()), "a sum of the column 'size' is beyond 64 bits"),
        (
            pa.array([Decimal(10**38 - 1)] * 2, pa.decimal128(38)),
            "a sum of the column 'size' is beyond 38 digits",
        ),
        (
            pa.array([Decimal(-(10**76) + 1)] * 2, pa.decimal256(76)),
            "a sum of the column 'size' is beyond 76 digits",
        ),
        (pa.array(["1.5", " 2", "-", "1,5"]), "the column 'size' holds '1,5' in row 3"),
        (pa.array(["inf", None], pa.large_string()), "the column 'size' holds 'inf' in row 0"),
        (pa.array([True, False]), "'size' holds bool, not numbers: give what is summed as numbers"),
    ],
)
def test_what_cannot_be_summed(values, words):
    table = pa.table({"lat": [0.0] * len(values), "lon": [0.0] * len(values), "size": values})
    with pytest.raises(georesolve.InvalidInput, match=words):
        georesolve.within(table, table, 5, summary={"size": ["sum"]})


def test_texts_of_numbers_are_summed():
    sizes = pa.array(["1.5", " 2 ", "-", "", None, "NaN", "n/a"], pa.large_string())
    table = pa.table({"lat": [0.0] * 7, "lon": [0.0] * 7, "size": sizes})
    given = georesolve.within(table.slice(0, 1), table, 5, summary={"size": ["sum", "mean"]})
    assert given["size_sum"].to_pylist() == [3.5]
    assert given["size_mean"].to_pylist() == [1.75]


def test_a_summary_is_not_named_as_what_is_carried():
    table = pa.table({"lat": [0.0], "lon": [0.0], "observation": [1], "sum": [2]})
    with pytest.raises(georesolve.InvalidOption, match="two columns 'observation_sum'"):
        georesolve.within(
            table, table, 5, summary={"observation": ["sum"]}, observation_columns=["sum"]
        )


def test_a_summary_of_a_column_that_is_called_count(tmp_path):
    table = pa.table({"lat": [0.0, 0.0], "lon": [0.0, 0.0], "count": [3, 4]})
    path, out = tmp_path / "points.parquet", tmp_path / "sums.parquet"
    pq.write_table(table, path)
    flags = ["--count", "--summary", "count:sum", "--summary", "count:max"]
    assert within(path, path, "-d", "5m", *flags, "-o", out) == 0
    assert pq.read_table(out).to_pylist() == [
        {"observation": row, "count": 2, "count_sum": 7, "count_max": 4, "status": "matched"}
        for row in range(2)
    ]


def test_a_summary_by_reference_carries_geometries(tmp_path):
    zones = geopandas.GeoDataFrame(
        {"name": ["a"]}, geometry=geopandas.points_from_xy([8.0], [50.0]), crs="EPSG:4326"
    )
    path, out = tmp_path / "zones.parquet", tmp_path / "sums.parquet"
    zones.to_parquet(path)
    visits = tmp_path / "visits.parquet"
    pq.write_table(pa.table({"lat": [50.0], "lon": [8.0]}), visits)
    options = WithinOptions(
        distance_m=5, summary={"count": True}, summary_by="reference", columns=["geometry"]
    )
    files.resolve(visits, path, out, options)
    given = geopandas.read_parquet(out)
    assert given["reference_geometry"].geom_equals(zones.geometry, align=False).all()


def test_a_frame_of_cudf_is_summed_by_reference():
    """With a stand-in for it: its columns are left on the GPU until they are needed."""

    class DataFrame:
        __module__ = "cudf"

        def __init__(self, columns):
            self.columns, self._columns = [*columns], columns

        def __getitem__(self, names):
            return DataFrame({name: self._columns[name] for name in names})

        def to_arrow(self, preserve_index):
            return pa.table(self._columns)

    visits = {"lat": [0.0, 0.0], "lon": [0.0, 0.0], "size": [3, 4]}
    asked = {"distance_m": 5, "summary": {"size": ["sum"]}, "summary_by": "reference"}
    places = pa.table({"lat": [0.0], "lon": [0.0]})
    expected = georesolve.within(pa.table(visits), places, **asked)
    assert georesolve.within(DataFrame(visits), places, **asked, device="cpu").equals(expected)


def test_sums_that_are_too_large_only_on_the_way():
    sizes = [1.7e308, 1.7e308, -1.7e308, -1.7e308, 3.0]
    table = pa.table({"lat": [0.0] * 5, "lon": [0.0] * 5, "size": sizes})
    given = georesolve.within(table.slice(0, 1), table, 5, summary={"size": ["sum"]})
    assert given["size_sum"].to_pylist() == [3.0]


def test_whole_numbers_of_a_dictionary_stay_whole():
    place = {"lat": [0.0, 0.0], "lon": [0.0, 0.0]}
    sizes = pa.array([2**60 + 1, None]).dictionary_encode()
    told = georesolve.within(
        pa.table(place), pa.table({**place, "size": sizes}), 1, summary={"size": ["sum", "max"]}
    )
    assert told["size_sum"].to_pylist() == told["size_max"].to_pylist() == [2**60 + 1] * 2
