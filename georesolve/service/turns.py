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
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._alone: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self, owner: str, *, alone: bool = False) -> AsyncIterator[None]:
        """Wait for a place, and hold it; `alone` holds all of them, and nobody passes it over."""
        await self.take(owner, alone=alone)
        try:
            yield
        finally:
            self.give_back(owner, alone=alone)

    async def take(self, owner: str, *, alone: bool = False) -> None:
        """Wait for a place; its holder gives it back."""
        turn = asyncio.get_running_loop().create_future()
        waiting = self._alone if alone else self._waiting.setdefault(owner, deque())
        waiting.append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            # Of one that was cancelled while it waited the turn is cancelled too.
            if turn.cancelled():
                self._give()
            else:
                self.give_back(owner, alone=alone)
            raise

    def give_back(self, owner: str, *, alone: bool = False) -> None:
        """Give a place back."""
        if alone:
            self._free = self._places
        else:
            self._free += 1
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
        self._give()

    def _give(self) -> None:
        while self._alone and self._alone[0].cancelled():
            self._alone.popleft()
        if self._alone:
            if self._free == self._places:
                self._free = 0
                self._alone.popleft().set_result(None)
            return
        while self._free and self._waiting:
            owner = min(self._waiting, key=self._held.__getitem__)
            if self._held[owner] >= self._most_of_one:
                return
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.cancelled():
                self._free -= 1
                self._held[owner] += 1
                turn.set_result(None)
