"""The nearest reference of the same group, or in a window of time, beside the ways round that.

Of 2^20 observations and references with 1, 200 and 100 000 groups: the search without groups, ours,
and loops over the groups (of 200), of our searches and of trees of SciPy on one core. Of 2^22
observations and 2^20 references and a window of 1 % of all time: the search without it, ours, and
one that finds 64 and filters them afterwards, which misses what these hide. All take turns in one
process; degrees are in memory of the device. What is built once for all searches is timed by
itself; loops build their indexes.

    python -m georesolve.benchmarks.groups_and_times
        [--toy] [--device cuda] [--repeats N] [--json FILE]
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, inputs
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.engine.backends import backend_on
from georesolve.kernels import Filters
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.devices import Device

_GROUPS = (1, 200, 100_000)
_LOOPED = 200
_SPAN, _SHARE = 10**12, 0.01
_FEW = 64

Method = tuple[str, Callable[[], Any]]
"""A name, and a search that gives rows of references, -1 for none."""


def _timed(call: Callable[[], Any], device: Device) -> tuple[float, Any]:
    start = time.perf_counter()
    made = call()
    backend_on(device).synchronize()
    return time.perf_counter() - start, made


def _loop(references: Pair, observations: Pair, group: Any, codes: Any) -> Any:
    """The nearest of the same group by a search for each group."""
    found = codes.astype(np.int64) * 0 - 1
    for one in range(int(group.max()) + 1):
        there, here = (group == one).nonzero()[0], (codes == one).nonzero()[0]
        index = kernels.build_index(*(axis[there] for axis in references))
        reference = kernels.nearest(index, *(axis[here] for axis in observations)).reference
        found[here] = there[reference] if there.size else -1
    return found


def _loop_of_trees(references: Pair, observations: Pair, group: Any, codes: Any) -> Any:
    """The same of trees that come with SciPy."""
    there, here = (unit_vectors(*one)[:, :3] for one in (references, observations))
    found = codes.astype(np.int64) * 0 - 1
    grow = import_module("scipy.spatial").cKDTree
    for one in range(int(group.max()) + 1):
        rows, asked = (group == one).nonzero()[0], (codes == one).nonzero()[0]
        if rows.size:
            found[asked] = rows[grow(there[rows]).query(here[asked])[1]]
    return found


def _afterwards(
    index: kernels.ReferenceIndex, observations: Pair, stamps: Any, filters: Filters, step: int
) -> Any:
    """The first of 64 that lies in the window: it may be another one, or none."""
    parts = []
    n = observations[0].size
    for first in range(0, n, step):
        part = slice(first, first + step)
        found = kernels.nearest(index, *(axis[part] for axis in observations), k=_FEW).reference
        there = stamps[found]
        assert filters.time is not None, "a window"
        apart = there - filters.time[part, None]
        able = (found >= 0) & (apart >= -filters.before) & (apart <= filters.after)
        rows = np.take_along_axis(found, able.argmax(axis=1)[:, None], axis=1)[:, 0]
        rows[~able.any(axis=1)] = -1
        parts.append(rows)
    return parts


def _case(
    case: str, methods: list[Method], repeats: int, device: Device, build_s: float
) -> list[dict[str, Any]]:
    """Medians of all methods, in turns after one that does not count."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in methods}
    found: dict[str, Any] = {}
    for turn in range(repeats + 1):
        for name, search in methods:
            before = time.process_time()
            seconds, found[name] = _timed(search, device)
            if turn:
                taken[name].append((seconds, time.process_time() - before))
    rows = []
    for name, each in taken.items():
        wall, processors = (statistics.median(one) for one in zip(*each, strict=True))
        parts = found[name] if isinstance(found[name], list) else [found[name]]
        matched = sum(int((part >= 0).sum()) for part in parts)
        row = {"case": case, "method": name, "seconds": wall, "processors_s": processors}
        rows.append(row | {"found": matched, "build_s": build_s if name == "ours" else None})
        times = wall / rows[0]["seconds"], processors / rows[0]["processors_s"]
        print(
            f"{case:14} {name:20} {1e3 * wall:9.1f} ms x {times[0]:5.2f}   of processors "
            f"{1e3 * processors:9.1f} ms x {times[1]:5.2f}   {matched} found"
        )
    return rows


def _by_group(sets: tuple[Pair, Pair], groups: int, repeats: int, device: Device) -> list[Any]:
    references, observations = sets
    rng, to_device = np.random.default_rng(groups), backend_on(device).to_device
    group, codes = (
        to_device(rng.integers(0, groups, one[0].size).astype(np.int32)) for one in sets
    )

    def build() -> kernels.FilteredIndex:
        return kernels.build_filtered_index(*references, group)

    plain, _ = kernels.build_index(*references), build()
    build_s, index = _timed(build, device)
    filters = Filters(codes)
    methods: list[Method] = [
        ("without", lambda: kernels.nearest(plain, *observations).reference),
        ("ours", lambda: kernels.nearest(index, *observations, filters=filters).reference),
    ]
    if groups == _LOOPED:
        looped = partial(_loop, references, observations, group, codes)
        methods.append(("loop over groups", looped))
        if device == "cpu":
            trees = partial(_loop_of_trees, references, observations, group, codes)
            methods.append(("loop of cKDTree", trees))
    return _case(f"{groups} groups", methods, repeats, device, build_s)


def _in_window(sets: tuple[Pair, Pair], repeats: int, device: Device) -> list[Any]:
    references, observations = sets
    rng, to_device = np.random.default_rng(1), backend_on(device).to_device
    stamps, now = (to_device(rng.integers(0, _SPAN, one[0].size)) for one in sets)
    half = int(_SPAN * _SHARE / 2)
    filters = Filters((now * 0).astype(np.int32), now, half, half)

    def build() -> kernels.FilteredIndex:
        made = kernels.build_filtered_index(*references, None, stamps, share=2 * _SHARE)
        # Trees for such windows are made by the first search.
        first = (axis[:1] for axis in observations)
        one = filters._replace(group=filters.group[:1], time=now[:1])
        kernels.nearest(made, *first, filters=one)
        return made

    plain, _ = kernels.build_index(*references), build()
    build_s, index = _timed(build, device)
    few = partial(_afterwards, plain, observations, stamps, filters, 1 << 20)
    methods: list[Method] = [
        ("without", lambda: kernels.nearest(plain, *observations).reference),
        ("ours", lambda: kernels.nearest(index, *observations, filters=filters).reference),
        ("64, then the window", few),
    ]
    return _case("window of 1 %", methods, repeats, device, build_s)


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table, and write figures where that is asked."""
    parser = benchmark_parser(__doc__, repeats=5, toy=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args(argv)
    scale = 10 if given.toy else 20
    how = given.repeats, given.device

    def sets(more: int) -> tuple[Pair, Pair]:
        both = inputs("uniform", 1 << (scale + more), 1 << scale)
        to_device = backend_on(given.device).to_device
        references, observations = (tuple(map(to_device, one)) for one in both)
        return references, observations

    rows = [row for groups in _GROUPS for row in _by_group(sets(0), groups, *how)]
    rows += _in_window(sets(2), *how)
    write_figures(given.json, rows)


if __name__ == "__main__":
    main()
