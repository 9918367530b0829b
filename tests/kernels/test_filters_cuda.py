"""Searches by group and in time on a GPU: the bytes of the CPU."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy", reason="needs CuPy and a GPU")

from georesolve.kernels import (  # noqa: E402
    Filters,
    build_filtered_index,
    count_within,
    nearest,
    walk_cuda,
    within,
)
from georesolve.kernels.filters import GREATEST  # noqa: E402
from tests.kernels.point_sets import SETS, circle, sphere  # noqa: E402

pytestmark = pytest.mark.gpu

NAMES = ["uniform", "cities", "crowds", "NaN", "one point", "poles", "no reference", "only NaN"]


def on_device(arrays):
    return tuple(cp.asarray(one) if isinstance(one, np.ndarray) else one for one in arrays)


def same_bytes(on_gpu, on_cpu, what):
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu.get().tobytes() == cpu.tobytes(), what


@pytest.mark.parametrize("groups", [1, 3, 300])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_found_is_what_the_cpu_finds(name, groups, timed):
    rng = np.random.default_rng(5)
    references, observations = SETS[name]
    n, m = references[0].size, observations[0].size
    group = rng.integers(-1, groups, n).astype(np.int32)
    time = rng.integers(0, 1000, n) if timed else None
    # Groups without any reference are among those of observations.
    codes = rng.integers(-1, groups + 2, m).astype(np.int32)
    codes[::50] = rng.choice([-(2**31), 2**30, 2**31 - 1], codes[::50].size)
    own = rng.integers(0, 1000, m)
    indexes = (
        build_filtered_index(*references, group, time),
        build_filtered_index(*on_device(references), *on_device((group, time))),
    )
    asked = [Filters(codes)]
    if timed:
        asked = [
            Filters(codes, own, 40, 40),
            Filters(codes, own, 40, 0, skips_own_time=True),
            Filters(codes, own, 900, 900, by_time=True),
        ]
    for filters in asked:
        there = Filters(*on_device(filters))
        for k in (1, 5, 64):
            for more in (
                {},
                {"exclude_self": True},
                {"max_distance_m": 2e6},
                {"algorithm": "brute"},
            ):
                here = nearest(indexes[0], *observations, k=k, filters=filters, **more)
                gpu = nearest(indexes[1], *on_device(observations), k=k, filters=there, **more)
                same_bytes(gpu, here, (k, more, filters.by_time))
        if filters.by_time:
            continue
        for more in ({}, {"exclude_self": True}, {"once": True}, {"algorithm": "brute"}):
            for distance_m in (0.0, 1e6, 5e6):
                here = within(indexes[0], *observations, distance_m, filters=filters, **more)
                degrees = on_device(observations)
                gpu = within(indexes[1], *degrees, distance_m, filters=there, **more)
                same_bytes(gpu, here, (distance_m, more))
                counts = count_within(indexes[1], *degrees, distance_m, filters=there, **more)
                assert (counts.get() == np.diff(here.starts)).all()


@pytest.fixture
def aborted(monkeypatch):
    """Numbers of observations that walks gave up."""
    numbers = []
    search = walk_cuda.search_groups

    def counted(*arguments):
        numbers.append(int(arguments[5][0]))
        search(*arguments)

    monkeypatch.setattr(walk_cuda, "search_groups", counted)
    return numbers


@pytest.fixture
def impatient(monkeypatch):
    """Walks that give up after their first leaf."""
    monkeypatch.setattr(walk_cuda, "_PATIENCE", -63)
    monkeypatch.setattr(walk_cuda, "_PART", 1 << 20)
    walk_cuda.walk.cache_clear()
    yield
    walk_cuda.walk.cache_clear()


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("n", [64, 1 << 17])
def test_a_crowded_group_is_compared_with_all_of_it(timed, n, aborted):
    """References of one group on a ring around its observations, and others anywhere."""
    rng = np.random.default_rng(29)
    sets = circle(rng, 0.0, 20_000), sphere(rng, 10_000)
    references = tuple(np.concatenate(pair) for pair in zip(*sets, strict=True))
    group = np.repeat([1, 0], [20_000, 10_000]).astype(np.int32)
    time = rng.integers(0, 100, group.size) if timed else None
    codes = rng.integers(0, 2, n).astype(np.int32)
    observations = 90 - rng.choice([0, 1e-9], n), rng.uniform(-180, 180, n)
    filters = Filters(codes, rng.integers(0, 100, n), 20, 20) if timed else Filters(codes)
    indexes = (
        build_filtered_index(*references, group, time),
        build_filtered_index(*on_device(references), *on_device((group, time))),
    )
    sample = rng.permutation(n)[:200]
    few = filters._replace(group=codes[sample])
    if timed:
        few = few._replace(time=filters.time[sample])
    for k in (1, 5, 64):
        aborted.clear()
        here = nearest(indexes[0], *(axis[sample] for axis in observations), k=k, filters=few)
        there = Filters(*on_device(filters))
        gpu = nearest(indexes[1], *on_device(observations), k=k, filters=there)
        same_bytes([one[cp.asarray(sample)] for one in gpu], here, k)
        assert sum(aborted) >= (codes == 1).sum() // 2


@pytest.mark.parametrize("groups", [2, 300])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("name", ["uniform", "crowds", "NaN", "one point"])
def test_walks_that_give_up_find_what_the_cpu_finds(name, groups, timed, impatient, aborted):
    rng = np.random.default_rng(31)
    references, observations = SETS[name]
    n, m = references[0].size, observations[0].size
    group = rng.integers(-1, groups, n).astype(np.int32)
    time = rng.integers(0, 1000, n) if timed else None
    codes, instants = rng.integers(-1, groups, m).astype(np.int32), rng.integers(0, 1000, m)
    filters = Filters(codes, instants, 40, 400) if timed else Filters(codes)
    index = build_filtered_index(*references, group, time)
    on_gpu = build_filtered_index(*on_device(references), *on_device((group, time)))
    there = Filters(*on_device(filters))
    for k in (1, 5, 64):
        for more in ({"max_distance_m": 2e6}, {"exclude_self": True}):
            here = nearest(index, *observations, k=k, filters=filters, **more)
            gpu = nearest(on_gpu, *on_device(observations), k=k, filters=there, **more)
            same_bytes(gpu, here, (k, more))
    assert sum(aborted) > 0


@pytest.mark.parametrize("span", [1000, 1 << 62, (1 << 64) - 1])
def test_windows_of_all_widths(span):
    rng = np.random.default_rng(23)
    references, observations = SETS["cities"]
    n, m = references[0].size, observations[0].size
    first = -(span // 2)

    def times(size):
        return first + (rng.random(size) * (span - 1)).astype(np.uint64).astype(object)

    time, own = (times(size).astype(np.int64) for size in (n, m))
    group = rng.integers(0, 3, n).astype(np.int32)
    codes = rng.integers(-1, 3, m).astype(np.int32)
    indexes = (
        build_filtered_index(*references, group, time),
        build_filtered_index(*on_device(references), *on_device((group, time))),
    )
    there = on_device((codes, own))
    # From nothing but the very time to all, and without a limit.
    widths = [(int(span * share), int(span * share / 2)) for share in (0, 1e-9, 1e-3, 0.4)]
    for reach in (*widths, (GREATEST, 0), (7, GREATEST), (GREATEST, GREATEST)):
        filters = Filters(codes, own, *reach)
        asked = Filters(*there, *reach)
        for k in (1, 3):
            here = nearest(indexes[0], *observations, k=k, filters=filters)
            gpu = nearest(indexes[1], *on_device(observations), k=k, filters=asked)
            same_bytes(gpu, here, (reach, k))
        here = within(indexes[0], *observations, 1e6, filters=filters)
        same_bytes(within(indexes[1], *on_device(observations), 1e6, filters=asked), here, reach)
