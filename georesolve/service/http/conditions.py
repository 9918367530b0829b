"""What the headers of a request ask for: an answer that is new to the client, a page."""

from starlette.datastructures import Headers


def is_known(headers: Headers, etag: str) -> bool:
    """Whether `If-None-Match` (RFC 9110, 13) names an answer by its entity tag, given in quotes.

    A tag that a proxy has made weak is the same one.
    """
    known = {tag.strip() for tag in headers.get("if-none-match", "").split(",")}
    return bool(known & {etag, f"W/{etag}", "*"})


def prefers_page(headers: Headers) -> bool:
    """Whether a browser asks for something to look at: it names HTML, which no program does."""
    return "text/html" in ",".join(headers.getlist("accept")).lower()
