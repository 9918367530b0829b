"""Files at https addresses, read by ranges, each answer of which must be of the same version.

No redirect is followed: what is asked is the address that was compared with what the operator
listed, and nothing else.
"""

import re
import ssl
from functools import cache
from typing import TYPE_CHECKING, Any

from georesolve.workers.storage.objects import CONNECT_SECONDS, SILENT_SECONDS, RangedFile

if TYPE_CHECKING:
    import httpx

_TRIES = 3
_PART = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HttpsFile(RangedFile):
    """A file at an address: host, port if any, and path. Opening it asks for its first byte.

    Its version is its ETag, or else when it was last modified, and its size.
    """

    def __init__(self, path: str) -> None:
        self._url = f"https://{path}"
        self._condition: dict[str, str] = {}
        # Of no bytes there is no range; such a file is no Parquet either.
        self._ask(0, 1)

    def _ask(self, start: int, stop: int) -> bytes:
        """Bytes from `start` up to, not including, `stop`; asked again where an answer breaks."""
        import httpx

        for left in reversed(range(_TRIES)):
            try:
                headers = {"Range": f"bytes={start}-{stop - 1}", **self._condition}
                with _client().stream("GET", self._url, headers=headers) as told:
                    if told.status_code < 500 or not left:
                        return self._content(told, start, stop)
            except httpx.TransportError as error:
                if not left:
                    raise OSError(f"{type(error).__name__}: {error}") from None
        raise AssertionError("the last try ends the loop")

    def _content(self, told: "httpx.Response", start: int, stop: int) -> bytes:
        status, headers = told.status_code, told.headers
        if status in (404, 410):
            raise FileNotFoundError(f"the server answers {status}")
        if status == 412:
            raise OSError("it has changed meanwhile")
        if told.is_redirect:
            raise OSError(f"the server answers {status} and leads elsewhere, which is not followed")
        if status == 200:
            raise OSError("the server sends no ranges (it answers 200 to a request with Range)")
        part = _PART.fullmatch(headers.get("content-range", ""))
        if status != 206 or part is None or "content-encoding" in headers:
            raise OSError(f"the server answers {status} to a request with Range")
        first, last, size = map(int, part.groups())
        stamp = headers.get("etag") or headers.get("last-modified")
        if stamp is None:
            raise OSError("the server tells neither ETag nor Last-Modified, so no version")
        version = f"{stamp} {size}"
        if self.version not in ("", version):
            raise OSError(f"it has changed meanwhile: it was {self.version}, and is {version}")
        if (first, last + 1) != (start, min(stop, size)):
            raise OSError(f"the server sends bytes {first} to {last} for {start} to {stop - 1}")
        content = bytearray()
        for block in told.iter_raw():
            content += block
            if len(content) > last + 1 - first:
                raise OSError("the server sends more bytes than it says")
        if not self.version:
            self.version, self.size = version, size
            # A weak ETag is for no range (RFC 9110, 13.1.1): each answer is compared all the same.
            if (etag := headers.get("etag", "")).startswith('"'):
                self._condition = {"If-Match": etag}
            elif "etag" not in headers:
                self._condition = {"If-Unmodified-Since": stamp}
        return bytes(content)


@cache
def _client() -> Any:
    """One for all files, which keeps connections."""
    # A tenth of a second to load, for those who use it.
    import httpx

    timeout = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
    # The operator's certificates are those of the system, or of SSL_CERT_FILE.
    context = ssl.create_default_context()
    headers = {"Accept-Encoding": "identity"}
    return httpx.Client(timeout=timeout, verify=context, headers=headers, follow_redirects=False)
