"""Lines and polygons against oracles: the formula in numpy, metres and sides in 40 digits."""

import mpmath
import numpy as np
import pytest
import shapely
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import config

from georesolve.io.datasets import Edging
from georesolve.io.outlines import outline_of, shapes_of
from georesolve.kernels import count_near, count_within, nearest, nearest_points, within
from georesolve.kernels.arcs import MARGIN, TOUCHING
from georesolve.kernels.coordinates_cpu import answer_of, chord2_within, unit_vectors
from georesolve.kernels.query import Degrees, Found
from georesolve.kernels.shapes import ShapeIndex
from georesolve.kernels.threads_cpu import allowed
from tests import oracle
from tests.kernels.point_sets import NASTY_LAT, NASTY_LON

mpmath.mp.dps = 40


def ring(rng, lat, lon, radius, n, wobble=0.3):
    """A ring around a point, clockwise, of `radius` degrees, also where it is a pole."""
    turns = np.linspace(0, 2 * np.pi, n, endpoint=False) + rng.uniform(0, wobble)
    radii = np.radians(radius * rng.uniform(1 - wobble, 1, n))
    p, q = np.radians([lat, lon])
    up = np.array([np.cos(p) * np.cos(q), np.cos(p) * np.sin(q), np.sin(p)])
    north = np.array([-np.sin(p) * np.cos(q), -np.sin(p) * np.sin(q), np.cos(p)])
    east = np.array([-np.sin(q), np.cos(q), 0.0])
    along = np.outer(np.cos(turns), north) + np.outer(np.sin(turns), east)
    x, y, z = (np.cos(radii)[:, None] * up + np.sin(radii)[:, None] * along).T
    return np.degrees(np.stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))], axis=1))


CENTRES = [(0, 0), (90, 0), (-90, 17), (48, 11), (10, 180), (-45, -179.9999), (0, 90), (89.9, 1)]
RADII = [1e-9, 1e-5, 1e-2, 1, 20, 60, 89]


def shape(rng):
    lat, lon = CENTRES[rng.integers(len(CENTRES))]
    lat, lon = np.clip(lat + rng.normal(0, 1e-3), -90, 90), lon + rng.normal(0, 1e-3)
    radius, n = RADII[rng.integers(len(RADII))], rng.integers(3, 9)
    around = ring(rng, lat, lon, radius, n)
    match rng.integers(6):
        case 0:
            return shapely.Point(around[0])
        case 1:
            return shapely.LineString(around)
        case 2:
            return shapely.MultiLineString([around, ring(rng, lat, lon, radius / 3, n)])
        case 3:
            return shapely.Polygon(around, [ring(rng, lat, lon, radius / 9, n)])
        case 4:
            # Nested, and sharing an edge with another.
            return shapely.Polygon(np.concatenate([around[:2], ring(rng, lat, lon, radius, 3)]))
        case _:
            other = CENTRES[rng.integers(len(CENTRES))]
            return shapely.MultiPolygon(
                [shapely.Polygon(around), shapely.Polygon(ring(rng, *other, radius, n))]
            )


def observations(rng, geometries, n=30):
    """Anywhere, on vertices and edges and beside them, and where floats are nasty."""
    vertices = shapely.get_coordinates(geometries)[:, ::-1]
    some = vertices[rng.integers(len(vertices), size=n)]
    others = vertices[rng.integers(len(vertices), size=n)]
    near = some + rng.choice([0, 1e-13, 1e-9, 1e-6, 1e-2], (n, 2)) * rng.normal(0, 1, (n, 2))
    between = (some + others) / 2
    free = np.stack(
        [np.degrees(np.arcsin(rng.uniform(-1, 1, n))), rng.uniform(-180, 360, n)], axis=1
    )
    nasty = np.stack([rng.choice(NASTY_LAT, n), rng.choice(NASTY_LON, n)], axis=1)
    lat, lon = np.concatenate([some, near, between, free, nasty]).T
    return np.clip(lat, -90, 90).copy(), np.clip(lon, -180, 360).copy()


