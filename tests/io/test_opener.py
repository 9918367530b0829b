"""Several files as one table: the rows of the table that was cut, or a refusal with two files."""

import contextlib
import datetime
import decimal
import io
import itertools
import json

import geopandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import georesolve
from georesolve import cli
from georesolve.io.columns import Reading
from georesolve.io.datasets import read_rows
from georesolve.io.joined_columns import ColumnType, common_type
from georesolve.io.points import Bounds
from georesolve.io.source_files import SourceFailed
from georesolve.io.storage import files_at
from georesolve.io.urls import Sources

REFERENCE = {"lat": [48.0], "lon": [9.0]}
UTC = datetime.UTC
# Types that hold all values of a kind, and the values.
ZONES = [pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in ("UTC", "Asia/Tokyo")]
KINDS = {
    "count": (
        [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.float32(), pa.float64()],
        st.integers(0, 127),
    ),
    "share": ([pa.float32(), pa.float64()], st.floats(-1, 1, width=32)),
    "large": ([pa.int64(), pa.int32(), pa.uint16()], st.integers(0, 2**16 - 1)),
    "name": (
        [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
        st.sampled_from(["007", "7", "", "Köln", "x,y"]),
    ),
    "at": (ZONES, st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1))),
    "clock": (
        [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns")],
        st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1)),
    ),
    "price": (
        [pa.decimal128(5, 2), pa.decimal128(9, 3), pa.decimal256(40, 2)],
        st.decimals(-99, 99, places=2),
    ),
}
PLAIN = ("name", "large")
NAMES = [("lat", "lon"), ("latitude", "longitude"), ("Y", "X")]
CRS = [4326, 25832, 3857]
FORMATS = ["parquet", "arrow", "csv", "geojson", "geoparquet"]


def values_of(kind):
    _, values = KINDS[kind]
    if kind in ("at", "clock"):
        zone = UTC if kind == "at" else None
        values = values.map(lambda one: one.replace(microsecond=0, tzinfo=zone))
    return st.one_of(st.none(), values)


@st.composite
def cuts(draw, formats):
    """Rows of a table, and files that they are cut into."""
    rows = draw(st.integers(1, 12))
    axis = st.floats(40, 54, width=32), st.floats(6, 12, width=32)
    points = draw(st.lists(st.tuples(*axis), min_size=rows, max_size=rows))
    are_typed = set(formats) <= {"parquet", "arrow", "geoparquet"}
    kinds = draw(st.lists(st.sampled_from([*KINDS] if are_typed else PLAIN), max_size=4))
    kinds = list(dict.fromkeys(kinds))
    values = {one: draw(st.lists(values_of(one), min_size=rows, max_size=rows)) for one in kinds}
    edges = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=3))})
    files = []
    for first, stop in itertools.pairwise(edges):
        types = {one: draw(st.sampled_from(KINDS[one][0])) for one in kinds}
        order = draw(st.permutations(["lat", "lon", *kinds, "extra"]))
        files.append(
            {
                "rows": slice(first, stop),
                "format": draw(st.sampled_from(formats)),
                "types": types,
                "order": order if draw(st.booleans()) else order[::-1],
                "names": draw(st.sampled_from(NAMES)),
                "crs": draw(st.sampled_from(CRS)),
                "extra": draw(st.sampled_from([None, 1, "x", 1.5, b"x", True])),
                "folder": draw(st.sampled_from(["", "a", "a/b"])),
            }
        )
    return points, values, files


