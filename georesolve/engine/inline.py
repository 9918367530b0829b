"""Small jobs, answered in the process that was asked: on its CPU, in the thread of the caller.

The bytes of an answer are those of a job, whatever device that has. Nothing is kept of it.
"""

import logging
import threading
import time
from collections.abc import Hashable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from distributed.system import MEMORY_LIMIT

from georesolve.engine.attributes import carried
from georesolve.engine.cost_model import quickly_indexed, rows_a_second
from georesolve.engine.filter_encoding import check_filters
from georesolve.engine.match_sets import CarriedTooLong, MatchSets
from georesolve.engine.memory import set_memory
from georesolve.engine.plan import Chunk, rows_a_group
from georesolve.engine.provenance import geometries, provenance
from georesolve.engine.questions import Within
from georesolve.engine.resident import (
    forget_all,
    is_resident,
    pieces,
    resident_column,
)
from georesolve.engine.search import batch_of, question_of
from georesolve.io.datasets import ROW_GROUP, Dataset, InMemory, held_dataset, write_dataset
from georesolve.io.evidence import Evidence
from georesolve.io.result_files import (
    Rows,
    TableRows,
    opened,
    write_rows,
)
from georesolve.io.source_files import SourceFiles
from georesolve.kernels import StepsSpent
from georesolve.kernels.cache import TELLING_ROWS, note_compiled
from georesolve.kernels.threads_cpu import allowed
from georesolve.query import Algorithm, MatchOptions

logger = logging.getLogger(__name__)

_CARRIED_BYTES = 2**26
"""What is answered from memory carries no more."""
_ALGORITHMS: tuple[Algorithm, ...] = ("tree", "brute")
_REHEARSED_ROWS = (10, 500)
"""Few observations and many take different ways through the search."""
_SECONDS_A_CORE = 0.00005
"""For less, another core is not worth waking. By the estimate: a few hundred observations, which
take several times as long where they are far apart."""
_QUICK_ROWS = 2_048
_QUICK_SECONDS = 0.001
"""By the estimate, of the search alone."""
QUICK_STEPS = 4_000_000
"""Of a search that keeps an event loop waiting: 2 ms."""
MOST_STEPS = 400_000_000
"""Of one that keeps other small jobs waiting: a quarter of a second. Those of points that are
spread take a hundredth of it."""
_AS_WRITTEN = {pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()}
"""Types of columns that are the same bytes once they are written and read, without nulls."""
_warming = threading.Lock()
_failed: dict[Hashable, Exception] = {}
"""Why the references that were loaded last could not be, until a request is told."""


class NotAtHand(Exception):
    """A small job cannot be answered at hand: it carries too much, or memory holds too little."""


class SearchIsHard(NotAtHand):
    """The search of a small job takes more steps than it may."""


class NotResident(NotAtHand):
    """The references of a small job are being read and indexed, for which it should not wait."""


class AtHandAnswer(NamedTuple):
    """The answer to a small job: its rows, how many there are of each status, and time by stage."""

    sets: MatchSets
    rows: pa.Table
    counts: dict[str, int]
    seconds: dict[str, float]

    @property
    def content(self) -> bytes:
        """The result file, the same bytes as a job's own."""
        sink = pa.BufferOutputStream()
        write_rows(sink, [self.rows.replace_schema_metadata(provenance(self.sets, self.counts))])
        return bytes(sink.getvalue())

    @property
    def decoded(self) -> Rows:
        """The rows as they are read of the file, which is made where a value may differ in that."""
        table = self.rows
        if all(
            (field.type in _AS_WRITTEN or field.name == "status") and not column.null_count
            for field, column in zip(table.schema, table.columns, strict=True)
        ):
            return TableRows(table.replace_schema_metadata(provenance(self.sets, self.counts)))
        rows: Rows = opened(pa.BufferReader(self.content))
        return rows

    @property
    def plain(self) -> TableRows:
        """The rows, for formats that do not say where they come from."""
        return TableRows(self.rows.replace_schema_metadata(geometries(self.sets)))


def is_quick(observations: Dataset, references: Dataset, options: MatchOptions) -> bool:
    """Whether a job is answered in some milliseconds, and all that it needs is in memory."""
    rate = rows_a_second(references.as_points, options, "cpu")
    return (
        not options.of_pairs
        and references.outlines is None
        # They may have to be compiled first.
        and options.earth == "sphere"
        and options.filters is None
        and isinstance(observations.file, InMemory)
        and observations.rows * options.k <= _QUICK_ROWS
        and observations.rows <= _QUICK_SECONDS * rate
        and is_resident(references, options.needed_of_references(references))
    )


