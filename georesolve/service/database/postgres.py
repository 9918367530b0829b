"""Engines for Postgres, none of whose connections waits for ever."""

import time
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen

_CONNECT_SECONDS = 5
_LOCK_SECONDS = 10
_STATEMENT_SECONDS = 15
SILENCE_SECONDS = 20.0
"""After so long without an answer to one statement a connection is given up: a server that was
stopped, or that another took the address of, keeps no bound of its own."""
_POOL_SECONDS = 10


class _Bounded(psycopg.Connection[Any]):
    """A connection that is closed when the server does not answer in time."""

    def wait(self, gen: PQGen[Any], *arguments: Any, **named: Any) -> Any:
        """Wait for an answer of the server, as psycopg does between all else."""
        return super().wait(self._until_late(gen), *arguments, **named)

    def _until_late(self, gen: PQGen[Any]) -> PQGen[Any]:
        deadline = time.monotonic() + SILENCE_SECONDS
        try:
            wanted = next(gen)
            while True:
                # psycopg looks up ten times a second, also when nothing has come.
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the database did not answer within {SILENCE_SECONDS:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def bounded_engine(url: sa.URL) -> sa.Engine:
    """An engine for the statements of a service: each ends within seconds, one way or another.

    What the URL says of `connect_timeout` and `options` counts.
    """
    options = f"-c statement_timeout={_STATEMENT_SECONDS}s -c lock_timeout={_LOCK_SECONDS}s"
    given = url.query
    url = url.update_query_dict(
        {
            "connect_timeout": given.get("connect_timeout", str(_CONNECT_SECONDS)),
            "options": f"{options} {given.get('options', '')}".strip(),
        }
    )
    # Asked before each use: a database that was restarted meanwhile costs no request.
    engine = sa.create_engine(url, pool_pre_ping=True, pool_timeout=_POOL_SECONDS)

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        return _Bounded.connect(*arguments, **named)

    return engine
