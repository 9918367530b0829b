"""Results in formats other than Parquet: each made once, when it is first asked for, into a file.

A file, and not a stream: it has a length, a hash of its own bytes for an ETag, and ranges, so that
a download can be resumed; and a second one costs nothing. It lies beside the result, carries its
hash in its name, and goes with its job.
"""

import asyncio
import hashlib
import io
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from georesolve.intake.geometries import PointSets
from georesolve.intake.representations import Format
from georesolve.service.disk import LOOK_BYTES, Disk
from georesolve.service.errors import Problem, ResultTooLarge, stopping
from georesolve.service.jobs.quotas import Storage
from georesolve.workers.files import move_durably
from georesolve.workers.result import opened

_AT_A_TIME = 2
CONVERTED_BYTES = 64 << 20
"""What is made in memory is not larger."""


def _unbounded() -> Storage:
    return Storage(0, None)


def _note_nothing(_: int) -> None:
    pass


class Export(NamedTuple):
    """A file, the SHA-256 of its bytes, and whether it was made just now."""

    path: Path
    sha256: str
    is_new: bool


class Exports:
    """Makes exports, a few at a time, and each once however many wait for it.

    Parameters
    ----------
    most_bytes
        How large one may become: a long text that is carried into many rows is short in Parquet.
    disk
        Where they lie, and what must stay free there.
    """

    def __init__(self, most_bytes: int, disk: Disk) -> None:
        self._most_bytes = most_bytes
        self._disk = disk
        self._stopping = threading.Event()
        self._making: dict[tuple[Path, str], asyncio.Future[Export]] = {}
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="export")

    def close(self) -> None:
        """End what is being made: Python itself would wait for it at its exit."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)

    async def export(
        self,
        result: Path,
        format: Format,
        sets: PointSets,
        storage: Callable[[], Storage] = _unbounded,
        note: Callable[[int], None] = _note_nothing,
    ) -> Export:
        """A result in a format; made now, if this is the first time.

        Parameters
        ----------
        sets
            The two sets of the job, for a format that has their coordinates.
        storage
            Tells what its owner may keep.
        note
            Is told how many bytes are kept, once they are.

        Raises
        ------
        NotAcceptable
            When it has values that the format cannot have.
        ResultTooLarge
            When it would be larger than allowed.
        StorageFull
            When there is no room for it, before it is made or on the way, or its owner keeps too
            much.
        NotReady
            When the service ends meanwhile.
        FileNotFoundError
            When the result is gone, or goes meanwhile.
        """
        key = (result, format.ending)
        if key not in self._making:
            loop = asyncio.get_running_loop()
            self._making[key] = loop.run_in_executor(
                self._threads, self._made, result, format, sets, storage, note
            )
            self._making[key].add_done_callback(lambda _: self._making.pop(key))
        # One client that goes away must not take it from the others.
        return await asyncio.shield(self._making[key])

    def converted(self, content: bytes, format: Format, sets: PointSets) -> bytes:
        """A small result in a format, from one in Parquet; both in memory.

        Parameters
        ----------
        sets
            The two sets of the request.

        Raises
        ------
        NotAcceptable
            When it has values that the format cannot have.
        ResultTooLarge
            When it would take much memory: as a file it may be had all the same.
        """
        if format.write is None:
            return content
        made = io.BytesIO()
        most_bytes = min(CONVERTED_BYTES, self._most_bytes)
        sink = _Sink(made, most_bytes, _too_large(format, most_bytes), None, self._stopping)
        _write(io.BytesIO(content), sink, format, sets)
        return made.getvalue()

    def _made(
        self,
        result: Path,
        format: Format,
        sets: PointSets,
        storage: Callable[[], Storage],
        note: Callable[[int], None],
    ) -> Export:
        for path in result.parent.glob(f"{result.stem}.{'?' * 64}.{format.ending}"):
            return Export(path, path.suffixes[0].removeprefix("."), is_new=False)
        most_bytes, kept = self._most_bytes, storage()
        refusal = _too_large(format, most_bytes)
        if kept.left is not None and kept.left < most_bytes:
            most_bytes, refusal = kept.left, kept.full(kept.left + 1)
        making = result.with_name(f".{result.stem}.{uuid.uuid4().hex}")
        try:
            with making.open("xb") as handle, result.open("rb") as source:
                sink = _Sink(handle, most_bytes, refusal, self._disk, self._stopping)
                _write(source, sink, format, sets)
                sha256 = sink.sha256
            made = Export(result.with_suffix(f".{sha256}.{format.ending}"), sha256, is_new=True)
            size = making.stat().st_size
            move_durably(making, made.path)
            note(size)
        finally:
            making.unlink(missing_ok=True)
        if not result.exists():
            # Its job was removed meanwhile, and could not remove this.
            shutil.rmtree(result.parent, ignore_errors=True)
            raise FileNotFoundError(result)
        return made


def _write(source: BinaryIO, sink: "_Sink", format: Format, sets: PointSets) -> None:
    """Make a format from Parquet."""
    assert format.write is not None, "Parquet is there"
    format.write(opened(source), cast(BinaryIO, sink), sets)


def _too_large(format: Format, most_bytes: int) -> Problem:
    return ResultTooLarge(
        f"as {format.media_type} the result is larger than the limit of {most_bytes} bytes: take "
        "it as Parquet"
    )


class _Sink(io.RawIOBase):
    """Passes bytes on and hashes them, until there are too many, or no room, or no time."""

    def __init__(
        self,
        handle: BinaryIO,
        most_bytes: int,
        refusal: Problem,
        disk: Disk | None,
        stopping: threading.Event,
    ) -> None:
        self._handle = handle
        self._left = most_bytes
        self._disk = disk
        self._stopping = stopping
        self._look_at = most_bytes
        self._refusal = refusal
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what was written."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def write(self, data: Any) -> int:
        """Take the next bytes."""
        if self._stopping.is_set():
            raise stopping()
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise self._refusal
        if self._disk is not None and self._left < self._look_at:
            self._disk.refuse_when_low(size)
            self._look_at = self._left - LOOK_BYTES
        self._hash.update(data)
        self._handle.write(data)
        return size
