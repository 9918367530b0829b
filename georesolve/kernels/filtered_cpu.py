"""Observations that match references of their group and time alone, on a CPU: `search` and `near`.

They walk trees of their group (`kernels.forest_cpu`). A tree with many observations is searched by
the loops that search any set (`packets_cpu`, `lists_cpu`, `singles_cpu`): it holds all that these
observations match, and in time they compare the time of what they meet. Others walk in packets of
up to sixteen neighbours of one tree, in which each observation tests all eight references of a leaf
at once. What is left out is farther than it matters to all of the packet, as `kernels.tree_cpu`
proves. By time apart a packet walks from the tree of its time outwards, and what an observation has
found narrows its window, as it narrows the distance otherwise.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NO_LIMIT, NODE_STEPS, STACK, WIDTH
from georesolve.kernels.coordinates_cpu import readable
from georesolve.kernels.distance import closer
from georesolve.kernels.filters import GREATEST, LEAST, FilteredIndex, Filters, by_reach
from georesolve.kernels.forest_cpu import (
    FINER,
    TREES_DEEP,
    Forest,
    bucket_of,
    build,
    grow,
    tree_of,
)
from georesolve.kernels.lanes_cpu import (
    borrowed,
    children_within,
    compare_times,
    greatest_of_16,
    lanes_within,
    load_lanes,
    lowest_bit,
    members_matching,
    prefetch_for_write,
    times_within,
)
from georesolve.kernels.lists_cpu import search_lists
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, keys_along, sort_parts, windows
from georesolve.kernels.packets_cpu import (
    LANES,
    LEAF_STEPS,
    InTime,
    OnSphere,
    aligned_rows,
    search_packets,
    take,
)
from georesolve.kernels.query import Degrees, Found, Pairs, Query, Within, steps_left
from georesolve.kernels.singles_cpu import search_singles
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.times import window_of
from georesolve.kernels.walk_cpu import leaf_of, leaves_near, leaves_to_fill, look, walk
from georesolve.kernels.ways import spread_of
from georesolve.kernels.within_cpu import (
    NO_TIMES,
    Packets,
    count_then_fill,
    load_window,
    search_part,
)

__all__ = ["build", "count", "pairs", "placed", "search"]

_GRAIN = 16
"""Packets that are worth a thread."""
_TURN = 64
"""Packets that a thread takes in its turn."""
_MORE_LEAVES = 4
"""Leaves that are looked into first where windows leave out a part of what is in each."""
_PACKED, _LISTED, _SHARED = 1 << 8, 1 << 11, 1 << 13
"""Observations of a tree from which it is searched by itself, for the nearest one and for several,
and from which threads share it."""


class Ranked(NamedTuple):
    """Collects the first k of each lane: by distance and row, or by time apart before these.

    Rows of `lanes` are x, y, z, the bound, a row that is left out and the least that is not. The
    `union` is the window of all lanes; `eight` is memory for the squared chords of a leaf. Where
    they are `at_once`, lanes keep the nearest one as `compare_times` says.
    """

    lanes: np.ndarray
    windows: np.ndarray
    union: np.ndarray
    eight: np.ndarray
    by_time: bool
    at_once: bool
    apart: np.ndarray
    chord2: np.ndarray
    row: np.ndarray


@njit(inline="always")
def _apart(time, other):  # type: ignore[no-untyped-def]
    """How far two times are apart; beyond 64 bits the greatest that there is."""
    # Without a sign: of numbers with one, compilers take it that they never overflow.
    apart = np.uint64(max(time, other)) - np.uint64(min(time, other))
    return np.int64(min(apart, np.uint64(GREATEST)))


@njit(inline="always")
def _put(apart, chord2, row, last, a, c, r):  # type: ignore[no-untyped-def]
    """Put something where it belongs in a list, unless that is behind its last entry."""
    if a > apart[last] or (a == apart[last] and not closer(c, r, chord2[last], row[last])):
        return
    j = last
    while j > 0 and (
        a < apart[j - 1] or (a == apart[j - 1] and closer(c, r, chord2[j - 1], row[j - 1]))
    ):
        apart[j], chord2[j], row[j] = apart[j - 1], chord2[j - 1], row[j - 1]
        j -= 1
    apart[j], chord2[j], row[j] = a, c, r


@njit(inline="always")
def _unite(lanes, windows, union):  # type: ignore[no-untyped-def]
    """Find the window of all lanes that are used."""
    union[0], union[1] = GREATEST, LEAST
    for lane in range(LANES):
        if lanes[3, lane] >= 0.0:
            union[0] = min(union[0], windows[0, lane])
            union[1] = max(union[1], windows[1, lane])


@look.of(Ranked)
def _rank(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, windows, union, eight, by_time, at_once, apart, chord2, row = collector
    last = chord2.shape[1] - 1
    steps = 0
    while at_once and bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        steps += NODE_STEPS
        if lanes_within(lanes, tree.boxes, node, j):
            steps += LEAF_STEPS
            leaf = node * WIDTH + j
            worst = compare_times(tree.points, tree.rows, tree.times, leaf, lanes, windows)
            bits &= children_within(tree.boxes, node, box, worst)
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        leaf = node * WIDTH + j
        steps += NODE_STEPS
        near = lanes_within(lanes, tree.boxes, node, j)
        changed = False
        while near:
            lane = lowest_bit(near)
            near &= near - 1
            steps += WIDTH
            found = members_matching(tree.points, tree.rows, leaf, lanes, lane, eight)
            if tree.times.shape[0] and found:
                found &= times_within(tree.times, leaf, windows, lane)
            if not found:
                continue
            while found:
                member = lowest_bit(found)
                found &= found - 1
                c, r = eight[member], tree.rows[leaf, member]
                a = _apart(tree.times[leaf, member], windows[3, lane]) if by_time else 0
                _put(apart[lane], chord2[lane], row[lane], last, a, c, r)
            # The list is full, and not of what is farther apart than is told.
            if apart[lane, last] < GREATEST:
                changed = True
                if by_time:
                    # Saturated: time apart may be all that 64 bits hold.
                    own, most = windows[3, lane], apart[lane, last]
                    least = own - most if own >= LEAST + most else LEAST
                    greatest = own + most if own <= GREATEST - most else GREATEST
                    windows[0, lane] = max(windows[0, lane], least)
                    windows[1, lane] = min(windows[1, lane], greatest)
                else:
                    lanes[3, lane] = min(lanes[3, lane], chord2[lane, last])
        if changed and by_time:
            _unite(lanes, windows, union)
        elif changed:
            worst = greatest_of_16(lanes, 3)
            bits &= children_within(tree.boxes, node, box, worst)
    return worst, steps


@njit(inline="always")
def _walk_trees(forest, group, tree, collector, box, worst, key, n_near, most, levels, stack):  # type: ignore[no-untyped-def]
    """Show a collector what it may match of the trees of a group, from one outwards in time."""
    begin, end = tree, tree + 1
    if not forest.reaches:
        begin, end = forest.trees[group], forest.trees[group + 1]
    timed = forest.times.shape[0] > 0 and not forest.reaches
    union = collector.union
    before, after = tree - 1, tree
    is_turn = True
    steps = 0
    while steps <= most:
        goes_on = after < end and (not timed or forest.earliest[after] <= union[1])
        goes_back = before >= begin and forest.latest[before] >= union[0]
        if goes_on and (is_turn or not goes_back):
            tree = after
            after += 1
        elif goes_back:
            tree = before
            before -= 1
        else:
            break
        is_turn = not is_turn
        own = tree_of(forest, tree, levels)
        near, near_stop = 0, 0
        if n_near:
            near, near_stop = leaves_near(own.keys, leaf_of(own.keys, key, 0), n_near)
        steps += walk(own, collector, box, worst, near, near_stop, most - steps, stack)
        if not collector.by_time:
            worst = greatest_of_16(collector.lanes, 3)
    return steps


@njit(cache=True, nogil=True, error_model="numpy")
def search_ranked(  # type: ignore[no-untyped-def]
    thread, threads, packets, group, by_time, farthest, brute, exclude_self, first_row, most,
    steps_of, reference, key_of,
):  # fmt: skip
    """Write the first k references of the observations of packets."""
    forest, points, order, firsts, stops, trees, times, before, after, skip = borrowed(packets)
    reference, key_of = borrowed((reference, key_of))
    k = reference.shape[1]
    timed = times.size > 0
    at_once = k == 1 and timed and not by_time
    made = (
        aligned_rows(6, LANES), aligned_rows(4, LANES).view(np.int64), aligned_rows(2, WIDTH),
        np.empty(2, np.int64), np.empty(LANES, np.int64), np.empty(1, np.int64),
        np.empty(STACK, np.int64), np.empty(TREES_DEEP, np.int64), np.empty((3, LANES, k)),
    )  # fmt: skip
    n_near = 0 if brute else leaves_to_fill(k, exclude_self) + (_MORE_LEAVES if timed else 0)
    steps = 0
    for number in range(firsts.size):
        if number // _TURN % threads != thread or steps > most:
            continue
        lanes, windows, boxes, union, places, key, stack, levels, lists = borrowed(made)
        apart, chord2, row = lists[0].view(np.int64), lists[1], lists[2]
        collector = Ranked(lanes, windows, union, boxes[1], by_time, at_once, apart, chord2, row)
        first, stop = firsts[number], stops[number]
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation, to which nothing is near.
            i = order[min(first + lane, stop - 1)] & ROW
            prefetch_for_write(points, order[min(stop + lane, order.size - 1)] & ROW, 0)
            places[lane] = i
            own = first_row + i if exclude_self else -1
            lanes[3, lane] = farthest if lane < stop - first else -1.0
            lanes[4, lane] = ROW if at_once else own
            lanes[5, lane] = own if at_once else 0
            if timed:
                load_window(windows, lane, times[i], before, after, skip)
            for j in range(k):
                apart[lane, j], chord2[lane, j], row[lane, j] = GREATEST, np.inf, ROW
        load_lanes(points, places, lanes, boxes, 0)
        if timed:
            _unite(lanes, windows, union)
        keys_along(points, order, (first + stop) // 2, 1, stop, key)
        box = boxes[0]
        if brute:
            box[:3], box[3:] = -2.0, 2.0
        steps += _walk_trees(
            forest, group[places[0]], trees[number], collector, box, farthest, key[0], n_near,
            most - steps, levels, stack,
        )  # fmt: skip
        for lane in range(stop - first):
            if at_once and lanes[4, lane] != ROW:
                row[lane, 0], chord2[lane, 0] = lanes[4, lane], lanes[3, lane]
            for j in range(k):
                found = row[lane, j] != ROW
                reference[places[lane], j] = np.int64(row[lane, j]) if found else -1
                key_of[places[lane], j] = chord2[lane, j]
    steps_of[thread] = steps


@njit(cache=True, nogil=True, error_model="numpy")
def search_trees(  # type: ignore[no-untyped-def]
    thread, threads, forest, points, order, starts, least, kind, spread, exclude_self, first_row,
    most, steps_of, reference, key_of,
):  # fmt: skip
    """Search each tree that has so many observations at least as if there were no other.

    All threads share the observations of a large one.
    """
    forest = borrowed(forest)
    points, order, reference, key_of = borrowed((points, order, reference, key_of))
    several = reference.shape[1] > 1 or exclude_self
    levels = np.empty(TREES_DEEP, np.int64)
    limits = np.array([NO_LIMIT, NO_LIMIT])
    tally = np.empty((threads, 2), np.int64)
    steps = 0
    for tree in range(starts.size - 1):
        first, stop = starts[tree], starts[tree + 1]
        n = stop - first
        if n < least or steps > most:
            continue
        me, of = (thread, threads) if n >= _SHARED * threads else (0, 1)
        if of < threads and not (
            order.size * thread // threads <= first < order.size * (thread + 1) // threads
        ):
            continue
        own = tree_of(forest, tree, levels)
        some = order[first:stop]
        limits[1] = most - steps
        if n * spread < forest.held[tree + 1] - forest.held[tree] and not own.times.shape[0]:
            search_singles(
                me, of, own, points, some, n, limits, tally, reference, key_of, exclude_self,
                first_row,
            )  # fmt: skip
            for place in range(n * me // of, n * (me + 1) // of):
                # Where packets leave what they find; what is marked took too many steps.
                if some[place] >= 0:
                    i = some[place] & ROW
                    points[i, 0], points[i, 1] = reference[i, 0], key_of[i, 0]
        elif several:
            search_lists(
                me, of, own, points, some, n, limits, tally, reference, key_of, exclude_self,
                first_row,
            )  # fmt: skip
        else:
            search_packets(me, of, own, points, some, n, limits, tally, kind)
        steps += tally[me, 0]
    steps_of[thread] = steps


@njit(inline="always")
def _tree_for(forest, group, times, i, before, after, by_time):  # type: ignore[no-untyped-def]
    """The tree that observation i of a group begins with, -1 for none."""
    if not 0 <= group < forest.trees.size - 1:
        return -1
    low, stop = forest.trees[group], forest.trees[group + 1]
    if low == stop:
        return -1
    if forest.times.shape[0] > 0:
        middle = times[i]
        least, greatest = window_of(middle, before, after)
        if not by_time:
            begin = max(least, forest.earliest[low])
            # Not half of their sum, which may be more than 64 bits hold.
            middle = (begin >> 1) + (min(greatest, forest.latest[stop - 1]) >> 1)
        bucket = bucket_of(forest, low, stop, middle)
        low = forest.buckets[bucket]
        high = stop if bucket + 1 == stop * FINER else forest.buckets[bucket + 1] + 1
        while high - low > 1:
            half = (low + high) // 2
            if forest.earliest[half] <= middle:
                low = half
            else:
                high = half
        if not by_time and (
            greatest < forest.earliest[low]
            or (
                least > forest.latest[low]
                and (low + 1 == stop or greatest < forest.earliest[low + 1])
            )
        ):
            return -1
    return low


@njit(cache=True, nogil=True, error_model="numpy")
def _places(  # type: ignore[no-untyped-def]
    thread, threads, forest, group, times, before, after, by_time, points, places
):
    """Write the tree that observations begin with; of no tree none is found: its point is a NaN."""
    forest, times = borrowed((forest, times))
    for i in range(group.size * thread // threads, group.size * (thread + 1) // threads):
        places[i, 0] = _tree_for(forest, group[i], times, i, before, after, by_time)
        if places[i, 0] < 0:
            points[i, 0] = np.nan


def _packets(
    forest: Forest,
    index: FilteredIndex,
    observations: Degrees,
    filters: Filters,
    least: int = NO_LIMIT,
) -> Iterator[tuple[slice, Packets, np.ndarray, np.ndarray]]:
    """Parts of the observations, these in packets and where those of each tree begin in the order.

    And the group of each. Those of a tree that has `least` of them are in no packet.
    """
    for part, memory in windows(readable(observations), len(index.vectors)):
        group, times = filters.group[part], NO_TIMES
        if len(forest.times):
            times = cast("np.ndarray", filters.time)[part]
        reach = filters.before, filters.after
        places = kept(group.size, 1, dtype=np.int32)
        in_threads(
            _places, threads_for(group.size, 1 << 13), forest, group, times, *reach,
            filters.by_time, memory.points, places,
        )  # fmt: skip
        starts = sort_parts(memory, places, forest.earliest.size, LANES)
        each = np.where(np.diff(starts) < least, -(-np.diff(starts) // LANES), 0)
        trees = np.repeat(np.arange(each.size), each)
        firsts = starts[trees] + LANES * (np.arange(trees.size) - (each.cumsum() - each)[trees])
        stops = np.minimum(firsts + LANES, starts[trees + 1])
        order = memory.order[: starts[-1]]
        cut = firsts, stops, trees, times, *reach, filters.skips_own_time
        yield part, Packets(forest, memory.points, order, *cut), starts, group


def placed(lat_deg: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Latitudes of observations of the only group of an index, NaN for all others."""
    return np.where(group == 0, lat_deg, np.nan)