def resolve_at_hand(sets: MatchSets, most_steps: int = MOST_STEPS) -> AtHandAnswer:
    """Answer a small job, whose search may take so many steps: that depends on where points lie.

    It raises SearchIsHard when it takes more, NotResident while its references are being loaded,
    and NotAtHand when only workers can give the answer.
    """
    try:
        return _resolved(sets, most_steps)
    except CarriedTooLong as error:
        raise NotAtHand(str(error)) from error


def _resolved(sets: MatchSets, most_steps: int) -> AtHandAnswer:
    references, options = sets.references, sets.options
    if len(pieces(references)) > 1:
        # Where not all pieces have room, they would push each other out for ever.
        raise NotAtHand(f"{references.rows} references are searched piece by piece")
    columns = options.needed_of_references(references)
    # Of lines and polygons that points look for they are not indexed.
    waits = sets.observations.outlines is None and references.as_points > quickly_indexed(options)
    how: Hashable = options.earth
    if waits and options.filters is not None:
        how = check_filters(sets.observations, references, options).how
    if waits and not is_resident(references, columns, how):
        key = references.sha256, how, *columns
        if failed := _failed.pop(key, None):
            raise failed
        # One set at a time: each takes memory and all cores.
        if _warming.acquire(blocking=False):
            threading.Thread(target=_warm_up, args=(sets, columns, key), daemon=True).start()
        raise NotResident(f"the {references.rows} references are being read and indexed")
    start = time.perf_counter()
    chunk, file = Chunk(0, sets.observations.rows), sets.observations.file
    batch, evidence = batch_of(sets, chunk)
    if isinstance(file, SourceFiles) and evidence is not None:
        file.refuse_implausible(evidence)
    read = time.perf_counter()
    question = question_of(sets, chunk, batch.narrowed, most_steps)
    loaded = time.perf_counter()
    most_threads = allowed.threads
    seconds = sets.observations.rows / rows_a_second(references.as_points, options, "cpu")
    try:
        # As many cores as it is worth.
        allowed.threads = min(most_threads, max(1, int(seconds / _SECONDS_A_CORE)))
        if isinstance(question, Within) and options.question == "within":
            n_pairs, most = int(question.counts(batch).sum()), min(ROW_GROUP, rows_a_group(sets))
            if n_pairs > most:
                raise NotAtHand(f"{n_pairs} pairs are more than the limit of {most} without a job")
        rows, counts = question.found(batch)
        if sets.observations.rows >= TELLING_ROWS:
            note_compiled(sets.kind)
    except StepsSpent:
        raise SearchIsHard(
            "so many references are equally far from an observation that the search takes more "
            f"than {most_steps} comparisons"
        ) from None
    finally:
        allowed.threads = most_threads
    with carried(sets, chunk, rows, most_bytes=_CARRIED_BYTES) as result:
        resolved = time.perf_counter() - loaded
        stages = {"read": read - start, "index": loaded - read, "resolve": resolved}
        return AtHandAnswer(sets, result, counts, stages)


def _warm_up(sets: MatchSets, columns: list[str], key: Hashable) -> None:
    try:
        question_of(sets, Chunk(0, sets.observations.rows))
        for name in columns:
            resident_column(sets.references, name)
    except Exception as error:
        _failed.clear()
        _failed[key] = error
        logger.warning("%d references cannot be loaded", sets.references.rows, exc_info=True)
    finally:
        _warming.release()


def prepare(memory_bytes: int | None, processes: int = 1) -> None:
    """Get this process ready to answer: read the machine code of the kernels, or compile it.

    So many `processes` share the memory that searches may take on this machine, by default a
    quarter of its own.
    """
    set_memory("cpu", (memory_bytes or MEMORY_LIMIT // 4) // processes, None)
    references = spiral_set(3_000)
    for rows, k, algorithm in product(_REHEARSED_ROWS, (1, 2), _ALGORITHMS):
        options = MatchOptions(k=k, algorithm=algorithm, near=True)
        _ = resolve_at_hand(MatchSets(spiral_set(rows), references, options)).content
    forget_all()


def prepare_thread(cores: int) -> None:
    """Get a thread ready that answers: its searches take so many cores."""
    allowed.threads = cores


def spiral(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points spread evenly over the sphere along a spiral: latitudes and longitudes in degrees."""
    i = np.arange(n) + 0.5
    golden_deg = 180.0 * (3.0 - 5.0**0.5)
    return np.degrees(np.arcsin(2 * i / n - 1)), (golden_deg * i) % 360.0


def spiral_set(n: int, folder: Path | None = None) -> Dataset:
    """The same points as a dataset, in memory or in a folder."""
    degrees = spiral(n)
    batch = pa.record_batch([*degrees], names=["lat", "lon"])
    if folder is None:
        return held_dataset(batch, {"id": None, "lat": "lat", "lon": "lon"}, Evidence.of(*degrees))
    path = folder / f"{n}.parquet"
    return write_dataset(batch.schema, [batch], path, lat="lat", lon="lon", id=None)
