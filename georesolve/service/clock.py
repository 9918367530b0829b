"""Ids and times, as they stand in the database and in answers."""

import datetime
import re
import secrets


def new_id() -> str:
    """An id that nobody can guess: 128 random bits."""
    return secrets.token_hex(16)


def is_id(name: str) -> bool:
    """Whether a name has the form of an id."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def now(seconds: float = 0.0) -> str:
    """The time, or that many seconds later, as RFC 3339 in UTC with milliseconds."""
    time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return time.isoformat(timespec="milliseconds")


def in_hours(hours: float) -> str | None:
    """The time that many hours from now; for 0 None, which is never."""
    return now(3600 * hours) if hours else None


def seconds_between(start: str, end: str) -> float:
    """Seconds from one time to another, as they stand in the database."""
    read = datetime.datetime.fromisoformat
    return (read(end) - read(start)).total_seconds()
