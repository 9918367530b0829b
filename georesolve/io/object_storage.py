"""The operator's object store (`obstore`), and files that are read by ranges."""

import io
import re
import ssl
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Store

CONNECT_SECONDS = 10
SILENT_SECONDS = 60
_RETRIES = 2
_PAGE = 1000
SETTINGS: Any = {
    "client_options": {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=SILENT_SECONDS),
        # Of a whole answer: a slow line is not a silent one.
        "timeout": timedelta(days=1),
    },
    "retry_config": {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=SILENT_SECONDS),
    },
}
"""How long a store may take."""
_CAUSES = re.compile(r"(?:<Code>|kind: |InvalidCertificate\(\s*)(\w+)")


class NoBucket(OSError):
    """There is no bucket of that name; some stores make it with its first object."""


class SeekableFile(io.RawIOBase):
    """A file of `size` bytes that is read anywhere: `_at` is where it is read next."""

    size = 0
    _at = 0

    def readable(self) -> bool:
        """It is for reading."""
        return True

    def seekable(self) -> bool:
        """From anywhere."""
        return True

    def tell(self) -> int:
        """Where it is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at


class RangedFile(SeekableFile):
    """A file elsewhere; all that is read of it is of one version, which changes with content."""

    version = ""

    @abstractmethod
    def _ask(self, start: int, stop: int) -> bytes:
        """Bytes from `start` up to, not including, `stop`; raises OSError."""

    def read(self, size: int | None = -1) -> bytes:
        """Read on with one request, all that was asked for or as much as there is."""
        left = max(0, self.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        content = self._ask(self._at, self._at + size) if size else b""
        self._at += size
        return content

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read on into memory, as `read` does."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class ObjectFile(RangedFile):
    """An object: bucket and key. Its version is its ETag and its size."""

    def __init__(self, path: str) -> None:
        bucket, _, self._key = path.partition("/")
        self._store = object_store(bucket)
        with asked():
            found = self._store.head(self._key)
        self._etag = found["e_tag"]
        self.size = found["size"]
        self.version = f"{self._etag} {self.size}"

    def _ask(self, start: int, stop: int) -> bytes:
        with asked():
            options: GetOptions = {"range": (start, stop), "if_match": self._etag}
            answer = self._store.get(self._key, options=options)
            # Not all stores know conditions.
            if answer.meta["e_tag"] != self._etag:
                raise OSError("it has changed meanwhile")
            return bytes(answer.bytes())


def objects_below(path: str) -> "Iterator[ObjectMeta]":
    """The objects below a prefix, which are asked for by pages as they are taken."""
    bucket, _, prefix = path.partition("/")
    with asked():
        for page in object_store(bucket).list(prefix, chunk_size=_PAGE):
            yield from page


@contextmanager
def asked() -> Iterator[None]:
    """Let errors of an object store be OSError; what is not there is FileNotFoundError."""
    from obstore.exceptions import BaseError, PreconditionError

    try:
        yield
    except PreconditionError:
        raise OSError("it has changed meanwhile") from None
    except BaseError as error:
        # The whole text has the address of the store, and what it sent, which may name a key.
        told = str(error)
        why = told.partition("\n")[0].partition(": <")[0].rpartition(" - ")[2]
        causes = dict.fromkeys(_CAUSES.findall(told))
        kind = NoBucket if "NoSuchBucket" in causes else OSError
        raise kind(f"{why} ({', '.join(causes)})" if causes else why) from None


@cache
def object_store(bucket: str) -> "S3Store":
    """A bucket of the operator; the address of the store and the keys are of the environment."""
    from obstore.store import S3Store

    # Not all stores delete many objects with one request.
    return S3Store(bucket, disable_bulk_delete=True, **SETTINGS)


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
