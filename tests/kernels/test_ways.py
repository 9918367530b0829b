"""`way`: which search runs for how many points, as a table; and that it is the one that runs."""

import numpy as np
import pytest

from georesolve.kernels import (
    Query,
    Within,
    build_index,
    count_within,
    find,
    tree_cpu,
    way,
    within,
    within_cpu,
)
from tests.kernels.point_sets import sphere

ONE, EIGHT, OWN = Query(), Query(8), Query(exclude_self=True)
COUNTED = Query(most_steps=1 << 40)
WITHIN = Within(np.zeros(1))


@pytest.mark.parametrize(
    ("device", "n_observations", "n_references", "query", "algorithm", "search"),
    [
        ("cpu", 1, 0, ONE, "auto", "brute"),
        ("cpu", 1, 8_192, ONE, "auto", "brute"),
        ("cpu", 1, 8_193, ONE, "auto", "singles"),
        ("cpu", 1, 3_000, ONE, "tree", "singles"),
        ("cpu", 2**24, 2**20, ONE, "brute", "brute"),
        ("cpu", 2**20, 2**14, ONE, "auto", "cells"),
        ("cpu", 2**20, 2**14, ONE, "tree", "cells"),
        ("cpu", 2**20, 2**14, OWN, "auto", "packets"),
        ("cpu", 2**20, 2**14, COUNTED, "auto", "packets"),
        ("cpu", 2**20, 2**14, EIGHT, "auto", "packets"),
        ("cpu", 2**17, 2**17 // 48, ONE, "auto", "cells"),
        ("cpu", 2**17 - 1, 2**17 // 48, ONE, "auto", "packets"),
        ("cpu", 2**17, 2**17 // 48 + 1, ONE, "auto", "packets"),
        ("cpu", 64, 1_024, ONE, "tree", "packets"),
        ("cpu", 64, 1_025, ONE, "tree", "singles"),
        ("cpu", 63, 100, ONE, "tree", "singles"),
        ("cpu", 64, 256, EIGHT, "tree", "packets"),
        ("cpu", 64, 257, EIGHT, "tree", "singles"),
        ("cpu", 64, 257, OWN, "tree", "singles"),
        ("cpu", 4_096, 32, ONE, "auto", "brute"),
        ("cpu", 4_096, 33, ONE, "auto", "packets"),
        ("cpu", 16, 1_024, EIGHT, "auto", "brute"),
        ("cpu", 16, 1_025, EIGHT, "auto", "singles"),
        ("cpu", 2**20, 16, EIGHT, "auto", "packets"),
        ("cpu", 1, 1, WITHIN, "auto", "singles"),
        ("cpu", 64, 1, WITHIN, "auto", "packets"),
        ("cpu", 64, 1, WITHIN, "brute", "brute"),
        ("cpu", 64, 64 * 128, WITHIN, "auto", "packets"),
        ("cpu", 64, 64 * 128 + 1, WITHIN, "auto", "singles"),
        ("cpu", 2**28, 2**20, WITHIN, "auto", "packets"),
        ("cuda", 2**16, 1_024, ONE, "auto", "brute"),
        ("cuda", 2**16, 1_025, ONE, "auto", "singles"),
        ("cuda", 2**16 + 1, 1_024, ONE, "auto", "singles"),
        ("cuda", 2**17 - 1, 2**14, ONE, "auto", "singles"),
        ("cuda", 2**17, 2**14, ONE, "auto", "packets"),
        ("cuda", 2**17, 2**14, EIGHT, "auto", "packets"),
        ("cuda", 2**14, 2**14, Query(64), "auto", "packets"),
        ("cuda", 2**14 - 1, 2**14, Query(64), "auto", "singles"),
        ("cuda", 2**21, 2**15, ONE, "auto", "cells"),
        ("cuda", 2**21, 2**15 + 1, ONE, "auto", "packets"),
        ("cuda", 2**21, 2**15, OWN, "auto", "packets"),
        ("cuda", 2**21, 2**15, EIGHT, "auto", "packets"),
        ("cuda", 2**24, 2**20, ONE, "brute", "brute"),
    ],
)
def test_the_search_of_so_many_points(
    device, n_observations, n_references, query, algorithm, search
):
    chosen = way(device, n_observations, n_references, query, algorithm)
    assert chosen.search == search
    assert str(chosen).startswith(f"{search}, because ")


@pytest.mark.parametrize(
    ("n_observations", "n_references", "query"),
    [
        (50, 20_000, ONE),
        (5_000, 20_000, ONE),
        (5_000, 20_000, EIGHT),
        (5_000, 20_001, EIGHT),
        (5_000, 5_000, OWN),
        (2**17, 2_000, ONE),
        (2**17, 2_000, OWN),
    ],
)
def test_the_search_that_is_named_is_the_one_that_runs(
    n_observations, n_references, query, monkeypatch
):
    ran = []
    right, cells = tree_cpu.in_threads, tree_cpu.search_cells

    def in_threads(loop, *arguments):
        ran.append(loop)
        right(loop, *arguments)

    def search_cells(*of, **how):
        ran.append(cells)
        return cells(*of, **how)

    monkeypatch.setattr(tree_cpu, "in_threads", in_threads)
    monkeypatch.setattr(tree_cpu, "search_cells", search_cells)
    rng = np.random.default_rng(1)
    index = build_index(*sphere(rng, n_references))
    find(index, *sphere(rng, n_observations), k=query.k, exclude_self=query.exclude_self)
    named = way("cpu", n_observations, n_references, query)
    several = query.k > 1 or query.exclude_self
    assert (
        ran[0]
        is {
            "cells": cells,
            "packets": tree_cpu.search_lists if several else tree_cpu.search_packets,
            "singles": tree_cpu.search_singles,
        }[named.search]
    )


@pytest.mark.parametrize("search", [within, count_within])
@pytest.mark.parametrize("sizes", [(50, 20_000), (200, 20_000)])
@pytest.mark.parametrize("algorithm", ["auto", "brute"])
def test_all_within_a_distance_are_searched_as_it_is_named(search, sizes, algorithm, monkeypatch):
    ran = set()
    right = within_cpu.in_threads

    def in_threads(loop, *arguments):
        _, packets, brute, *_ = arguments
        is_one = packets.stops[0] - packets.firsts[0] == 1
        ran.add("brute" if brute else "singles" if is_one else "packets")
        right(loop, *arguments)

    monkeypatch.setattr(within_cpu, "in_threads", in_threads)
    rng = np.random.default_rng(1)
    index = build_index(*sphere(rng, sizes[1]), copies=True)
    search(index, *sphere(rng, sizes[0]), 1e5, algorithm=algorithm)
    assert ran == {way("cpu", *sizes, WITHIN, algorithm).search}
