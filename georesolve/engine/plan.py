"""The plan of a job: how its observations are cut into chunks, and its result into row groups."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from georesolve.engine.cost_model import rows_a_second
from georesolve.engine.match_sets import MatchSets
from georesolve.io.column_sizes import NOTHING, Carried
from georesolve.io.datasets import ROW_GROUP, PointSet
from georesolve.kernels import Query, Way, Within, way
from georesolve.kernels.devices import Device
from georesolve.query import MatchOptions

RESULT_ROW_GROUP = 131_072
"""Rows that a row group of the result has at most: part of its bytes."""
PAIR_ROW_GROUP = 2**20
"""Pairs that one has at most."""
_GROUP_BYTES = 2**29
"""What the columns that a row group of the result carries take in memory at most: where 4 KB a row
are exceeded, row groups have fewer rows."""
_FEWEST_ROWS = 2**10
"""So few a row group may have for that; with fewer, a result would be all footer."""
_GROUPS_AT_ONCE = 4
"""Threads wait for each other in Python: a job of 2^26 on a GPU took 1.46 s with one, and 1.25 with
four; with eight 1.34, as some have nothing to do at the end of a chunk."""
_AT_ONCE_BYTES = 2**26
"""What they carry together at most."""
_CHUNK_SECONDS = 1.0
"""How long a chunk takes at most, by itself: a cancel stops a job within that time."""
_LARGEST_CHUNK: dict[Device, int] = {"cpu": 2**20, "cuda": 2**21}
"""On a CPU nothing gets faster beyond that, and what a chunk takes of memory is not used again. On
a GPU whatever a chunk takes in Python, for which its threads wait for each other, counts half."""
_SMALLEST_CHUNK = 2**10
_MOST_ROWS = 2**23
"""Result rows of a chunk at most: they take 30 bytes each of the worker's memory."""
_COUNTED_A_CHUNK = 8
"""Counted chunks whose pairs one chunk makes at most, where they are few."""
CHUNKS_IN_HAND: dict[Device, int] = {"cpu": 1, "cuda": 6}
"""Chunks that a worker has in hand: on a GPU some are resolved while others are written."""
_CHUNKS_A_WORKER: dict[Device, int] = {"cpu": 2, "cuda": 4}
"""As many at least where there are enough rows, so that all workers are busy to the end."""
_RUN_SECONDS = 0.5
"""How long a run takes at most if its chunks take as long as the one that ended last."""
_RUNS_A_THREAD = 4
"""As many at least of the chunks that wait."""


class Chunk(NamedTuple):
    """A range of observations, or of the rows of a result of pairs, `stop` not included."""

    start: int
    stop: int

    def halves(self) -> "list[Chunk]":
        """The same rows in two chunks, or none when they are few."""
        size = self.stop - self.start
        # By powers of two, as row groups are cut: no half has pieces of two of them.
        return [] if size < _SMALLEST_CHUNK else self.pieces(1 << (size - 1).bit_length() - 1)

    def pieces(self, size: int) -> "list[Chunk]":
        """The same rows in chunks of so many."""
        starts = range(self.start, max(self.stop, self.start + 1), size)
        return [Chunk(start, min(start + size, self.stop)) for start in starts]

    def cut(self, size: int) -> "list[Chunk]":
        """The same rows by ranges of so many, the first of which begins at 0; one at least."""
        edges = range(self.start - self.start % size + size, self.stop, size)
        return [Chunk(*pair) for pair in pairwise([self.start, *edges, self.stop])]


Run = tuple[Chunk, ...]
"""Chunks that a worker takes as one task, one after the other; mostly one."""


