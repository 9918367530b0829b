"""Which format of a result a client wants: the header Accept (RFC 9110, 12.5.1)."""

import re
from typing import NamedTuple

from starlette.datastructures import Headers

from georesolve.intake.representations import FORMATS, JSON, LINES, PARQUET, Format
from georesolve.service.database.rows import Delivery
from georesolve.service.errors import NotAcceptable

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)


class _Range(NamedTuple):
    """A media range, its parameters, and how much it is liked."""

    type: str
    subtype: str
    parameters: dict[str, str]
    quality: float

    def specificity(self, format: Format) -> int | None:
        """How closely this names a format; None when it does not."""
        type, _, subtype = format.media_type.partition("/")
        if not self.parameters.items() <= format.parameters.items():
            return None
        if (self.type, self.subtype) == (type, subtype):
            return 2 + len(self.parameters)
        if (self.type, self.subtype) == (type, "*"):
            return 1
        return 0 if (self.type, self.subtype) == ("*", "*") else None


def format_of(delivery: Delivery, headers: Headers) -> Format:
    """The format of a result: that of `outputs`, or the one that a client likes best.

    In a document, which is JSON itself, that is JSON when the client does not say.

    Raises
    ------
    NotAcceptable
        When it likes none that there is.
    """
    if delivery.media_type is not None:
        return wanted_format(Headers({"accept": delivery.media_type}))
    return wanted_format(headers, JSON if delivery.response == "document" else PARQUET)


def wanted_format(headers: Headers, default: Format = PARQUET) -> Format:
    """The format that a client likes best; `default` when it does not say, or likes all.

    Of several ranges that name a format the most specific one counts. What stands in the header
    and is no range is passed over.

    Raises
    ------
    NotAcceptable
        When it likes none that there is.
    """
    given = ",".join(headers.getlist("accept"))
    if not given.strip():
        return default
    for format in FORMATS:
        if given == format.media_type:
            return format
    ranges = [one for member in given.split(",") if (one := _range_of(member))]
    best = max((default, *FORMATS, LINES), key=lambda one: _quality(one, ranges))
    if not _quality(best, ranges):
        offered = ", ".join(one.media_type for one in FORMATS)
        raise NotAcceptable(
            f"Accept is {given[:200]!r}, but a result is to be had as {offered}: accept one of "
            f"them, or leave the header out for {default.media_type}",
            headers={"Vary": "Accept"},
        )
    return best


def _quality(format: Format, ranges: list[_Range]) -> float:
    matching = [
        (specificity, one.quality)
        for one in ranges
        if (specificity := one.specificity(format)) is not None
    ]
    return max(matching)[1] if matching else 0.0


def _range_of(member: str) -> _Range | None:
    essence, *pairs = (part.strip().lower() for part in member.split(";"))
    type, _, subtype = essence.partition("/")
    parameters = {
        name.strip(): value.strip().strip('"')
        for name, _, value in (pair.partition("=") for pair in pairs if pair)
    }
    quality = parameters.pop("q", "1")
    if not _QUALITY.fullmatch(quality):
        return None
    return _Range(type, subtype, parameters, float(quality))
