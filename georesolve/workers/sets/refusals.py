"""What a user is told of a table that is not what it should be; `intake.errors` has the rest."""

from typing import Any, Self

_LONGEST_TEXT = 2000
"""Characters of a detail or a pointer: a name that it quotes may have millions."""


class Refused(Exception):
    """Something that a user is told: what was given, what was allowed and what to do.

    `errors` say where it is wrong: each has `detail` and a JSON `pointer`, or the `file`, `column`
    and `row` (counted from 0).
    """

    def __init__(self, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        # Files and requests of strangers are quoted in it, and terminals obey what they are shown.
        detail = "".join(
            char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
            for char in _shortened(detail)
        )
        super().__init__(detail)
        self.detail = detail
        self.errors = [
            {name: _shortened(value) for name, value in error.items()} for error in errors or []
        ]

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        # They pass between processes.
        return type(self), (self.detail, self.errors)


class InvalidInput(Refused, ValueError):
    """A table is not what it should be."""


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
