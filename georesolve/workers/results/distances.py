"""How far observations lie from their references: counts, percentiles, histograms.

The nearest reference of each counts. Of a summary it is how many references each has. Numbers are
counted by their first bits, in bins of 0.012 %
or less: percentiles are right to half of that, and counts of histograms, which end where bins do,
are exact.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.io.result_files import opened
from georesolve.io.threads import side_by_side
from georesolve.workers.results.manifest import Manifest
from georesolve.workers.results.parts import Part

PERCENTS = (0, 1, 5, 25, 50, 75, 95, 99, 100)
_BINS = 64
DISTANCE = "distance_m"
STRETCH = 1 << 16
"""Rows that are worth a turn of a thread."""
_LEAST_M = 0.001
"""Distances are told to the millimetre: the logarithmic bins begin there."""
_SHIFT = 52 - 13
"""A fine bin has the exponent of its distances and the first 13 bits behind it."""
_BELOW = (1023 - 20 << 13) - 1
"""What lies nearer than 2^-20 m is in the fine bin 0."""
_FINE = (52 << 13) + 1
"""Fine bins, up to 2^32 m: a hundred times what a distance on the sphere can be."""


class Histogram(NamedTuple):
    """Counts between edges; the last edge belongs to its bin."""

    edges: list[float]
    counts: list[int]


class Distances(NamedTuple):
    """The distances of a result in metres, or the counts of a summary."""

    counts: dict[str, int]
    """Observations by status."""
    percentiles: list[float]
    """At `PERCENTS`, to 0.01 %; the least and the largest are exact. Empty without any."""
    linear: Histogram
    logarithmic: Histogram
    """Its first bin begins at 0."""


def pieces(manifest: Manifest) -> list[tuple[Part, int]]:
    """The parts of a result, each with the row that it begins at."""
    starts = accumulate((part.rows for part in manifest.parts), initial=0)
    return list(zip(manifest.parts, starts, strict=False))


def shown_columns(manifest: Manifest) -> tuple[str, str]:
    """The columns that a map shows of a result: the rows of its points, and distances or counts."""
    with manifest.reading(manifest.parts[0]) as handle:
        names = opened(handle).schema_arrow.names
    return names[0], DISTANCE if DISTANCE in names else "count"


def measure(manifest: Manifest) -> Distances:
    """Read the distances of a result; raises OSError when it is damaged or gone."""
    _, shown = shown_columns(manifest)
    is_count = shown != DISTANCE
    counts: Counter[str] = Counter()
    fine = np.zeros(_FINE, np.int64)
    ends: list[float] = []
    lock = Lock()

    def read(stretch: Stretch) -> None:
        table = stretch.read(manifest, [shown, "status"])
        if "rank" in table.column_names:
            table = table.filter(pc.equal(table["rank"], 1))
        numbers = table[shown].drop_null().cast(pa.float64()).to_numpy()
        own = np.bincount(_bins(numbers))
        by_status = table["status"].value_counts().to_pylist()
        with lock:
            fine[: own.size] += own
            if numbers.size:
                ends.extend((float(numbers.min()), float(numbers.max())))
            for one in by_status:
                counts[one["values"]] += one["counts"]

    for _ in side_by_side(read, stretches(manifest)):
        pass
    if not ends:
        return Distances(dict(counts), [], Histogram([], []), Histogram([], []))
    least, most = min(ends), max(ends)
    linear = np.linspace(0.0, most, _BINS + 1) if most > _LEAST_M else np.array([0.0, _LEAST_M])
    from_m = max(_LEAST_M, least)
    logarithmic = linear
    if most > from_m:
        logarithmic = np.concatenate([[0.0], np.geomspace(from_m, most, _BINS)])
    if is_count:
        # Between whole numbers, each with a bin of its own where there are few.
        linear = np.unique(np.ceil(np.linspace(0, most + 1, _BINS + 1)))
        logarithmic = np.unique(np.ceil(np.append(0, np.geomspace(1, most + 1, _BINS))))
    histograms = (_histogram(fine, edges, most) for edges in (linear, logarithmic))
    percentiles = _percentiles(fine, least, most, is_count=is_count)
    return Distances(dict(counts), percentiles, *histograms)


def _bins(numbers: np.ndarray) -> np.ndarray:
    """The fine bins that some numbers are in."""
    found: np.ndarray = np.maximum((numbers.view(np.int64) >> _SHIFT) - _BELOW, 0)
    return found


def _begins(bins: np.ndarray) -> np.ndarray:
    """The numbers that fine bins begin with."""
    return np.where(bins > 0, (bins + _BELOW << _SHIFT).view(np.float64), 0.0)


def fine_bins(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the fine bin of each number begins and ends: percentiles tell no less."""
    bins = _bins(numbers)
    return _begins(bins), _begins(bins + 1)


def _histogram(fine: np.ndarray, edges: np.ndarray, most: float) -> Histogram:
    """Counts between the beginnings of the fine bins in which some edges lie."""
    bins = np.unique(_bins(edges[:-1]))
    found = np.append(_begins(bins), max(edges[-1], most))
    return Histogram(found.tolist(), np.add.reduceat(fine, bins).tolist())


def _percentiles(fine: np.ndarray, least: float, most: float, *, is_count: bool) -> list[float]:
    upto = fine.cumsum()
    last = upto[-1] - 1
    at = np.array(PERCENTS) / 100 * last
    ranks = np.array([np.floor(at), np.ceil(at)])
    bins = np.searchsorted(upto, ranks, "right")
    # The first bin is below a micrometre: 0, as of points in polygons.
    middle = np.where(bins > 0, (_begins(bins) + _begins(bins + 1)) / 2, 0.0)
    low, high = (np.floor(middle) if is_count else middle).clip(least, most)
    found: list[float] = (low + (high - low) * (at - ranks[0])).tolist()
    return [least, *found[1:-1], most]


class Stretch(NamedTuple):
    """Row groups of a part that a thread reads at a time."""

    part: Part
    footer: pq.FileMetaData
    """Of the part: to parse it for every stretch takes long where a part has many."""
    groups: list[int]
    first_row: int
    """The row of the result that they begin with."""

    def read(self, manifest: Manifest, names: list[str]) -> pa.Table:
        """Some columns of them, and the ranks of a result that has several an observation."""
        with manifest.reading(self.part) as handle:
            parquet = opened(handle, self.footer)
            ranks = {"rank"}.intersection(parquet.schema_arrow.names)
            return parquet.read_row_groups(self.groups, columns=[*names, *ranks], use_threads=False)


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
