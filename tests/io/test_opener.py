"""Several files as one table: the rows of the table that was cut, or a refusal with two files."""

import datetime
import itertools
import json

import geopandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import georesolve
from georesolve import cli

REFERENCE = {"lat": [48.0], "lon": [9.0]}
UTC = datetime.UTC
# Of each kind the types that hold the values of all, and the values.
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
        whole = pq.read_table(path.with_suffix(".parquet"))
        for name in filter(table.get, file["order"]):
            whole = whole.append_column(name, table[name])
        pq.write_table(whole, path.with_suffix(".parquet"))
        return
    table |= {"lat": pa.array(lat), "lon": pa.array(lon)}
    whole = pa.table({name: table[name] for name in file["order"] if name in table})
    if file["format"] == "geojson":
        features = [
            {
                "type": "Feature",
                "geometry": {"type": "Point", "coordinates": [row.pop("lon"), row.pop("lat")]},
                "properties": {
                    name: value for name, value in row.items() if not isinstance(value, bytes)
                },
            }
            for row in whole.to_pylist()
        ]
        content = {"type": "FeatureCollection", "features": features}
        path.with_suffix(".geojson").write_text(json.dumps(content))
        return
    called = dict(zip(("lat", "lon"), names, strict=True))
    whole = whole.rename_columns([called.get(name, name) for name in whole.column_names])
    if file["format"] == "parquet":
        pq.write_table(whole, path.with_suffix(".parquet"))
    elif file["format"] == "arrow":
        with pa.ipc.new_stream(path.with_suffix(".arrows"), whole.schema) as writer:
            writer.write_table(whole)
    else:
        texts = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in whole]
        pa.csv.write_csv(pa.table(texts, whole.column_names), path.with_suffix(".csv"))


def lay(folder, cut):
    """Write the files of a cut, and files that are none of the table; the rows in their order."""
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
    whole = {"lat": [points[row][0] for row in rows], "lon": [points[row][1] for row in rows]}
    expected = georesolve.nearest(whole, REFERENCE)
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
    carried = ["--observation-columns", ",".join(names)] if names else []
    sets = folder / "in", folder / "reference.parquet"
    command = ["nearest", *sets, "-o", out, "--quiet", *carried]
    assert cli.main([str(one) for one in command]) == 0
    written = pq.read_table(out)
    assert written.select(result.column_names).to_pylist() == result.to_pylist()
