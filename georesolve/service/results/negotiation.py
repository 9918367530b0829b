"""Which format of a result a client wants: the header Accept (RFC 9110, 12.5.1)."""

import re

from starlette.datastructures import Headers

from georesolve.intake.representations import FORMATS, JSON, LINES, PARQUET, Format
from georesolve.service.errors import NotAcceptable
from georesolve.service.store.rows import Delivery

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)


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
    ranges = given.lower().split(",")
    best = max((default, *FORMATS, LINES), key=lambda one: _quality(one, ranges))
    if not _quality(best, ranges):
        offered = ", ".join(one.media_type for one in FORMATS)
        raise NotAcceptable(
            f"Accept is {given[:200]!r}, but a result is to be had as {offered}: accept one of "
            f"them, or leave the header out for {default.media_type}",
            headers={"Vary": "Accept"},
        )
    return best


def _quality(format: Format, ranges: list[str]) -> float:
    """How much the range that names a format most closely likes it; 0 if none names it."""
    any_subtype = f"{format.media_type.partition('/')[0]}/*"
    found = [(0, 0.0)]
    for one in ranges:
        essence, *pairs = (part.strip() for part in one.split(";"))
        named = (pair.partition("=") for pair in pairs if pair)
        parameters = {name.strip(): value.strip().strip('"') for name, _, value in named}
        quality = parameters.pop("q", "1")
        closeness = {"*/*": 1, any_subtype: 2, format.media_type: 3 + len(parameters)}.get(essence)
        has_them = parameters.items() <= format.parameters.items()
        if closeness and has_them and _QUALITY.fullmatch(quality):
            found.append((closeness, float(quality)))
    return max(found)[1]