def next_run(waiting: list[Chunk], n_threads: int, seconds: float | None) -> Run:
    """Take the next run of chunks from those that wait, of which the last one is the next.

    What a task costs the scheduler and the runner, whatever it does, is shared by the chunks of it.
    All workers together have `n_threads` chunks in hand, and one took some `seconds`, if one ended.
    """
    if not seconds:
        return (waiting.pop(),)
    # Fewer towards the end, so that no worker has much to do while others have nothing.
    size = min(int(_RUN_SECONDS / seconds), len(waiting) // (_RUNS_A_THREAD * n_threads))
    return tuple(waiting.pop() for _ in range(max(1, size)))


def observations_a_group(k: int, carried: Carried = NOTHING) -> int:
    """Number of observations whose rows make a row group: a power of two.

    Row groups hold the rows of fixed ranges of observations, so a chunk that begins and ends with
    such a range can be encoded where it was resolved. Who joins others decodes one: it has fewer
    rows where they may carry much.
    """
    size = 1 << (RESULT_ROW_GROUP // k).bit_length() - 1
    while size * k > _FEWEST_ROWS and carried_bytes(size, k, carried) > _GROUP_BYTES:
        size //= 2
    return size


def widths(sets: MatchSets) -> Carried:
    """What the columns that the result of a job carries take in memory."""
    of_observations, of_references = sets.carried()
    return Carried(sets.observations.width(of_observations), sets.references.width(of_references))


def rows_a_group(sets: MatchSets) -> int:
    """What makes a row group of a job's result: so many pairs, or the rows of observations."""
    carried = widths(sets)
    if not sets.options.has_pairs:
        return observations_a_group(sets.options.ranks, carried)
    size, each = PAIR_ROW_GROUP, carried.observations.row + carried.references.row
    while size > _FEWEST_ROWS and size * each > _GROUP_BYTES:
        size //= 2
    return size


def groups_at_once(sets: MatchSets, n_threads: int) -> int:
    """Row groups that a thread encodes in turn, to share what it does in Python for each file.

    Fewer where a job is small: each thread has some to encode.
    """
    each = rows_a_group(sets)
    size = carried_bytes(each, sets.options.ranks, widths(sets))
    bounds = _AT_ONCE_BYTES // max(1, size), sets.observations.rows // each // n_threads
    return max(1, min(_GROUPS_AT_ONCE, *bounds))


def is_edge(sets: MatchSets, row: int, counted: Sequence[int]) -> bool:
    """Whether a row group of the result begins at a row, or the result ends there.

    Results of pairs have `counted[-1]` rows.
    """
    stop = counted[-1] if sets.options.has_pairs else sets.observations.rows
    return row % rows_a_group(sets) == 0 or row == stop


def chunks_of_pairs(sets: MatchSets, counted: Sequence[int], device: Device) -> list[Chunk]:
    """Cut the rows of a result of pairs into chunks.

    `counted` are the rows before each counted chunk of observations, and their total at the end.

    They are whole row groups, but where pairs are rare: there a chunk is of some counted ones.
    """
    size, before = rows_a_group(sets), np.asarray(counted)
    step = size if size < PAIR_ROW_GROUP else max(size, _LARGEST_CHUNK[device])
    cuts = before[:-1:_COUNTED_A_CHUNK]
    low = cuts // step * step
    is_rare = np.diff(np.searchsorted(before, [low, low + step]), axis=0)[0] > _COUNTED_A_CHUNK
    edges = np.unique([*range(0, before[-1], step), *cuts[is_rare], before[-1]]).tolist()
    return [Chunk(*pair) for pair in pairwise(edges)] or [Chunk(0, 0)]


def cut_by(each: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cut observations that have so many pairs `each`: `most` together, or those of one."""
    ends, start, before = np.cumsum(each), 0, 0
    while start < each.size:
        stop = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, stop
        start, before = stop, int(ends[stop - 1])
    if not each.size:
        yield 0, 0


def carried_bytes(n_observations: int, k: int, carried: Carried) -> int:
    """Memory that the carried columns of a row group of so many observations take at most.

    Any reference may be the nearest one of all observations.
    """
    observations, references = carried
    read = -(-n_observations // ROW_GROUP) * observations.group
    return k * (min(read, n_observations * observations.row) + n_observations * references.row)


def too_wide(n_observations: int, k: int, carried: Carried) -> str | None:
    """Why a result cannot carry what it should, if so: what is too large, and what to do."""
    read = carried.observations.group
    if read > _GROUP_BYTES:
        return (
            f"the columns of the observations that are carried take {read} bytes of memory in "
            f"{ROW_GROUP} rows, and {_GROUP_BYTES} may be read at once: carry an id, and join the "
            "wide columns to it"
        )
    size = min(n_observations, observations_a_group(k, carried))
    needed = carried_bytes(size, k, carried)
    if needed <= _GROUP_BYTES:
        return None
    return (
        f"{size * k} rows of the result would carry up to {needed} bytes of memory (the widest row "
        f"of the references has {carried.references.row} in the columns that are carried, that of "
        f"the observations {carried.observations.row}), and a row group of the result, of "
        f"{_FEWEST_ROWS} rows at least, may carry {_GROUP_BYTES}: carry an id, and join the wide "
        "columns to it"
    )


def chunks(n_observations: int, *further: Any, **more: Any) -> list[Chunk]:
    """Cut the observations into chunks: parameters are those of `chunk_starts`."""
    return Chunk(0, n_observations).pieces(chunk_starts(n_observations, *further, **more).step)


def chunk_starts(
    n_observations: int,
    n_references: int,
    options: MatchOptions,
    device: Device,
    n_workers: int,
    carried: Carried = NOTHING,
    compared: float = 0.0,
) -> range:
    """Where chunks start: the step is how long they are, the last one may be shorter.

    A chunk is short enough to take about a second, and there are enough of them to keep every
    worker busy. Large chunks are whole row groups, of the observations and of the result: none is
    decoded or encoded twice. Where rows carry much, a chunk is one row group.

    A range, which knows its length without being gone through: a client that asks what a job would
    take may name any number of rows.
    """
    rate = rows_a_second(n_references, options, device, compared)
    most = min(_LARGEST_CHUNK[device], _MOST_ROWS // options.k, int(_CHUNK_SECONDS * rate))
    group = observations_a_group(options.ranks, carried)
    size = min(most, -(-n_observations // (_CHUNKS_A_WORKER[device] * n_workers)))
    size = max(_SMALLEST_CHUNK, size)
    grain = max(ROW_GROUP, group)
    if group < observations_a_group(options.ranks):
        size = min(group, max(_SMALLEST_CHUNK, most))
    elif size >= grain // 2:
        size = max(1, round(size / grain)) * grain
    elif size > group:
        size -= size % group
    if size < group:
        # Several make a row group, so they are joined: none has pieces of two.
        size = 1 << size.bit_length() - 1
    # No observations are one empty chunk: their result has columns, too.
    return range(0, max(1, n_observations), size)


def way_of(n_observations: int, references: PointSet, options: MatchOptions, device: Device) -> Way:
    """Which search so many observations of a chunk take, and why."""
    if references.outlines is not None and options.algorithm != "brute":
        return Way("shapes", "references are lines or polygons: trees of their arcs and areas")
    query: Query | Within = Query(options.k, options.exclude_self)
    if options.question == "within":
        query = Within(np.zeros(1), options.exclude_self, options.once)
    return way(
        device, n_observations, references.rows, query, options.algorithm,
        earth=options.earth, filtered=options.filters is not None,
    )  # fmt: skip
