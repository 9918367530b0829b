"""Ids and times, as they stand in the database and in answers."""

import datetime
import secrets


def new_id() -> str:
    """An id that nobody can guess: 128 random bits."""
    return secrets.token_hex(16)


def now(seconds: float = 0.0) -> str:
    """The time, or that many seconds later, as RFC 3339 in UTC with milliseconds."""
    time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return time.isoformat(timespec="milliseconds")