def index_of(geometries, edging):
    outline = outline_of(np.array(geometries, object), edging)
    assert not outline.flaws, outline.flaws
    return ShapeIndex(len(geometries), shapes_of(outline, edging))


def in_plane(geometries, lat, lon):
    """Whether polygons hold points in longitude and latitude, and whether that is hard to say."""
    held, hard = np.zeros((2, lat.size, len(geometries)), bool)
    for row in np.flatnonzero(shapely.get_dimensions(geometries) == 2):
        geometry = geometries[row]
        for turn in (-360, 0, 360):
            there = shapely.points(lon + turn, lat)
            held[:, row] |= shapely.intersects(geometry, there)
            hard[:, row] |= shapely.distance(shapely.boundary(geometry), there) < 1e-11
    return held, hard


def chord2_of(index, lat, lon):
    """Squared chords of all pairs, by the definition: from the arcs of an index, and its sides."""
    shapes = index.shapes
    p = unit_vectors(lat, lon)[:, :3].T
    ends = (
        unit_vectors(shapes.lat_deg[:, i].copy(), shapes.lon_deg[:, i].copy())[:, :3].T
        for i in (0, 1)
    )
    of_arcs = oracle.arc_chord2(p, *ends)
    chord2 = np.full((lat.size, index.n_references), np.inf)
    for row in np.unique(shapes.row):
        chord2[:, row] = of_arcs[:, shapes.row == row].min(axis=1)
    for polygon, row in enumerate([] if shapes.edge_polygon.size else shapes.polygon_row):
        own = np.flatnonzero(shapes.polygon == polygon)
        arcs = np.stack([shapes.lat_deg[own], shapes.lon_deg[own]], axis=2).tolist()
        for i in np.flatnonzero(chord2[:, row] > TOUCHING):
            holds_south = bool(shapes.holds_south[polygon])
            if oracle.is_in_polygon(lat[i], lon[i], arcs, holds_south):
                chord2[i, row] = 0
    return chord2


def metres(chord2):
    return answer_of(Found(np.empty(chord2.size, np.int64), chord2.copy())).distance_m


