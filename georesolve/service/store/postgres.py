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
_IDLE_SECONDS = 5
"""A process that is paused in a transaction holds its locks for so long: others wait longer."""
_POOL_SECONDS = 10
_ALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "20000",
}
"""Of both ends, which is why a host that vanished keeps no session and no lock."""


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
    """An engine whose statements end within seconds, unless its URL says otherwise."""
    of_session = {
        "statement_timeout": f"{_STATEMENT_SECONDS}s",
        "lock_timeout": f"{_LOCK_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",
        **{name if "user" in name else f"tcp_{name}": n for name, n in _ALIVE.items()},
    }
    options = " ".join(f"-c {name}={value}" for name, value in of_session.items())
    given = {"connect_timeout": str(_CONNECT_SECONDS), **_ALIVE, **url.query}
    given["options"] = f"{options} {given.get('options', '')}".strip()
    url = url.update_query_dict(given)
    # Asked before each use: a database that was restarted meanwhile costs no request.
    engine = sa.create_engine(url, pool_pre_ping=True, pool_timeout=_POOL_SECONDS)

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        return _Bounded.connect(*arguments, **named)

    return engine
