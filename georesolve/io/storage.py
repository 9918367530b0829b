"""Where files lie that are kept: a folder, or a prefix of an object store.

Either gives a file complete or not at all, whatever dies while it is written.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, cast

from georesolve.io import local_files
from georesolve.io.object_storage import (
    NoBucket,
    ObjectFile,
    asked,
    object_store,
    objects_below,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import ObjectMeta
    from obstore.store import S3Store

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
    def _bucket(self) -> "S3Store":
        return object_store(self.path.partition("/")[0])

    def _key(self, name: str = "") -> str:
        return f"{self.path}/{name}".partition("/")[2].rstrip("/")

    @contextmanager
    def asked(self, name: str = "") -> Iterator[None]:
        """Let errors of the service's store be `StoreFailed`, but for what is not there."""
        try:
            with asked():
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
