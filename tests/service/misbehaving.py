"""What stands in for a decoder and fails; processes import it alone, not what tests import."""

import json
import os
import signal
import time
from contextlib import suppress


def sleep(connection):
    time.sleep(60)


def crash(connection):
    # With a task: one that ends before is replaced.
    connection.recv_bytes()
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(connection):
    stack = "KeyError: 'a defect of ours\x1b[31m'\n12:00 a line of the log"
    _say(connection, json.dumps({"stack": stack}).encode())


def lie(connection):
    dataset = {"rows": "many", "file": "/etc/passwd"}
    _say(connection, json.dumps(dataset).encode())


def babble(connection):
    _say(connection, b"x" * (17 << 20))


def abort_for_memory(connection):
    _say(connection, b"terminate called after throwing an instance of 'std::bad_alloc'\n")


def _say(connection, content):
    connection.recv_bytes()
    with suppress(OSError), os.fdopen(connection.fileno(), "wb", closefd=False) as pipe:
        pipe.write(content)
