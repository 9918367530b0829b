"""A full disk can be emptied: what makes room is written with the reserve."""

import errno
import threading

from georesolve.service.disk import Probe
from tests.conftest import NO_CLUSTER

FLAGS = (*NO_CLUSTER, "--free-bytes", 0)


def test_a_write_that_hangs_holds_up_one_caller():
    going, written = threading.Event(), threading.Event()

    def write():
        going.set()
        written.wait(30)
        raise OSError(errno.ENOSPC, "")

    probe = Probe(write)
    first = threading.Thread(target=probe.trouble)
    first.start()
    going.wait(30)
    assert probe.trouble() is None
    written.set()
    first.join()
    assert probe.trouble() == ("No space left on device", True)
    going.clear()
    assert probe.trouble() == ("No space left on device", True)
    assert not going.is_set(), "it is not tried at each call"
