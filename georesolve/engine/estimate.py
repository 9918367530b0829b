"""What a job would take, before it is accepted: from the plan that it would run by.

The rates were measured on 21 November 2026 by `benchmarks/whole_jobs.py`, on two cores and on H200s
(`docs/gpu-runs.md`). `Pace` learns what another machine, or a busy hour, makes of them.
"""

from typing import NamedTuple

from georesolve.engine import memory
from georesolve.engine.cost_model import rows_a_second
from georesolve.engine.plan import (
    CHUNKS_IN_HAND,
    chunk_starts,
    observations_a_group,
    too_wide,
)
from georesolve.io.column_sizes import Carried, Width
from georesolve.io.datasets import ColumnSize, Dataset, column_sizes
from georesolve.kernels.devices import Device
from georesolve.query import MatchOptions


class _Rates(NamedTuple):
    """Seconds: a job's own, and those that a row of each kind takes."""

    job: float
    build: float
    read: float
    write: float


_RATES: dict[Device, _Rates] = {
    "cpu": _Rates(job=0.06, build=100e-9, read=15e-9, write=80e-9),
    "cuda": _Rates(job=0.05, build=1e-9, read=2e-9, write=12e-9),
}
_FIRST_SECONDS = 0.8
"""What the first job of a worker takes longer, which loads all that it needs: at pace 1."""
_COMPILE_SECONDS: dict[Device, float] = {"cpu": 50.0, "cuda": 0.0}
"""What the first job of its kind on a machine compiles for: 17 to 75 s on two busy cores in twelve
jobs; of GPUs nothing is known."""
_COORDINATES_BYTES = 16
"""Of a row of a dataset: latitude and longitude."""
_DISTANCE_BYTES = 8
"""Of a result row, and of each column of `near`; all else takes nearly none."""
_DICTIONARY_BYTES = 1 << 20
"""As large a column a row group holds as a dictionary: pyarrow's limit."""


class Size(NamedTuple):
    """How large one set is: its rows, the bytes of its file, and the columns that are carried."""

    rows: int
    size_bytes: int
    carried: tuple[ColumnSize, ...] = ()
    width: Width = Width()
    """Of these columns together."""
    widest_column: int = 0
    """Memory that the largest of them takes."""
    as_points: int = 0
    """See `PointSet`."""


class Estimate(NamedTuple):
    """What a job would take, as `service.resolve.estimate` tells it."""

    rows: int
    chunks: int
    bytes_in: int
    bytes_out: int
    device_memory: int
    devices: int
    seconds: float
    seconds_warm: float
    """Once the references are indexed."""
    seconds_cold: float
    """Of the first job of a worker."""
    seconds_compiling: float
    """That `seconds` and `seconds_cold` have in them."""


def size_of_rows(rows: int) -> Size:
    """A set of which nothing is known but its rows: coordinates alone."""
    return Size(rows, rows * _COORDINATES_BYTES, as_points=rows)


def size_of_dataset(dataset: Dataset, names: list[str]) -> Size:
    """A set that is there, of which a job carries some columns."""
    sizes = column_sizes(dataset.file)
    size_bytes = sum(size.stored for size in sizes.values())
    largest = max((dataset.width([name]).total for name in names), default=0)
    carried = tuple(sizes[name] for name in names)
    return Size(dataset.rows, size_bytes, carried, dataset.width(names), largest, dataset.as_points)


def obstacle(observations: Size, references: Size, options: MatchOptions) -> str | None:
    """Why a job cannot carry what it should, if so."""
    return too_wide(observations.rows, options.ranks, Carried(observations.width, references.width))


def result_bytes(
    observations: Size, references: Size, options: MatchOptions, rows: int | None = None
) -> int:
    """Bytes of a result in which every observation has its row, or of so many pairs."""
    rows = observations.rows * options.ranks if rows is None else rows
    carried = Carried(observations.width, references.width)
    ranks = options.ranks
    groups = -(-rows // (ranks * observations_a_group(ranks, carried)))
    # A difference of two of so many numbers, its sign included.
    bits = references.rows.bit_length() + 1 + (ranks.bit_length() + 1 if ranks > 1 else 0)
    own = rows * (_DISTANCE_BYTES * (4 if options.near else 1) + bits / 8)
    # What is repeated for each rank takes hardly more than once.
    share = min(1.0, rows / max(1, observations.rows))
    of_observations = share * sum(column.stored for column in observations.carried)
    of_references = 0.0
    for column in references.carried:
        # Any row has any value. A small column each row group holds once, and for each row which
        # value it is; what is compressed instead takes no more.
        taken = rows * column.stored / max(1, references.rows)
        if column.encoded <= _DICTIONARY_BYTES:
            numbers = rows * references.rows.bit_length() / 8
            taken = min(taken, groups * column.stored + numbers)
        of_references += taken
    return int(own + of_observations + of_references)


class Capacity(NamedTuple):
    """What an estimate knows of a cluster: its workers, their `Pace.factor` and their memory."""

    device: Device
    workers: int
    pace: float
    references_at_once: int
    """Those that a worker searches at a time."""
    available_memory: int
    """Bytes that a worker has for searches."""
    column_memory: int
    """Bytes that a worker has for one column of the references."""
    compiled: tuple[str, ...] = ()
    """The kinds of questions (`MatchOptions.kind`) that its machine has code for."""


def estimate(
    capacity: Capacity,
    observations: Size,
    references: Size,
    options: MatchOptions,
    compared: float = 0.0,
    n_pairs: int | None = None,
    kind: str | None = None,
) -> Estimate:
    """Estimate a job on a cluster; `compared` is as for `rows_a_second`.

    Of a `kind` that the cluster has no code for it counts what that takes.
    """
    rows, n_references = observations.rows, references.as_points
    carried = Carried(observations.width, references.width)
    device, workers = capacity.device, max(1, capacity.workers)
    starts = chunk_starts(rows, n_references, options, device, workers, carried, compared)
    rates, largest = _RATES[device], min(starts.step, rows)
    each = options.ranks if n_pairs is None else n_pairs / max(1, rows)
    a_row = rates.read + rates.write * each
    a_row += 1 / rows_a_second(n_references, options, device, compared)
    # Chunks of one length come in rounds: a worker more that has none does not help.
    rounds = -(-len(starts) // workers)
    building = rates.build * n_references
    seconds = rates.job + building + rounds * largest * a_row
    if observations.as_points > rows:
        # A row a shape: all points look for the shapes of each chunk.
        rate = rows_a_second(observations.as_points, options, device)
        seconds += rounds * references.rows / rate
    is_new = kind not in (None, *capacity.compiled)
    compiling = _COMPILE_SECONDS[device] if is_new else 0.0
    at_once = min(n_references, capacity.references_at_once), largest * CHUNKS_IN_HAND[device]
    return Estimate(
        rows=rows * options.ranks if n_pairs is None else n_pairs,
        chunks=len(starts),
        bytes_in=observations.size_bytes + references.size_bytes,
        bytes_out=result_bytes(observations, references, options, n_pairs),
        device_memory=memory.search_bytes(device, *at_once, options.k),
        devices=capacity.workers,
        seconds=seconds * capacity.pace + compiling,
        seconds_cold=(seconds + _FIRST_SECONDS) * capacity.pace + compiling,
        seconds_compiling=compiling,
        seconds_warm=(seconds - building) * capacity.pace,
    )
