"""The columns that a result carries of both sets, and the memory that they take spelled out.

A few wide values among the references are as many as there are observations near them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pyarrow as pa

from georesolve.engine.match_sets import CarriedTooLong, MatchSets
from georesolve.engine.plan import Chunk, carried_bytes
from georesolve.engine.resident import resident_column, whole_index
from georesolve.engine.result_rows import with_carried, with_near
from georesolve.io.column_sizes import Carried
from georesolve.io.datasets import read_rows
from georesolve.io.source_files import SourceFiles
from georesolve.kernels.query import Degrees

_LARGE_BYTES = 2**26
"""Row groups that carry more than that are made one after the other."""
_making_large = threading.Lock()
_CHUNK_BYTES = 2**27
"""What the columns of all observations of a chunk may take that are read at once."""

Reader = Callable[[Chunk], pa.Table]
"""Reads the columns that a result carries of some observations."""


def reader(sets: MatchSets, chunk: Chunk) -> Reader:
    """How the carried columns of the observations of a chunk are read, by parts of it.

    Row groups in files of their owner may be many times as large as those of a result. So that none
    is decoded for each of these, they are read at once, unless that takes too much memory.
    """
    file = sets.observations.file
    names = list(dict.fromkeys([*sets.carried()[0], *sets.options.coordinates(sets.observations)]))
    of_observations = Carried(observations=sets.observations.width(sets.carried()[0]))
    size = carried_bytes(chunk.stop - chunk.start, 1, of_observations)
    if not isinstance(file, SourceFiles) or size > _CHUNK_BYTES:
        return lambda own: read_rows(file, *own, names)
    table = read_rows(file, *chunk, names)
    return lambda own: table.slice(own.start - chunk.start, own.stop - own.start)


@contextmanager
def carried(
    sets: MatchSets,
    chunk: Chunk,
    rows: pa.Table,
    read: Reader | None = None,
    most_bytes: int | None = None,
) -> Iterator[pa.Table]:
    """The rows of a result for some observations, with the columns that they carry.

    `rows` are what `matches` gave for `chunk`, of one row group; `read` is the `reader` of more
    observations than these. More than `most_bytes` raise CarriedTooLong. They are to be let go of
    within: where they take much memory, others wait until then.
    """
    of_observations, of_references = sets.carried()
    options = sets.options
    if not (of_observations or of_references or options.near or options.how == "inner"):
        yield rows
        return
    widths = Carried(observations=sets.observations.width(of_observations))
    # Of the references just what they take, of others at most.
    n_observations = chunk.stop - chunk.start
    size = carried_bytes(n_observations, -(-rows.num_rows // max(1, n_observations)), widths)
    taken = rows["reference"].drop_null().to_numpy() if of_references else np.empty(0, np.int64)
    for name in of_references:
        each = resident_column(sets.references, name).widths
        size += each * taken.size if isinstance(each, int) else int(each[taken].sum())
    if most_bytes is not None and size > most_bytes:
        raise CarriedTooLong(f"{rows.num_rows} rows would carry {size} bytes, not {most_bytes}")
    with _making_large if size > _LARGE_BYTES else nullcontext():
        references = (
            (name, resident_column(sets.references, name).values) for name in of_references
        )
        own = (read or reader(sets, chunk))(chunk)
        if sets.options.near:
            here, there = map(sets.options.coordinates, (sets.observations, sets.references))
            degrees = Degrees(*(own[name].to_numpy() for name in here))
            if sets.references.outlines is None:
                given = [resident_column(sets.references, name).values for name in there]
            else:
                given = whole_index(sets, "positions on lines and polygons need")
            rows = with_near(rows, degrees, given, chunk.start, sets.options.earth)
        yield with_carried(rows, sets.options, own.select(of_observations), references, chunk.start)
