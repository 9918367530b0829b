"""Files and folders here, in object stores and on servers: listed, read, and written complete.

Endpoints and keys of stores are those of the environment. `io.urls` holds which URLs a service
reads and writes.
"""

import io
import os
import re
import shutil
import ssl
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from georesolve.io import local_files
from georesolve.io.columns import MEANT, Reading, Role
from georesolve.io.errors import InvalidInput, InvalidOption, TooLarge
from georesolve.io.extras import needed
from georesolve.io.local_files import refuse_special_file

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa
    from obstore import GetOptions, ObjectMeta

CONNECT_SECONDS = 10
SILENT_SECONDS = 60
_RETRIES = 2
_PAGE = 1000
SETTINGS: Any = {
    "client_options": {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=SILENT_SECONDS),
        # For a complete response: a slow line is not a silent one.
        "timeout": timedelta(days=1),
    },
    "retry_config": {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=SILENT_SECONDS),
    },
}
"""Time limits and retries of requests to a store."""
_TRIES = 3
_PART = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
_CAUSES = re.compile(r"(?:<Code>|kind: |InvalidCertificate\(\s*)(\w+)")


class NoBucket(OSError):
    """Error of a bucket that does not exist; some stores create one with its first object."""


class SeekableFile(io.RawIOBase):
    """File of `size` bytes that is read at any offset; `_at` is the next one."""

    size = 0
    _at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another offset."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at


