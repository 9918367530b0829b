"""`sjoin_nearest` and `sjoin` keep what GeoPandas promises of its own, on the globe, in metres.

Where distances on a plane and on the globe rank alike (points near each other, on the equator)
GeoPandas itself is asked; elsewhere `tests/oracle.py`.
"""

import warnings

import geopandas
import numpy as np
import pandas as pd
import pytest
import shapely
from geopandas.testing import assert_geodataframe_equal

import georesolve
from tests import oracle
from tests.conftest import sphere

pytestmark = pytest.mark.filterwarnings("ignore:Geometry is in a geographic CRS")
DEGREE_M = np.radians(1) * oracle.RADIUS_M


def frame(lon, lat=None, index=None, crs=4326, **columns):
    """Points; on the equator unless latitudes are given."""
    geometry = geopandas.points_from_xy(lon, np.zeros(len(lon)) if lat is None else lat)
    return geopandas.GeoDataFrame(columns, geometry=geometry, index=index, crs=crs)


LEFT = frame([0.0, 1.0, 5.0], name=["a", "b", "c"], n=[1, 2, 3], index=list("xyz"))
RIGHT = frame([1.0, 2.0, 2.0, -0.25], name=["A", "B", "C", "D"], m=[1.5, 2.5, 3.5, 4.5])


@pytest.mark.parametrize("max_distance", [None, 0.5, 2.0])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("names", [{}, {"lsuffix": "l", "rsuffix": "r"}])
def test_as_geopandas_on_the_equator(how, exclusive, max_distance, names):
    options = {"how": how, "exclusive": exclusive, "distance_col": "far", **names}
    expected = LEFT.sjoin_nearest(RIGHT, max_distance=max_distance, **options)
    expected["far"] *= DEGREE_M
    limit = max_distance and max_distance * DEGREE_M
    given = georesolve.sjoin_nearest(LEFT, RIGHT, max_distance=limit, **options)
    assert_geodataframe_equal(given, expected, check_less_precise=True)


@pytest.mark.parametrize("how", ["inner", "left", "right"])
def test_without_a_column_of_distances(how):
    given = georesolve.sjoin_nearest(LEFT, RIGHT, how=how)
    assert_geodataframe_equal(given, LEFT.sjoin_nearest(RIGHT, how=how))


@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("empty", [(0,), (1,), (0, 1)])
def test_empty_frames(how, empty):
    sides = [one.iloc[:0] if i in empty else one for i, one in enumerate((LEFT, RIGHT))]
    expected = sides[0].sjoin_nearest(sides[1], how=how, distance_col="far")
    given = georesolve.sjoin_nearest(*sides, how=how, distance_col="far")
    assert list(given.columns) == list(expected.columns)
    assert len(given) == len(expected)
    assert given["far"].isna().all()
    assert given.geometry.geom_equals(expected.geometry).all()


@pytest.mark.parametrize("how", ["inner", "left", "right"])
def test_missing_and_empty_points_match_nothing(how):
    holes = [shapely.Point(0, 0), None, shapely.Point()]
    left = geopandas.GeoDataFrame({"n": [1, 2, 3]}, geometry=holes, crs=4326)
    given = georesolve.sjoin_nearest(left, RIGHT, how=how, distance_col="far")
    matched = given[given["far"].notna()]
    assert set(matched["n"]) == {1}
    assert len(given) == {"inner": 1, "left": 3, "right": 4}[how]


def test_indexes_keep_their_names_and_levels():
    levels = pd.MultiIndex.from_tuples([(1, "p"), (1, "q"), (2, "p")], names=["one", None])
    left = LEFT.set_axis(levels)
    right = RIGHT.rename_axis("place")
    for how in ("inner", "left", "right"):
        expected = left.sjoin_nearest(right, how=how)
        assert_geodataframe_equal(georesolve.sjoin_nearest(left, right, how=how), expected)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda left: left, {"how": "outer"}, "`how` was"),
        (pd.DataFrame, {}, "'left_df' should be GeoDataFrame"),
        (lambda left: left.assign(index_right=1), {}, "'index_right' cannot be a column name"),
        (lambda left: left, {"lsuffix": "", "rsuffix": ""}, "columns overlap but no suffix"),
        (lambda left: left, {"max_distance": 0}, "max_distance must be greater than 0"),
        (lambda left: left, {"max_distance": "50km"}, "a number of metres, got '50km'"),
        (lambda left: left, {"k": 65}, "k must be a whole number from 1 to 64"),
        (lambda left: left.set_geometry(left.buffer(1)), {}, "row 0 holds a Polygon, not a point"),
    ],
)
def test_refusals(change, options, words):
    with pytest.raises(ValueError, match=words):
        georesolve.sjoin_nearest(change(LEFT), RIGHT, **options)


