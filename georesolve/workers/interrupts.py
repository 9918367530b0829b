"""A Ctrl-C is for the service: the processes that it starts do not hear it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let processes and threads that are started within never see SIGINT.

    A terminal sends it to all processes that it shows. The service ends its own in order; one that
    ends by itself meanwhile tells of it with a stack. They inherit a mask, not a handler: that
    would be there only after the seconds in which a process imports what it needs.
    """
    # It is launched with the first process, and lifts the mask of the thread that does so.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
