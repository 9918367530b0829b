"""Progress bars: rows or bytes done, how many a second, and the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def progress_bar(
    shown: bool | None, unit: str, title: str
) -> Iterator[Callable[[int, int | None], None]]:
    """Show how far something is; yields a function that is told how much is done, and of how much.

    It counts a `unit` (`rows` or `B`). `shown` is None for: in a notebook, or in a terminal.
    """
    if not (is_watched() if shown is None else shown):
        yield lambda done, total: None
        return
    from tqdm.auto import tqdm

    with ExitStack() as shown_bar:
        bar = None

        def show(done: int, total: int | None) -> None:
            nonlocal bar
            if bar is None:
                # Not before the total is known: a notebook draws the bar for it.
                counted = unit if unit == "B" else f" {unit}"
                bar = tqdm(desc=title, total=total, unit=counted, unit_scale=True)
                shown_bar.callback(bar.close)
            # Less than before when it had to begin again.
            bar.update(done - bar.n)

        yield show


def is_watched() -> bool:
    """Whether this is a notebook, or standard error a terminal."""
    if (ipython := sys.modules.get("IPython")) is not None:
        shell = ipython.get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            return True
    return sys.stderr is not None and sys.stderr.isatty()
