"""The parts of a result, and the records of the chunks that they were made of.

A part is a Parquet file of its own, in the place of its job (`io.storage`). Once the
record of its chunk stands, the chunk is done, whatever happens to the worker or to the future.
"""

import hashlib
import json
import re
from collections.abc import Container, Iterable
from typing import Any, NamedTuple, Self

from georesolve.io.footers import MAGIC
from georesolve.io.storage import Place

ENDING = "_ending"
"""What stands behind the row groups of `matches.parquet`, in a file beside the parts."""
LISTED = "_manifest.json"
"""What tells readers of a folder or a bucket which parts a result has."""
COMPLETE = "_SUCCESS"
"""What is written there last."""
_NAMES = (r"[0-9]{12}-[0-9]{12}\.parquet", ENDING, LISTED, COMPLETE)
_OURS = re.compile(rf"\.?({'|'.join(_NAMES)})(\.[0-9a-f]{{32}})?", re.ASCII)
"""Files of a result, be they half written."""


class RowGroup(NamedTuple):
    """A row group in a file, or what stands behind the last one."""

    size_bytes: int
    sha256: str
    """In hexadecimal."""

    @classmethod
    def of(cls, content: bytes | memoryview) -> Self:
        """What has these bytes."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


def digest_of(groups: Iterable[RowGroup], ending: RowGroup) -> str:
    """The digest of a Parquet file, in hexadecimal: it says which bytes the file has.

    It is the SHA-256 of SHA-256s, 32 bytes each: of every row group, and of all behind the last
    one. So it is the same in whatever parts the row groups lie.
    """
    each = (bytes.fromhex(one.sha256) for one in (*groups, ending))
    return hashlib.sha256(b"".join(each)).hexdigest()


class Part(NamedTuple):
    """A part: rows of a result that stand one after the other, in row groups of its own."""

    name: str
    """Of its file; names sort by row."""
    rows: int
    groups: tuple[RowGroup, ...]
    """One behind the other from the fifth byte on."""
    ending: RowGroup
    """What stands behind them."""

    @classmethod
    def read(cls, given: Any) -> Self:
        """A part as JSON has it; raises TypeError or ValueError of what is none."""
        name, rows, groups, ending = given
        return cls(name, rows, tuple(RowGroup(*one) for one in groups), RowGroup(*ending))

    @property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.groups, self.ending)

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


def record_name(start: int, stop: int) -> str:
    """The name of the record of the chunk with these observations."""
    return f"{start:012d}-{stop:012d}.json"


def keep_parts(place: Place, names: Container[str]) -> None:
    """Remove all files of a result but these; what others lay there stays."""
    found = [name for name in place.names() if _OURS.fullmatch(name)]
    # What says that a result is complete goes first.
    place.remove(sorted((name for name in found if name not in names), key=COMPLETE.__ne__))


def is_whole(place: Place, part: Part) -> bool:
    """Whether the file of a part has the bytes of its digests: reads all of it; raises OSError."""
    with place.open(part.name) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
        each = (*part.groups, part.ending)
        return all(RowGroup.of(file.read(one.size_bytes)) == one for one in each) and (
            not file.read(1)
        )


def write_record(place: Place, name: str, record: dict[str, Any]) -> None:
    """Write the record of a chunk where those of its job lie, once its part stands."""
    with place.new(name) as file:
        file.write(json.dumps(record).encode())


def read_record(place: Place, name: str) -> dict[str, Any]:
    """The record of a chunk; raises FileNotFoundError, or ValueError when it is damaged."""
    with place.asked(name), place.open(name) as file:
        record: dict[str, Any] = json.loads(file.read())
    return record
