"""`matches.parquet`: the part files of a job assembled, in input order, into one result."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kernels.distance import EARTH_RADIUS_M
from workers import __version__
from workers.files import durable, sha256_of
from workers.jobs import Job

RESULT_ROW_GROUP = 131_072
"""Rows of a row group of the result, however the job was cut into chunks: part of the bytes."""
_PLAIN = ("observation", "rank", "reference", "distance_m")


class Result(NamedTuple):
    """A finished result file."""

    rows: int
    size_bytes: int
    sha256: str
    seconds: float


def assemble(job: Job, parts: list[Path], counts: dict[str, int]) -> Result:
    """Write the result of a job from its part files.

    The bytes depend on the two inputs, the options and the version of georesolve alone: not on
    devices, workers, chunks or time.

    Parameters
    ----------
    parts
        All part files in the order of their rows, at least one.
    counts
        Number of result rows by status.
    """
    start = time.perf_counter()
    pieces = [pa.ipc.open_file(pa.memory_map(str(part))).read_all() for part in parts]
    table = pa.concat_tables(pieces)
    with durable(job.result) as temporary:
        write_result(temporary, job, table, counts)
        sha256 = sha256_of(temporary)
        size_bytes = temporary.stat().st_size
    return Result(table.num_rows, size_bytes, sha256, time.perf_counter() - start)


def write_result(where: Path | BinaryIO, job: Job, table: pa.Table, counts: dict[str, int]) -> None:
    """Write all result rows of a job as Parquet."""
    table = table.replace_schema_metadata({"georesolve": _provenance(job, counts)})
    carried = [name for name in table.schema.names if name not in _PLAIN]
    compression = {name: "none" if name in _PLAIN else "zstd" for name in table.schema.names}
    with pq.ParquetWriter(
        where, table.schema, compression=compression, use_dictionary=carried
    ) as writer:
        for row in range(0, max(1, table.num_rows), RESULT_ROW_GROUP):
            job.stop_if_cancelled()
            # In one piece: pages break where pieces do, and must not show the chunks.
            group = table.slice(row, RESULT_ROW_GROUP).combine_chunks()
            writer.write_table(group, RESULT_ROW_GROUP)


def _provenance(job: Job, counts: dict[str, int]) -> str:
    # Not the algorithm: it does not change the answer, so it must not change the bytes.
    options = {name: value for name, value in asdict(job.options).items() if name != "algorithm"}
    return json.dumps(
        {
            "version": __version__,
            "radius_m": EARTH_RADIUS_M,
            "options": options,
            "counts": counts,
            "observations_sha256": job.observations.sha256,
            "references_sha256": job.references.sha256,
        },
        sort_keys=True,
    )
