"""The bell: a named pipe in the data folder, by which a front tells the runner of a job at once.

A runner on another machine does not hear it. It sees the job in the database some moments later:
see `Changes`.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_MOST_BYTES = 65_536
"""As many a pipe holds; a full one was rung already."""


class Bell:
    """The bell of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        # What begins with a dot is nothing to lose: see `service.store.identity`.
        self._path = data_dir / ".bell"

    def ring(self) -> None:
        """Wake the runner, if there is one on this machine."""
        with suppress(OSError):
            pipe = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"\0")
            finally:
                os.close(pipe)

    @contextmanager
    def heard(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have the event loop of the caller call a function each time that it rings, if it can."""
        loop = asyncio.get_running_loop()

        def hear(pipe: int) -> None:
            with suppress(BlockingIOError):
                os.read(pipe, _MOST_BYTES)
            wake()

        with ExitStack() as opened:
            try:
                with suppress(FileExistsError):
                    os.mkfifo(self._path, 0o600)
                # To write, too: without a writer a pipe is at its end all the time.
                pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
                opened.callback(os.close, pipe)
                loop.add_reader(pipe, hear, pipe)
                opened.callback(loop.remove_reader, pipe)
            except OSError as error:
                logger.warning("fronts cannot ring, and jobs start some moments later: %s", error)
            yield
