"""Datasets from requests: have what was received decoded within bounds, keep what is good."""

import logging
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from email.message import Message
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from georesolve.io.columns import Reading, find_columns
from georesolve.io.datasets import Dataset
from georesolve.io.formats import Source, format_of
from georesolve.io.geojson import has_no_text, json_column
from georesolve.io.layers import close_journal, refuse_layer
from georesolve.io.local_files import sync
from georesolve.io.normalized import canonicalise
from georesolve.io.urls import Sources
from georesolve.service import errors, pools
from georesolve.service.clock import is_id, new_id
from georesolve.service.disk import Disk, is_locked, locked
from georesolve.service.http.parameters import LONGEST_TITLE
from georesolve.service.receiving.decoders import decode_in_child, open_decoders
from georesolve.service.receiving.decoding import Limits
from georesolve.service.receiving.uploads import Upload
from georesolve.service.settings import Settings
from georesolve.service.store.rows import DatasetRow

logger = logging.getLogger(__name__)

Place = Callable[[str, int], str]
"""Where the value of a column, whose name is a step of a pointer, stands in a row."""


class Folder:
    """A folder for one request, which few need; what was not moved out goes with it."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @cached_property
    def path(self) -> Path:
        """Where it is; who needs it makes it."""
        return self._parent / new_id()

    async def __aenter__(self) -> "Folder":
        return self

    async def __aexit__(self, *_: object) -> None:
        if "path" in vars(self):
            # Not here: a large file takes its time to go, and all others would wait for it.
            await pools.disk(shutil.rmtree, self.path, ignore_errors=True)


class Ingest:
    """Makes datasets of uploads, arrays and addresses, in folders that go with their requests."""

    def __init__(self, settings: Settings, disk: Disk) -> None:
        self._disk = disk
        self._limits = Limits(
            memory_bytes=settings.decode_bytes,
            seconds=settings.decode_seconds,
            rows=settings.dataset_rows,
            columns=settings.dataset_columns,
            unpacked_bytes=settings.upload_bytes,
        )
        self._sources = Sources(settings.sources, self._limits)
        # Not the threads of all others, which a few slow files would take up.
        self._decoders = pools.SharedPool("decode", settings.concurrent_decodes)
        self._children = open_decoders()
        self._incoming = settings.data_dir / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        # The folder of this front, and its lock, which ends with its process.
        self._own, self._lock = self._incoming / new_id(), ExitStack()
        with locked(self._incoming):
            self._own.mkdir()
            self._lock.enter_context(locked(self._own))
            # What killed fronts received in part: their clients got no answer.
            for path in self._incoming.iterdir():
                if is_id(path.name) and not is_locked(path):
                    shutil.rmtree(path, ignore_errors=True)
                    logger.info("a front was killed, and what it had received is removed")

    def close(self) -> None:
        """End what is being decoded: Python itself would wait for it at its exit."""
        self._children.close()
        self._decoders.close(cancel=True)
        # A front that starts may be looking at it.
        with locked(self._incoming):
            shutil.rmtree(self._own, ignore_errors=True)
            self._lock.close()

    def folder(self) -> "Folder":
        """A folder for one request."""
        return Folder(self._own)

    async def from_upload(
        self, upload: Upload, reading: Reading, folder: Path, owner: str
    ) -> DatasetRow:
        """Make a dataset of an uploaded file, in the turn of its owner."""
        start = time.perf_counter()
        format, is_packed = await pools.disk(
            format_of, upload.path, upload.media_type, upload.name, upload.file
        )
        if format == "layer":
            await pools.disk(close_journal, upload.path)
        about = Message()
        about["Content-Type"] = upload.media_type or ""
        charset = about.get_content_charset()
        unpacked = upload.path.with_suffix(".unpacked") if is_packed else None
        source = Source(upload.path, format, reading, upload.file, charset, unpacked)
        target = folder / f"{uuid.uuid4().hex}.parquet"
        dataset = await self._decoders(owner, self._decode, source, target)
        seconds = {"receive": upload.seconds, "decode": time.perf_counter() - start}
        name = plain_name(upload.name or "")
        if name and reading.layer:
            # Two layers of a file are two sets.
            name = f"{name} ({plain_name(reading.layer)})"[:LONGEST_TITLE]
        return DatasetRow(dataset, seconds, name)

    def _decode(self, source: Source, target: Path) -> Dataset:
        limits = replace(self._limits, written_bytes=max(0, self._disk.left()))
        dataset, digest = decode_in_child(source, target, limits, self._children)
        if dataset.outlines and dataset.as_points > limits.rows:
            raise errors.TooLarge(
                f"{source.file}: its lines and polygons are followed by {dataset.outlines.arcs} "
                f"arcs, which take as much memory as {dataset.as_points} points, and the limit is "
                f"{limits.rows}: send fewer, or a larger densify_m"
            )
        with ThreadPoolExecutor(1, "settle") as beside:
            settled = beside.submit(self._settle, source.path, target)
            dataset = replace(dataset, digest=digest.count(target))
        settled.result()
        return dataset

    def _settle(self, received: Path, target: Path) -> None:
        # While the digest is counted: for both the disk takes about as long.
        received.unlink()
        if self._disk.holds_all:
            sync(target)

    def from_href(self, href: str, reading: Reading, file: str) -> DatasetRow:
        """Make a dataset of files that stay where they are; blocks while their footers are read."""
        start = time.perf_counter()
        refuse_layer(reading, file)
        if reading.crs is not None:
            raise errors.InvalidRequest(
                f"{file}: files that are read where they lie are in degrees: leave crs out, or "
                "send the file"
            )
        # What references are told counts for no observations.
        if reading.takes_shapes and (reading.edges or reading.densify_m) is not None:
            raise errors.InvalidRequest(
                f"{file}: files that are read where they lie are points: leave edges and densify_m "
                "out, or send the file"
            )
        dataset = self._sources.dataset(href, reading, file)
        return DatasetRow(dataset, {"decode": time.perf_counter() - start}, href[:LONGEST_TITLE])

    def from_arrays(
        self, arrays: dict[str, list[Any]], reading: Reading, pointer: str, by_row: bool = False
    ) -> DatasetRow:
        """A dataset of JSON arrays, made of records or not `by_row`; `pointer` is their place."""
        start = time.perf_counter()
        most = max(map(len, arrays.values()), default=0)
        self._limits.refuse_beyond(len(arrays), most, pointer)
        columns = find_columns(list(arrays), reading, pointer)
        rows = len(arrays[columns.lat])
        for name, values in arrays.items():
            if len(values) != rows:
                raise errors.InvalidInput(
                    f"{pointer}: the arrays differ in length: {columns.lat!r} has {rows} values, "
                    f"{name[:80]!r} has {len(values)}"
                )
        place = f"{pointer}/{{1}}/{{0}}" if by_row else f"{pointer}/{{0}}/{{1}}"
        batch = pa.RecordBatch.from_arrays(
            [
                (_numbers if name in columns[:2] else _any_values)(values, name, place.format)
                for name, values in arrays.items()
            ],
            [*arrays],
        )
        dataset = canonicalise(batch, columns, reading, pointer)
        return DatasetRow(dataset, {"decode": time.perf_counter() - start})


def plain_name(given: str) -> str:
    """What a file is called, without the folders that it lies in and what no screen shows."""
    shown = "".join(filter(str.isprintable, given.replace("\\", "/"))).strip("/ ")
    return shown.rpartition("/")[2][:LONGEST_TITLE]


def _numbers(values: list[Any], name: str, place: Place) -> pa.Array:
    # pyarrow is quick but knows neither the row that is wrong nor that true is no number: it makes
    # it 1, and false 0.
    with suppress(pa.ArrowException):
        array = pa.array(values, pa.float64())
        found = array.to_numpy(zero_copy_only=False)
        if not ((found == 0) | (found == 1)).any() or bool not in set(map(type, values)):
            return array
    numbers: list[float | None] = []
    for row, value in enumerate(values):
        try:
            if isinstance(value, bool | str):
                raise TypeError
            numbers.append(None if value is None else float(value))
        except (TypeError, OverflowError):
            shown = repr(value)[:80]
            raise _refusal(name, row, place, f"{shown} is not a number") from None
    return pa.array(numbers, pa.float64())


def _refusal(name: str, row: int, place: Place, detail: str) -> errors.Problem:
    pointer = place(errors.step(name), row)
    told = {"pointer": pointer, "column": name, "row": row}
    return errors.InvalidInput(f"{pointer}: {detail}", [told])


def _any_values(values: list[Any], name: str, place: Place) -> pa.Array:
    for row, value in enumerate(values):
        if isinstance(value, list | dict):
            detail = "points have numbers, texts, true, false and null"
            raise _refusal(name, row, place, detail)
    try:
        array = json_column(values)
    except UnicodeEncodeError:
        row = next(row for row, value in enumerate(values) if has_no_text(value))
        detail = "half of a surrogate pair, which is no character: mend the text"
        raise _refusal(name, row, place, detail) from None
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array
