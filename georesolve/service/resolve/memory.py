"""How much memory the bodies of requests may take that are held and not stored: those in JSON."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from georesolve.service.errors import TooManyBodies
from georesolve.service.settings import Settings

_LARGEST_BODIES = 16
"""So many bodies of the largest size may be held at a time."""


class Memory:
    """Shares the memory for bodies among the requests that are being read.

    One key may hold as much as is left for all others: some is always left for the next one.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = _LARGEST_BODIES * settings.inline_bytes
        self._held: Counter[str] = Counter()

    @contextmanager
    def body(self, owner: str) -> Iterator[Callable[[int], None]]:
        """Hold a body of an owner, empty if there are no keys; the caller tells what it grows by.

        Raises
        ------
        TooManyBodies
            By what the caller calls, when there is no memory for more.
        """
        size = 0

        def grow(more: int) -> None:
            nonlocal size
            self._refuse_without_room(owner, more)
            self._held[owner] += more
            size += more

        try:
            yield grow
        finally:
            self._held[owner] -= size
            if not self._held[owner]:
                del self._held[owner]

    def _refuse_without_room(self, owner: str, more: int) -> None:
        held, own = self._held.total() + more, self._held[owner] + more
        left = self._most - held
        if left >= 0 and (not owner or own <= left):
            return
        whose = f"of this key have {own} bytes, which is more than is left for others"
        if left < 0:
            whose = f"have {held} bytes"
        raise TooManyBodies(
            f"the JSON bodies that one front is reading {whose}, and all may have {self._most}: "
            "send fewer at a time, or files"
        )