@pytest.mark.parametrize("edges", ["spherical", "planar"])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), k=st.sampled_from([1, 2, 5, 64]))
def test_the_nearest_are_those_of_the_definition(edges, seed, n, k):
    rng = np.random.default_rng(seed)
    geometries = [shape(rng) for _ in range(n)]
    if edges == "planar":
        # Their edges are long ways around, which takes many arcs.
        geometries = [one for one in geometries if np.diff(shapely.bounds(one)[::2]) < 3] or [
            shapely.Point(0, 0)
        ]
    index = index_of(geometries, Edging(edges, densify_m=1e4))
    lat, lon = observations(rng, geometries, 8)
    chord2 = chord2_of(index, lat, lon)
    if edges == "planar":
        held, hard = in_plane(geometries, lat, lon)
        clear = (held | ~hard).all(axis=1)
        lat, lon, chord2 = lat[clear], lon[clear], np.where(held, 0, chord2)[clear]
    rows = np.argsort(chord2, axis=1, kind="stable")[:, :k]
    found = nearest(index, lat, lon, k=k)
    brute = nearest(index, lat, lon, k=k, algorithm="brute")
    reference = found.reference.reshape(lat.size, k)
    distance = found.distance_m.reshape(lat.size, k)
    expected = metres(np.take_along_axis(chord2, rows, axis=1).ravel()).reshape(rows.shape)
    assert (reference[:, : rows.shape[1]] == rows).all()
    assert (distance[:, : rows.shape[1]] == expected).all()
    assert (reference[:, rows.shape[1] :] == -1).all()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, brute, strict=True))


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 8),
    distance_m=st.sampled_from([0.0, 1e-3, 1e2, 1e5, 5e6, 3e7]),
)
def test_all_within_a_distance_are_those_of_the_definition(seed, n, distance_m):
    rng = np.random.default_rng(seed)
    geometries = [shape(rng) for _ in range(n)]
    index = index_of(geometries, Edging("spherical"))
    lat, lon = observations(rng, geometries, 6)
    chord2 = chord2_of(index, lat, lon)
    each = distance_m * rng.uniform(0, 1, lat.size) if seed % 2 else np.array([distance_m])
    near = chord2 <= chord2_within(each)[:, None]
    asked = each if each.size > 1 else distance_m
    found = within(index, lat, lon, asked)
    brute = within(index, lat, lon, asked, algorithm="brute")
    assert (count_within(index, lat, lon, asked) == near.sum(axis=1)).all()
    if each.size == 1:
        assert (count_near(index, lat, lon, asked) == near.sum(axis=0)).all()
    assert (np.diff(found.starts) == near.sum(axis=1)).all()
    for i in range(lat.size):
        rows = [row for row in np.argsort(chord2[i], kind="stable") if near[i, row]]
        pairs = slice(found.starts[i], found.starts[i + 1])
        assert found.reference[pairs].tolist() == rows
        assert (found.distance_m[pairs] == metres(chord2[i, rows])).all()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, brute, strict=True))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_metres_are_those_to_the_nearest_point_which_is_on_the_shape(seed):
    rng = np.random.default_rng(seed)
    geometries = [shape(rng) for _ in range(3)]
    index = index_of(geometries, Edging("spherical"))
    lat, lon = observations(rng, geometries, 3)
    reference, distance = nearest(index, lat, lon)
    there = nearest_points(index, Degrees(lat, lon), reference, distance)
    shapes = index.shapes
    for i, row in enumerate(reference):
        own = np.flatnonzero(shapes.row == row)
        ends = np.stack([shapes.lat_deg[own], shapes.lon_deg[own]], axis=2)
        least = min(oracle.arc_m(lat[i], lon[i], one) for one in ends)
        if distance[i] == 0.0:
            # In it, or on it as far as float64 can tell.
            assert (there.lat_deg[i], there.lon_deg[i]) == (lat[i], lon[i])
            assert row in shapes.polygon_row or least < 1e-7
            continue
        assert abs(distance[i] - least) < 1e-6
        to = oracle.arc_m(lat[i], lon[i], [(there.lat_deg[i], there.lon_deg[i])] * 2)
        assert abs(distance[i] - to) < 1e-6
        on = min(oracle.arc_m(there.lat_deg[i], there.lon_deg[i], one) for one in ends)
        assert on < 1e-6


@pytest.mark.parametrize("edges", ["spherical", "planar"])
@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize(("lat", "lon"), CENTRES)
@pytest.mark.parametrize("radius", [1e-4, 1.0, 40.0, 85.0])
def test_a_ring_holds_its_smaller_side_unless_it_is_oriented(edges, way, lat, lon, radius):
    rng = np.random.default_rng(7)
    turns = np.arange(0, 360, 10)
    around = ring(rng, lat, lon, radius, turns.size, wobble=0.0)
    p, o = observations(rng, shapely.points(around), 20)
    metres = oracle.haversine_m(lat, lon, p, o)
    reach = np.radians(radius) * oracle.RADIUS_M
    polygon = shapely.Polygon(around[::way])
    if edges == "planar" and (abs(lat) + radius > 80 or radius > 1 or abs(lon) > 179):
        # It is another one in the plane.
        return
    inside = nearest(index_of([polygon], Edging(edges)), p, o).distance_m == 0
    assert inside[metres < 0.8 * reach].all()
    assert not inside[metres > 1.001 * reach].any()
    if edges == "spherical":
        # `ring` goes clockwise: what is on its left is the rest of the globe.
        left = nearest(index_of([polygon], Edging(edges, oriented=True)), p, o).distance_m == 0
        assert left[metres < 0.8 * reach].all() == (way == -1)
        assert left[metres > 1.001 * reach].all() == (way == 1)


