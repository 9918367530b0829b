"""Shapes of a map that are smaller than a pixel: each part has its own box."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import shapely

from georesolve.io.datasets import Edging, Outlines
from georesolve.workers.tiles.map_shapes import shapes_in
from tests.conftest import store_points

WORLD = (-180.0, -85.0, 180.0, 85.0)


def drawn_in(view, shapes, tmp_path):
    """Geometries of a view by row, the largest first."""
    table = pa.table(
        {"geometry": shapely.to_wkb(shapes), "lat": [0.0] * len(shapes), "lon": [0.0] * len(shapes)}
    )
    points = store_points(table, tmp_path / "shapes.parquet")
    dataset = replace(points, outlines=Outlines("geometry", Edging(), 1))
    features = [json.loads(one) for one in shapes_in(dataset, view)[1]]
    return [
        (one["properties"]["reference"], shapely.from_geojson(json.dumps(one["geometry"])))
        for one in features
    ]


def islands(rng, n):
    """Discs of 2 to 20 km on both sides of 180 degrees, as those of Kiribati."""
    lon = rng.choice([-1, 1], n) * rng.uniform(150, 179, n)
    centres = shapely.points(lon, rng.uniform(-12, 5, n))
    return shapely.MultiPolygon([*shapely.buffer(centres, rng.uniform(0.01, 0.1, n))])


@pytest.mark.parametrize("n", [2, 3, 33])
def test_scattered_islands_have_boxes_of_their_own(n, tmp_path):
    shape = islands(np.random.default_rng(n), n)
    drawn = drawn_in(WORLD, [shape], tmp_path)
    assert {row for row, _ in drawn} == {0}
    together = shapely.union_all([geometry for _, geometry in drawn])
    boxes = shapely.union_all(shapely.envelope(shapely.get_parts(shape)))
    # A map has the world once more where its view ends.
    inside = shapely.intersection(together, shapely.box(*WORLD))
    assert shapely.area(shapely.symmetric_difference(inside, boxes)) < 1e-6
    assert shapely.area(inside) < 2 * shapely.area(shape)


def test_the_largest_is_that_with_the_largest_part(tmp_path):
    country = shapely.box(0, 0, 30, 30)
    shapes = [islands(np.random.default_rng(1), 9), country]
    assert drawn_in(WORLD, shapes, tmp_path)[0] == (1, country)


def test_a_polygon_of_one_part_keeps_its_box(tmp_path):
    disc = shapely.Point(8, 50).buffer(0.01)
    [(row, geometry)] = drawn_in(WORLD, [disc], tmp_path)
    assert row == 0
    assert geometry.equals_exact(shapely.set_precision(disc.envelope, 1e-7, "pointwise"), 1e-9)
