"""Results in other formats: what is small does not wait for what is large, nor the end for any."""

import asyncio
import os
import threading

import pyarrow as pa
import pytest

from georesolve.intake.representations import CSV, Format
from georesolve.service.disk import Disk
from georesolve.service.errors import NotReady
from georesolve.service.results.exports import Exports
from georesolve.service.settings import Settings
from tests.service.test_jobs import parquet

SECONDS = 20


def no_sets(role):
    raise AssertionError("a format without coordinates needs no sets")


@pytest.fixture
def slow_results(tmp_path):
    """Results that nobody has written yet: to read one takes until somebody does."""
    paths = [tmp_path / str(i) / "matches.parquet" for i in range(4)]
    for path in paths:
        path.parent.mkdir()
        os.mkfifo(path)
    return paths


def end(path):
    with path.open("wb"):
        pass


def test_a_small_result_does_not_wait_for_exports(slow_results):
    async def convert_beside_exports():
        exports = Exports(1 << 20, Disk(Settings(data_dir=slow_results[0].parent), lambda: 0))
        slow = [asyncio.create_task(exports.export(path, CSV, no_sets)) for path in slow_results]
        try:
            content = parquet(pa.table({"reference": [7]}))
            small = asyncio.to_thread(exports.converted, content, CSV, no_sets)
            return await asyncio.wait_for(small, SECONDS)
        finally:
            for path in slow_results:
                await asyncio.to_thread(end, path)
            await asyncio.gather(*slow, return_exceptions=True)

    assert asyncio.run(convert_beside_exports()).split() == [b'"reference"', b"7"]


def test_an_export_ends_with_the_service(tmp_path):
    result = tmp_path / "matches.parquet"
    result.write_bytes(parquet(pa.table({"reference": [7]})))
    has_begun = threading.Event()

    def write_for_ever(source, sink, sets):
        while True:
            sink.write(b"7")
            has_begun.set()

    async def close_under_way():
        exports = Exports(1 << 30, Disk(Settings(data_dir=tmp_path), lambda: 0))
        endless = Format("text/endless", "endless", write_for_ever)
        making = asyncio.create_task(exports.export(result, endless, no_sets))
        await asyncio.to_thread(has_begun.wait)
        await asyncio.to_thread(exports.close)
        await making

    with pytest.raises(NotReady, match="the service is stopping"):
        asyncio.run(asyncio.wait_for(close_under_way(), SECONDS))
    assert list(tmp_path.iterdir()) == [result], "nothing half made is left"
