"""How far observations lie from their references: counts, exact percentiles, histograms.

The nearest reference of each counts. Distances go to files that have no name, so that memory is
bounded. What has a rank among them is found digit by digit of its bits, without a sort.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.workers import ranks_cpu
from georesolve.workers.manifest import Manifest
from georesolve.workers.parts import Part
from georesolve.workers.result import opened
from georesolve.workers.scratch import scratch
from georesolve.workers.threads import side_by_side

PERCENTS = (0, 1, 5, 25, 50, 75, 95, 99, 100)
_BINS = 64
STRETCH = 1 << 16
"""Rows that are worth a turn of a thread."""
_LEAST_M = 0.001
"""Distances are told to the millimetre: the logarithmic bins begin there."""
_DIGITS = ((15, ranks_cpu.LEAD), (12, 36), (12, 24), (12, 12), (12, 0))
"""Of the bits of a distance, the most significant first: how many bits, and how many follow."""
_GRAIN = 1 << 15


class Histogram(NamedTuple):
    """Counts between edges; the last edge belongs to its bin."""

    edges_m: list[float]
    counts: list[int]


class Distances(NamedTuple):
    """The distances of a result.

    Attributes
    ----------
    counts
        Observations by status.
    percentiles_m
        At `PERCENTS`, between two distances in proportion as numpy has them; empty without any.
    linear, logarithmic
        Histograms; the first logarithmic bin begins at 0.
    """

    counts: dict[str, int]
    percentiles_m: list[float]
    linear: Histogram
    logarithmic: Histogram


def pieces(manifest: Manifest) -> list[tuple[Part, int]]:
    """The parts of a result, each with the row that it begins at."""
    found, start = [], 0
    for part in manifest.parts:
        found.append((part, start))
        start += part.rows
    return found


def measure(manifest: Manifest, folder: Path) -> Distances:
    """Read the distances of a result; raises OSError when it is damaged or gone.

    Parameters
    ----------
    folder
        For files that take 8 bytes a row, and go when all is measured.
    """
    counts: Counter[str] = Counter()
    lock = Lock()
    with scratch(folder) as files:

        def read(stretch: Stretch) -> None:
            with manifest.reading(stretch.part) as handle:
                parquet = opened(handle, stretch.footer)
                has_rank = "rank" in parquet.schema_arrow.names
                names = ["distance_m", "status", *(["rank"] if has_rank else [])]
                table = parquet.read_row_groups(stretch.groups, columns=names, use_threads=False)
            if has_rank:
                table = table.filter(pc.equal(table["rank"], 1))
            files.add(table["distance_m"].drop_null().to_numpy())
            by_status = table["status"].value_counts().to_pylist()
            with lock:
                for one in by_status:
                    counts[one["values"]] += one["counts"]

        for _ in side_by_side(read, stretches(manifest)):
            pass
        return _summary(dict(counts), files.mapped(np.float64))


def _summary(counts: dict[str, int], distances: tuple[np.ndarray, ...]) -> Distances:
    if not _size(distances):
        return Distances(counts, [], Histogram([], []), Histogram([], []))
    percentiles = _percentiles(distances)
    most = percentiles[-1]
    linear = np.linspace(0.0, most, _BINS + 1) if most else np.array([0.0, _LEAST_M])
    least = max(_LEAST_M, percentiles[0])
    logarithmic = linear
    if most > least:
        logarithmic = np.concatenate([[0.0], np.geomspace(least, most, _BINS)])
        # What numpy rounds must not leave out the farthest.
        logarithmic[-1] = most
    histograms = (_histogram(distances, edges) for edges in (linear, logarithmic))
    return Distances(counts, percentiles, *histograms)


def _histogram(distances: tuple[np.ndarray, ...], edges: np.ndarray) -> Histogram:
    least = (np.arange(1 << (63 - ranks_cpu.BIN)) << ranks_cpu.BIN).view(np.float64)
    first = np.searchsorted(edges, least, "right").clip(1, edges.size - 1) - 1
    threads = threads_for(_size(distances), _GRAIN)
    counts = np.zeros((threads, edges.size - 1), np.int64)
    in_threads(ranks_cpu.histogram, threads, distances, edges, first, counts)
    return Histogram(edges.tolist(), counts.sum(axis=0).tolist())


def _size(distances: tuple[np.ndarray, ...]) -> int:
    return sum(own.size for own in distances)


def _percentiles(distances: tuple[np.ndarray, ...]) -> list[float]:
    """Those of `PERCENTS`, as numpy.percentile computes them, to the last bit."""
    last = _size(distances) - 1
    at = np.array(PERCENTS) / 100 * last
    ranks, part = at.astype(np.int64), at - np.floor(at)
    after = np.minimum(ranks + 1, last)
    low, high = _of_ranks(distances, np.concatenate([ranks, after])).reshape(2, -1)
    step = high - low
    found: list[float] = np.where(part < 0.5, low + step * part, high - step * (1 - part)).tolist()
    return found


def _of_ranks(distances: tuple[np.ndarray, ...], ranks: np.ndarray) -> np.ndarray:
    """The distances of some ranks, from 0."""
    bits, left = np.zeros(ranks.size, np.int64), ranks.copy()
    leads = np.arange(1 << (63 - ranks_cpu.LEAD))
    threads = threads_for(_size(distances), _GRAIN)
    for digit, shift in _DIGITS:
        brackets, own = np.unique(bits, return_inverse=True)
        ends = (brackets + ((1 << digit) - 1 << shift)) >> ranks_cpu.LEAD
        first = np.searchsorted(ends, leads)
        counts = np.zeros((threads, brackets.size, 1 << digit), np.int64)
        in_threads(ranks_cpu.tally, threads, distances, brackets, first, shift, counts)
        upto = counts.sum(axis=0).cumsum(axis=1)
        for i, bracket in enumerate(own):
            step = np.searchsorted(upto[bracket], left[i], "right")
            left[i] -= upto[bracket, step - 1] if step else 0
            bits[i] += step << shift
    return bits.view(np.float64)


class Stretch(NamedTuple):
    """Row groups of a part that a thread reads at a time.

    Attributes
    ----------
    footer
        Of the part: to parse it for every stretch takes long where a part has many.
    first_row
        The row of the result that they begin with.
    """

    part: Part
    footer: pq.FileMetaData
    groups: list[int]
    first_row: int


def stretches(manifest: Manifest) -> Iterator[Stretch]:
    """The row groups of a result, in stretches of at least `STRETCH` rows if the part has them."""
    for part, row in pieces(manifest):
        with manifest.reading(part) as handle:
            footer = opened(handle).metadata
        groups: list[int] = []
        rows = 0
        for group in range(footer.num_row_groups):
            groups.append(group)
            rows += footer.row_group(group).num_rows
            if rows >= STRETCH or group == footer.num_row_groups - 1:
                yield Stretch(part, footer, groups, row)
                groups, row, rows = [], row + rows, 0
