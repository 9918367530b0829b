"""Where the parts of a result lie: a folder, or a prefix of an object store.

Either gives a file complete or not at all, whatever dies while it is written.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from georesolve.workers.files import complete, make_folder, sync
from georesolve.workers.sources import object_store


class OutputFailed(ValueError):
    """A file of a result that is written elsewhere cannot be written or read."""


class Folder(NamedTuple):
    """A folder.

    Attributes
    ----------
    path
        Its files lie directly in it.
    is_own
        Whether it belongs to a job; another one is where a client wants its result, and its errors
        are `OutputFailed`.
    """

    path: Path
    is_own: bool = True

    @property
    def href(self) -> str:
        """Its address, with a slash at the end."""
        return f"file://{self.path}/"

    def make(self) -> None:
        """Make it, if it is not there; its name then survives a power cut."""
        with named(self):
            make_folder(self.path)

    def names(self) -> list[str]:
        """Names of its files; none where it is not there."""
        try:
            return [path.name for path in self.path.iterdir() if not path.is_dir()]
        except FileNotFoundError:
            return []

    def is_taken(self) -> bool:
        """Whether anything lies in it, or in its place; raises OSError."""
        return (self.path.is_dir() and any(self.path.iterdir())) or self.path.is_file()

    def open(self, name: str) -> BinaryIO:
        """A file, to be read anywhere; raises FileNotFoundError."""
        return (self.path / name).open("rb", buffering=0)

    @contextmanager
    def new(self, name: str) -> Iterator[BinaryIO]:
        """A file to be written; it survives a power cut once it and the names are synced."""
        with (
            named(self, name),
            complete(self.path / name) as temporary,
            temporary.open("wb") as file,
        ):
            yield file

    def sync(self, name: str = "") -> None:
        """Have the bytes of a file survive a power cut, or without a name the names of all."""
        with named(self, name):
            sync(self.path / name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; and the folder, if it is not the job's own and nothing is left in it."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        if not self.is_own and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


class Prefix(NamedTuple):
    """A prefix of an object store: `path` is the bucket and what keys begin with."""

    path: str

    @property
    def href(self) -> str:
        """Its address, with a slash at the end."""
        return f"s3://{self.path}/"

    def make(self) -> None:
        """A prefix is there."""

    def names(self) -> list[str]:
        """Names of the objects directly below it; raises OSError."""
        return [one.base_name for one in self._objects()]

    def is_taken(self) -> bool:
        """Whether anything lies below it; raises OSError."""
        return bool(self._objects(is_deep=True))

    def _objects(self, *, is_deep: bool = False) -> list[Any]:
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.path, allow_not_found=True, recursive=is_deep)
        found = object_store().get_file_info(selector)
        return [one for one in found if one.type == FileType.File]

    def open(self, name: str) -> BinaryIO:
        """An object, to be read anywhere; raises FileNotFoundError."""
        return cast(BinaryIO, object_store().open_input_file(f"{self.path}/{name}"))

    @contextmanager
    def new(self, name: str) -> Iterator[BinaryIO]:
        """An object to be written; once this ends without an error, it is there for good."""
        # All of it in memory first: a stream that is closed by an error in between would leave
        # half an object.
        content = BytesIO()
        yield content
        with named(self, name), object_store().open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(content.getbuffer())

    def sync(self, name: str = "") -> None:
        """An object store has what it has taken."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; raises OSError."""
        store = object_store()
        for name in names:
            store.delete_file(f"{self.path}/{name}")
        if not self.is_taken():
            # pyarrow leaves an empty object in place of an empty folder.
            with suppress(FileNotFoundError):
                store.delete_dir(self.path)


Place = Folder | Prefix


def own_place(folder: Path) -> Folder:
    """Where parts lie that are kept in the folder of their job."""
    return Folder(folder / "parts")


def place_of(href: str) -> Place:
    """Where a client wants its result: an address that was checked when its job was accepted."""
    scheme, _, path = href.rstrip("/").partition("://")
    return Prefix(path) if scheme == "s3" else Folder(Path(path), is_own=False)


@contextmanager
def named(place: Place, name: str = "") -> Iterator[None]:
    """Let errors of a file name it, where the place is not the job's own; raises OutputFailed."""
    try:
        yield
    except OSError as error:
        if isinstance(place, Folder) and place.is_own:
            raise
        raise OutputFailed(
            f"{place.href}{name}: it cannot be written: {str(error)[:300]}"
        ) from error
