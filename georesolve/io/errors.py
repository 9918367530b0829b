"""Refusals of tables, options and files, with their place and advice.

A front end makes its own answers of these: the service those of HTTP, by `service.errors`.
"""

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self

_LONGEST_TEXT = 2000
"""Characters of a detail or a pointer: a name that it quotes may have millions."""


class Refused(Exception):
    """Refusal with a message for the user: the value, the allowed values and advice.

    `errors` say where it is wrong: each has `detail` and a JSON `pointer`, or the `file`, `column`
    and `row` (counted from 0). The first may have `options` that would let the table be read: see
    `mended_by`.
    """

    def __init__(self, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        # Untrusted files are quoted in the message, and terminals obey control characters.
        detail = "".join(
            char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
            for char in _shortened(detail)
        )
        super().__init__(detail)
        self.detail = detail
        self.errors = [
            {name: _shortened(value) for name, value in error.items()} for error in errors or []
        ]

    def mended_by(self, file: str, *options: dict[str, str | None]) -> Self:
        """Note ways to read the file: options and their values, None for one that the user knows.

        Programs offer these; the message says the same in words.
        """
        if not self.errors:
            self.errors = [{"file": file, "detail": self.detail}]
        self.errors[0]["options"] = [*options]
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        # Refusals pass between processes.
        return type(self), (self.detail, self.errors)


class InvalidInput(Refused, ValueError):
    """Refusal of the content of a table or a file."""


class InvalidOption(Refused, ValueError):
    """An option does not fit the tables that it came with."""


class ResultTooLarge(Refused, ValueError):
    """A result would have more bytes than are allowed."""


def _shortened(value: Any) -> Any:
    """A text without its middle if it is long: its end says what to do."""
    if not isinstance(value, str) or len(value) <= _LONGEST_TEXT:
        return value
    left_out = len(value) - _LONGEST_TEXT
    half = _LONGEST_TEXT // 2
    return f"{value[:half]} [{left_out} characters left out] {value[-half:]}"


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


def wrong(file: str, detail: str, told: str = "", **place: Any) -> InvalidInput:
    """What is wrong with a file, and at what `place`: a column, a row, a line; as it is `told`."""
    known = {name: value for name, value in place.items() if value is not None}
    return InvalidInput(f"{file}: {told or detail}", [{"file": file, **known, "detail": detail}])


def wrong_geometry(file: str, column: str, detail: str, row: int | None = None) -> InvalidInput:
    """What is wrong with a geometry column, or in a row of it."""
    told = f"the geometry column {column!r}: {detail}"
    return wrong(file, detail, told, column=column, row=row)


def meant(name: str, known: Iterable[str]) -> str:
    """Ask in brackets whether the most similar name was meant; empty where none is similar."""
    close = get_close_matches(name[:80].lower(), known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def level_of_user() -> int:
    """Return the stack level of the line that called this package, for `warnings.warn`."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("georesolve."):
        frame, level = frame.f_back, level + 1
    return level
