"""Work of one task on the threads that its worker has."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numba

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


def side_by_side(
    function: Callable[[_Item], _Outcome], items: Iterable[_Item]
) -> Iterator[_Outcome]:
    """Call a function that releases the GIL with each of some items; outcomes come in order.

    No more than two outcomes a thread wait to be taken: memory that is used again is worth more
    than a thread that never waits.
    """
    n_threads = numba.config.NUMBA_NUM_THREADS
    waiting: deque[Future[_Outcome]] = deque()
    with ThreadPoolExecutor(n_threads) as threads:
        for item in items:
            if len(waiting) == 2 * n_threads:
                yield waiting.popleft().result()
            waiting.append(threads.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
