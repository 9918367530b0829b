"""Searches by group and in time against an oracle in numpy, and `merge_asof` of pandas beside."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georesolve.kernels import (
    Filters,
    build_filtered_index,
    build_index,
    count_within,
    filtered_cpu,
    nearest,
    within,
)
from georesolve.kernels.coordinates_cpu import chord2_within, unit_vectors
from georesolve.kernels.filters import GREATEST, LEAST
from georesolve.kernels.order_cpu import ROW, Scratch, sort_parts
from georesolve.kernels.query import StepsSpent
from tests.kernels.point_sets import SETS, points, sphere

EDGES = [-(2**63), 1 - 2**63, -(2**62), 2**62, 2**63 - 2, 2**63 - 1]
SECONDS = st.sampled_from([0, 1, 2, 3, 10, *EDGES]) | st.integers(-20, 20)


def matching(references, observations, group, filters, time, own, chord2):
    """Candidates of each observation in their order, by the definition: rows."""
    there, here = (unit_vectors(*one)[:, :3] for one in (references, observations))
    for i, vector in enumerate(here):
        apart = vector - there
        square = apart[:, 0] ** 2 + apart[:, 1] ** 2 + apart[:, 2] ** 2
        able = (square <= chord2) & (group == filters.group[i]) & (filters.group[i] >= 0)
        rank = np.zeros(group.size, object)
        if time.size:
            apart = time.astype(object) - int(filters.time[i])
            able &= ((apart >= -filters.before) | (filters.before == GREATEST)).astype(bool)
            able &= ((apart <= filters.after) | (filters.after == GREATEST)).astype(bool)
            if filters.skips_own_time:
                able &= time != filters.time[i]
            if filters.by_time:
                # What is farther apart than 63 bits hold is all as far.
                rank = np.minimum(abs(apart), GREATEST)
        if own:
            able[i : i + 1] = False
        rows = np.flatnonzero(able)
        yield np.array(sorted(rows, key=lambda row: (rank[row], square[row], row)), np.int64)


def check(references, observations, group, filters, time, k=1, own=False, distance_m=None):
    index = build_filtered_index(*references, group, time if time.size else None)
    chord2 = 9.0 if distance_m is None else chord2_within(np.array([distance_m]))[0]
    want = [*matching(references, observations, group, filters, time, own, chord2)]
    n = observations[0].size
    reach = 3e7 if distance_m is None else distance_m
    first = np.full((n, k), -1)
    for row, rows in zip(first, want, strict=True):
        row[: min(k, rows.size)] = rows[:k]
    options = {"exclude_self": own, "filters": filters}
    for algorithm in ("auto", "brute"):
        options["algorithm"] = algorithm
        found = nearest(index, *observations, k=k, max_distance_m=distance_m, **options)
        np.testing.assert_array_equal(found.reference.reshape(n, k), first)
        if filters.by_time:
            continue
        pairs = within(index, *observations, reach, **options)
        np.testing.assert_array_equal(np.diff(pairs.starts), [rows.size for rows in want])
        np.testing.assert_array_equal(pairs.reference, np.concatenate([[], *want]))
        counts = count_within(index, *observations, reach, **options)
        np.testing.assert_array_equal(counts, np.diff(pairs.starts))


@st.composite
def asked(draw):
    references, observations = draw(points()), draw(points())
    n, m = references[0].size, observations[0].size
    groups = draw(st.integers(1, 4))

    def whole(values, size):
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), np.int64)

    group = whole(st.integers(-1, groups - 1), n).astype(np.int32)
    # Groups without any reference are among those of observations.
    unknown = st.sampled_from([-(2**31), 2**30, 2**31 - 1])
    codes = whole(st.integers(-2, groups + 1) | unknown, m).astype(np.int32)
    if draw(st.booleans()):
        return references, observations, group, Filters(codes), np.empty(0, np.int64)
    time, own = whole(SECONDS, n), whole(SECONDS, m)
    before, after = (draw(st.sampled_from([0, 1, 5, 2**62, GREATEST])) for _ in range(2))
    by_time, skips = draw(st.booleans()), draw(st.booleans())
    return (
        references,
        observations,
        group,
        Filters(codes, own, before, after, by_time, skips),
        time,
    )


@settings(max_examples=80, deadline=None)
@given(asked(), st.sampled_from([1, 2, 64]), st.booleans(), st.sampled_from([None, 0.0, 3e6]))
def test_whatever_is_asked_the_definition_says_it(sets, k, own, distance_m):
    check(*sets, k=k, own=own, distance_m=distance_m)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("timed", [False, True])
def test_an_unknown_group_matches_nothing(n_groups, timed):
    rng = np.random.default_rng(4)
    references, observations = sphere(rng, 100), sphere(rng, 8)
    group = rng.integers(0, n_groups, 100).astype(np.int32)
    group[0] = n_groups - 1
    time = np.arange(100) if timed else np.empty(0, np.int64)
    codes = np.array([0, -1, n_groups, 7, 2**30, 2**31 - 1, n_groups - 1, -(2**31)], np.int32)
    filters = Filters(codes, np.zeros(8, np.int64)) if timed else Filters(codes)
    for k in (1, 3):
        check(references, observations, group, filters, time, k=k)


@pytest.mark.parametrize("name", ["uniform", "crowds", "NaN", "one point", "no reference"])
@pytest.mark.parametrize("k", [1, 3])
def test_large_groups_and_many_trees(name, k):
    rng = np.random.default_rng(3)
    references, observations = SETS[name]
    sample = rng.permutation(observations[0].size)[:3000]
    some = tuple(one[sample] for one in observations)
    n, m = references[0].size, some[0].size
    check_few = rng.permutation(m)[:150]
    for groups in (2, 400):
        group = rng.integers(0, groups, n).astype(np.int32)
        filters = Filters(
            np.minimum(rng.integers(0, groups, m), group.max(initial=-1)).astype("i4")
        )
        index = build_filtered_index(*references, group)
        found = nearest(index, *some, k=k, filters=filters).reference.reshape(m, k)
        few = tuple(one[check_few] for one in some)
        own = Filters(filters.group[check_few])
        want = [*matching(references, few, group, own, np.empty(0), False, 9.0)]
        for row, rows in zip(found[check_few], want, strict=True):
            np.testing.assert_array_equal(row, np.append(rows, [-1] * k)[:k])
    time, own_time = rng.integers(0, 10**6, n), rng.integers(0, 10**6, m)
    few_times = own_time[check_few]
    for by_time in (False, True):
        few_groups = np.zeros(few_times.size, np.int32)
        filters = Filters(few_groups, few_times, 30_000, 30_000, by_time)
        check(few_of(some, check_few), few_of(some, check_few), few_groups,
              filters, few_times, k=k)  # fmt: skip
        found = nearest(
            build_filtered_index(*references, None, time), *few_of(some, check_few), k=k,
            filters=filters,
        ).reference.reshape(-1, k)  # fmt: skip
        group = np.zeros(n, np.int32)
        want = matching(references, few_of(some, check_few), group, filters, time, False, 9.0)
        for row, rows in zip(found, want, strict=True):
            np.testing.assert_array_equal(row, np.append(rows, [-1] * k)[:k])


@pytest.mark.parametrize(("columns", "run"), [(1, 1), (1, 16), (2, 1)])
def test_points_by_part_are_those_of_the_part(columns, run):
    rng = np.random.default_rng(2)
    n = 40_001
    part = rng.integers(-1, 30, (n, columns)).astype(np.int32)
    words = np.empty((2, n * columns), np.int64)
    memory = Scratch(unit_vectors(*sphere(rng, n)), *words)
    starts = sort_parts(memory, part, 30, run)
    for number in range(30):
        rows = memory.order[starts[number] : starts[number + 1]] & ROW
        want = np.concatenate([np.flatnonzero(column == number) for column in part.T])
        np.testing.assert_array_equal(np.sort(rows), np.sort(want))


@pytest.mark.parametrize("half", [0, 200, 30_000, 10**7])
def test_windows_of_one_tree_each(half):
    rng = np.random.default_rng(5)
    references, observations = sphere(rng, 4000), sphere(rng, 3000)
    # Of one place and of one time are some, and no reference has the times of a gap.
    for one in references:
        one[:300] = one[0]
    time = rng.integers(0, 10**6, 4000) // 1000 * 1000
    time[(time > 400_000) & (time < 600_000)] = 0
    own = rng.integers(-(10**5), 11 * 10**5, 3000) // 1000 * 1000
    for groups in (1, 3):
        group = rng.integers(0, groups, 4000).astype(np.int32)
        filters = Filters(rng.integers(0, groups, 3000).astype(np.int32), own, half, half // 2)
        index = build_filtered_index(*references, group, time)
        few = rng.permutation(3000)[:150]
        some = filters._replace(group=filters.group[few], time=own[few])
        for distance_m, chord2 in ((None, 9.0), (5e5, chord2_within(np.array([5e5]))[0])):
            found = nearest(index, *observations, max_distance_m=distance_m, filters=filters)
            want = matching(references, few_of(observations, few), group, some, time, False, chord2)
            for row, rows in zip(found.reference[few], want, strict=True):
                assert row == (rows[0] if rows.size else -1)
        counts = count_within(index, *observations, 5e5, filters=filters)
        want = matching(references, few_of(observations, few), group, some, time, False, chord2)
        np.testing.assert_array_equal(counts[few], [rows.size for rows in want])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("n", [300, 20_000])
def test_a_group_takes_no_more_steps_than_it_may(n, k):
    rng = np.random.default_rng(9)
    references, observations = sphere(rng, 40_000), sphere(rng, n)
    # Of a few observations each walks by itself, of many in packets, and others are of a small one.
    group = (np.arange(40_000) < 10).astype(np.int32)
    filters = Filters((np.arange(n) < 3).astype(np.int32))
    index = build_filtered_index(*references, group)
    for most_steps in (0, 1 << 10, 1 << 14):
        with pytest.raises(StepsSpent):
            nearest(index, *observations, k=k, filters=filters, most_steps=most_steps)
    found = nearest(index, *observations, k=k, filters=filters, most_steps=1 << 40)
    want = nearest(index, *observations, k=k, filters=filters)
    np.testing.assert_array_equal(found.reference, want.reference)


def test_a_few_narrow_windows_take_the_trees_of_wider_ones():
    rng = np.random.default_rng(8)
    references, observations = sphere(rng, 20_000), sphere(rng, 2000)
    time, own = rng.integers(0, 10**6, 20_000), rng.integers(0, 10**6, 2000)
    index = build_filtered_index(*references, None, time)
    for half, n, made in ((10**5, 2000, 1), (2000, 5, 1), (2000, 2000, 2), (2000, 5, 2)):
        some = tuple(one[:n] for one in observations)
        here = own[:n]
        filters = Filters(np.zeros(n, np.int32), here, half, half)
        found = nearest(index, *some, filters=filters).reference
        want = matching(references, some, np.zeros(20_000), filters, time, False, 9.0)
        few = zip(found[:20], want, strict=False)
        assert all(row == rows[0] for row, rows in few)
        assert len(index._reaching) == made


@pytest.mark.parametrize("n", [1, 600])
def test_what_has_no_time_matches_nothing(n):
    at, time = (np.zeros(2), np.arange(2.0)), np.array([LEAST, LEAST])
    for skips in (False, True):
        filters = Filters(np.zeros(n, np.int32), np.full(n, 7), skips_own_time=skips)
        index = build_filtered_index(*at, np.array([-1, 0], np.int32), time)
        found = nearest(index, np.zeros(n), np.zeros(n), filters=filters).reference
        assert (found == 1).all()
        assert (count_within(index, np.zeros(n), np.zeros(n), 1e6, filters=filters) == 1).all()


@pytest.mark.parametrize("k", [1, 3])
def test_times_of_all_64_bits(k):
    rng = np.random.default_rng(11)
    references, observations = sphere(rng, 1500), sphere(rng, 200)
    time, own = (rng.integers(LEAST, GREATEST, n) for n in (1500, 200))
    filters = Filters(np.zeros(200, np.int32), own, by_time=True)
    group = np.zeros(1500, np.int32)
    check(references, observations, group, filters, time, k=k)
    # As far apart as is told are several, of which one is the nearest.
    time = np.where(time < 0, rng.integers(LEAST, LEAST + 9, 1500), GREATEST)
    own = np.where(own < 0, 7, -3)
    check(references, observations, group, filters._replace(time=own), time, k=k)


def test_trees_of_the_last_widths_are_kept(monkeypatch):
    rng = np.random.default_rng(13)
    references, observations = sphere(rng, 2000), sphere(rng, 400)
    index = build_filtered_index(*references, None, rng.integers(0, 10**6, 2000))
    widths = []
    plant = filtered_cpu.grow
    monkeypatch.setattr(
        filtered_cpu, "grow", lambda *given: widths.append(given[-1]) or plant(*given)
    )
    filters = Filters(np.zeros(400, np.int32), rng.integers(0, 10**6, 400), after=0)
    for before in (1000, 40_000, 1000, 39_000, GREATEST, GREATEST, 1000):
        nearest(index, *observations, filters=filters._replace(before=before))
    # Somewhat wider ones serve, and all of the time is the widest.
    assert widths == [1000, 40_000, int(np.ptp(index.time))]


@pytest.mark.parametrize("end", [-1, 1])
@pytest.mark.parametrize("k", [1, 3])
def test_windows_without_a_limit_have_trees_of_the_time_that_they_reach(monkeypatch, k, end):
    rng = np.random.default_rng(19)
    references, observations = sphere(rng, 5000), sphere(rng, 2000)
    time = end * np.append(rng.integers(0, 10**6, 4998), [0, 10**6])
    widths = []
    plant = filtered_cpu.grow
    monkeypatch.setattr(
        filtered_cpu, "grow", lambda *given: widths.append(given[-1]) or plant(*given)
    )
    reach = {"before": GREATEST, "after": 0} if end == 1 else {"before": 0, "after": GREATEST}
    group = rng.integers(-1, 1, 2000).astype(np.int32)
    for low, high, made in (
        (0, 10**6, [10**6, 125_000]),
        (10**4, 15_000, [15_625]),
        # Nothing is before all.
        (-(10**6), -1, [10**6]),
    ):
        index = build_filtered_index(*references, None, time)
        own = end * rng.integers(low, high, 2000)
        filters = Filters(group, own, **reach)
        found = nearest(index, *observations, k=k, filters=filters).reference.reshape(-1, k)
        assert widths == made, (low, high)
        widths.clear()
        few = rng.permutation(2000)[:100]
        some = filters._replace(group=group[few], time=own[few])
        want = matching(references, few_of(observations, few), 0 * time, some, time, False, 9.0)
        for row, rows in zip(found[few], want, strict=True):
            np.testing.assert_array_equal(row[row >= 0], rows[:k])


def few_of(sets, rows):
    return tuple(one[rows] for one in sets)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("tolerance", [None, 40])
def test_in_one_place_it_is_merge_asof(direction, tolerance):
    rng = np.random.default_rng(7)
    # Odd and even: no reference is as far apart in time as another, in either direction.
    time = np.sort(rng.choice(2000, 700, replace=False) * 4)
    own = np.sort(rng.choice(4000, 900, replace=False) * 2 + 1)
    keys, own_keys = rng.integers(0, 5, 700), rng.integers(0, 5, 900)
    far = GREATEST if tolerance is None else tolerance
    before, after = (0 if direction == one else far for one in ("forward", "backward"))
    index = build_filtered_index(np.full(700, 4.0), np.full(700, 5.0), keys.astype("i4"), time)
    filters = Filters(own_keys.astype("i4"), own, before, after, by_time=True)
    found = nearest(index, np.full(900, 4.0), np.full(900, 5.0), filters=filters).reference
    merged = pd.merge_asof(
        pd.DataFrame({"t": own, "key": own_keys}),
        pd.DataFrame({"t": time, "key": keys, "row": np.arange(700)}),
        on="t", by="key", direction=direction, tolerance=tolerance,
    )  # fmt: skip
    want = merged["row"].fillna(-1).to_numpy(np.int64)
    apart = np.where(want >= 0, abs(time[want] - own), -1)
    np.testing.assert_array_equal(np.where(found >= 0, abs(time[found] - own), -1), apart)
    same = np.array([(keys == key).sum() for key in own_keys])
    assert (found >= 0).sum() > 100
    assert same.min() > 100
    ties = [
        ((abs(time - t) == a) & (keys == key)).sum() > 1
        for t, a, key in zip(own, apart, own_keys, strict=True)
    ]
    np.testing.assert_array_equal(found[~np.array(ties)], want[~np.array(ties)])


def test_filters_that_restrict_nothing_are_the_plain_search():
    rng = np.random.default_rng(1)
    references, observations = sphere(rng, 500), sphere(rng, 600)
    time = rng.integers(0, 100, 500)
    index = build_filtered_index(*references, None, time)
    wide = Filters(np.zeros(600, np.int32), np.full(600, 5), 5, 94)
    assert index.restricts(wide._replace(after=93)) == (time.max() == 99)
    assert not index.restricts(wide)
    plain = nearest(build_index(*references), *observations)
    before = index.nbytes
    found = nearest(index, *observations, filters=wide)
    assert index.nbytes == before + index.plain.nbytes
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, plain, strict=True))
    none = wide._replace(group=np.full(600, -1, np.int32))
    assert (nearest(index, *observations, filters=none).reference == -1).all()


def test_more_references_than_trees_number_are_refused():
    # An array without memory of its own.
    many = np.broadcast_to(0.0, (1 << 29) + 1)
    with pytest.raises(ValueError, match="must be 536870912 at most, got 536870913"):
        build_filtered_index(many, many)
