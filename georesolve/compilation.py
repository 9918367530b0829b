"""What numba compiles at the first call on a machine: a bar for it, and how long it took.

It hears of what is compiled for a CPU; numba tells nothing of code for GPUs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from georesolve.progress import is_watched

_KIND = "numba:compile"
_USUAL = 24
"""About so many functions a first call compiles; where there are more, the bar only counts."""
_BAR = "{l_bar}{bar}| {n_fmt} functions [{elapsed}]"


class _Listener(event.TimingListener):
    """Counts the seconds in which functions are compiled, and shows a bar meanwhile, if wanted."""

    def __init__(self, *, is_shown: bool) -> None:
        super().__init__()
        self._is_shown, self.bar = is_shown, None

    def on_start(self, event: Any) -> None:
        """Called before a function is compiled, and those that it calls."""
        if self._is_shown and self.bar is None:
            from tqdm.auto import tqdm

            title = "compiling the kernels, once for this machine"
            self.bar = tqdm(desc=title, total=_USUAL, bar_format=_BAR, leave=False)
        if self.bar is not None and not self._depth:
            self.bar.refresh()
        super().on_start(event)

    def on_end(self, event: Any) -> None:
        """Called when it is compiled."""
        super().on_end(event)
        if self.bar is not None:
            self.bar.update()
            if not self._depth:
                # What follows is no compilation.
                self.bar.clear()


@contextmanager
def compiling(shown: bool | None = None) -> Iterator[Callable[[], float]]:
    """Show what is compiled; yields a function that says for how many seconds that was so far.

    `shown` is None for: in a notebook, or in a terminal.
    """
    listener = _Listener(is_shown=is_watched() if shown is None else shown)
    event.register(_KIND, listener)
    try:
        yield lambda: listener.duration if listener.done else 0.0
    finally:
        event.unregister(_KIND, listener)
        if listener.bar is not None:
            listener.bar.close()
