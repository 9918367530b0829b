"""How far observations lie from their references: counts, exact percentiles, histograms.

The nearest reference of each counts. Distances are sorted in blocks of a file that has no name, so
that memory is bounded; a rank is found by bisection over the blocks.
"""

import tempfile
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from georesolve.workers.manifest import Extent, Manifest
from georesolve.workers.parts import Part
from georesolve.workers.result import opened
from georesolve.workers.threads import side_by_side

PERCENTS = (0, 1, 5, 25, 50, 75, 95, 99, 100)
_BINS = 64
_LEAST_M = 0.001
"""Distances are told to the millimetre: the logarithmic bins begin there."""
_BLOCK = 1 << 22


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


def measure(manifest: Manifest, scratch: Path) -> Distances:
    """Read the distances of a result; raises OSError when it is damaged or gone.

    Parameters
    ----------
    scratch
        A folder for a file that takes 8 bytes a row, and goes when all is measured.
    """
    counts: Counter[str] = Counter()
    used, lock = 0, Lock()
    with tempfile.TemporaryFile(dir=scratch) as file:
        shape = (max(1, manifest.rows),)
        distances = np.memmap(file, np.float64, "w+", shape=shape)

        def read(part: Part) -> None:
            nonlocal used
            with manifest.open(Extent(part, 0, part.size_bytes)) as handle:
                parquet = opened(handle)
                has_rank = "rank" in parquet.schema_arrow.names
                names = ["distance_m", "status", *(["rank"] if has_rank else [])]
                for group in range(parquet.num_row_groups):
                    table = parquet.read_row_group(group, columns=names, use_threads=False)
                    if has_rank:
                        table = table.filter(pc.equal(table["rank"], 1))
                    own = table["distance_m"].drop_null().to_numpy()
                    by_status = table["status"].combine_chunks().value_counts().to_pylist()
                    with lock:
                        start, used = used, used + own.size
                        for one in by_status:
                            counts[one["values"]] += one["counts"]
                    distances[start : start + own.size] = own

        for _ in side_by_side(read, manifest.parts):
            pass
        blocks = [distances[i : min(i + _BLOCK, used)] for i in range(0, used, _BLOCK)]
        for _ in side_by_side(lambda block: block.sort(), blocks):
            pass
        return _summary(dict(counts), blocks, used)


def _summary(counts: dict[str, int], blocks: list[np.ndarray], n: int) -> Distances:
    if not n:
        return Distances(counts, [], Histogram([], []), Histogram([], []))
    percentiles = [_percentile(blocks, n, percent) for percent in PERCENTS]
    most = percentiles[-1]
    linear = np.linspace(0.0, most, _BINS + 1) if most else np.array([0.0, _LEAST_M])
    least = max(_LEAST_M, percentiles[0])
    logarithmic = linear
    if most > least:
        logarithmic = np.concatenate([[0.0], np.geomspace(least, most, _BINS)])
        # What numpy rounds must not leave out the farthest.
        logarithmic[-1] = most
    return Distances(
        counts, percentiles, _histogram(blocks, linear), _histogram(blocks, logarithmic)
    )


def _histogram(blocks: list[np.ndarray], edges: np.ndarray) -> Histogram:
    below = sum((np.searchsorted(block, edges[:-1]) for block in blocks), np.zeros(1, np.int64))
    total = sum(block.size for block in blocks)
    return Histogram(edges.tolist(), np.diff(np.append(below, total)).tolist())


def _percentile(blocks: list[np.ndarray], n: int, percent: int) -> float:
    at = percent / 100 * (n - 1)
    rank, part = int(at), at - int(at)
    low = _of_rank(blocks, rank)
    if not part:
        return low
    high = _of_rank(blocks, rank + 1)
    step = high - low
    # As numpy.percentile computes it, to the last bit.
    return low + step * part if part < 0.5 else high - step * (1 - part)


def _of_rank(blocks: list[np.ndarray], rank: int) -> float:
    """The distance of a rank, from 0: floats that are not negative are ordered as their bits."""
    low, high = 0, int(np.array(np.inf).view(np.int64))
    while low < high:
        middle = (low + high) // 2
        value = np.int64(middle).view(np.float64)
        if sum(int(np.searchsorted(block, value, "right")) for block in blocks) > rank:
            high = middle
        else:
            low = middle + 1
    return float(np.int64(low).view(np.float64))
