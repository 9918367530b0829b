"""The end of a job: its parts become a result, of which no byte is written a second time."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from georesolve.engine.estimate import result_bytes, size_of_dataset
from georesolve.engine.plan import Chunk, chunks_of_pairs, is_edge, rows_a_group
from georesolve.engine.provenance import provenance
from georesolve.io.errors import ResultTooLarge
from georesolve.io.evidence import Evidence
from georesolve.io.footers import Growing, Movable
from georesolve.io.result_files import opened
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import named
from georesolve.io.threads import side_by_side
from georesolve.kernels.devices import Device
from georesolve.workers.job import Job
from georesolve.workers.results.manifest import Manifest, write_manifest
from georesolve.workers.results.parts import Part, part_name
from georesolve.workers.results.splice import Splice, encode, footer_of

_EVIDENCE = TypeAdapter(Evidence)
_OfFooter = tuple[Part, list[Movable]]
"""A part, and what footers say of its row groups."""


class Assembly:
    """Gathers the records of a job's chunks, in whatever order they come, and ends the job.

    The bytes of its result depend on the two inputs, the options and the version of georesolve
    alone: not on devices, workers, chunks or time.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done: dict[Chunk, _OfFooter] = {}
        self._counts: dict[Chunk, dict[str, int]] = {}
        self._pairs: dict[Chunk, int] = {}
        self._evidence: dict[Chunk, Evidence] = {}
        # Disks take several parts at a time.
        self._syncing = ThreadPoolExecutor(4, thread_name_prefix="sync")
        self._synced: list[Future[None]] = []

    def add(self, chunk: Chunk, record: dict[str, Any]) -> None:
        """Take the record of a finished chunk; raises ValueError when it is damaged."""
        # Read as they come: of a large result that would be long at the end.
        groups = [Movable.of_json(group) for group in record["footer"]]
        part = Part.read(record["part"])
        self._done[chunk] = part, groups
        self._counts[chunk], self._pairs[chunk] = record["counts"], record.get("pairs", 0)
        if record.get("evidence"):
            self._evidence[chunk] = _EVIDENCE.validate_python(record["evidence"])
        # While workers make others; one that is to be joined with others need not survive.
        if all(is_edge(self._job, row, self._job.counted[1]) for row in chunk):
            self._synced.append(self._syncing.submit(self._job.place.sync, part.name))

    def evidence(self) -> Evidence | None:
        """What all observations say once all chunks are there, if that is news; SourceFailed."""
        observations = self._job.observations.file
        if not isinstance(observations, SourceFiles):
            return None
        found = Evidence()
        for chunk in sorted(self._evidence):
            found.extend(self._evidence[chunk])
        observations.refuse_implausible(found)
        return found

    def counted(
        self, job: Job, device: Device, most_bytes: int
    ) -> tuple[Job, list[Chunk], dict[str, int]]:
        """A job that knows its pairs, their chunks, and rows by status; raises ResultTooLarge."""
        done = sorted(self._done)
        each = [self._counts[chunk] | {"matched": self._pairs[chunk]} for chunk in done]
        rows = (sum(one.values()) if job.options.how == "left" else one["matched"] for one in each)
        before = [0, *accumulate(rows)]
        sets = job.observations, job.references
        observations, references = map(size_of_dataset, sets, job.carried())
        size = result_bytes(observations, references, job.options, before[-1])
        if size > most_bytes:
            raise ResultTooLarge(
                f"the result has {before[-1]} rows, about {size} bytes, and {most_bytes} are "
                "allowed: ask for a shorter distance, or for a summary"
            )
        job = replace(job, counted=([0, *(chunk.stop for chunk in done)], before))
        counts = {name: sum(one[name] for one in each) for name in each[0]}
        return job, chunks_of_pairs(job, job.counted[1], device), counts

    def finish(self, counts: dict[str, int]) -> Manifest:
        """Write footer and manifest, once all chunks are there; `counts` are rows by status."""
        job, footer, parts = self._job, Growing(), []
        # The chunks by the parts that they make: one, or those that have a row group together.
        runs: list[list[Chunk]] = []
        is_open = False
        for chunk in sorted(self._done):
            runs[-1].append(chunk) if is_open else runs.append([chunk])
            is_open = not is_edge(job, chunk.stop, job.counted[1])
        with named(job.place), job.place.asked():
            for part, groups in side_by_side(self._part, runs):
                for group, stands in zip(groups, part.groups, strict=True):
                    footer.add([group], stands.size_bytes)
                parts.append(part)
            with job.place.open(parts[0].name) as file:
                schema = pq.read_schema(file).with_metadata(provenance(job, counts))
            ending = footer.ending(footer_of(schema))
            return write_manifest(job.folder, job.output, parts, ending, self._synced)

    def _part(self, run: list[Chunk]) -> _OfFooter:
        """The part of a run; parts with pieces of row groups are written anew as one."""
        if len(run) == 1:
            return self._done[run[0]]
        job, tables = self._job, []
        for chunk in run:
            with job.place.open(self._done[chunk][0].name) as file:
                tables.append(opened(file).read())
        table = pa.concat_tables(tables)
        each = [self._counts[one] for one in run]
        counts = {name: sum(one[name] for one in each) for name in each[0]}
        whole = Chunk(run[0].start, run[-1].stop)
        # By the rows of the first column: observations, or references that are summed for.
        of = np.arange(*whole) if job.options.has_pairs else table.column(0).to_numpy()
        name = part_name(*whole)
        with job.place.new(name) as file:
            splice = Splice(file)
            for group in whole.cut(rows_a_group(job)):
                first, last = np.searchsorted(of, group)
                splice.add(encode([table.slice(first, last - first)]))
            schema = table.schema.with_metadata(provenance(job, counts))
            joined = splice.finish(schema, name)
        job.place.sync(name)
        return joined
