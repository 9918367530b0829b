"""A control group, in which processes have so much memory together and no more."""

import contextlib
import os
import time
import uuid
from pathlib import Path

import pytest

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cage(limit_bytes):
    """Make a group with so much memory; yields a function that puts a process into it.

    What that starts from then on is in the group, too. Skips the test where no group can be made.
    """
    is_v2 = (_V2 / "cgroup.controllers").exists()
    group = (_V2 if is_v2 else _V1) / f"georesolve-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group of memory can be made here: {error}")
    processes = group / "cgroup.procs"
    try:
        yield lambda pid: processes.write_text(str(pid))
    finally:
        for _ in range(100):
            for pid in processes.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
