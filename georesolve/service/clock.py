"""Ids and times, as they stand in the database and in answers, and the time of expiry."""

import datetime
import re
import secrets
import threading
import time

_RATE = 4.0
"""How many times as fast as real time the time of expiry may go."""


def new_id() -> str:
    """An id that nobody can guess: 128 random bits."""
    return secrets.token_hex(16)


def is_id(name: str) -> bool:
    """Whether a name has the form of an id."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def now(seconds: float = 0.0) -> str:
    """The time, or that many seconds later, as RFC 3339 in UTC with milliseconds."""
    return _text(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds))


def _text(time: datetime.datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def in_hours(hours: float) -> str | None:
    """The time that many hours from now; for 0 None, which is never."""
    return now(3600 * hours) if hours else None


def seconds_between(start: str, end: str) -> float:
    """Seconds from one time to another, as they stand in the database."""
    return (
        datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(start)
    ).total_seconds()


class ExpiryClock:
    """The time by which things expire: that of the clock, but at most four times as fast as real.

    A clock that jumps a month ahead does not remove at once what is kept for a month. This time
    lags behind it then, and catches up while the service runs: nothing lives for less than a
    quarter of its hours. A clock that goes back is followed at once. To a service that starts, the
    time since an earlier one noted its own is such a jump, too.

    Parameters
    ----------
    noted
        What an earlier process noted; None to believe the clock as it is now.
    """

    def __init__(self, noted: str | None = None) -> None:
        self._time = datetime.datetime.fromisoformat(noted or now())
        self._elapsed = _elapsed()
        self._lock = threading.Lock()

    def now(self, seconds: float = 0.0) -> str:
        """The time by which things expire, or that many seconds later, as the function `now`."""
        return _text(self._advanced()[0] + datetime.timedelta(seconds=seconds))

    def lag(self) -> datetime.timedelta:
        """How far it is behind the clock."""
        time, clock = self._advanced()
        return clock - time

    def _advanced(self) -> tuple[datetime.datetime, datetime.datetime]:
        with self._lock:
            clock, elapsed = datetime.datetime.now(datetime.UTC), _elapsed()
            most = datetime.timedelta(seconds=_RATE * (elapsed - self._elapsed))
            self._time, self._elapsed = min(clock, self._time + most), elapsed
            return self._time, clock


def seconds_to_catch_up(lag: datetime.timedelta) -> float:
    """How long the time of expiry takes to catch up with the clock."""
    return lag.total_seconds() / (_RATE - 1)


def _elapsed() -> float:
    # No setting of the clock changes it, and it counts the sleep of a machine.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