def write(path, points, values, file):
    """Write the rows of a file in its format."""
    rows, names = file["rows"], file["names"]
    cells = {name: column[rows] for name, column in values.items()}
    lat, lon = zip(*points[rows], strict=True)
    table = {name: pa.array(cells[name], file["types"][name]) for name in cells}
    if file["extra"] is not None:
        table["extra"] = pa.array([file["extra"]] * len(lat))
    if file["format"] == "geoparquet":
        frame = geopandas.GeoDataFrame(geometry=geopandas.points_from_xy(lon, lat), crs=4326)
        frame.to_crs(file["crs"]).to_parquet(path.with_suffix(".parquet"), index=False)
        joined = pq.read_table(path.with_suffix(".parquet"))
        for name in filter(table.get, file["order"]):
            joined = joined.append_column(name, table[name])
        pq.write_table(joined, path.with_suffix(".parquet"))
        return
    table |= {"lat": pa.array(lat), "lon": pa.array(lon)}
    joined = pa.table({name: table[name] for name in file["order"] if name in table})
    if file["format"] == "geojson":
        features = [
            {
                "type": "Feature",
                "geometry": {"type": "Point", "coordinates": [row.pop("lon"), row.pop("lat")]},
                "properties": {
                    name: value for name, value in row.items() if not isinstance(value, bytes)
                },
            }
            for row in joined.to_pylist()
        ]
        content = {"type": "FeatureCollection", "features": features}
        path.with_suffix(".geojson").write_text(json.dumps(content))
        return
    called = dict(zip(("lat", "lon"), names, strict=True))
    joined = joined.rename_columns([called.get(name, name) for name in joined.column_names])
    if file["format"] == "parquet":
        pq.write_table(joined, path.with_suffix(".parquet"))
    elif file["format"] == "arrow":
        with pa.ipc.new_stream(path.with_suffix(".arrows"), joined.schema) as writer:
            writer.write_table(joined)
    else:
        texts = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in joined]
        pa.csv.write_csv(pa.table(texts, joined.column_names), path.with_suffix(".csv"))


