"""Files that are complete or absent, and outputs that are no regular file."""

import os
import socket
import stat
from contextlib import closing

import pytest

from georesolve.io.errors import InvalidOption
from georesolve.io.local_files import complete, durable

NULL_DEVICE = os.makedev(1, 3)
WRITERS = [complete, durable]


def make_device(path):
    """Make a device node: a failure must not replace a device of the machine."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, NULL_DEVICE)
    except PermissionError:
        pytest.skip("only root makes devices")


def make_link(path):
    """A link to a device, as /dev/stdout may be."""
    make_device(path.with_name("device"))
    path.symlink_to("device")


def make_socket(path):
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))


def make_open_file(path):
    """A link to an open file of this process, as /dev/stdout is after `> file`."""
    with path.with_name("redirected").open("w") as file:
        descriptor = os.dup(file.fileno())
    path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")


SPECIAL_FILES = {
    "pipe": os.mkfifo,
    "device": make_device,
    "link": make_link,
    "socket": make_socket,
    "open file": make_open_file,
    "folder": os.mkdir,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_special_files_are_neither_written_nor_replaced(tmp_path, kind, writer):
    path = tmp_path / "output"
    SPECIAL_FILES[kind](path)
    before, names = path.lstat(), {*tmp_path.iterdir()}
    with pytest.raises(InvalidOption, match="is no regular file"), writer(path):
        pytest.fail("the body of the writer must not run")
    assert path.lstat() == before
    assert {*tmp_path.iterdir()} == names


@pytest.mark.parametrize("writer", WRITERS)
def test_regular_files_and_links_to_them_are_replaced(tmp_path, writer):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    link.symlink_to("file")
    for path in (file, link, tmp_path / "new"):
        with writer(path) as temporary:
            temporary.write_text("after")
        assert path.read_text() == "after"
