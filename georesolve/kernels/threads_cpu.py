"""Compiled loops on all cores: how many threads one is worth, and how it runs on them.

A loop is a compiled function ``loop(thread, threads, ...)`` that does its thread's share and has
released the interpreter's lock meanwhile. Python's own threads run it: 20 microseconds for two.
`numba.prange` needs less than that where nothing else runs, but makes three functions of every
loop, each optimised anew, and so doubled the time of a first call.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from numba import config, get_num_threads
from numba.core.caching import CacheImpl

from georesolve.kernels.cache import keep_code_of_kernels, load_code_of_kernels

# All modules with loops import this one.
keep_code_of_kernels(CacheImpl)
load_code_of_kernels()


def threads_for(items: int, grain: int) -> int:
    """How many threads have `grain` items each; at least one, never more than numba is set to."""
    threads = items // grain
    # numba takes a lock to tell how many there are.
    return min(get_num_threads(), threads) if threads > 1 else 1


def in_threads(loop: Callable[..., None], threads: int, *arguments: Any) -> None:
    """Run ``loop(thread, threads, *arguments)`` for every thread, the first on the caller's own."""
    others = [_pool().submit(loop, thread, threads, *arguments) for thread in range(1, threads)]
    loop(0, threads, *arguments)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(config.NUMBA_NUM_THREADS, "kernels")
