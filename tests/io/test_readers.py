"""The input formats: the same points in each of them are the same coordinates; oddities refused."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sqlite3
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from georesolve.io import readers
from georesolve.io.columns import Reading
from georesolve.io.errors import InvalidInput, Refused, UnsupportedFormat
from georesolve.io.formats import HEAD_BYTES, Source, format_of, input_format
from georesolve.io.normalized import decode
from georesolve.io.points import Bounds

BOUNDS = Bounds(rows=10**6, columns=20)
LAT, LON = [52.52, -33.87, 90.0], [13.405, 151.21, -180.0]
NAMES = ["Köln", "a,b", 'say "hi"']


def stored(tmp_path, content, format, charset=None, on_invalid="null", **names):
    path = tmp_path / "received"
    path.write_bytes(content)
    source = Source(path, format, Reading(**names, on_invalid=on_invalid), "points", charset)
    dataset = decode(source, tmp_path / "dataset.parquet", BOUNDS).dataset
    table = pq.read_table(dataset.file)
    return table[dataset.lat].to_pylist(), table[dataset.lon].to_pylist(), table, dataset


def table():
    return pa.table({"name": NAMES, "lat": LAT, "lon": LON})


def parquet():
    sink = io.BytesIO()
    pq.write_table(table(), sink)
    return sink.getvalue()


def arrow(new):
    sink = io.BytesIO()
    with new(sink, table().schema) as writer:
        writer.write_table(table())
    return sink.getvalue()


def csv_with(separator, encoding):
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter=separator)
    writer.writerow(["name", "lat", "lon"])
    writer.writerows(zip(NAMES, LAT, LON, strict=True))
    return sink.getvalue().encode(encoding)


def geojson(**members):
    features = [
        {
            "type": "Feature",
            "id": i,
            "geometry": {"type": "Point", "coordinates": [lon, lat, 7.0]},
            "properties": {"name": name},
        }
        for i, (lon, lat, name) in enumerate(zip(LON, LAT, NAMES, strict=True))
    ]
    document = {"type": "FeatureCollection", "features": features, **members}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (parquet(), "parquet"),
        (arrow(pa.ipc.new_stream), "arrow"),
        (arrow(pa.ipc.new_file), "arrow"),
        (csv_with(",", "utf-8"), "csv"),
        (csv_with(";", "utf-8-sig"), "csv"),
        (csv_with("\t", "utf-8"), "csv"),
        (csv_with("|", "utf-16"), "csv"),
        (geojson(), "geojson"),
    ],
)
def test_every_format_gives_the_same_points(tmp_path, content, format):
    lat, lon, read, _ = stored(tmp_path, content, format)
    assert (lat, lon) == (LAT, LON)
    assert read["name"].to_pylist() == NAMES


def test_properties_of_geojson_keep_their_names(tmp_path):
    own = {"lat": "52° 31'", "lon": -1.5, "id": "a", "y": 3, "geometry_lon": None}
    features = json.loads(geojson())["features"]
    features[1]["properties"] |= own
    lat, lon, read, dataset = stored(tmp_path, geojson(features=features), "geojson")
    assert (lat, lon) == (LAT, LON)
    assert read.column_names == [
        "geometry_geometry_lon", "geometry_geometry_lat", "feature_id", "name", *own
    ]  # fmt: skip
    assert read["feature_id"].to_pylist() == [0, 1, 2]
    for name, value in own.items():
        assert read[name].to_pylist() == [None, value, None]
    assert dataset.id == "id"
    chosen = stored(tmp_path, geojson(features=features), "geojson", id="feature_id")[3]
    assert chosen.id == "feature_id"


def test_coordinates_of_geojson_are_those_of_its_points(tmp_path):
    features = json.loads(geojson())["features"]
    for feature in features:
        feature["properties"] = {"latitude": 1.0, "lng": 2.0}
    lat, lon, _, dataset = stored(tmp_path, geojson(features=features), "geojson")
    assert (lat, lon) == (LAT, LON)
    assert (dataset.lat, dataset.lon, dataset.id) == ("lat", "lon", "id")
    named = {"lat": "latitude", "lon": "lng"}
    lat, lon, _, _ = stored(tmp_path, geojson(features=features), "geojson", **named)
    assert (lat, lon) == ([1.0] * 3, [2.0] * 3)


def test_a_declared_charset_is_used(tmp_path):
    _, _, read, _ = stored(tmp_path, csv_with(",", "latin-1"), "csv", charset="ISO-8859-1")
    assert read["name"].to_pylist() == NAMES
    for none in ("klingon", "zlib", "base64", "rot13", "undefined", "a\0b", "\udc80"):
        with pytest.raises(InvalidInput, match=r"there is no charset '.*declare the encoding"):
            stored(tmp_path, csv_with(",", "latin-1"), "csv", charset=none)


WITH_UMLAUTS = "lat,lon,name,place\n1,2,a,b\n3,4,Köln,d\n5,6,e,Ü\n"


@pytest.mark.parametrize("charset", [None, "ascii", "utf-8"])
@pytest.mark.parametrize("before", ["", "sep=,\n"])
def test_text_in_another_encoding_is_found(tmp_path, charset, before):
    content = (before + WITH_UMLAUTS).encode("windows-1252")
    with pytest.raises(InvalidInput) as caught:
        stored(tmp_path, content, "csv", charset=charset)
    taken_for = (charset or "utf-8").upper()
    assert f"'name', row 1: the value 'K\ufffdln' is not {taken_for}; 2 rows" in caught.value.detail
    assert "declare its charset, as in 'text/csv; charset=windows-1252'" in caught.value.detail
    # What to do is said once, not of each place.
    assert [one for one in caught.value.errors if "declare" in one["detail"]] == []
    assert "iconv -f windows-1252 -t utf-8" in caught.value.detail
    assert "2 rows are refused" in caught.value.detail
    assert [(one["column"], one["row"]) for one in caught.value.errors] == [
        ("name", 1),
        ("place", 2),
    ]
    header = WITH_UMLAUTS.replace("name", "Größe").encode("windows-1252")
    with pytest.raises(InvalidInput, match="'Gr\ufffd\ufffde': the name 'Gr\ufffd\ufffde' is not"):
        stored(tmp_path, header, "csv", charset=charset)


def test_all_refused_rows_are_counted_and_the_first_ten_named(tmp_path):
    rows = "".join(f"x{i},{i}\n1,2\n3,y\n" for i in range(8))
    with pytest.raises(InvalidInput, match=r"'lat', row 0: the value 'x0'.*16 rows are ref") as bad:
        stored(tmp_path, f"lat,lon\n{rows}".encode(), "csv")
    assert [one["row"] for one in bad.value.errors] == [0, 2, 3, 5, 6, 8, 9, 11, 12, 14]
    assert bad.value.errors[1]["detail"] == "the value 'y' is not a number"
    polygon = {"geometry": {"type": "Polygon", "coordinates": []}}
    features = [*json.loads(geojson())["features"], *[polygon] * 6, *[7] * 6]
    with pytest.raises(InvalidInput, match=r"row 3: not a point; 12 rows are refused") as bad:
        stored(tmp_path, geojson(features=features), "geojson")
    assert [one["row"] for one in bad.value.errors] == list(range(3, 13))
    rows = "1,2\n" + "1,2,3\n" * 15 + "1\n"
    with pytest.raises(InvalidInput, match=r"row 1: 3 fields where.*16 rows are refused") as bad:
        stored(tmp_path, f"lat,lon\n{rows}".encode(), "csv")
    assert [one["row"] for one in bad.value.errors] == list(range(1, 11))


def test_newlines_in_quotes_make_no_rows(tmp_path):
    # More than the megabyte that pyarrow reads at a time.
    text = "line one\n1,2,line two"
    rows = "".join(f'{i % 90},{i % 180},"{text} {i}"\n' for i in range(60_000))
    lat, _, read, dataset = stored(tmp_path, f"lat,lon,name\n{rows}".encode(), "csv")
    assert dataset.rows == 60_000
    assert lat == [float(i % 90) for i in range(60_000)]
    assert read["name"].to_pylist() == [f"{text} {i}" for i in range(60_000)]


def test_csv_values_are_carried_as_given(tmp_path):
    content = b"""lat,lon,id,code,country,number,note,padded,hex,sign
