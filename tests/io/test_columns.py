"""Which columns hold the coordinates: recognised, named, ambiguous, missing."""

import pytest

from georesolve.io.columns import Columns, Reading, find_columns
from georesolve.io.errors import InvalidInput


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["lat", "lon"], {}, ("lat", "lon", None)),
        (["ID", "Longitude", "LATITUDE"], {}, ("LATITUDE", "Longitude", "ID")),
        (["x", "y", "name"], {}, ("y", "x", None)),
        (["lat", "Long"], {}, ("lat", "Long", None)),
        (
            ["decimalLatitude", "decimalLongitude"],
            {},
            ("decimalLatitude", "decimalLongitude", None),
        ),
        (["lat_dd", "long_dd", "lat_dms"], {}, ("lat_dd", "long_dd", None)),
        (["lat", "lon", "lat_dd", "long", "lon_deg"], {}, ("lat", "lon", None)),
        (["lat", "lng", "latitude"], {"lat": "latitude"}, ("latitude", "lng", None)),
        (["breite", "laenge"], {"lat": "breite", "lon": "laenge"}, ("breite", "laenge", None)),
        (["lat", "lon", "id", "key"], {"id": "key"}, ("lat", "lon", "key")),
    ],
)
def test_found(names, given, expected):
    assert find_columns(names, Reading(**given), "f") == Columns(*expected)


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ([], {}, "no column for latitudes or longitudes.*found no columns"),
        (
            ["a"],
            {"prefix": "reference_"},
            r"reference_lat=\.\.\. and reference_lon=\.\.\., or a .* reference_geometry=\.\.\.$",
        ),
        (["lat", "a"], {"prefix": "reference_"}, r"with the option reference_lon=\.\.\.$"),
        (["lat_dd", "lat_deg", "lon"], {}, "'lat_dd' and 'lat_deg' are ambiguous"),
        (["lat", "name"], {}, "no column for longitudes: expected one of lon, lng.*'lat', 'name'"),
        (["lat", "y", "lon"], {}, "'lat' and 'y' are ambiguous: name one with the option 'lat'"),
        (["lat", "lon"], {"lat": "breite"}, "no column 'breite': found 'lat', 'lon'"),
        (["lat", "lon"], {"lat": "lon"}, "'lon' cannot hold both"),
        (["lat", "lon", "lat"], {}, "'lat' appears 2 times"),
        (["lat", "lon", "id", "ID"], {}, "'id' and 'ID' are ambiguous"),
        ([f"c{i}" for i in range(25)], {}, "'c19' and 5 more"),
    ],
)
def test_refused(names, given, message):
    with pytest.raises(InvalidInput, match=message):
        find_columns(names, Reading(**given), "f")