def _forest(index: FilteredIndex, filters: Filters) -> Forest:
    """The trees that a search walks: in time one, which holds all that each window meets."""
    if index.span is None or filters.by_time:
        return cast("Forest", index.tree)
    references = index.vectors, index.group, index.time, index.n_groups, 1.0
    return cast("Forest", index.trees_for(filters, partial(grow, *references)))


def search(
    index: FilteredIndex,
    observations: Degrees,
    query: Query,
    filters: Filters,
    chord2: float,
    *,
    brute: bool = False,
) -> Found:
    """The first k references of every observation among those within a squared chord of it."""
    find = partial(_find, index, observations, query, chord2, brute)
    # Steps are counted over all observations, so these are searched at once.
    whole = brute or filters.by_time or query.most_steps is not None
    return find(filters) if whole else by_reach(index, filters, find)


def _find(
    index: FilteredIndex,
    observations: Degrees,
    query: Query,
    chord2: float,
    brute: bool,
    filters: Filters,
) -> Found:
    n = observations.lat_deg.size
    found = Found(np.full((n, query.k), -1), np.full((n, query.k), np.inf))
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    several = query.k > 1 or query.exclude_self
    timed = index.time.size > 0
    simple = not (timed and (several or filters.by_time or filters.skips_own_time))
    least = NO_LIMIT if brute or not simple else _LISTED if several else _PACKED
    forest = _forest(index, filters)
    for part, packets, starts, group in _packets(forest, index, observations, filters, least):
        _, points, order, *_ = packets
        asked = query.exclude_self, query.first_row + part.start, left
        into = found.reference[part], found.key[part]
        threads = threads_for(order.size, LANES * _GRAIN)
        steps = np.zeros((2, threads), np.int64)
        if (np.diff(starts) >= least).any():
            reach = packets.times, filters.before, filters.after
            kind = InTime(min(chord2, ALL), *reach) if timed else OnSphere()
            in_threads(
                search_trees, threads, forest, points, order, starts, least, kind, spread_of(query),
                *asked, steps[0], *into,
            )  # fmt: skip
            if not several:
                in_threads(take, threads, points, 1, *(one[:, 0] for one in into))
        in_threads(
            search_ranked, threads, packets, group, filters.by_time, min(chord2, ALL), brute,
            *asked, steps[1], *into,
        )  # fmt: skip
        left = steps_left(left, steps.sum(axis=0), query.most_steps)
    return found


def _search(
    index: FilteredIndex,
    observations: Degrees,
    asked: Within,
    filters: Filters,
    brute: bool,
    counts: np.ndarray,
    found: Pairs,
) -> int:
    # What is within a distance has no order by time.
    filters = filters._replace(by_time=False)
    how = asked, brute, OnSphere(), index.vectors[:0], counts, found
    parts = _packets(_forest(index, filters), index, observations, filters)
    return sum(search_part(part, packets, *how) for part, packets, *_ in parts)


count, pairs = count_then_fill(_search)