1,2,12345678901234567890,007,NA,10,,007,0x10,-0
3,4,12345678901234567891,1E3,NA,0,"",8,1,1
5,6,12345678901234567892,2,NA,-7,"",8,1,
"""
    _, _, read, _ = stored(tmp_path, content, "csv")
    assert read.drop_columns(["lat", "lon"]).to_pydict() == {
        "id": ["12345678901234567890", "12345678901234567891", "12345678901234567892"],
        "code": ["007", "1E3", "2"],
        "country": ["NA", "NA", "NA"],
        "number": [10, 0, -7],
        "note": [None, "", ""],
        "padded": ["007", "8", "8"],
        "hex": ["0x10", "1", "1"],
        "sign": ["-0", "1", None],
    }


def written(text, encoding="utf-8"):
    return text.replace("\n", "\r\n").encode(encoding)


EUROPEAN = {
    "semicolons": "id;lat;lon\n0012;50,9375;6,9603\nNA;-33,87;151,21\nx;7;8\n",
    "tabs": "id\tlat\tlon\n0012\t50,9375\t6,9603\nNA\t-33,87\t151,21\nx\t7\t8\n",
    "quotes": 'id,lat,lon\n0012,"50,9375","6,9603"\nNA,"-33,87","151,21"\nx,7,8\n',
    "sep=": "sep=;\nid;lat;lon\n0012;50,9375;6,9603\nNA;-33,87;151,21\nx;7;8\n",
    "an empty line": "\nid;lat;lon\n0012;50,9375;6,9603\nNA;-33,87;151,21\nx;7;8\n",
    "blanks in the header": " id ; lat; lon\n0012;50,9375;6,9603\nNA;-33,87;151,21\nx;7;8\n",
    "columns without a name": "id;lat;lon;;\n0012;50,9375;6,9603;;\nNA;-33,87;151,21;;\nx;7;8;;\n",
    "exponents": "id;lat;lon\n0012;5,09375E+1;6,9603e0\nNA;-33,87;151,21\nx;7;8\n",
    "points": "id;lat;lon\n0012;50.9375;6.9603\nNA;-33.87;151.21\nx;7;8\n",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", EUROPEAN)
def test_csv_as_spreadsheets_write_it(tmp_path, name, encoding):
    lat, lon, read, dataset = stored(tmp_path, written(EUROPEAN[name], encoding), "csv")
    assert (lat, lon) == ([50.9375, -33.87, 7.0], [6.9603, 151.21, 8.0])
    assert read.column_names == ["id", "lat", "lon"]
    assert read["id"].to_pylist() == ["0012", "NA", "x"]
    assert dataset.id == "id"


NOTHING = [
    "NA", "N/A", "#N/A", "NULL", "null", "nan", "None", "-", "", '""', " NA ",
    "#NV", "#WERT!", "#REF!", "#DIV/0!", "#VALUE!", "#¡VALOR!", "#N/D", "Err:502", "#BEZUG!",
]  # fmt: skip


@pytest.mark.parametrize("decimal", [".", ","])
def test_what_is_written_for_no_coordinate(tmp_path, decimal):
    rows = [f"{text};{text};1{decimal}5\n" for text in NOTHING] + [f"a;2{decimal}5;3\n"]
    content = ("name;lat;lon\n" + "".join(rows)).encode()
    lat, lon, read, dataset = stored(tmp_path, content, "csv")
    assert dataset.invalid_rows == len(NOTHING)
    assert [row.row for row in dataset.first_invalid] == list(range(10))
    np.testing.assert_array_equal(lat, [np.nan] * len(NOTHING) + [2.5])
    assert lon == [1.5] * len(NOTHING) + [3.0]
    # As text they are text, and only nothing at all is nothing.
    texts = ["" if text == '""' else text or None for text in NOTHING]
    assert read["name"].to_pylist() == [*texts, "a"]


def test_a_decimal_comma_is_not_guessed(tmp_path):
    rows = [f"{i % 90},5;{i % 180}" for i in range(70_000)]
    content = "\n".join(["lat;lon", *rows, "1.5;7", ""]).encode()
    with pytest.raises(InvalidInput, match=r"'lat', row 70000: the value '1\.5'.*decimal comma"):
        stored(tmp_path, content, "csv")
    lat, _, _, _ = stored(tmp_path, content.replace(b"1.5;7", b"1,5;7"), "csv")
    assert lat == [i % 90 + 0.5 for i in range(70_000)] + [1.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lat;lon\n50,9;6.9\n", "row 0: the value '50,9' is not a number; a decimal comma is"),
        ("lat;lon\n1.234,5;6\n", r"row 0: the value '1\.234,5' is not a number"),
        ("lat;lon\n1,234,567;6\n", "row 0: the value '1,234,567' is not a number"),
        ("lat,lon\n1,2\n50,9,6,9\n", "row 1: 4 fields where the header has 2: a comma that"),
        ("sep=;\nlat;lon\n1;2\n1;2;3\n", "row 1: 3 fields where the header has 2"),
        ("sep=;\nlat;lon\n1;2\nx;2\n", "'lat', row 1: the value 'x'"),
        ("Stations of 2024\nlat,lon\n1,2\n", "first line is taken as the header: 'Stations of"),
        ("# lat in degrees\nlat,lon\n1,2\n", "first line is taken as the header: '# lat in"),
        ("sep=;\na;b\n1;2\n", "the first line after 'sep=' is taken as the header: 'a;b'"),
        ("lat,lon,,\n1,2,a,b\n", "2 columns have no name"),
        ("\tA\x07\tB\n1\t2\t3\n", r"\\x07"),
    ],
)
def test_csv_that_is_not_understood(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        stored(tmp_path, text.encode(), "csv")
    assert caught.value.detail.isprintable()


def test_text_has_no_column_of_points(tmp_path):
    for columns in ("id,place", "lat,lon,place"):
        with pytest.raises(InvalidInput, match=r"\('place'\) is read of Parquet and Arrow"):
            stored(tmp_path, f"{columns}\n1,2,3\n".encode(), "csv", geometry="place")


def test_views_become_plain_columns(tmp_path):
    views = pa.table({"lat": LAT, "lon": LON, "name": pa.array(NAMES, pa.string_view())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, views.schema) as writer:
        writer.write_table(views)
    _, _, read, _ = stored(tmp_path, sink.getvalue(), "arrow")
    assert read.schema.field("name").type == pa.string()


def test_what_cannot_be_read_again_is_refused(tmp_path):
    nested = pa.array([1])
    for _ in range(60):
        nested = pa.ListArray.from_arrays([0, 1], nested)
    deep = pa.table({"lat": [1.0], "lon": [2.0], "deep": nested})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, deep.schema) as writer:
        writer.write_table(deep)
    with pytest.raises((pa.ArrowException, OSError)):
        stored(tmp_path, sink.getvalue(), "arrow")


def geoparquet(column, about, **further):
    sink = io.BytesIO()
    geo = {"version": "1.1.0", "primary_column": "place", "columns": {"place": about}}
    written = pa.table({"place": column, **further})
    pq.write_table(written.replace_schema_metadata({"geo": json.dumps(geo)}), sink)
    return sink.getvalue()


def wkb(points, **options):
    return pa.array([None if p is None else shapely.to_wkb(p, **options) for p in points])


POINTS = [shapely.Point(lon, lat) for lon, lat in zip(LON, LAT, strict=True)]
CRS84 = {"type": "GeographicCRS", "name": "WGS 84", "id": {"authority": "OGC", "code": "CRS84"}}
EPSG_4326 = {"name": "WGS 84", "id": {"authority": "EPSG", "code": 4326}}
MERCATOR = {"name": "WGS 84 / Pseudo-Mercator", "id": {"authority": "EPSG", "code": 3857}}


@pytest.mark.parametrize(
    ("column", "about"),
    [
        (wkb(POINTS), {"encoding": "WKB", "geometry_types": ["Point"]}),
        (wkb(POINTS, byte_order=0), {"encoding": "WKB", "crs": CRS84}),
        (wkb([shapely.force_3d(p, 3.0) for p in POINTS]), {"encoding": "WKB", "crs": EPSG_4326}),
        (
            pa.array([{"x": x, "y": y} for x, y in zip(LON, LAT, strict=True)]),
            {"encoding": "point"},
        ),
    ],
)
def test_geoparquet_points(tmp_path, column, about):
    # Other columns named lat and lon do not count: the file says where its points are.
    content = geoparquet(column, about, lat=[0.0] * 3, lon=[0.0] * 3)
    lat, lon, read, dataset = stored(tmp_path, content, "parquet")
    assert (lat, lon) == (LAT, LON)
    assert (dataset.lat, dataset.lon) == ("place_lat", "place_lon")
    assert "place" in read.schema.names
    lat, _, _, _ = stored(tmp_path, content, "parquet", lat="lat", lon="lon")
    assert lat == [0.0] * 3, "unless they are named"


def test_missing_and_empty_points_are_invalid_rows(tmp_path):
    content = geoparquet(wkb([POINTS[0], None, shapely.Point()]), {"encoding": "WKB"})
    lat, _, _, dataset = stored(tmp_path, content, "parquet")
    assert lat[0] == LAT[0]
    assert np.isnan(lat[1:]).all()
    assert dataset.invalid_rows == 2


@pytest.mark.parametrize(
    ("content", "format", "points"),
    [
        (geoparquet(wkb([POINTS[0], None]), {"encoding": "WKB"}), "parquet", "place"),
        (geojson(features=[*json.loads(geojson())["features"], {}]), "geojson", "geometry"),
    ],
)
def test_a_missing_point_is_no_column_of_numbers(tmp_path, content, format, points):
    with pytest.raises(InvalidInput, match=f"row [13]: there is no point in '{points}'; mend"):
        stored(tmp_path, content, format, on_invalid="error")


def test_points_with_their_axes_swapped(tmp_path):
    swapped = [shapely.Point(40.6, -122.4), shapely.Point(40.7, -73.9)]
    for points, message in (
        (swapped, "the point in 'place' has the latitude -122.4, allowed"),
        ([*swapped[:1], shapely.Point(34.1, -118.2)], "has latitude=-122.4, longitude=40.6. "),
    ):
        content = geoparquet(wkb(points), {"encoding": "WKB"})
        with pytest.raises(InvalidInput) as caught:
            stored(tmp_path, content, "parquet", on_invalid="error")
        assert message in caught.value.detail
        assert "write the points in 'place' with their longitude first" in caught.value.detail
        assert "place_" not in caught.value.detail
        assert caught.value.errors[0]["column"] == "place"


def geoarrow(missing):
    """Points as GeoArrow has them, whose numbers stay where they are when a point is missing."""
    # As GeoParquet has it, only the point can be missing: Parquet has to make numbers up below it.
    axes = [pa.field(axis, pa.float64(), nullable=False) for axis in "xy"]
    return pa.StructArray.from_arrays([LON, LAT], fields=axes, mask=pa.array(missing))


def interleaved(missing):
    """The same points, with both numbers of each side by side."""
    ends = pa.array(np.stack([LON, LAT], axis=1).ravel())
    return pa.FixedSizeListArray.from_arrays(ends, 2, mask=pa.array(missing))


def arrow_file(column):
    sink = io.BytesIO()
    table = pa.table({"row": range(len(column)), "place": column})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (arrow_file(geoarrow([False, True, False])), "arrow"),
        (arrow_file(interleaved([False, True, False])), "arrow"),
        (geoparquet(geoarrow([False, True, False]), {"encoding": "point"}), "parquet"),
    ],
)
def test_a_missing_geoarrow_point_is_an_invalid_row_whatever_lies_below_it(
    tmp_path, content, format
):
    lat, lon, read, dataset = stored(tmp_path, content, format, geometry="place")
    np.testing.assert_array_equal(lat, [LAT[0], np.nan, LAT[2]])
    np.testing.assert_array_equal(lon, [LON[0], np.nan, LON[2]])
    assert dataset.invalid_rows == 1
    assert read["place"].is_null().to_pylist() == [False, True, False]


def test_a_slice_of_geoarrow_points_begins_where_it_should(tmp_path):
    column = geoarrow([True, True, False]).slice(1)
    lat, _, _, dataset = stored(tmp_path, arrow_file(column), "arrow", geometry="place")
    np.testing.assert_array_equal(lat, [np.nan, LAT[2]])
    assert dataset.invalid_rows == 1


def test_a_geometry_column_can_be_named(tmp_path):
    sink = io.BytesIO()
    pq.write_table(pa.table({"where": wkb(POINTS)}), sink)
    lat, lon, _, _ = stored(tmp_path, sink.getvalue(), "parquet", geometry="where")
    assert (lat, lon) == (LAT, LON)
    sink = io.BytesIO()
    pq.write_table(pa.table({"where": wkb([shapely.Point(500_000, 0)])}), sink)
    named = {"geometry": "where", "crs": "EPSG:32632"}
    lat, lon, _, _ = stored(tmp_path, sink.getvalue(), "parquet", **named)
    # The middle of the zone on the equator.
    np.testing.assert_allclose([*lat, *lon], [0, 9], atol=1e-9)


ETRS89 = {"name": "ETRS89", "id": {"authority": "EPSG", "code": 4258}}
UTM = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::25832"}}
LINE = shapely.LineString([(0, 0), (1, 1)])


@pytest.mark.parametrize(
    ("said", "named"),
    [(MERCATOR, None), (MERCATOR, "EPSG:25832"), (None, "EPSG:3857"), (ETRS89, None), (None, 4326)],
)
def test_geoparquet_in_another_crs_is_transformed(tmp_path, said, named):
    """By what the file says; by the CRS that is named where it says that none is known."""
    degrees = np.array([[8.5, 50.25], [-60.0, -33.0], [179.5, 70.0]])
    if "3857" in f"{said}{named}":
        # The formulas of Web Mercator.
        radians = np.radians(degrees)
        y = np.log(np.tan(np.pi / 4 + radians[:, 1] / 2))
        given = 6378137 * np.stack([radians[:, 0], y], axis=1)
    else:
        given = degrees
    x, y = given.T
    line = wkb([shapely.LineString(given)])
    for column, encoding, takes in (
        (wkb(shapely.points(given)), "WKB", False),
        (line, "WKB", True),
        (pa.StructArray.from_arrays([x, y], ["x", "y"]), "point", False),
        (pa.StructArray.from_arrays([x, y], ["x", "y"]), "point", True),
    ):
        content = geoparquet(column, {"encoding": encoding, "crs": said})
        crs = f"EPSG:{named}" if isinstance(named, int) else named
        lat, lon, table, _ = stored(tmp_path, content, "parquet", crs=crs, takes_shapes=takes)
        found = shapely.get_coordinates(shapely.from_wkb(table["place"].to_pylist()))
        np.testing.assert_allclose(found, degrees, atol=1e-9)
        first = np.array([lon, lat]).T
        np.testing.assert_allclose(first, degrees[: len(first)], atol=1e-9)
        assert "crs" not in json.loads(table.schema.metadata[b"geo"])["columns"]["place"]


@pytest.mark.parametrize(
    ("content", "format", "message"),
    [
        (geoparquet(wkb(POINTS), {"crs": None}), "parquet", "CRS is unknown.*the option crs"),
        (geoparquet(wkb(POINTS), {"crs": "EPSG:4978"}), "parquet", "no longitudes and latitudes"),
        (geoparquet(wkb(POINTS), {"crs": "EPSG:5773"}), "parquet", "no longitudes and latitudes"),
        (geoparquet(wkb(POINTS), {"crs": {"id": [5]}}), "parquet", "PROJ knows no way"),
        (geoparquet(wkb([LINE]), {"geometry_types": ["LineString"]}), "parquet", "only points"),
        (geoparquet(wkb([*POINTS, LINE]), {}), "parquet", "row 3 holds a LineString"),
        (geoparquet(pa.array([1, 2]), {}), "parquet", "neither WKB nor GeoArrow"),
        (geojson(type="Feature"), "geojson", "not a GeoJSON FeatureCollection"),
        (geojson(crs={"name": "EPSG:3857"}), "geojson", "'crs' says.*EPSG:3857.*OGC:1.3:CRS84"),
        (geojson(crs=UTM), "geojson", "'crs' says 'urn:ogc:def:crs:EPSG::25832'"),
        (geojson(features=[7]), "geojson", "row 0: not a GeoJSON feature"),
        (
            geojson(features=[{"geometry": {"type": "Polygon", "coordinates": []}}]),
            "geojson",
            "row 0: not a point",
        ),
    ],
)
def test_what_is_no_points_in_degrees_is_refused(tmp_path, content, format, message):
    with pytest.raises(Refused, match=message):
        stored(tmp_path, content, format)


@pytest.mark.parametrize(
    ("media_type", "name", "head", "expected"),
    [
        ("text/csv; charset=utf-8", "x.parquet", b"", "csv"),
        ("application/octet-stream", "X.PARQUET", b"", "parquet"),
        (None, "points.arrows", b"", "arrow"),
        (None, None, parquet(), "parquet"),
        ("text/csv", "points.csv", parquet(), "parquet"),
        ("text/csv", "points.csv", b"PAR1,PAR2,lat,lon\n", "csv"),
        ("text/csv", "points.csv", b"BZh9,lat,lon\n", "csv"),
        ("application/geo+json", None, arrow(pa.ipc.new_stream), "arrow"),
        ("application/json", "points.json", geojson(), "geojson"),
        (None, "points.JSON", geojson(), "geojson"),
        ("application/octet-stream", "blob", b"ARROW1\0\0", "arrow"),
        ("application/geo+json", None, b"{", "geojson"),
    ],
)
def test_formats_are_recognised(media_type, name, head, expected):
    assert input_format(media_type, name, head, "f") == expected


def test_a_format_that_nothing_tells():
    with pytest.raises(UnsupportedFormat, match=r"'points\.txt'.*text/plain.*\.geojson") as caught:
        input_format("text/plain; charset=utf-8", "points.txt", b"lat lon", "points")
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("media_type", [None, "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_body_without_a_name_is_to_have_a_type(tmp_path, media_type, pack):
    path = tmp_path / "received"
    path.write_bytes(pack(b"lat,lon\n1,2\n"))
    with pytest.raises(UnsupportedFormat, match="send the header Content-Type: text/csv") as caught:
        format_of(path, media_type, None, "the body")
    assert f"({media_type or 'none'})" in caught.value.detail
    assert "name" not in caught.value.detail


def zipped(*members):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return sink.getvalue()


def sqlite(application_id):
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute("CREATE TABLE points (lat, lon)")
    content = connection.serialize()
    connection.close()
    return content


OPEN_DOCUMENT = "application/vnd.oasis.opendocument.spreadsheet"
OTHERS = {
    "workbook": (zipped(("[Content_Types].xml", "<")), "an Excel workbook: save it as CSV"),
    "workbook of another program": (zipped(("xl/styles.xml", "<")), "an Excel workbook"),
    "OpenDocument": (zipped(("mimetype", OPEN_DOCUMENT)), "an OpenDocument file: save it as CSV"),
    "SQLite": (sqlite(0), "an SQLite database"),
    "gzip": (gzip.compress(b"lat,lon"), "compressed with gzip twice: send it unpacked"),
    "bzip2": (bz2.compress(b"lat,lon"), "compressed with bzip2"),
    "xz": (lzma.compress(b"lat,lon"), "compressed with xz"),
    "zstd": (pa.compress(b"lat,lon", "zstd", asbytes=True), "compressed with zstd"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_are_named_whatever_they_are_called(name):
    content, message = OTHERS[name]
    for called in ("points.csv", "points.parquet", "points.xlsx"):
        with pytest.raises(UnsupportedFormat, match=message):
            input_format("text/csv", called, content[:HEAD_BYTES], "points")


def test_parquet_is_read_without_keeping_it(tmp_path):
    path, n = tmp_path / "file", 2_000_000
    lat = np.random.default_rng(1).uniform(-90, 90, n)
    pq.write_table(pa.table({"lat": lat, "lon": lat}), path, row_group_size=65_536)
    read = readers.open_source(Source(path, "parquet", Reading(), "points"), Bounds(columns=20))
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read.batches)
    assert most < path.stat().st_size / 4


@pytest.mark.parametrize("most_bytes", [0, readers._GROUP_BYTES])
def test_row_groups_come_in_their_order_whether_or_not_side_by_side(
    most_bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "_GROUP_BYTES", most_bytes)
    degrees = np.random.default_rng(33).uniform(-90, 90, (2, 1_000))
    rows = pa.table({"name": np.arange(1_000), "lat": degrees[0], "lon": degrees[1]})
    pq.write_table(rows, tmp_path / "rows", row_group_size=37)
    source = Source(tmp_path / "rows", "parquet", Reading(), "points", side_by_side=True)
    read = readers.open_source(source, Bounds(columns=20))
    assert pa.Table.from_batches(read.batches, read.schema).equals(rows)
