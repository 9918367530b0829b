"""The lease: one runner at a time runs the jobs of a database, and tells how its cluster is.

It is a number that its holder counts on. One who wants it takes it when the number has stood still
for some seconds, so no two clocks are compared, and no write of the former holder counts.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from georesolve.service import pools
from georesolve.service.store.engine import of_single_statements
from georesolve.service.store.schema import store

logger = logging.getLogger(__name__)

LEASE_SECONDS = 6.0
"""A lease that was not renewed for so long is free."""
_RENEW_SECONDS = 2.0
_LOOK_SECONDS = 0.5


class Lease:
    """The lease of one database, as one sees it that wants to hold it by a name of its own."""

    def __init__(self, engine: sa.Engine, holder: str) -> None:
        self._engine = engine
        self._holder = holder
        self._session: sa.Connection | None = None
        # The thread of a renewal that was cancelled may still be at it.
        self._writing = threading.Lock()
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    @property
    def is_held(self) -> sa.ColumnElement[bool]:
        """Whether it is held by this name, for conditions of statements."""
        return sa.exists().where(store.c.holder == self._holder)

    async def taken(self) -> None:
        """Wait for the lease, and take it."""
        while True:
            try:
                if await pools.database(self._take):
                    return
            except SQLAlchemyError as error:
                logger.warning("the lease cannot be taken: %s", error)
            # It may wait for days, and a service starts without a collector: each look at a
            # database that is away leaves some kilobytes of garbage.
            gc.enable()
            await asyncio.sleep(_LOOK_SECONDS)

    def _take(self) -> bool:
        with self._engine.connect() as connection:
            holder, beat = connection.execute(sa.select(store.c.holder, store.c.beat)).one()
        if (holder, beat) != self._seen:
            if self._seen is None and holder not in ("", self._holder):
                logger.info("another runner has the lease: this one waits for it")
            self._seen, self._seen_at = (holder, beat), time.monotonic()
        stood_still = time.monotonic() - self._seen_at > LEASE_SECONDS
        if not (stood_still or holder in ("", self._holder)):
            return False
        same = (store.c.holder == holder) & (store.c.beat == beat)
        return self._write(same, holder=self._holder)

    @asynccontextmanager
    async def kept(
        self, tell: Callable[[], dict[str, Any]], news: asyncio.Event, lost: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Renew the lease from now on, and give it back in the end.

        `tell` gives columns that are told with it, at once when `news` is set; `lost` is called
        when another has taken it.
        """

        async def keep() -> None:
            is_renewed = True
            while True:
                news.clear()
                try:
                    if not await pools.database(partial(self._renew, **tell())):
                        logger.critical("another runner has taken the lease: this one ends at once")
                        lost()
                        return
                    is_renewed = True
                except SQLAlchemyError as error:
                    if is_renewed:
                        logger.warning("the lease cannot be renewed: %s", error)
                    is_renewed = False
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), _RENEW_SECONDS)

        try:
            async with pools.beside(keep(), "lease"):
                yield
        finally:
            try:
                await pools.database(partial(self._renew, holder="", cluster={}))
            except SQLAlchemyError as error:
                logger.warning("the lease cannot be given back: %s", error)
            with self._writing:
                self._close()

    def _renew(self, **values: Any) -> bool:
        return self._write(store.c.holder == self._holder, **values)

    def _write(self, condition: sa.ColumnElement[bool], **values: Any) -> bool:
        query = store.update().where(condition).values(beat=store.c.beat + 1, **values)
        with self._writing:
            try:
                if self._session is None:
                    self._session = of_single_statements(self._engine).connect()
                    # Not one of the pool: what is told so often need not survive a power cut.
                    self._session.detach()
                    if self._engine.dialect.name == "sqlite":
                        self._session.exec_driver_sql("PRAGMA synchronous=NORMAL")
                        self._session.commit()
                with self._session.begin():
                    return bool(self._session.execute(query).rowcount)
            except SQLAlchemyError:
                self._close()
                raise

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
