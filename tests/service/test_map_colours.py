"""Colours of distances of which many are equal, against their share of all distances."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georesolve.query import MatchOptions
from georesolve.service.maps.picture import scale_of
from georesolve.workers.job import Job
from georesolve.workers.results.distances import PERCENTS, Distances, Histogram, measure
from tests.conftest import store_points
from tests.workers.test_assembly import put_together

VIRIDIS = scale_of(
    Distances({}, [float(one) for one in PERCENTS], *[Histogram([], [])] * 2), is_count=False
).colours


def number_of(scale, metres):
    """Number of the colour of a distance, by the rule that the layer gives to clients."""
    place = max(0, np.searchsorted(scale.starts, metres, "right") - 1)
    return VIRIDIS.index(scale.colours[place])


@given(
    st.lists(st.tuples(st.floats(0, 2e7), st.integers(1, 50)), min_size=1, max_size=8),
    st.sampled_from([0.0, None]),
)
def test_the_smallest_distance_has_the_first_colour(groups, smallest):
    values = [value for value, _ in groups]
    if smallest is not None:
        values[0] = smallest
    metres = np.repeat(values, [size for _, size in groups])
    percentiles = np.percentile(metres, PERCENTS).tolist()
    scale = scale_of(Distances({}, percentiles, *[Histogram([], [])] * 2), is_count=False)
    assert scale.starts == sorted(set(scale.starts))
    assert len(scale.starts) == len(scale.colours)
    assert scale.starts[-1] <= metres.max()
    numbers = [number_of(scale, value) for value in sorted(values)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0


@pytest.mark.parametrize(
    ("groups", "colours"),
    [
        ({0.0: 600, 42.5: 400}, {0.0: 0}),
        ({0.0: 1000}, {0.0: 0}),
        ({42.5: 1000}, {42.5: 0}),
        ({0.0: 300, 1000.0: 500, 5000.0: 200}, {0.0: 0, 1000.0: 32, 5000.0: 61}),
    ],
)
def test_tied_distances_have_the_colour_that_begins_with_them(groups, colours, tmp_path):
    """The colour begins at the first percentile of the scale that is at the distance."""
    (tmp_path / "job" / "parts").mkdir(parents=True)
    seen = store_points(pa.table({"lat": [1.0], "lon": [2.0]}), tmp_path / "points.parquet")
    job = Job(seen, seen, MatchOptions(), id="job", folder=tmp_path / "job")
    metres = np.repeat([*groups], [*groups.values()])
    table = {"observation": np.arange(1000), "distance_m": metres, "status": ["matched"] * 1000}
    distances = measure(put_together(job, pa.table(table), [0, 1000]))
    scale = scale_of(distances, is_count=False)
    assert {value: number_of(scale, value) for value in colours} == colours