@pytest.mark.parametrize(
    "hole", ["(2 2,3 3,2 2,2 2)", "(2 2,2 3,2 2,2 2)", "(2 2,2 2,2 2,2 2)", "EMPTY"]
)
@pytest.mark.parametrize("oriented", [True, False])
def test_a_hole_of_no_area_has_no_sides(hole, oriented):
    shell = "(0 0,10 0,10 10,0 10,0 0)"
    polygons = [shapely.from_wkt(f"POLYGON({shell})"), shapely.from_wkt(f"POLYGON({shell},{hole})")]
    places = np.array([1.0, 50.0, -40.0]), np.array([1.0, 50.0, -120.0])
    whole, holed = (
        nearest(index_of([one], Edging("spherical", oriented=oriented)), *places).distance_m
        for one in polygons
    )
    assert whole[0] == 0
    assert (whole[1:] > 1e6).all()
    assert holed.tobytes() == whole.tobytes()


def test_a_planar_polygon_holds_what_it_holds_in_the_plane():
    rng = np.random.default_rng(11)
    antarctica = [(-180, -90), (180, -90), (180, -80), (90, -65), (0, -70), (-90, -75), (-180, -80)]
    geometries = [
        shapely.Polygon(antarctica),
        shapely.box(100, 49, 128, 60),
        shapely.Polygon([(-179, 10), (179, 10), (0, 80)]),
        shapely.MultiPolygon([shapely.box(170, 60, 180, 70), shapely.box(-180, 61, -170, 69)]),
        shapely.Polygon([(0, 90), (40, 60), (60, 90), (20, 80)]),
        shapely.box(-20, -20, 20, 20).difference(shapely.box(-10, -15, 5, 10)),
    ]
    lat, lon = np.degrees(np.arcsin(rng.uniform(-1, 1, 4000))), rng.uniform(-180, 180, 4000)
    points = shapely.points(lon, lat)
    for geometry in geometries:
        index = index_of([geometry], Edging())
        held = nearest(index, lat, lon).distance_m == 0
        assert (held == shapely.contains(geometry, points)).all()


def test_a_planar_polygon_may_be_all_of_the_globe_or_half_of_it():
    rng = np.random.default_rng(17)
    lat = np.concatenate([np.degrees(np.arcsin(rng.uniform(-1, 1, 300))), NASTY_LAT])
    lon = np.concatenate([rng.uniform(-180, 360, 300), NASTY_LON[: len(NASTY_LAT)]])
    for all_around in (shapely.box(-180, -90, 180, 90), shapely.box(0, -90, 360, 90)):
        assert (nearest(index_of([all_around], Edging()), lat, lon).distance_m == 0).all()
    east = index_of([shapely.box(0, -90, 180, 90)], Edging())
    # So near the border float64 tells no side.
    is_east = ((lon + 1e-12) % 360 <= 180 + 2e-12) | (np.abs(lat) > 90 - 1e-12)
    assert ((nearest(east, lat, lon).distance_m == 0) == is_east).all()


def test_what_is_on_a_straight_edge_is_in_the_polygons_of_both_sides():
    index = index_of([shapely.box(-120, 49, -60, 60), shapely.box(-120, 30, -60, 49)], Edging())
    lon = np.append(np.linspace(-120, -60, 101), 270.0)
    found = nearest(index, np.full(lon.size, 49.0), lon, k=2)
    assert (found.reference == [0, 1]).all()
    assert (found.distance_m == 0).all()


