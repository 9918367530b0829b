"""Files compared with their digests: once, and again when they change."""

import asyncio
import errno
import threading
from functools import partial

import pytest

from georesolve.io.local_files import look_at, sha256_of
from georesolve.service.disk import Checks

SECONDS = 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


class Reader:
    """Compares a file with the digest that it had; counts how often."""

    def __init__(self, path):
        self.path, self.digest, self.times = path, sha256_of(path), 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self):
        self.times += 1
        assert self.may_go_on.wait(SECONDS)
        return sha256_of(self.path) == self.digest

    def ask(self, checks):
        look = partial(look_at, self.path)
        return checks.is_whole(self.digest, look, self)


def test_a_file_is_read_once_however_many_ask(file):
    reader, checks = Reader(file), Checks()
    reader.may_go_on.clear()

    async def ask_together():
        asked = [asyncio.create_task(reader.ask(checks)) for _ in range(6)]
        await asyncio.sleep(0)
        # One client that goes away takes it from no other.
        asked.pop().cancel()
        reader.may_go_on.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask_together()) == [True] * 5
    assert asyncio.run(reader.ask(checks)) is True
    assert reader.times == 1


def test_a_check_that_fails_is_told_and_tried_again(file):
    reader, checks = Reader(file), Checks()

    async def fail_and_ask():
        def fail():
            raise ValueError("no digest")

        look = partial(look_at, file)
        with pytest.raises(ValueError, match="no digest"):
            await asyncio.wait_for(checks.is_whole(reader.digest, look, fail), SECONDS)
        return await asyncio.wait_for(reader.ask(checks), SECONDS)

    assert asyncio.run(fail_and_ask()) is True


def test_a_file_that_changed_is_read_again(file):
    reader, checks = Reader(file), Checks()
    assert asyncio.run(reader.ask(checks)) is True
    file.write_bytes(b"other content")
    assert asyncio.run(reader.ask(checks)) is False
    assert asyncio.run(reader.ask(checks)) is False
    file.write_bytes(b"content")
    assert asyncio.run(reader.ask(checks)) is True
    file.unlink()
    with pytest.raises(FileNotFoundError):
        asyncio.run(reader.ask(checks))


def test_what_changes_while_it_is_read_is_not_taken_for_whole(file):
    reader, checks = Reader(file), Checks()

    def change_and_check():
        is_whole = reader()
        file.write_bytes(b"content that came meanwhile")
        return is_whole

    look = partial(look_at, file)
    asyncio.run(checks.is_whole(reader.digest, look, change_and_check))
    assert asyncio.run(reader.ask(checks)) is False


def test_a_disk_that_cannot_read_has_damaged_the_file(file):
    def fail():
        raise OSError(errno.EIO, "Input/output error")

    assert asyncio.run(Checks().is_whole("digest", partial(look_at, file), fail)) is False
