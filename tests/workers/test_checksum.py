"""The checksum of a file that grows: that of its bytes, whenever it is known."""

import hashlib
import os

import psutil
import pytest

from georesolve.workers.checksum import Checksum
from tests.conftest import wait_until


def test_it_is_that_of_the_whole_file(tmp_path):
    content = os.urandom(5_000_000)
    path = tmp_path / "growing"
    with path.open("wb") as file, Checksum(path) as checksum:
        for start in range(0, len(content), 700_000):
            file.write(content[start : start + 700_000])
            file.flush()
            checksum.follow(file.tell())
        sha256 = checksum.finish(len(content))
    assert sha256.result(10) == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_removed_is_counted_to_its_end(tmp_path):
    path = tmp_path / "removed"
    path.write_bytes(bytes(3_000_000))
    with Checksum(path) as checksum:
        path.unlink()
        sha256 = checksum.finish(3_000_000)
    assert sha256.result(10) == hashlib.sha256(bytes(3_000_000)).hexdigest()


def test_a_file_that_is_too_short_has_none(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(10))
    with Checksum(path) as checksum:
        sha256 = checksum.finish(20)
    with pytest.raises(OSError, match="a file of 20 bytes ends after 10"):
        sha256.result(10)


def fail_after(path, futures):
    with Checksum(path) as checksum:
        futures.append(checksum.finish(10))
        raise ZeroDivisionError


def test_what_could_not_be_finished_leaves_no_file_open(tmp_path):
    path = tmp_path / "failed"
    path.write_bytes(bytes(10))
    before, futures = psutil.Process().num_fds(), []
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            fail_after(path, futures)
    for future in futures:
        # Counted by then, or not wanted any more.
        assert future.exception(10) is None or isinstance(future.exception(), OSError)
    wait_until(lambda: psutil.Process().num_fds() <= before)
