"""Whether files have the bytes of their digests still: a disk may lose a bit."""

import asyncio
import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext

from georesolve.service import pools
from georesolve.workers.files import Look

_MOST_WHOLE = 10_000
_SMALL_BYTES = 16 << 20
"""So much is counted in some hundredths of a second."""


class Checks:
    """Reads files to compare them with their digests: when first asked, and when they changed."""

    def __init__(self) -> None:
        # One file at a time, but for small ones.
        self._reading = threading.Lock()
        # Files that had their digest when they looked like that, the one used last at the end.
        self._whole: OrderedDict[str, Look] = OrderedDict()
        self._checking: dict[str, Future[bool]] = {}

    async def is_whole(self, key: str, look: Callable[[], Look], check: Callable[[], bool]) -> bool:
        """Whether `check` finds a file whole; asked again only when `look` has changed. OSError."""
        if key in self._whole and await pools.disk(look) == self._whole.get(key):
            return True
        checking = self._checking.get(key)
        if checking is None:
            checking = self._checking[key] = Future()
            checking.add_done_callback(lambda _: self._checking.pop(key, None))
            # A process that ends does not wait for it.
            threading.Thread(
                target=self._check, args=(key, look, check, checking), daemon=True
            ).start()
        return await asyncio.shield(asyncio.wrap_future(checking))

    def _check(
        self, key: str, look: Callable[[], Look], check: Callable[[], bool], told: Future[bool]
    ) -> None:
        try:
            before = look()
            with nullcontext() if before.size < _SMALL_BYTES else self._reading:
                is_whole = check()
            self._whole.pop(key, None)
            # What came into it meanwhile changed how it looks.
            if is_whole and before == look():
                self._whole[key] = before
                if len(self._whole) > _MOST_WHOLE:
                    self._whole.popitem(last=False)
            told.set_result(is_whole)
        except BaseException as error:
            # Whatever it is: all who ask for the file wait to be told.
            if isinstance(error, OSError) and error.errno == errno.EIO:
                told.set_result(False)
            else:
                told.set_exception(error)
