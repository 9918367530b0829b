"""The key of a request that may be sent twice: the header Idempotency-Key."""

from starlette.datastructures import Headers

from georesolve.service.errors import InvalidRequest

_LONGEST_KEY = 255


def key_of(headers: Headers) -> str | None:
    """Read the key of a request; None when it has none.

    Raises
    ------
    InvalidRequest
        When it is given several times, or is no short text.
    """
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    # A string as structured fields have it, in quotes; many clients leave these out.
    key = given[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    is_text = key.isascii() and key.isprintable()
    if len(given) > 1 or not 1 <= len(key) <= _LONGEST_KEY or not is_text:
        raise InvalidRequest(
            f"the header Idempotency-Key must be given once, with 1 to {_LONGEST_KEY} printable "
            f"ASCII characters; it was given {len(given)} times, with {len(key)} characters"
        )
    return key