def lay(folder, cut):
    """Write the files of a cut and hidden files; return the rows in the order of the files."""
    points, values, files = cut
    order = []
    for number, file in enumerate(files):
        below = folder / file["folder"]
        below.mkdir(parents=True, exist_ok=True)
        write(below / f"{number}", points, values, file)
        order.append(((*filter(None, file["folder"].split("/")), f"{number}"), file["rows"]))
    for name in ("_delta", ".ipynb_checkpoints", "a/_temporary", "a/.cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "x.csv").write_text("lat,lon\n1,1\n")
    (folder / "_SUCCESS").touch()
    (folder / ".x.csv").write_text("no table")
    order.sort(key=lambda file: file[0])
    return [row for _, rows in order for row in range(*rows.indices(99))]


def check(result, cut, rows):
    points, values, files = cut
    joined = {"lat": [points[row][0] for row in rows], "lon": [points[row][1] for row in rows]}
    expected = georesolve.nearest(joined, REFERENCE)
    assert result["distance_m"].to_pylist() == pytest.approx(list(expected["distance_m"]), abs=1e-5)
    for name, column in values.items():
        # Text of CSV is a number where all files have it written plainly.
        are_csv = all(file["format"] == "csv" for file in files)
        if name == "name" and are_csv and {*column} <= {"7", None}:
            column = [one and int(one) for one in column]
        assert result[f"observation_{name}"].to_pylist() == [column[row] for row in rows]


SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("formats", [["parquet", "arrow", "geoparquet"], FORMATS], ids=len)
@SLOW
@given(data=st.data())
def test_files_give_the_rows_of_the_table_that_was_cut(tmp_path_factory, formats, data):
    cut = data.draw(cuts(formats))
    folder = tmp_path_factory.mktemp("cut")
    rows, names = lay(folder / "in", cut), [*cut[1]]
    result = georesolve.nearest(folder / "in", REFERENCE, observation_columns=names)
    check(result, cut, rows)
    pq.write_table(pa.table(REFERENCE), folder / "reference.parquet")
    out = folder / "out.parquet"
    flags = ["--observation-columns", ",".join(names)] if names else []
    sets = folder / "in", folder / "reference.parquet"
    command = ["nearest", *sets, "-o", out, "--quiet", *flags]
    assert cli.main([str(one) for one in command]) == 0
    written = pq.read_table(out)
    assert written.select(result.column_names).to_pylist() == result.to_pylist()


@SLOW
@given(cut=cuts(["parquet"]))
def test_files_read_in_place_give_the_rows_of_the_table_that_was_cut(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("cut")
    rows = lay(folder, cut)
    points, values, _ = cut
    sources = Sources(f"file://{folder}", Bounds())
    table = sources.dataset(f"file://{folder}", Reading(), "observations")
    names = [table.lat, table.lon, *values]
    read = read_rows(table.file, 0, table.rows, names)
    assert list(zip(*(read[name].to_pylist() for name in names[:2]), strict=True)) == [
        points[row] for row in rows
    ]
    for name, column in values.items():
        assert read[name].to_pylist() == [column[row] for row in rows]
    part = read_rows(table.file, 1, table.rows, names[::-1])
    assert part.to_pylist() == read.slice(1).select(names[::-1]).to_pylist()


NAIVE, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
CONFLICTS = [
    (pa.array([True]), pa.array([1], pa.int8())),
    (pa.array([7]), pa.array(["007"])),
    (pa.array([1.5]), pa.array(["1.5"])),
    (pa.array([0], NAIVE), pa.array([0], ZONED)),
    (pa.array([0], pa.date32()), pa.array([0], NAIVE)),
    (pa.array([2**53 + 1]), pa.array([0.5])),
    (pa.array([2**64 - 1], pa.uint64()), pa.array([-1])),
    (pa.array([2**60 + 1], pa.uint64()), pa.array([0.5], pa.float32())),
    (pa.array([b"x"]), pa.array(["x"])),
    (pa.array([decimal.Decimal(1)]), pa.array([1.0])),
    (pa.array([0], pa.time32("s")), pa.array([0], pa.duration("s"))),
    (pa.array([10**10], pa.timestamp("s")), pa.array([1], pa.timestamp("ns"))),
]
OUT_OF_DATA = 11
"""Number of the conflict that footers do not show."""


@pytest.mark.parametrize("number", range(len(CONFLICTS)))
@settings(max_examples=6)
@given(data=st.data())
def test_types_without_a_common_one_are_refused_with_both_files(tmp_path_factory, number, data):
    folder = tmp_path_factory.mktemp("mixed")
    columns = [*data.draw(st.permutations(CONFLICTS[number]))]
    # Files of one type, in between, do not matter.
    for _ in range(data.draw(st.integers(0, 2))):
        columns.insert(data.draw(st.integers(0, 1)), columns[0])
    files = {f"{i}.parquet": one for i, one in enumerate(columns)}
    for name, column in files.items():
        table = pa.table({"lat": [48.0], "lon": [9.0], "value": column})
        pq.write_table(table, folder / name)
    pq.write_table(pa.table(REFERENCE), (reference := folder.with_suffix(".parquet")))
    assert georesolve.nearest(folder, REFERENCE).num_rows == len(columns)
    messages = []
    with pytest.raises(georesolve.InvalidInput) as refused:
        georesolve.nearest(folder, REFERENCE, observation_columns=["value"])
    messages.append(str(refused.value))
    command = ["nearest", folder, reference, "-o", folder.with_suffix(".csv"), "--quiet"]
    command = [*map(str, command), "--observation-columns", "value"]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert cli.main(command) == 1
    messages.append(errors.getvalue())
    dataset = Sources(f"file://{folder}", Bounds()).dataset(
        f"file://{folder}", Reading(), "observations"
    )
    assert read_rows(dataset.file, 0, len(columns), ["lat", "lon"]).num_rows == len(columns)
    if number != OUT_OF_DATA:
        messages.append(dict(dataset.file.refusals)["value"])
        assert messages[0] == messages[2]
    with pytest.raises(SourceFailed, match="value"):
        read_rows(dataset.file, 0, len(columns), ["value"])
    types = {name: pq.read_schema(folder / name).field("value").type for name in files}
    for text in messages:
        named = [name for name in files if name in text]
        assert len(named) == 2, text
        assert types[named[0]] != types[named[1]]
        assert all(str(types[name]) in text for name in named)


TYPES = [
    *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.bool_()),
    *(pa.date32(), pa.date64(), NAIVE, ZONED, pa.timestamp("ns"), pa.timestamp("s", "Asia/Tokyo")),
    *(pa.null(), pa.dictionary(pa.int8(), pa.string()), pa.decimal128(7, 2), pa.decimal128(9, 0)),
]


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
def test_the_common_type_does_not_depend_on_the_order_of_files(types):
    columns = [ColumnType(one, str(i)) for i, one in enumerate(types)]
    common = common_type(columns)
    for permuted in itertools.permutations(columns):
        assert common_type(permuted) == common
    if common is not None:
        # A file of the common type changes nothing.
        assert common_type([*columns, ColumnType(common, "x")]) == common
        for one in types:
            assert common_type([ColumnType(one, "a"), ColumnType(common, "b")]) == common


def texts(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("7", "007", ["7", "007"]),
        ("12", "12.5", ["12", "12.5"]),
        ("7", "", [7, None]),
        ("", "x", [None, "x"]),
        ("7", "8", [7, 8]),
        ("-0", "1", ["-0", "1"]),
        ("9" * 19, "1", ["9" * 19, "1"]),
    ],
)
def test_texts_of_csv_are_those_of_one_file(tmp_path, first, second, expected):
    one = f"a,lat,lon\n{first},48,9\n{second},48,9\n"
    rows = "a,lat,lon\n{},48,9\n"
    cut = texts(tmp_path / "cut", x=rows.format(first), y=rows.format(second))
    joined = texts(tmp_path / "joined", x=one)
    for folder in (joined, cut):
        result = georesolve.nearest(folder, REFERENCE, observation_columns=["a"])
        assert result["observation_a"].to_pylist() == expected
    # Integers of CSV are text, so they fit text of Parquet.
    pq.write_table(pa.table({"a": ["z"], "lat": [48.0], "lon": [9.0]}), cut / "z.parquet")
    result = georesolve.nearest(cut, REFERENCE, observation_columns=["a"])
    assert result["observation_a"].to_pylist() == [*(first or None, second or None), "z"]


