"""GeoJSON: sequences of features, members `crs`, and properties of several types."""

import json
import math

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import georesolve
from georesolve.io.geojson import json_column

ORIGIN = {"lat": [0.0], "lon": [0.0]}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(), SCALARS, max_size=3)


def feature(i=0, geometry=None, **properties):
    point = {"type": "Point", "coordinates": [i, 0]}
    return {"type": "Feature", "geometry": geometry or point, "properties": properties}


def collection(*features, **members):
    return {"type": "FeatureCollection", "features": features, **members}


def carry(path, *names):
    result = georesolve.nearest(path, ORIGIN, observation_columns=[*names])
    result.validate(full=True)
    return [result[f"observation_{name}"] for name in names]


@pytest.mark.parametrize(
    "separators", [("", "\n"), ("", "\r\n\n"), ("\x1e", "\n"), ("\x1e\x1e", "")]
)
@pytest.mark.parametrize("suffix", ["geojson", "geojsonl", "geojsons", "ndjson", "json"])
@pytest.mark.parametrize("rows", [1, 3])
def test_sequences_of_features(tmp_path, rows, suffix, separators):
    before, behind = separators
    texts = [json.dumps(feature(i, name=f"ä{i}"), ensure_ascii=False) for i in range(rows)]
    path = tmp_path / f"x.{suffix}"
    path.write_text("".join(before + text + behind for text in texts), newline="")
    assert carry(path, "name")[0].to_pylist() == [f"ä{i}" for i in range(rows)]
    assert georesolve.nearest(ORIGIN, path)["distance_m"][0] == 0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([json.dumps(feature()), '{"type": "Fea'], "not readable as JSON behind feature 0"),
        ([json.dumps(feature()), "[]"], "nor a sequence of features"),
        ([json.dumps(collection(feature()))] * 2, "nor a sequence of features"),
        ([json.dumps(feature()["geometry"])], "nor a sequence of features"),
        ([" "], "nor a sequence of features"),
    ],
)
def test_what_is_no_sequence_of_features(tmp_path, texts, message):
    path = tmp_path / "x.geojsonl"
    path.write_text("\n".join(texts))
    with pytest.raises(georesolve.InvalidInput, match=message):
        georesolve.nearest(path, ORIGIN)


@pytest.mark.parametrize(
    ("crs", "is_read"),
    [
        (None, True),
        ("urn:ogc:def:crs:OGC:1.3:CRS84", True),
        ("urn:ogc:def:crs:EPSG::4326", True),
        ("urn:ogc:def:crs:EPSG:9.8.15:4326", True),
        ("EPSG:4326", True),
        ("epsg:4326", True),
        ("http://www.opengis.net/def/crs/EPSG/0/4326", True),
        ("EPSG:43260", False),
        ("EPSG:4258", False),
        ("urn:ogc:def:crs:EPSG::32632", False),
        ("ESRI:4326", False),
    ],
)
def test_the_member_crs(tmp_path, crs, is_read):
    path = tmp_path / "x.geojson"
    member = crs and {"type": "name", "properties": {"name": crs}}
    path.write_text(json.dumps(collection(feature(), crs=member)))
    if is_read:
        assert georesolve.nearest(path, ORIGIN).num_rows == 1
        return
    with pytest.raises(georesolve.InvalidInput, match=f"'crs' says '{crs}'"):
        georesolve.nearest(path, ORIGIN)


def as_text(value):
    return (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


def is_same(one, other):
    """Whether two values are equal, and true is no 1."""
    if isinstance(one, list):
        return isinstance(other, list) and all(
            is_same(*pair) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, dict):
        # Members that a value lacks are null.
        return all(is_same(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


@given(st.lists(VALUES, min_size=1, max_size=6))
@example([1.5, True])
@example([[1.5], [True]])
@example([{"a": 0.5}, {"a": False}])
@example([2**63, 1])
@example([2**63, -1])
@example([2**53 + 1, 1.5])
@example([2**64])
@example([{}, {}])
def test_properties_keep_their_values(values):
    """One type holds them all, or they are text."""
    array = json_column(values)
    array.validate(full=True)
    assert len(array) == len(values)
    if pa.types.is_string(array.type):
        assert array.to_pylist() == [as_text(value) for value in values]
    else:
        pairs = zip(values, array.to_pylist(), strict=True)
        assert all(is_same(*pair) for pair in pairs)


KINDS = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(2**63, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.float64(), st.floats()),
]


@given(st.data(), st.sampled_from(KINDS))
def test_a_property_of_one_type_keeps_it(data, kind):
    type, strategy = kind
    values = [*data.draw(st.lists(strategy, min_size=1)), None]
    array = json_column(values)
    assert array.type == type
    pairs = zip(array.to_pylist(), values, strict=True)
    assert all(one == other or math.isnan(one) for one, other in pairs)


def test_mixed_properties_of_a_file(tmp_path):
    path = tmp_path / "x.geojson"
    values = [12, "unknown", 1.5, True, None, [1, {"ß": 2}], 2**70]
    features = [{**feature(i, v=value), "id": i or "a"} for i, value in enumerate(values)]
    path.write_text(json.dumps(collection(*features)))
    expected = ["12", "unknown", "1.5", "true", None, '[1, {"ß": 2}]', "1180591620717411303424"]
    result, ids = carry(path, "v", "id")
    assert result.to_pylist() == expected
    assert ids.to_pylist() == ["a", *map(str, range(1, 7))]
    result = georesolve.nearest({"lat": [0.0], "lon": [3.0]}, path, columns=["v"])
    assert result["reference_v"].tolist() == ["true"]


@pytest.mark.parametrize(
    ("value", "column"), [("\ud800", "v"), (["\udfff"], "v"), ({"\ud83d": 1}, "v"), (None, "?")]
)
def test_half_of_a_surrogate_pair_is_refused(tmp_path, value, column):
    path = tmp_path / "x.geojson"
    properties = {"\ud800": 1} if value is None else {"v": value}
    path.write_text(json.dumps(collection(feature(v="ok"), feature(1, **properties))))
    with pytest.raises(georesolve.InvalidInput, match="half of a surrogate pair") as refused:
        georesolve.nearest(path, ORIGIN)
    place = refused.value.errors[0]
    assert place["column"] == column
    assert place.get("row") == (None if value is None else 1)


BROKEN = [
    ({"type": "Point", "coordinates": ["8", 50]}, "'8' is not a number"),
    ({"type": "Point", "coordinates": [8]}, "not a point"),
    ({"type": "Point", "coordinates": [10**400, 0]}, "beyond what 64 bits hold"),
    ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 1]]]}, "a ring is closed"),
    ({"type": "LineString", "coordinates": [[0, 0]]}, "a line has ends"),
    ({"type": "CircularString", "coordinates": [[0, 0], [1, 1], [2, 0]]}, "not a geometry"),
]


@pytest.mark.parametrize(("geometry", "why"), BROKEN)
def test_a_broken_geometry_is_named_or_kept(tmp_path, geometry, why):
    path = tmp_path / "x.geojson"
    path.write_text(json.dumps(collection(feature(), feature(1, geometry), feature(2))))
    sets = (ORIGIN, path)
    for one in (sets, sets[::-1])[: 2 if geometry["type"] == "Point" else 1]:
        with pytest.raises(georesolve.InvalidInput, match=f"row 1.*{why}"):
            georesolve.nearest(*one)
        result = georesolve.nearest(*one, on_invalid="null")
        if one is sets:
            assert result["reference"][0] == 0
        else:
            status = result["status"].to_pylist()
            assert status == ["matched", "invalid_coordinate", "matched"]
