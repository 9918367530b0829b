"""`Turns`: places for work, given to its owners in turn, however much one of them has waiting."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets so many work at a time. A free place goes to the owner who holds the fewest."""

    def __init__(self, places: int, most_of_one: int | None = None) -> None:
        self._places = self._free = places
        self._most_of_one = most_of_one or places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @asynccontextmanager
    async def place(self, owner: str, *, alone: bool = False) -> AsyncIterator[None]:
        """Wait for a place, and hold it; `alone` holds all of them."""
        places = self._places if alone else 1
        await self.take(owner, places)
        try:
            yield
        finally:
            self.give_back(owner, places)

    async def take(self, owner: str, places: int = 1) -> None:
        """Wait for places; their holder gives them back."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((turn, places))
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            # Of one that was cancelled while it waited the turn is cancelled too.
            if turn.cancelled():
                self._give()
            else:
                self.give_back(owner, places)
            raise

    def give_back(self, owner: str, places: int = 1) -> None:
        """Give places back."""
        self._free += places
        self._held[owner] -= places
        self._give()

    def _give(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=self._held.__getitem__)
            turns = self._waiting[owner]
            turn, places = turns[0]
            if not turn.cancelled():
                # Nobody passes over one who waits for several.
                if places > self._free or self._held[owner] + places > self._most_of_one:
                    return
                self._free -= places
                self._held[owner] += places
                turn.set_result(None)
            turns.popleft()
            del self._waiting[owner]
            if turns:
                self._waiting[owner] = turns