def test_each_frame_is_transformed_by_its_own_crs():
    lat, lon = sphere(300, 3)
    lat = lat * 0.9
    right = frame(*sphere(200, 4)[::-1])
    in_degrees = frame(lon, lat)
    expected = georesolve.sjoin_nearest(in_degrees, right, distance_col="far")
    projected = in_degrees.to_crs(3857)
    given = georesolve.sjoin_nearest(projected, right, distance_col="far")
    assert given.crs == projected.crs
    assert given["index_right"].tolist() == expected["index_right"].tolist()
    np.testing.assert_allclose(given["far"], expected["far"], atol=1e-3)


def test_coordinates_without_a_crs_are_degrees():
    no_crs = [one.set_crs(None, allow_override=True) for one in (LEFT, RIGHT)]
    with pytest.warns(UserWarning, match="has no CRS") as warned:
        given = georesolve.sjoin_nearest(*no_crs, distance_col="far")
    assert [one.filename for one in warned] == 2 * [__file__]
    expected = georesolve.sjoin_nearest(LEFT, RIGHT, distance_col="far")
    assert given.crs is None
    assert given["far"].tolist() == expected["far"].tolist()
    with (
        pytest.warns(UserWarning, match="has no CRS"),
        pytest.raises(georesolve.InvalidInput, match="look like metres"),
    ):
        georesolve.sjoin_nearest(LEFT.to_crs(3857).set_crs(None, allow_override=True), no_crs[1])


def test_nearest_on_the_globe_is_not_that_of_the_plane():
    north, degree = frame([179.0], [80.0]), frame([-179.0, 170.0], [80.0, 80.0])
    given = georesolve.sjoin_nearest(north, degree, distance_col="far")
    assert given["index_right"].tolist() == [0]
    assert north.sjoin_nearest(degree)["index_right"].tolist() == [1]


@pytest.mark.parametrize("k", [1, 3])
def test_against_the_oracle(k):
    """All that are as near as the k-th are given, in the order of distance and row."""
    lat, lon = np.round(sphere(400, 5)[0], -1), np.round(sphere(400, 6)[1], -1)
    references = [np.repeat(degrees, 2) for degrees in (lat, lon)]
    places = sphere(100, 7)
    given = georesolve.sjoin_nearest(
        frame(places[1], places[0]), frame(*references[::-1]), distance_col="far", k=k
    )
    for row, matched in given.groupby(level=0):
        metres = oracle.haversine_m(places[0][row], places[1][row], *references)
        # What rounds to the same place is as near; the next one is not.
        limit = np.sort(metres)[k - 1] + 1e-6
        assert sorted(matched["index_right"]) == np.flatnonzero(metres <= limit).tolist()
        np.testing.assert_allclose(matched["far"], np.sort(metres)[: len(matched)], atol=1e-3)
    assert given.index.nunique() == 100


@pytest.mark.parametrize("exclusive", [False, True])
def test_more_ties_than_a_search_tells(exclusive):
    """A hundred references at one place, and a hundred at the next."""
    right = frame(np.repeat([0.0, 1.0, 7.0], 100))
    left = frame([0.0, 0.75, 3.5])
    given = georesolve.sjoin_nearest(left, right, exclusive=exclusive, distance_col="far")
    expected = left.sjoin_nearest(right, exclusive=exclusive)
    assert given.index.tolist() == expected.index.tolist()
    # Ours are in the order of rows, those of GeoPandas in that of its tree.
    for row, matched in given.groupby(level=0)["index_right"]:
        assert matched.tolist() == sorted(expected["index_right"][row])


def test_a_frame_with_itself():
    given = georesolve.sjoin_nearest(LEFT, LEFT, exclusive=True)
    assert_geodataframe_equal(given, LEFT.sjoin_nearest(LEFT, exclusive=True))