class RangedFile(SeekableFile):
    """Remote file, all reads of which see one version of the content."""

    version = ""

    @abstractmethod
    def _range(self, start: int, stop: int) -> bytes:
        """Bytes from `start` up to, not including, `stop`; raises OSError."""

    def read(self, size: int | None = -1) -> bytes:
        """Read the next bytes with one request: `size` of them, or all that are left."""
        left = max(0, self.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        content = self._range(self._at, self._at + size) if size else b""
        self._at += size
        return content

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes into memory, as `read` does."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class ObjectFile(RangedFile):
    """Object at a bucket and a key. ETag and size are the version."""

    def __init__(self, path: str, scheme: str = "s3") -> None:
        bucket, _, self._key = path.partition("/")
        self._store = object_store(bucket, scheme)
        with store_errors():
            head = self._store.head(self._key)
        self._etag = head["e_tag"]
        self.size = head["size"]
        self.version = f"{self._etag} {self.size}"

    def _range(self, start: int, stop: int) -> bytes:
        with store_errors():
            options: GetOptions = {"range": (start, stop), "if_match": self._etag}
            answer = self._store.get(self._key, options=options)
            # Some stores ignore the condition.
            if answer.meta["e_tag"] != self._etag:
                raise OSError("it has changed meanwhile")
            return bytes(answer.bytes())


def objects_below(path: str, scheme: str = "s3") -> "Iterator[ObjectMeta]":
    """List the objects below a bucket and a prefix, page by page."""
    bucket, _, prefix = path.partition("/")
    with store_errors():
        for page in object_store(bucket, scheme).list(prefix or None, chunk_size=_PAGE):
            yield from page


@contextmanager
def store_errors() -> Iterator[None]:
    """Translate errors of an object store to OSError and FileNotFoundError."""
    from obstore.exceptions import BaseError, PreconditionError

    try:
        yield
    except PreconditionError:
        raise OSError("it has changed meanwhile") from None
    except BaseError as error:
        # The complete text has the endpoint and the response, which may name a key.
        text = str(error)
        why = text.partition("\n")[0].partition(": <")[0].rpartition(" - ")[2]
        causes = dict.fromkeys(_CAUSES.findall(text))
        kind = NoBucket if "NoSuchBucket" in causes else OSError
        raise kind(f"{why} ({', '.join(causes)})" if causes else why) from None


def object_store(bucket: str, scheme: str = "s3") -> Any:
    """Return the store of a bucket; endpoint and keys are those of the environment now."""
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return open_store(f"{scheme}://{bucket}", tuple(environment))


@lru_cache(maxsize=64)
def open_store(root: str, environment: tuple[tuple[str, str], ...]) -> Any:
    """Open the store at a root URL, once for each environment."""
    from obstore.store import from_url

    # Some stores delete one object a request.
    options: dict[str, Any] = {"disable_bulk_delete": True} if root.startswith("s3:") else {}
    return from_url(root, **options, **SETTINGS)


class HttpsFile(RangedFile):
    """File of a server: host, port and path. Opening the file requests the first byte.

    ETag or time of the last change, and size, are the version.
    """

    def __init__(self, path: str) -> None:
        self._url = f"https://{path}"
        self._condition: dict[str, str] = {}
        # An empty file has no range, and is no Parquet file.
        self._range(0, 1)

    def _range(self, start: int, stop: int) -> bytes:
        """Bytes from `start` up to, not including, `stop`; asked again where an answer breaks."""
        import httpx

        for left in reversed(range(_TRIES)):
            try:
                headers = {"Range": f"bytes={start}-{stop - 1}", **self._condition}
                with _client().stream("GET", self._url, headers=headers) as response:
                    if response.status_code < 500 or not left:
                        return self._content(response, start, stop)
            except httpx.TransportError as error:
                if not left:
                    raise OSError(f"{type(error).__name__}: {error}") from None
        raise AssertionError("the last try ends the loop")

    def _content(self, response: "httpx.Response", start: int, stop: int) -> bytes:
        status, headers = response.status_code, response.headers
        if status in (404, 410):
            raise FileNotFoundError(f"the server answers {status}")
        if status == 412:
            raise OSError("it has changed meanwhile")
        if response.is_redirect:
            raise OSError(f"the server answers {status}, a redirect, which is not followed")
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
        for block in response.iter_raw():
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


_MADE = ".made"
"""The object that has a prefix be there while nothing else lies below it."""
_PARTS_AT_A_TIME = 4
"""Of one large object: on a slow line each has to arrive before it counts as silent."""


class OutputFailed(ValueError):
    """A file of a result that is written elsewhere cannot be written or read."""


class StoreFailed(OSError):
    """The object store that the service keeps its files in does not answer, or refuses."""


class Folder(NamedTuple):
    """A folder, whose files lie directly in it."""

    path: Path
    is_own: bool = True
    """Whether it is of the service; another one is where a client wants its result, and its
    errors are `OutputFailed`."""

    @property
    def href(self) -> str:
        """Its address, with a slash at the end."""
        return f"file://{self.path}/"

    def below(self, name: str) -> "Folder":
        """A folder in it."""
        return Folder(self.path / name, self.is_own)

    def asked(self, name: str = "") -> AbstractContextManager[None]:
        """Errors of a folder say by themselves what they are."""
        return nullcontext()

    def make(self) -> None:
        """Make it, if it is not there; its name then survives a power cut."""
        with named(self):
            local_files.make_folder(self.path)

    def is_made(self) -> bool:
        """Whether it is there."""
        return self.path.is_dir()

    def clear(self) -> None:
        """Remove it with all that lies in it, as far as that can be removed."""
        shutil.rmtree(self.path, ignore_errors=True)

    def folders(self) -> list[str]:
        """Names of the folders in it."""
        return [path.name for path in self.path.iterdir() if path.is_dir()]

    def names(self) -> list[str]:
        """Names of its files; none where it is not there."""
        try:
            return [path.name for path in self.path.iterdir() if not path.is_dir()]
        except FileNotFoundError:
            return []

    def is_taken(self) -> bool:
        """Whether anything lies in it, or in its place; raises OSError."""
        return (self.path.is_dir() and any(self.path.iterdir())) or self.path.is_file()

    def has(self, name: str) -> bool:
        """Whether it has a file of this name."""
        return (self.path / name).exists()

    def look(self, name: str) -> local_files.Look:
        """What changes with a file; raises FileNotFoundError."""
        return local_files.look_at(self.path / name)

    def open(self, name: str) -> BinaryIO:
        """A file, to be read anywhere; raises FileNotFoundError."""
        return (self.path / name).open("rb", buffering=0)

    @contextmanager
    def new(self, name: str) -> Iterator[BinaryIO]:
        """A file to be written; it survives a power cut once it and the names are synced."""
        with (
            named(self, name),
            local_files.complete(self.path / name) as temporary,
            temporary.open("wb") as file,
        ):
            yield file

    def keep(self, file: "Path | pa.Buffer", name: str) -> None:
        """Have a file of the same disk, or bytes, as one of it; it survives a power cut."""
        if isinstance(file, Path):
            local_files.sync(file)
            file.replace(self.path / name)
            local_files.sync(self.path)
        else:
            with local_files.durable(self.path / name) as temporary:
                temporary.write_bytes(file)

    def sync(self, name: str = "") -> None:
        """Have the bytes of a file survive a power cut, or without a name the names of all."""
        with named(self, name):
            local_files.sync(self.path / name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; and the folder, if it is not the job's own and nothing is left in it."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        if not self.is_own and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


class Prefix(NamedTuple):
    """A prefix of an object store: `path` is the bucket and what keys begin with."""

    path: str
    is_own: bool = False
    """Whether it is of the store of the service, whose errors are `StoreFailed`."""

    @property
    def href(self) -> str:
        """Its address, with a slash at the end."""
        return f"s3://{self.path}/"

    def below(self, name: str) -> "Prefix":
        """A longer prefix."""
        return Prefix(f"{self.path}/{name}", self.is_own)

    def make(self) -> None:
        """Have one of the service be there before anything lies below it; others are there."""
        if self.is_own:
            self._put(b"", _MADE)

    def is_made(self) -> bool:
        """Whether anything lies below it; raises OSError."""
        with self.asked():
            return any(True for _ in self._objects())

    def is_taken(self) -> bool:
        """Whether anything lies below it; raises OSError."""
        return self.is_made()

    def clear(self) -> None:
        """Remove all that lies below it; raises OSError."""
        with self.asked():
            self._bucket.delete([one["path"] for one in self._objects()])

    def _objects(self) -> "Iterator[ObjectMeta]":
        """What lies below it; nothing in a bucket for results that is not there yet."""
        try:
            yield from objects_below(self.path)
        except NoBucket:
            if self.is_own:
                raise

    def folders(self) -> list[str]:
        """What stands between it and the next slash of keys."""
        with self.asked():
            found = self._bucket.list_with_delimiter(self._key())["common_prefixes"]
        return [path.rpartition("/")[2] for path in found]

    def names(self) -> list[str]:
        """Names of the objects directly below it; raises OSError."""
        with self.asked():
            found = self._bucket.list_with_delimiter(self._key())["objects"]
        names = (one["path"].rpartition("/")[2] for one in found)
        return [name for name in names if name != _MADE]

    def has(self, name: str) -> bool:
        """Whether there is an object of this name; raises OSError."""
        with suppress(FileNotFoundError):
            self.look(name)
            return True
        return False

    def look(self, name: str) -> local_files.Look:
        """What changes with an object; raises OSError."""
        with self.asked(name):
            found = self._bucket.head(self._key(name))
        return local_files.Look(0, found["size"], int(found["last_modified"].timestamp() * 1e9))

    def open(self, name: str) -> BinaryIO:
        """An object, to be read anywhere; raises FileNotFoundError."""
        with self.asked(name):
            return cast(BinaryIO, ObjectFile(f"{self.path}/{name}"))

    @contextmanager
    def new(self, name: str) -> Iterator[BinaryIO]:
        """An object to be written; once this ends without an error, it is there for good."""
        # All of it in memory first: an error in between leaves nothing.
        content = BytesIO()
        yield content
        with named(self, name):
            self._put(content.getbuffer(), name)

    def keep(self, file: "Path | pa.Buffer", name: str) -> None:
        """Have a file, or bytes, as an object, which is there for good once this ends well."""
        self._put(file if isinstance(file, Path) else memoryview(file).cast("B"), name)

    def _put(self, content: Path | bytes | memoryview, name: str) -> None:
        with self.asked(name):
            self._bucket.put(self._key(name), content, max_concurrency=_PARTS_AT_A_TIME)

    def sync(self, name: str = "") -> None:
        """An object store has what it has taken."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; raises OSError."""
        for name in names:
            with self.asked(name), suppress(FileNotFoundError):
                self._bucket.delete(self._key(name))

    @property
    def _bucket(self) -> Any:
        return object_store(self.path.partition("/")[0])

    def _key(self, name: str = "") -> str:
        return f"{self.path}/{name}".partition("/")[2].rstrip("/")

    @contextmanager
    def asked(self, name: str = "") -> Iterator[None]:
        """Let errors of the service's store be `StoreFailed`, but for what is not there."""
        try:
            with store_errors():
                yield
        except (FileNotFoundError, StoreFailed):
            raise
        except OSError as error:
            if not self.is_own:
                raise
            raise StoreFailed(f"{self.href}{name}: {str(error)[:300]}") from error


Place = Folder | Prefix
PARTS = "parts"
"""Where, in the folder of a job, its result lies that is written nowhere else."""
Home: TypeAlias = Path | Place
"""Where the files of a job lie that are the service's: the path of a folder, or a prefix."""


class Object(NamedTuple):
    """An object in the store of the service."""

    place: Prefix
    name: str

    def open(self) -> BinaryIO:
        """It, to be read anywhere; raises OSError."""
        return self.place.open(self.name)

    def look(self) -> local_files.Look:
        """What changes with it; raises OSError."""
        return self.place.look(self.name)


def own_place(home: Home) -> Place:
    """Where files of the service lie."""
    return Folder(home) if isinstance(home, Path) else home


def place_of(href: str) -> Place:
    """Where a client wants its result: an address that was checked when its job was accepted."""
    scheme, _, path = href.rstrip("/").partition("://")
    return Prefix(path) if scheme == "s3" else Folder(Path(path), is_own=False)


def place_of_parts(home: Home, output: str | None) -> Place:
    """Where the parts of a result lie: in the folder of its job, if not elsewhere."""
    return place_of(output) if output else own_place(home).below(PARTS)


@contextmanager
def named(place: Place, name: str = "") -> Iterator[None]:
    """Let errors of a file name it, where the place is not the job's own; raises OutputFailed."""
    try:
        yield
    except OSError as error:
        if place.is_own:
            raise
        raise OutputFailed(
            f"{place.href}{name}: it cannot be written: {str(error)[:300]}"
        ) from error


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a glob, or several of these, on this machine or at URLs."""
_SCHEMES = ("s3", "gs", "az", "https", "http")
_BLOCK_BYTES = 1 << 20
PARQUET_SUFFIXES = (".parquet", ".parq", ".pq", ".geoparquet")
"""Ends of the names of Parquet files."""
_WILDCARD = re.compile(r"[*?[]")
_HIDDEN = (".", "_")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class RemoteFile(NamedTuple):
    """File of an object store or a server."""

    root: str
    key: str

    def __str__(self) -> str:
        """URL of the file."""
        return f"{self.root}/{self.key}"

    @property
    def name(self) -> str:
        """Last segment of the URL."""
        return self.key.rpartition("/")[2]

    @property
    def is_on_server(self) -> bool:
        """Whether a web server has the file, which lists nothing."""
        return self.root.startswith("http")

    def open(self) -> ObjectFile:
        """Open the file for ranged reads; raises OSError."""
        scheme, _, bucket = self.root.partition("://")
        with self._translated():
            return ObjectFile(f"{bucket}/{self.key}", scheme)

    def fetch(self, path: Path, is_over: threading.Event) -> Path:
        """Copy the file to a path, or a part of it if `is_over` is set before; raises OSError."""
        with self._translated():
            blocks = iter(self._store.get(self.key).stream(min_chunk_size=_BLOCK_BYTES))
        with path.open("wb") as file:
            while not is_over.is_set():
                with self._translated():
                    block = next(blocks, None)
                if block is None:
                    break
                file.write(block)
        return path

    def upload(self, path: Path) -> None:
        """Write a local file here, complete or not at all; raises OSError."""
        with self._translated():
            self._store.put(self.key, path)

    @property
    def _store(self) -> Any:
        scheme, _, bucket = self.root.partition("://")
        return object_store(bucket, scheme)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with store_errors():
                yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no {self}") from error
        except OSError as error:
            raise OSError(f"{self}: {error}") from error


File = Path | RemoteFile


class Listed(NamedTuple):
    """File that a path, a folder or a glob names; `below` is its path below folder or pattern."""

    file: File
    source: str
    below: str = ""

    @property
    def name(self) -> str:
        """Name of the file in errors."""
        return self.below or self.file.name


def is_url(source: Any) -> bool:
    """Whether a text is meant as a URL, valid or not."""
    return isinstance(source, str) and "://" in source


def remote_file(url: str) -> RemoteFile:
    """Parse the URL of a file; raises InvalidOption."""
    scheme, _, path = url.partition("://")
    bucket, _, key = path.partition("/")
    if scheme not in _SCHEMES or not bucket:
        raise InvalidOption(
            f"{url[:200]!r} is no address of a file: there are "
            f"{', '.join(f'{each}://' for each in _SCHEMES)}, as in s3://bucket/folder/file.parquet"
            "; a file of this machine is given by its path"
        )
    if scheme.startswith("http"):
        if "?" in key:
            raise InvalidOption(f"{url[:200]!r} has a query, which is not sent: fetch the file")
        # The client quotes the path again.
        key = unquote(key)
    needed("obstore", "cloud", url)
    return RemoteFile(f"{scheme}://{bucket}", key)


def target_of(out: str | os.PathLike[str]) -> File:
    """Parse the file that a result is written to; raises InvalidOption for a folder."""
    if is_url(out):
        return remote_file(str(out))
    if str(out).endswith("/"):
        raise InvalidOption(
            f"{str(out)!r} names a folder, and the result is one file: name a file in it, as in "
            f"{str(out) + 'matches.parquet'!r}"
        )
    return Path(out)


def files_at(sources: Paths, role: Role) -> list[Listed]:
    """List the files of several paths, each in the order of names; refuse if no file is there."""
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    files = [file for source in sources for file in list_files(str(source), role)]
    if not files:
        raise InvalidInput(
            f"{role}: there is no file at {', '.join(repr(str(each)) for each in sources) or '[]'}"
            ": give a file, a folder or a glob"
        )
    return files


def list_files(
    source: str,
    role: str,
    *,
    suffixes: tuple[str, ...] = ("",),
    max_files: int | None = None,
    max_listed: int | None = None,
) -> list[Listed]:
    """List the files of a path or a URL: the file itself, or all below a folder or a glob.

    Names below the folder or the glob that begin with `_` or `.` are skipped, unless the glob
    spells them. A folder that fits a glob is read as a folder. Files below have one of the
    suffixes. Tables of Delta Lake and Iceberg, whose folders also have files of old versions, are
    refused, and so are more files than the limits.
    """
    if is_url(source):
        base: File = remote_file(source)
    else:
        base = Path(source)
    if _is_file(base):
        return _refuse_shapefiles([Listed(base, source)])
    fixed, pattern = _split(base)
    tables = _TableFormats()
    files = []
    for number, below in enumerate(_below(base, fixed, pattern)):
        if max_listed is not None and number >= max_listed:
            raise TooLarge(
                f"{role}: more than {max_listed} files, the limit, lie below {source}: name a "
                "folder with fewer, or Parquet files"
            )
        tables.add(below)
        if below[-1].endswith(suffixes) and below[-1] and _fits(below, pattern):
            name = "/".join(below)
            files.append((below, Listed(_joined(base, fixed, name), source, name)))
            if max_files is not None and len(files) > max_files:
                raise TooLarge(f"{role}: more than {max_files} files, the limit, lie at {source}")
    tables.refuse([below for below, _ in files], role, source)
    # By segments: "a/b" comes before "a.b/c" in a folder, as by the names of each folder.
    return _refuse_shapefiles(_without_parts([file for _, file in sorted(files)]))


def fixed_part(path: str) -> str:
    """Part of a path before the first segment that has a wildcard."""
    wildcard = _WILDCARD.search(path)
    return path[: wildcard.start()].rpartition("/")[0] if wildcard else path.rstrip("/")


def _split(base: File) -> tuple[str, tuple[str, ...]]:
    """Split a path into the folder to list and the pattern of files below, empty for all."""
    path = str(base) if isinstance(base, Path) else base.key
    if isinstance(base, Path) and base.is_dir():
        return path, ()
    fixed = fixed_part(path)
    return fixed or "/" * path.startswith("/"), _segments(path[len(fixed) :])


def _joined(base: File, fixed: str, name: str) -> File:
    if isinstance(base, Path):
        return Path(fixed) / name
    return base._replace(key=f"{fixed}/{name}" if fixed else name)


def _segments(path: str) -> tuple[str, ...]:
    return tuple(segment for segment in path.split("/") if segment)


def _is_file(base: File) -> bool:
    if isinstance(base, Path):
        return base.exists() and not base.is_dir()
    # Servers list nothing: the URL is that of a file.
    if base.is_on_server:
        return True
    if not base.key or base.key.endswith("/") or "*" in base.key:
        return False
    with suppress(FileNotFoundError):
        base.open().close()
        return True
    return False


def _below(base: File, fixed: str, pattern: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the files below a folder by segments, and folders that are skipped with "" behind."""
    if isinstance(base, Path):
        yield from _walk(Path(fixed or "."), (), pattern, frozenset())
        return
    scheme, _, bucket = base.root.partition("://")
    with base._translated():
        for each in objects_below(f"{bucket}/{fixed}", scheme):
            # Consoles make empty objects for folders.
            if each["size"] and (below := _segments(each["path"][len(fixed) :])):
                yield below


def _walk(
    folder: Path, below: tuple[str, ...], pattern: Sequence[str], parents: frozenset[Any]
) -> Iterator[tuple[str, ...]]:
    status = folder.stat() if folder.is_dir() else None
    if status is None or (place := (status.st_dev, status.st_ino)) in parents:
        # A link to a folder above would be followed for ever.
        return
    for path in sorted(folder.iterdir()):
        segments = (*below, path.name)
        if path.is_file():
            yield segments
        elif not path.is_dir():
            continue
        elif _fits(segments, pattern, is_folder=True):
            yield from _walk(path, segments, pattern, parents | {place})
        else:
            yield (*segments, "")


def _fits(below: Sequence[str], pattern: Sequence[str], *, is_folder: bool = False) -> bool:
    """Whether a file below a folder fits a pattern, or a folder may have files that do."""
    if not pattern:
        return not any(name.startswith(_HIDDEN) for name in below)
    if not below:
        return is_folder
    name, *names = below
    first, *later = pattern
    if first == "**":
        is_below = not name.startswith(_HIDDEN) and _fits(names, pattern, is_folder=is_folder)
        return is_below or _fits(below, later, is_folder=is_folder)
    is_shown = not name.startswith(_HIDDEN) or name[0] == first[0]
    return is_shown and fnmatchcase(name, first) and _fits(names, later, is_folder=is_folder)


class _TableFormats:
    """Roots of Delta Lake and Iceberg tables among the files that are listed."""

    def __init__(self) -> None:
        self._roots: dict[tuple[str, ...], str] = {}
        self._data: set[tuple[str, ...]] = set()

    def add(self, below: tuple[str, ...]) -> None:
        for place, name in enumerate(below[:-1]):
            if name == "_delta_log":
                self._roots[below[:place]] = "Delta Lake"
            elif name == "data":
                self._data.add(below[:place])
        if below[-1].endswith(".metadata.json") and below[-2:-1] == ("metadata",):
            self._roots.setdefault(below[:-2], "Iceberg")

    def refuse(self, files: Sequence[tuple[str, ...]], role: str, source: str) -> None:
        for root, name in self._roots.items():
            if name == "Iceberg" and root not in self._data:
                continue
            if any(below[: len(root)] == root for below in files):
                folder = "/".join((fixed_part(source), *root))
                raise InvalidInput(
                    f"{role}: {folder} is a table of {name}, whose folder also has files that are "
                    "no longer rows of the table: read the table with its own library and give "
                    "the frame, or export the table to a folder of Parquet files"
                )


_SQLITE_LOGS = (".gpkg-wal", ".gpkg-shm", ".gpkg-journal")


def _without_parts(files: list[Listed]) -> list[Listed]:
    """Leave out files that are read with another one: of a shapefile, and logs of SQLite."""
    shapes = {str(each.file)[:-4] for each in files if each.name.lower().endswith(".shp")}
    return [
        each
        for each in files
        if each.name.lower().endswith(".shp")
        or not (str(each.file).rpartition(".")[0] in shapes or each.name.endswith(_SQLITE_LOGS))
    ]


def _refuse_shapefiles(files: list[Listed]) -> list[Listed]:
    for each in files:
        if isinstance(each.file, RemoteFile) and each.name.lower().endswith(".shp"):
            raise InvalidOption(
                f"{each.file} is a shapefile, which is several files: fetch them, or write a "
                "GeoPackage"
            )
    return files


def partition_of(below: str, reading: Reading) -> dict[str, str | None]:
    """Values of the columns that folders are named by, as in `day=2026-11-22`.

    Names that would be recognised as coordinates or ids count only if the user names them.
    """
    named = {reading.lat, reading.lon, reading.id}
    pairs = (segment.split("=", 1) for segment in below.split("/")[:-1] if "=" in segment)
    return {
        name: None if text == _NO_VALUE else unquote(text)
        for name, text in pairs
        if name in named or name.lower() not in MEANT
    }


def are_whole(texts: Sequence[str | None]) -> bool:
    """Whether all values of a column of folder names are whole numbers, or missing."""
    return all(text is None or re.fullmatch("0|-?[1-9][0-9]{0,17}", text) for text in texts)


def refuse_as_target(target: File, sources: Sequence[Listed]) -> None:
    """Refuse a target that cannot be written, or that is or would be a file of the sources."""
    if isinstance(target, RemoteFile):
        if not target.name or "*" in target.key or target.is_on_server:
            raise InvalidOption(
                f"the result cannot be written to {str(target)!r}: name a file of s3://, gs:// or "
                "az://, without a *"
            )
    elif target.is_dir():
        raise InvalidOption(f"{str(target)!r} is a folder: name a file in it for the result")
    elif not target.parent.is_dir():
        raise InvalidOption(
            f"the result cannot be written to {str(target)!r}: there is no folder "
            f"{str(target.parent)!r}; create the folder first"
        )
    else:
        refuse_special_file(target)
    for source in sources:
        is_same = source.file == target
        if isinstance(source.file, Path) and isinstance(target, Path) and target.exists():
            # One file may have several names.
            is_same = source.file.samefile(target)
        if is_same:
            raise InvalidOption(
                f"the result would replace {str(source.file)!r}, which it is made of: name another "
                "file for it"
            )
    folders = {(each.source, each.below.rpartition("/")[0]): each for each in sources if each.below}
    for source in folders.values():
        if _would_list(source, target):
            raise InvalidOption(
                f"the result {str(target)!r} would lie among the files of {source.source!r}, which "
                "it is made of, and the next run would read it as one of them: name a file in "
                "another folder"
            )


def _would_list(listed: Listed, target: File) -> bool:
    """Whether a folder or a pattern that listed a file would also list a target."""
    base: File = remote_file(listed.source) if is_url(listed.source) else Path(listed.source)
    fixed, pattern = _split(base)
    if isinstance(base, RemoteFile) or isinstance(target, RemoteFile):
        if isinstance(base, Path) or isinstance(target, Path):
            return False
        if base.root != target.root or not target.key.startswith(fixed):
            return False
        below = target.key[len(fixed) :]
        return (not fixed or below.startswith("/")) and _fits(_segments(below), pattern)
    folder, parent = Path(fixed).resolve(), target.parent.resolve()
    # A link below the folder may lead to where the target lies.
    same = (*_segments(listed.below)[:-1], target.name)
    if parent == Path(str(listed.file)).parent.resolve() and _fits(same, pattern):
        return True
    below_folder = parent.is_relative_to(folder)
    return below_folder and _fits((*parent.relative_to(folder).parts, target.name), pattern)
