"""Who waits for a job is woken when it changes, so that nobody asks the database in a loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Changes:
    """Tells of changed jobs within this process, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def of(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever a job changes; who has seen it clears it."""
        event = asyncio.Event()
        with self._lock:
            self._listeners.setdefault(id, {})[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._listeners[id][event]
                if not self._listeners[id]:
                    del self._listeners[id]

    def tell(self, id: str) -> None:
        """Wake who waits for a job."""
        with self._lock:
            listeners = list(self._listeners.get(id, {}).items())
        for event, loop in listeners:
            loop.call_soon_threadsafe(event.set)
