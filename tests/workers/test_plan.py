"""The plan: every row in exactly one chunk, chunks of a bearable size."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from workers.datasets import ROW_GROUP
from workers.plan import chunks


@given(
    st.integers(0, 1 << 26),
    st.integers(1, 1 << 28),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 64),
)
def test_every_row_is_in_one_chunk(n_observations, n_references, device, n_workers):
    plan = chunks(n_observations, n_references, device, n_workers)
    assert plan[0].start == 0
    assert plan[-1].stop == n_observations
    for one, following in itertools.pairwise(plan):
        assert one.start < one.stop == following.start
        size = one.stop - one.start
        assert size <= ROW_GROUP or size % ROW_GROUP == 0
