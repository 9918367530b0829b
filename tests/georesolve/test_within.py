"""`georesolve.within`: all pairs and their number, for each kind of table, file and command."""

import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import commands, files
from georesolve.options import WithinOptions
from georesolve.workers import plan
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
        assert np.isnan(counts["count"][~valid]).all()


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


def test_all_of_many_at_one_place():
    """Trees keep no more of them than an answer of `nearest` can name."""
    lat, lon = np.repeat(sphere(3, 1), 500, axis=1)
    index = georesolve.Index((lat, lon))
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
        ([1.0, None], "'radius' has no distance in row 1: it holds None"),
        ([1.0, float("nan")], "row 1: it holds nan"),
        ([-1.0, 5.0], "row 0: it holds -1.0, and a distance is a finite number of metres"),
        ([1.0, float("inf")], "row 1: it holds inf"),
        (["2.5", "5 km"], "row 1: it holds '5 km'"),
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
        ({"distance_m": "reach"}, "distance_m: there is no column 'reach'; found 'id', 'lat'"),
        ({"once": True}, "once is for a set resolved against itself"),
        ({"once": 2}, "once must be True or False, got 2"),
        ({"exclude_self": True}, "exclude_self is for a set resolved against itself"),
        ({"how": "outer"}, "how must be one of left, inner"),
        ({"columns": ["size"]}, "columns: there is no column 'size'"),
        ({"summary": "count"}, "summary must be a dict such as {'count': True}, got 'count'"),
        ({"summary": {"count": True}, "columns": ["name"]}, "columns are carried beside pairs"),
    ],
)
def test_options_that_are_not_allowed(options, words):
    asked = {"distance_m": 5.0, **options}
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.within(OBSERVATIONS, REFERENCES, **asked)


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
    monkeypatch.setattr(files, "_MADE_PAIRS", 97)
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
    return commands.main(["within", *map(str, arguments)])


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
    assert within(*paths[:2], "-o", paths[2], "-d", "reach") == 1
    assert "there is no column 'reach'" in capsys.readouterr().err
    assert not paths[2].exists()
