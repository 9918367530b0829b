"""`comparisons`: how many references an observation is compared with, by a sample."""

import numpy as np
import pytest

from georesolve.kernels import build_index
from georesolve.kernels.comparisons_cpu import comparisons
from tests.kernels.point_sets import box, circle, cities, sphere, with_nan


@pytest.mark.parametrize("k", [1, 8, 64])
@pytest.mark.parametrize("n", [2**10, 2**14])
@pytest.mark.parametrize("draw", [sphere, box, cities])
def test_spread_points_take_the_usual_number(draw, n, k):
    rng = np.random.default_rng(3)
    seen = comparisons(build_index(*draw(rng, n)), *with_nan(rng, draw(rng, 5_000)), k)
    assert 0.5 < seen / (30 + 3 * k) < 1.6


@pytest.mark.parametrize("k", [1, 8, 64])
def test_of_a_circle_all_references_are_compared(k):
    rng = np.random.default_rng(3)
    references, pole = circle(rng, 45.0, 2**14), (np.full(300, 90.0), np.zeros(300))
    assert comparisons(build_index(*references), *pole, k) == 2**14
    # Every second observation stands there.
    lat_deg, lon_deg = sphere(rng, 300)
    lat_deg[::2] = 90.0
    seen = comparisons(build_index(*references), lat_deg, lon_deg, k)
    assert seen == pytest.approx(2**13, rel=0.4)


@pytest.mark.parametrize("k", [1, 8])
def test_references_at_one_place_take_some_more(k):
    place = np.full(2**14, 7.5)
    assert 1 < comparisons(build_index(place, place), place, place, k) / (30 + 3 * k) < 3


def test_nothing_is_compared_where_nothing_is():
    some, none = np.zeros(5), np.zeros(0)
    for references, observations in [(some, none), (none, some), (none, none), (some, some + 99)]:
        index = build_index(references, references)
        assert comparisons(index, observations, observations) == 0
