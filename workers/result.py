"""`matches.parquet`: the rows of a result as Parquet, cut the same way whatever the chunks were."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernels.distance import EARTH_RADIUS_M
from workers import __version__
from workers.jobs import Job

RESULT_ROW_GROUP = 131_072
"""Rows that a row group of the result has at most: part of its bytes."""
_PLAIN = ("observation", "rank", "reference", "distance_m")


def observations_a_group(k: int) -> int:
    """Number of observations whose rows make a row group: a power of two.

    Row groups hold the rows of fixed ranges of observations, so a chunk that begins and ends with
    such a range can be encoded where it was resolved.
    """
    return 1 << (RESULT_ROW_GROUP // k).bit_length() - 1


def write_rows(where: Path | BinaryIO, table: pa.Table, k: int) -> None:
    """Write result rows, of whole ranges of observations, as Parquet.

    Pages carry checksums: what was damaged on its way is found when it is read.

    Parameters
    ----------
    table
        Result rows in the order of their observations, metadata included.
    k
        Neighbours an observation.
    """
    carried = [name for name in table.schema.names if name not in _PLAIN]
    compression = {name: "none" if name in _PLAIN else "zstd" for name in table.schema.names}
    with pq.ParquetWriter(
        where,
        table.schema,
        compression=compression,
        use_dictionary=carried,
        write_page_checksum=True,
    ) as writer:
        for group in _row_groups(table, observations_a_group(k)):
            writer.write_table(group, RESULT_ROW_GROUP)


def _row_groups(table: pa.Table, observations: int) -> Iterator[pa.Table]:
    if not table.num_rows:
        return
    of = table["observation"].to_numpy()
    first = of[0] // observations * observations
    starts = np.unique(np.searchsorted(of, np.arange(first, of[-1] + 1, observations))).tolist()
    for start, stop in pairwise([*starts, table.num_rows]):
        # In one piece: pages break where pieces do, and must not show the chunks.
        yield table.slice(start, stop - start).combine_chunks()


def provenance(job: Job, counts: dict[str, int]) -> dict[str, str]:
    """What the metadata of a result says of where it comes from.

    Parameters
    ----------
    counts
        Number of result rows by status.
    """
    # Not the algorithm: it does not change the answer, so it must not change the bytes.
    options = {name: value for name, value in asdict(job.options).items() if name != "algorithm"}
    content = {
        "version": __version__,
        "radius_m": EARTH_RADIUS_M,
        "options": options,
        "counts": counts,
        "observations_sha256": job.observations.sha256,
        "references_sha256": job.references.sha256,
    }
    return {"georesolve": json.dumps(content, sort_keys=True)}