@settings(deadline=None, max_examples=40)
@given(
    ends=st.tuples(*[st.floats(-180, 180), st.floats(-90, 90)] * 2),
    densify_m=st.sampled_from([1.0, 100.0, 1e4]),
)
@example((-124.0, 49.0, -96.0, 49.0), 1.0)
@example((-180.0, 80.0, 180.0, -80.0), 1.0)
@example((10.0, -90.0, 5.0, -80.0), 1.0)
@example((0.0, -38.64465246262306, 0.0, 90.0), 1.0)
def test_arcs_follow_a_straight_edge_within_so_many_metres(ends, densify_m):
    lon, lat, to_lon, to_lat = ends
    line = shapely.LineString([(lon, lat), (to_lon, to_lat)])
    index = index_of([line], Edging("planar", densify_m))
    share = np.linspace(0, 1, 2001)
    there = np.clip(lat + (to_lat - lat) * share, -90, 90), lon + (to_lon - lon) * share
    assert nearest(index, *there).distance_m.max() < densify_m + 1e-6


def test_a_shape_of_many_arcs_is_one_and_so_are_its_parts():
    rng = np.random.default_rng(3)
    many = [shapely.Polygon(ring(rng, 10, lon, 0.9, 5000)) for lon in (0, 2, 4)]
    many.append(shapely.MultiPolygon([shapely.Polygon(ring(rng, 10, 6, 0.5, 9)), many[0]]))
    index = index_of(many, Edging("spherical"))
    lat, lon = rng.uniform(8, 12, 500), rng.uniform(-2, 8, 500)
    reference, distance = nearest(index, lat, lon, k=6)
    assert (np.sort(reference, axis=1) == [-1, -1, 0, 1, 2, 3]).all()
    assert (np.diff(distance[:, :4]) >= 0).all()
    counts = count_within(index, lat, lon, 1e7)
    assert (counts == 4).all()


def test_any_split_and_any_threads_give_the_same_bytes(monkeypatch):
    rng = np.random.default_rng(5)
    geometries = [shape(rng) for _ in range(40)]
    index = index_of(geometries, Edging("spherical"))
    lat, lon = observations(rng, geometries, 100)
    whole = nearest(index, lat, lon, k=3), within(index, lat, lon, 1e5)
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", 7)
    for threads in (1, 2, 7):
        monkeypatch.setattr(allowed, "threads", threads)
        again = nearest(index, lat, lon, k=3), within(index, lat, lon, 1e5)
        for one, other in zip(whole, again, strict=True):
            assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    order = rng.permutation(lat.size)
    for part in np.array_split(order, 9):
        some = nearest(index, lat[part], lon[part], k=3)
        assert some.reference.tobytes() == whole[0].reference[part].tobytes()
        assert some.distance_m.tobytes() == whole[0].distance_m[part].tobytes()


def test_more_shapes_within_a_distance_than_there_is_memory_for_at_first():
    rng = np.random.default_rng(9)
    points = shapely.points(rng.uniform(0, 1, 5000), rng.uniform(0, 1, 5000))
    index = index_of(points, Edging())
    found = within(index, np.array([0.5, 70.0, 0.4]), np.array([0.5, 0.0, 0.5]), 1e6)
    assert np.diff(found.starts).tolist() == [5000, 0, 5000]
    assert sorted(found.reference[:5000]) == list(range(5000))


def test_points_are_as_far_as_points():
    rng = np.random.default_rng(13)
    lat, lon = np.degrees(np.arcsin(rng.uniform(-1, 1, 300))), rng.uniform(-180, 180, 300)
    index = index_of(shapely.points(lon, lat), Edging("spherical"))
    there = np.concatenate([lat, rng.uniform(-90, 90, 300)]), np.concatenate([lon, lon])
    chord2 = oracle.nearest_rows(
        unit_vectors(lat, lon)[:, :3].T, unit_vectors(*there)[:, :3].T, k=2
    )
    found = nearest(index, *there, k=2)
    assert (found.reference == chord2[0]).all()
    assert (found.distance_m.ravel() == metres(chord2[1].ravel())).all()


def test_a_margin_is_more_than_what_touches():
    assert np.sqrt(TOUCHING) * 1.5 < MARGIN
