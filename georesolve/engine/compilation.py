"""What numba compiles at the first call on a machine: a bar for it, and how long it took.

It hears of what is compiled for a CPU; numba tells nothing of code for GPUs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from numba.core import event

from georesolve.io.progress import is_watched
from georesolve.kernels.cache import compiled_seconds

_USUAL = 24
"""About so many functions a first call compiles; where there are more, the bar only counts."""
_BAR = "{l_bar}{bar}| {n_fmt} functions [{elapsed}]"


class _Bar(event.Listener):
    """A bar that is shown while functions are compiled, and those that they call."""

    def __init__(self) -> None:
        self.bar: Any = None
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """Called before a function is compiled."""
        if self.bar is None:
            from tqdm.auto import tqdm

            title = "compiling the kernels, once for this machine"
            self.bar = tqdm(desc=title, total=_USUAL, bar_format=_BAR, leave=False)
        if not self._depth:
            self.bar.refresh()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Called when it is compiled."""
        if self.bar is None:
            # Another thread had begun with it before there was this bar.
            return
        self._depth = max(0, self._depth - 1)
        self.bar.update()
        if not self._depth:
            # What follows is no compilation.
            self.bar.clear()


@contextmanager
def compiling(shown: bool | None = None) -> Iterator[Callable[[], float]]:
    """Show what is compiled; yields a function that says for how many seconds that was so far.

    `shown` is None for: in a notebook, or in a terminal.
    """
    bar, before = _Bar(), compiled_seconds()
    is_shown = is_watched() if shown is None else shown
    with event.install_listener("numba:compile", bar) if is_shown else nullcontext():
        try:
            yield lambda: compiled_seconds() - before
        finally:
            if bar.bar is not None:
                bar.bar.close()
