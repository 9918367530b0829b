"""Searches of two passes whose counts are wrong on purpose: an error, no uninitialised memory."""

import numpy as np
import pytest
import shapely

from georesolve.kernels import (
    Filters,
    build_filtered_index,
    build_index,
    filtered_cpu,
    outlines_cpu,
    shapes_cpu,
    within_cpu,
)
from georesolve.kernels.coordinates_cpu import chord2_within
from georesolve.kernels.passes import PassesDisagreeError, check_passes
from georesolve.kernels.query import Degrees, Within
from tests.kernels.point_sets import sphere
from tests.kernels.test_shapes import Edging, index_of

N = 200
REFERENCES = sphere(np.random.default_rng(1), 3000)
OBSERVATIONS = Degrees(*sphere(np.random.default_rng(2), N))
DISTANCE_M = np.array([2e6])
WITHIN = Within(chord2_within(DISTANCE_M))


def by_points(by, earth):
    bounds = WITHIN if earth == "sphere" else Within(DISTANCE_M)
    return build_index(*REFERENCES, copies=True, earth=earth), OBSERVATIONS, bounds, by


def by_filters():
    rows = np.arange(REFERENCES[0].size)
    filters = Filters(np.zeros(N, np.int32), np.full(N, 1500), 1200, 1200)
    return build_filtered_index(*REFERENCES, rows % 2, rows), OBSERVATIONS, WITHIN, filters, False


def by_shapes():
    lat, lon = REFERENCES
    circles = shapely.buffer(shapely.points(np.clip(lon, -179, 179), np.clip(lat, -89, 89)), 0.5)
    return index_of(circles, Edging("spherical")), OBSERVATIONS, WITHIN, "tree"


SEARCHES = {
    "packets": (within_cpu, lambda: by_points("packets", "sphere")),
    "singles": (within_cpu, lambda: by_points("singles", "sphere")),
    "brute": (within_cpu, lambda: by_points("brute", "sphere")),
    "ellipsoid": (within_cpu, lambda: by_points("packets", "wgs84")),
    "filters": (filtered_cpu, by_filters),
    "shapes": (shapes_cpu, by_shapes),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_counts_that_differ_are_an_error(name):
    module, arguments = SEARCHES[name]
    request = arguments()
    counts = module.count(*request)
    assert counts.min() > 4
    for row in (0, N // 2, N - 1):
        for change in (-1, 1, 1 - counts[row], -4, 300):

            def search(*arguments, row=row, change=change):
                total = module._search(*arguments)
                *_, numbers, pairs = arguments
                if not pairs.starts.size:
                    numbers[row] += change
                return total

            _, pairs_of = within_cpu.count_then_fill(search)
            with pytest.raises(PassesDisagreeError, match=f"^observation {row} has") as caught:
                pairs_of(*request)
            assert f"has {counts[row] + change} results" in str(caught.value)


@pytest.mark.parametrize("name", SEARCHES)
def test_an_observation_that_changes_between_the_passes_is_an_error(name):
    module, arguments = SEARCHES[name]
    index, observations, *options = arguments()
    lat_deg = observations.lat_deg.copy()

    def search(*arguments):
        total = module._search(*arguments)
        lat_deg[11] = np.nan
        return total

    _, pairs_of = within_cpu.count_then_fill(search)
    with pytest.raises(PassesDisagreeError, match=r"^set of observations 0 has"):
        pairs_of(index, observations._replace(lat_deg=lat_deg), *options)


def test_a_disagreement_about_an_index_is_an_error(monkeypatch):
    fill = outlines_cpu._fill_stretches
    monkeypatch.setattr(
        outlines_cpu, "_fill_stretches", lambda *args: fill(*args) + (args[-1].size == 0)
    )
    with pytest.raises(PassesDisagreeError, match=r"^index of shapes 0 has 2 results"):
        index_of([shapely.Point(1, 2)], Edging())


def test_equal_numbers_pass():
    check_passes(np.array([3, 0]), np.array([3, 0]))
    check_passes(np.empty(0, np.int64), np.empty(0, np.int64))