@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, [0.5, 0.0, 4.5]])
@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("names", [{}, {"lsuffix": "l", "rsuffix": "r"}])
def test_within_a_distance_as_geopandas_on_the_equator(how, distance, names):
    # A little more, for the rounding of both.
    reach = np.asarray(distance) + 1e-9
    expected = LEFT.sjoin(RIGHT, how=how, predicate="dwithin", distance=reach, **names)
    given = georesolve.sjoin(LEFT, RIGHT, how=how, distance=reach * DEGREE_M, **names)
    # Ours are nearest first, those of GeoPandas in the order of its tree.
    by = list(expected.columns.drop("geometry"))
    assert_geodataframe_equal(given.sort_values(by), expected.sort_values(by))
    assert given.index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("how", ["inner", "left", "right"])
def test_pairs_within_a_distance_are_nearest_first(how):
    sides = [frame(*sphere(n, seed)[::-1], place=np.arange(n)) for n, seed in ((60, 8), (90, 9))]
    given = georesolve.sjoin(*sides, how=how, distance=2e6, distance_col="far")
    (lat, lon), (lats, lons) = (sphere(60, 8), sphere(90, 9))
    near = oracle.haversine_m(lat[:, None], lon[:, None], lats, lons) <= 2e6
    matched = given[given["far"].notna()]
    pairs = matched[["place_left", "place_right"]].to_numpy(int)
    assert sorted(pairs.tolist()) == np.argwhere(near).tolist()
    own = 1 if how == "right" else 0
    assert given.index.is_monotonic_increasing
    assert len(given) - len(matched) == {"inner": 0}.get(how, (~near.any(axis=1 - own)).sum())
    assert matched.groupby(level=0)["far"].is_monotonic_increasing.all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {},
            "distance must be metres, 0 or more: a number, or 3 for the .* got None.*'intersects'",
        ),
        ({"distance": -1}, "distance must be metres"),
        ({"distance": "5km"}, "distance must be metres.* got '5km'"),
        ({"distance": [1.0, 2.0]}, r"or 3 for the rows of the left, got \[1.0, 2.0\]"),
        ({"distance": 1, "predicate": "within"}, "'dwithin' or 'intersects', got 'within'"),
        ({"distance": 1, "how": "outer"}, "`how` was"),
    ],
)
def test_refusals_of_a_join_within_a_distance(options, words):
    with pytest.raises(ValueError, match=words):
        georesolve.sjoin(LEFT, RIGHT, **options)


@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_columns_of_several_levels_are_joined_as_geopandas_does(how, sides):
    def leveled(frame):
        tuples = [(name, "") if name == "geometry" else ("of", name) for name in frame.columns]
        plain = pd.DataFrame(frame).set_axis(pd.MultiIndex.from_tuples(tuples), axis="columns")
        return geopandas.GeoDataFrame(plain, geometry=("geometry", ""), crs=4326)

    frames = [
        leveled(one) if is_leveled else one
        for one, is_leveled in zip((LEFT.reset_index(drop=True), RIGHT), sides, strict=True)
    ]
    expected = geopandas.sjoin_nearest(*frames, how=how)
    joined = georesolve.sjoin_nearest(*frames, how=how)
    assert joined.columns.tolist() == expected.columns.tolist()
    assert joined.geometry.name == expected.geometry.name
    for name in joined.columns:
        assert joined[name].tolist() == expected[name].tolist()


SEVERAL = {
    "sjoin_nearest": georesolve.sjoin_nearest,
    "dwithin": lambda left, right: georesolve.sjoin(left, right, distance=1e5),
    "intersects": lambda left, right: georesolve.sjoin(left, right, predicate="intersects"),
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("crs", [4326, None])
def test_joins_warn_of_swapped_axes_as_nearest_does(name, crs):
    chance = np.random.default_rng(5)
    lat, lon = chance.uniform(47, 55, 30), chance.uniform(6, 15, 30)
    fine, swapped = frame(lon, lat, crs=crs), frame(lat, lon, crs=crs)
    for sets, has_warning in (((fine, swapped), 1), ((swapped, fine), 1), ((fine, fine), 0)):
        messages = []
        for search in (georesolve.nearest, SEVERAL[name]):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                search(*sets)
            texts = (str(one.message) for one in caught)
            messages.append([text for text in texts if "has no CRS" not in text])
        assert messages[0] == messages[1]
        assert len(messages[0]) == has_warning
        assert all("axes of one set look swapped" in text for text in messages[0])