def polygon(path, edges, corners, **about):
    frame = geopandas.GeoDataFrame(geometry=[shapely.Polygon(corners)], crs=4326)
    frame.to_parquet(path)
    table = pq.read_table(path)
    geo = json.loads(table.schema.metadata[b"geo"])
    geo["columns"]["geometry"] |= {"edges": edges, **about}
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)


@pytest.mark.parametrize("order", [*itertools.permutations(["planar", "spherical", "point"])])
def test_shapes_keep_the_edges_of_their_files(tmp_path, order):
    """North of the edge in degrees and south of the great circle lie 60.5 and 61 degrees."""
    corners = [(0, 50), (40, 50), (40, 60), (0, 60)]
    alone = []
    observations = {"lat": [60.5, 61.0, 55.0, 62.5], "lon": [20.0, 20.0, 20.0, 20.0]}
    for number, edges in enumerate(order):
        path = tmp_path / f"{number}.parquet"
        if edges == "point":
            pq.write_table(pa.table({"lat": [62.5], "lon": [20.0]}), path)
        else:
            polygon(path, edges, corners)
        alone.append(georesolve.nearest(observations, path)["distance_m"])
    matches = georesolve.nearest(observations, tmp_path, k=3)
    of = {edges: alone[number] for number, edges in enumerate(order)}
    assert (of["spherical"][:2] == 0).all()
    assert (of["planar"][:2] > 0).all()
    rows = {number: {} for number in range(4)}
    for observation, reference, metres in zip(
        matches["observation"], matches["reference"], matches["distance_m"], strict=True
    ):
        rows[int(observation)][int(reference)] = metres
    for observation, by_reference in rows.items():
        expected = {number: each[observation] for number, each in enumerate(alone)}
        assert by_reference == expected
    index = georesolve.Index(tmp_path)
    with pytest.raises(georesolve.InvalidOption, match="edges differ"):
        index.save(tmp_path / "index.parquet")


