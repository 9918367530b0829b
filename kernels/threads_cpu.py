"""How many threads a loop on a CPU is worth: waking one costs microseconds, or a time slice."""

from collections.abc import Iterator
from contextlib import contextmanager

from numba import get_num_threads, set_num_threads


@contextmanager
def threads_for(items: int, grain: int) -> Iterator[int]:
    """Run parallel loops with as many threads as have `grain` items each; yields how many.

    Every parallel loop waits for all its threads, also for those that have nothing to do, and where
    other processes keep the cores busy a thread is woken late. Never more threads than were set
    before, which are set again afterwards.
    """
    before = get_num_threads()
    threads = max(1, min(before, items // grain))
    set_num_threads(threads)
    try:
        yield threads
    finally:
        set_num_threads(before)
