"""Where the parts of a result lie, and how they are read: no other module opens one.

A part is a Parquet file of its own. Beside it lies the record of its chunk: once that stands, the
chunk is done, whatever happens to the worker or to the future.
"""

import hashlib
import json
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from georesolve.workers.files import Look, complete, look_at, sync
from georesolve.workers.footers import MAGIC
from georesolve.workers.splice import RowGroup, Spliced, digest_of

_PARTS = "parts"


class Part(NamedTuple):
    """A part: rows of a result that stand one after the other, in row groups of its own.

    Attributes
    ----------
    name
        Of its file; names sort by row.
    rows
        Of the result.
    groups
        Its row groups, one behind the other from the fifth byte on.
    ending
        What stands behind them.
    """

    name: str
    rows: int
    groups: tuple[RowGroup, ...]
    ending: RowGroup

    @classmethod
    def of(cls, name: str, spliced: Spliced) -> Self:
        """A part that was just written."""
        sha256 = hashlib.sha256(spliced.ending).hexdigest()
        ending = RowGroup(len(spliced.ending), sha256)
        return cls(name, spliced.rows, tuple(spliced.groups), ending)

    @classmethod
    def read(cls, given: Any) -> Self:
        """A part as JSON has it; raises TypeError or ValueError of what is none."""
        name, rows, groups, ending = given
        return cls(name, rows, tuple(RowGroup(*one) for one in groups), RowGroup(*ending))

    @property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.groups, self.ending.sha256)

    @property
    def content_bytes(self) -> int:
        """Of its row groups."""
        return sum(group.size_bytes for group in self.groups)

    @property
    def size_bytes(self) -> int:
        """Of its file."""
        return len(MAGIC) + self.content_bytes + self.ending.size_bytes


def part_name(start: int, stop: int) -> str:
    """The name of the part with the rows of these observations, `stop` not included."""
    return f"{start:012d}-{stop:012d}.parquet"


def open_part(folder: Path, name: str) -> BinaryIO:
    """A part of the job with this folder, to be read anywhere.

    Raises
    ------
    FileNotFoundError
    """
    return (folder / _PARTS / name).open("rb", buffering=0)


def look_at_part(folder: Path, name: str) -> Look:
    """What changes with the file of a part; raises as `open_part`."""
    return look_at(folder / _PARTS / name)


@contextmanager
def new_part(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A part to be written; it appears complete on success, and not at all on any error.

    It survives a power cut once it is synced, and its name once those of all parts are.
    """
    with complete(folder / _PARTS / name) as temporary, temporary.open("wb") as file:
        yield file


def sync_part(folder: Path, name: str) -> None:
    """Have the bytes of a part survive a power cut; raises as `open_part`."""
    sync(folder / _PARTS / name)


def sync_parts(folder: Path) -> None:
    """Have the names of all parts survive a power cut."""
    sync(folder / _PARTS)


def keep_parts(folder: Path, names: Container[str]) -> None:
    """Remove all files beside the parts, and all parts but these."""
    for path in (folder / _PARTS).iterdir():
        if path.name not in names:
            path.unlink(missing_ok=True)


def is_whole(folder: Path, part: Part) -> bool:
    """Whether the file of a part has the bytes of its digests; reads all of it.

    Raises
    ------
    OSError
        When it is not there, or cannot be read.
    """
    with open_part(folder, part.name) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
        each = (*part.groups, part.ending)
        return all(_has(file, group) for group in each) and not file.read(1)


def _has(file: BinaryIO, group: RowGroup) -> bool:
    return hashlib.sha256(file.read(group.size_bytes)).hexdigest() == group.sha256


def write_record(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Write the record of a chunk beside its part, once that stands."""
    with complete(_record(folder, name)) as temporary:
        temporary.write_text(json.dumps(record))


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """The record of a chunk.

    Raises
    ------
    FileNotFoundError
    ValueError
        When it is damaged.
    """
    record: dict[str, Any] = json.loads(_record(folder, name).read_bytes())
    return record


def _record(folder: Path, name: str) -> Path:
    return folder / _PARTS / f"{name}.json"