@pytest.mark.parametrize("log", ["_delta_log/0.json", "metadata/v1.metadata.json"])
@pytest.mark.parametrize("pattern", ["", "*.parquet", "**/*.parquet"])
def test_tables_of_other_formats_are_refused(tmp_path, log, pattern):
    (tmp_path / "lake/t/data").mkdir(parents=True)
    table = pa.table({"lat": [48.0], "lon": [9.0]})
    for name in ("t/data/a.parquet", "b.parquet"):
        pq.write_table(table, tmp_path / "lake" / name)
    assert georesolve.nearest(tmp_path / "lake", REFERENCE).num_rows == 2
    (tmp_path / "lake/t" / log).parent.mkdir()
    (tmp_path / "lake/t" / log).write_text("{}")
    path = tmp_path / "lake" / pattern
    if pattern == "*.parquet":
        assert georesolve.nearest(path, REFERENCE).num_rows == 1
        return
    with pytest.raises(georesolve.InvalidInput, match=r"lake/t is a table of (Delta Lake|Iceberg)"):
        georesolve.nearest(path, REFERENCE)
    with pytest.raises(georesolve.InvalidInput, match="is a table of"):
        Sources(f"file://{tmp_path}", Bounds()).dataset(f"file://{path}", Reading(), "x")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["a.csv", "b/a.csv"]),
        ("*", ["a.csv", "b/a.csv"]),
        ("*.csv", ["a.csv"]),
        ("**", ["a.csv", "b/a.csv"]),
        ("**/a.csv", ["a.csv", "b/a.csv"]),
        ("_h/*.csv", ["a.csv"]),
        ("_*/*.csv", ["_h/a.csv"]),
        ("**/.a.csv", [".a.csv"]),
        ("[ab]", ["b/a.csv"]),
        ("?.csv", ["a.csv"]),
        ("*/../*.csv", []),
    ],
)
def test_hidden_names_are_skipped_unless_they_are_spelt(tmp_path, pattern, names):
    for name in ("a.csv", ".a.csv", "_a.csv", "b/a.csv", "b/_x/a.csv", "_h/a.csv", ".git/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("lat,lon\n1,1\n")
    # A link to a folder above has no end.
    (tmp_path / "b/up").symlink_to(tmp_path)
    if not names:
        with pytest.raises(georesolve.InvalidInput, match="there is no file"):
            files_at(tmp_path / pattern, "observations")
        return
    assert [one.below for one in files_at(tmp_path / pattern, "observations")] == names


def test_a_folder_as_the_output_is_refused(tmp_path):
    table = pa.table({"lat": [48.0], "lon": [9.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    command = ["nearest", str(tmp_path / "a.parquet"), str(tmp_path / "a.parquet"), "--quiet", "-o"]
    assert cli.main([*command, f"{tmp_path}/out/"]) == 1
    assert not (tmp_path / "out").exists()


def test_a_column_that_a_file_lacks_is_null_with_a_warning(tmp_path):
    texts(tmp_path, a="n,lat,lon\n1,48,9\n", b="lat,lon\n48,9\n")
    with pytest.warns(UserWarning, match=r"'n' is not in b\.csv"):
        result = georesolve.nearest(tmp_path, REFERENCE, observation_columns=["n"])
    assert result["observation_n"].to_pylist() == [1, None]
    with pytest.raises(georesolve.InvalidOption, match=r"'m'.*'n', 'lat', 'lon'"):
        georesolve.nearest(tmp_path, REFERENCE, observation_columns=["m"])
    result = georesolve.nearest(tmp_path, REFERENCE, observation_columns="*")
    assert result["observation_n"].to_pylist() == [1, None]


def test_a_name_that_two_columns_would_have_is_refused(tmp_path):
    texts(tmp_path, a="lat,lon\n48,9\n")
    polygon(tmp_path / "b.parquet", "planar", [(0, 0), (1, 0), (1, 1)])
    table = pq.read_table(tmp_path / "b.parquet").append_column("lat", pa.array([1.0]))
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(georesolve.InvalidInput, match=r"\(b\.parquet\): its column 'geometry_lat'"):
        georesolve.nearest(REFERENCE, tmp_path)


def test_checks_of_a_file_name_it(tmp_path):
    frame = geopandas.GeoDataFrame(geometry=[shapely.Point(9, 48)], crs=4326)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.set_crs(None, allow_override=True).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(georesolve.InvalidInput, match=r"\(b\.parquet\): .* CRS is unknown"):
        georesolve.nearest(tmp_path, REFERENCE)
