"""The sandbox of what decodes files: a decoder that was taken over reaches nothing but its file."""

import ctypes
import errno
import fcntl
import json
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import termios
import threading
from contextlib import closing
from pathlib import Path

import pytest

from georesolve.io.columns import Reading
from georesolve.io.formats import Source
from georesolve.service.errors import InvalidInput
from georesolve.service.receiving import decoders, decoding, sandbox
from georesolve.service.receiving.children import INHERITED, Children
from tests.conftest import children_of

HAS = sandbox.available()
LIMITS = decoding.Limits(memory_bytes=1 << 30, seconds=60, rows=10**6, columns=10)
_libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    if _libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")


def fork():
    if os.fork() == 0:
        os._exit(0)


# Each gets the file of another user, and who started the decoder. Landlock refuses the first ones.
FILES = {
    "read the file of another": lambda other, parent: other.read_bytes(),
    "write the file of another": lambda other, parent: other.write_bytes(b""),
    "append to it": lambda other, parent: other.open("ab"),
    "remove it": lambda other, parent: other.unlink(),
    "link it": lambda other, parent: os.link(other, other.with_suffix(".link")),
    "rename it": lambda other, parent: other.rename(other.with_suffix(".moved")),
    "make a file": lambda other, parent: (other.parent / "new").touch(),
    "make a folder": lambda other, parent: (other.parent / "new").mkdir(),
    "list a folder": lambda other, parent: list(other.parent.iterdir()),
    "read the environment of the service": lambda other, parent: Path(
        f"/proc/{parent}/environ"
    ).read_bytes(),
    "read the memory of the service": lambda other, parent: os.open(f"/proc/{parent}/mem", 0),
    "read passwords": lambda other, parent: Path("/etc/passwd").read_bytes(),
}
CALLS = {
    "truncate": lambda other, parent: os.truncate(other, 0),
    "chmod": lambda other, parent: other.chmod(0),
    "chown": lambda other, parent: os.chown(other, 1, 1),
    "utime": lambda other, parent: os.utime(other),
    "a TCP socket": lambda other, parent: socket.socket(),
    "a UNIX socket": lambda other, parent: socket.socket(socket.AF_UNIX),
    "a pair of sockets": lambda other, parent: socket.socketpair(),
    "exec": lambda other, parent: os.execv("/bin/true", ["true"]),
    "fork": lambda other, parent: fork(),
    "a program": lambda other, parent: subprocess.run(["/bin/true"], check=False),
    "a signal": lambda other, parent: os.kill(parent, 0),
    "a signal to a thread": lambda other, parent: call(
        sandbox._TGKILL[sandbox._MACHINES[platform.machine()][0]], parent, parent, 0
    ),
    "ptrace": lambda other, parent: call(
        sandbox._CALLS["ptrace"][sandbox._MACHINES[platform.machine()][0]], 16, parent, 0, 0
    ),
    "a file without a name": lambda other, parent: os.memfd_create("x"),
    "typing on the terminal": lambda other, parent: fcntl.ioctl(2, termios.TIOCSTI, b"x"),
    "the limits of the service": lambda other, parent: resource.prlimit(
        parent, resource.RLIMIT_NOFILE, (3, 3)
    ),
    "io_uring": lambda other, parent: call(425, 8, None),
}
MISSING = {
    "clone3": lambda other, parent: call(435, None, 0),
    "a call of tomorrow": lambda other, parent: call(9999),
    "a call of the x32 ABI": lambda other, parent: call(0x40000000 + 41, 2, 1, 0),
}


def outcome(attempt, other, parent):
    try:
        attempt(other, parent)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except ValueError as error:
        return str(error)
    return "done"


def attack(source, target, limits):
    """What stands in for `decode` in a decoder that was taken over."""
    other, parent = Path(source.file), os.getppid()
    found = {name: outcome(one, other, parent) for name, one in (FILES | CALLS | MISSING).items()}
    thread = threading.Thread(
        target=lambda: found.update(
            {"in a thread, read": outcome(FILES["read the file of another"], other, parent)},
            **{"in a thread, a socket": outcome(CALLS["a TCP socket"], other, parent)},
        )
    )
    thread.start()
    thread.join()
    found["limits"] = outcome(
        lambda *_: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2), 0, 0
    )
    found["descriptors"] = sorted(
        fd for fd in range(256) if outcome(lambda fd, _: os.fstat(fd), fd, 0) == "done"
    )
    found["source"] = source.path.read_text()
    found["environment"] = sorted(os.environ)
    target.write_text("ours")
    "".encode("cp1252")
    raise InvalidInput(json.dumps(found))


def taken_over(connection):
    decoding.decode = attack
    decoding.serve(connection)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a decoder that was taken over could do."""
    folder = tmp_path_factory.mktemp("incoming")
    other = folder / "other.sqlite"
    other.write_text("secret")
    path = folder / "received"
    path.write_text("given")
    source = Source(path, "csv", Reading(), str(other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        children = Children(taken_over, ["georesolve.service.receiving.decoding"])
        with closing(children), pytest.raises(InvalidInput) as caught:
            decoders.decode_in_child(source, folder / "dataset.parquet", LIMITS, children)
    if all(HAS):
        assert other.read_text() == "secret"
        assert other.stat().st_mode & 0o777
        assert {file.name for file in folder.iterdir()} == {"other.sqlite", "received"}
    return json.loads(caught.value.detail)


@pytest.mark.skipif(not HAS.landlock, reason="the kernel has no Landlock")
def test_it_reaches_no_file_but_its_own(found):
    assert {name: found[name] for name in FILES} == dict.fromkeys(FILES, "EACCES")
    assert found["in a thread, read"] == "EACCES"


@pytest.mark.skipif(not HAS.seccomp, reason="the kernel has no seccomp filters")
def test_it_reaches_no_network_and_no_process(found):
    assert {name: found[name] for name in CALLS} == dict.fromkeys(CALLS, "EACCES")
    assert {name: found[name] for name in MISSING} == dict.fromkeys(MISSING, "ENOSYS")
    assert found["in a thread, a socket"] == "EACCES"


def test_it_keeps_one_pipe_and_no_right_of_root(found):
    assert found["limits"] == "not allowed to raise maximum limit"
    # Standard input, output and error, the pipe; one of the Python that looks for it.
    assert len(found["descriptors"]) <= 5
    assert found["source"] == "given"


def test_it_inherits_no_secret(found):
    assert set(found["environment"]) <= set(INHERITED)


def test_it_refuses_to_run_beside_threads():
    """Landlock holds for one thread; the others would be free."""
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading; from georesolve.service.receiving.sandbox import confine\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "confine([], [], 1)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 threads run before the sandbox" in ran.stderr


HEADERS = {0: "x86_64-linux-gnu/asm/unistd_64.h", 1: "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel(machine):
    header = Path("/usr/include") / HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())
    numbers = {name: int(number) for name, number in lines}
    own = {
        **sandbox._CALLS,
        "clone": sandbox._CLONE,
        "clone3": sandbox._CLONE3,
        "tgkill": sandbox._TGKILL,
        "prlimit64": sandbox._PRLIMIT,
    }
    for name, known in own.items():
        if known[machine] is not None:
            assert numbers.get(name, known[machine]) == known[machine], name
    assert sum(name in numbers for name in own) > 70


def test_a_service_tells_what_holds(service):
    checks = {check["name"]: check for check in service.get("/readyz").json()["checks"]}
    assert checks["sandbox"] == {
        "name": "sandbox",
        "ok": True,
        "detail": str(HAS),
        "href": None,
    }
    assert children_of(service.process, "forkserver", recursive=True)
