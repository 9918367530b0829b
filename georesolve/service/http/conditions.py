"""Conditions of requests (RFC 9110, 13): whether a client has an answer already."""

from starlette.datastructures import Headers


def is_known(headers: Headers, etag: str) -> bool:
    """Whether `If-None-Match` names an answer by its entity tag, which is given with its quotes.

    A tag that a proxy has made weak is the same one.
    """
    known = {tag.strip() for tag in headers.get("if-none-match", "").split(",")}
    return bool(known & {etag, f"W/{etag}", "*"})
