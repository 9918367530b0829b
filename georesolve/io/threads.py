"""Work of one task on the threads that its worker has."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import cache
from typing import TypeVar

import numba

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


def side_by_side(
    function: Callable[[_Item], _Outcome],
    items: Iterable[_Item],
    shared: Executor | None = None,
) -> Generator[_Outcome]:
    """Call a function that releases the GIL with each of some items; outcomes come in order.

    It runs on threads of its own, if not on `shared` ones. No more than two outcomes a thread wait
    to be taken: memory that is used again is worth more than a thread that never waits.
    """
    n_threads = numba.config.NUMBA_NUM_THREADS
    waiting: deque[Future[_Outcome]] = deque()
    with nullcontext(shared) if shared else ThreadPoolExecutor(n_threads) as threads:
        try:
            for item in items:
                if len(waiting) == 2 * n_threads:
                    yield waiting.popleft().result()
                waiting.append(threads.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)


@cache
def encoders() -> Executor:
    """The threads that encode for all tasks of this process.

    They stay: memory that a new thread takes, no other has touched before.
    """
    return ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS, thread_name_prefix="encoder")
