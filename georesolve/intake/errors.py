"""What is wrong with a table, an option or a file: told with its place, and with what to do.

A front end makes its own answers of these: the service those of HTTP, by `service.errors`.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from georesolve.workers.refusals import InvalidInput as InvalidInput
from georesolve.workers.refusals import InvalidOption as InvalidOption
from georesolve.workers.refusals import Refused as Refused


class TooLarge(Refused, ValueError):
    """A table has more rows, columns or bytes than are allowed."""


class UnsupportedFormat(Refused, ValueError):
    """A file has a format that is not read."""


class SourceNotAllowed(Refused, ValueError):
    """An address lies below no prefix that is read from."""


class SinkNotAllowed(Refused, ValueError):
    """An address lies below no prefix that results are written to."""


class SourceUnreadable(Refused, ValueError):
    """Files cannot be read at the moment."""


class NotRepresentable(Refused, ValueError):
    """A value of a result has no text in the format that was asked for."""


class RowTooWide(Refused, ValueError):
    """A row of a result takes more memory than the format that was asked for allows."""


def meant(name: str, known: Iterable[str]) -> str:
    """Ask in brackets whether the most similar name was meant; empty where none is similar."""
    close = get_close_matches(name[:80].lower(), known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
