"""Whether files have the bytes of their digests still: a disk may lose a bit."""

import asyncio
import errno
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

from georesolve.service import pools
from georesolve.workers.storage.files import Look

_MOST_WHOLE = 10_000
_SMALL_BYTES = 16 << 20
"""So much is counted in some hundredths of a second."""


class Checks:
    """Reads files to compare them with their digests: when first asked, and when they changed."""

    def __init__(self) -> None:
        # One file at a time, but for small ones.
        self._reading = asyncio.Lock()
        # Files that had their digest when they looked like that, the one used last at the end.
        self._whole: OrderedDict[str, Look] = OrderedDict()
        self._checking = pools.Shared[bool]()

    async def is_whole(self, key: str, look: Callable[[], Look], check: Callable[[], bool]) -> bool:
        """Whether `check` finds a file whole; asked again only when `look` has changed. OSError."""
        if key in self._whole and await pools.disk(look) == self._whole.get(key):
            return True
        return await self._checking(key, lambda: self._check(key, look, check))

    async def _check(self, key: str, look: Callable[[], Look], check: Callable[[], bool]) -> bool:
        try:
            before = await pools.disk(look)
            async with nullcontext() if before.size < _SMALL_BYTES else self._reading:
                is_whole = await pools.disk(check)
            self._whole.pop(key, None)
            # What came into it meanwhile changed how it looks.
            if is_whole and before == await pools.disk(look):
                self._whole[key] = before
                if len(self._whole) > _MOST_WHOLE:
                    self._whole.popitem(last=False)
            return is_whole
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
