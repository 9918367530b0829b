"""Files from strangers to canonical datasets; it runs in a process of `service.receiving.decoders`.

A file can declare little and decode to much, or make the decoder do what its author wants: the
process has limits on memory, and a sandbox.
"""

import contextlib
import errno
import io
import json
import os
import resource
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.columns import Reading
from georesolve.io.datasets import Facts, streamed
from georesolve.io.errors import Refused
from georesolve.io.footers import append
from georesolve.io.formats import Source, Table
from georesolve.io.normalized import decode
from georesolve.io.points import Bounds, PointTable, gather
from georesolve.io.readers import ranges_of, refusal_of
from georesolve.service import errors
from georesolve.service.receiving.sandbox import confine, libraries

_MEMORY = Path("/proc/self/statm")
REFUSALS = (
    *(errors.InvalidInput, errors.InvalidRequest, errors.TooLarge, errors.StorageFull),
    errors.UnsupportedFormat,
)
"""What a process may answer that is the file's fault, by its name."""


@dataclass(frozen=True, kw_only=True)
class Limits(Bounds):
    """What decoding one file may take; it may write so many bytes."""

    memory_bytes: int
    seconds: float
    written_bytes: int = resource.RLIM_INFINITY


class Task(NamedTuple):
    """What a process does with a file: a function below, what it is given, and its files."""

    function: Callable[..., dict[str, Any]]
    source: Source
    given: tuple[Any, ...]
    reads: list[Path]
    writes: list[Path]


def decode_to(source: Source, limits: Limits, target: Path) -> dict[str, Any]:
    """Make a dataset of a file, or of a range: its numbers and names, and what its rows showed."""
    dataset, findings = decode(source, target, limits)
    return {
        "facts": {one.name: getattr(dataset, one.name) for one in fields(Facts)},
        "types": [str(type) for type in pq.read_schema(target).types],
        "points": findings.points,
        "evidence": findings.evidence.as_json(),
    }


def cut(source: Source, limits: Limits, most: int) -> dict[str, Any]:
    """Find ranges for so many processes: none in what is wrong, as decoding it will tell better."""
    try:
        return {"ranges": ranges_of(source, most)}
    except Exception as error:
        if _refusal_of(error, source, limits) is None:
            raise
        return {"ranges": []}


def join(source: Source, limits: Limits, target: Path, others: list[Path]) -> dict[str, Any]:
    """Append what was made of ranges to what was made of the first one."""
    append(target, others)
    return {}


def serve(connection: Connection) -> None:
    """Do the task that comes over a pipe, and answer as JSON."""
    # The other pools hold a gigabyte of address space from the start, and give it out unlimited.
    pa.set_memory_pool(pa.system_memory_pool())
    small = _warm_up()
    try:
        task, limits = connection.recv()
    except (EOFError, ConnectionError):
        # The service has ended, or this process was never needed.
        return
    if task.source.range is not None:
        # The other cores have ranges of their own.
        pa.set_cpu_count(1)
    confine([*task.reads, _MEMORY], task.writes, connection.fileno())
    # It starts threads, which take address space that is not the file's.
    for _ in pq.ParquetFile(small).iter_batches():
        pass
    _limit(limits)
    answer = f"\n{json.dumps(_answer(task, limits))}".encode()
    # The service may have been killed meanwhile.
    with (
        contextlib.suppress(BrokenPipeError),
        os.fdopen(connection.fileno(), "wb", closefd=False) as pipe,
    ):
        pipe.write(answer)
    # Nothing is written behind the answer, to standard error, say.
    os._exit(0)


def _warm_up() -> io.BytesIO:
    """Touch what decoding needs, in this thread alone; returns a small Parquet file."""
    table = pa.table({"lat": [0.5], "lon": [0.5]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    batches = streamed(sink).read_row_group(0, use_threads=False).to_batches()
    read = Table(table.schema, iter(batches), 1)
    gather(PointTable(read, Reading(), "", Bounds(rows=1, columns=2)), None)
    libraries()
    return sink


def _limit(limits: Limits) -> None:
    # Address space, not resident memory: only that is enforced at the allocation itself.
    own = int(_MEMORY.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + limits.memory_bytes,) * 2)
    # A few bytes may decode to much more than whoever received them has seen.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.written_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(task: Task, limits: Limits) -> dict[str, Any]:
    try:
        return task.function(task.source, limits, *task.given)
    except Exception as error:
        refused = _refusal_of(error, task.source, limits)
        if refused is None:
            return {"stack": traceback.format_exc()}
        told = errors.problem_of(refused)
        return {"problem": type(told).__name__, "detail": told.detail, "errors": told.errors}


def _refusal_of(error: Exception, source: Source, limits: Limits) -> Refused | None:
    """What a file has done, None where the error is a defect of ours."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, MemoryError):
        return errors.TooLarge(
            f"{source.file}: decoding takes more than the limit of "
            f"{limits.memory_bytes / 2**20:.0f} MiB of memory; send it in smaller pieces"
        )
    if errors.is_disk_full(error):
        return errors.disk_full()
    if getattr(error, "errno", None) == errno.EFBIG:
        return errors.StorageFull(
            f"{source.file}: its points take more than the {limits.written_bytes} bytes that the "
            "disk of the service has room for: remove datasets and results that are no longer "
            "needed, or send it in smaller pieces"
        )
    return refusal_of(error, source)
