"""`matches.parquet` without such a file: parts, a manifest of them, and the footer of the whole.

It is made as it is read: the magic bytes, the row groups of all parts in their order, and one
footer. Its bytes are those of a file that one writer has written.
"""

import hashlib
import io
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

from georesolve.io.footers import MAGIC
from georesolve.io.local_files import Look
from georesolve.io.storage import Home, Place, Prefix, SeekableFile, own_place, place_of_parts
from georesolve.io.threads import side_by_side
from georesolve.workers.results.parts import (
    COMPLETE,
    ENDING,
    LISTED,
    Part,
    RowGroup,
    digest_of,
    is_whole,
    keep_parts,
)

MANIFEST_NAME = "manifest.json"


class Extent(NamedTuple):
    """Bytes of `matches.parquet` that lie in one file, from its byte `start` on."""

    part: Part | None
    """Whose file it is; None for the ending."""
    start: int
    size_bytes: int


class Manifest(NamedTuple):
    """A finished result: its parts, in the order of their rows, and what stands behind them."""

    place: Place
    """Where they lie."""
    parts: tuple[Part, ...]
    ending: RowGroup

    @property
    def rows(self) -> int:
        """Of the result."""
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Of `matches.parquet`."""
        return sum(extent.size_bytes for extent in self.extents())

    @property
    def digest(self) -> str:
        """Of `matches.parquet`: see `digest_of`."""
        groups = (group for part in self.parts for group in part.groups)
        return digest_of(groups, self.ending)

    def extents(self) -> list[Extent]:
        """What `matches.parquet` is made of, in order; the first part lends its magic bytes."""
        first = self.parts[0]
        return [
            Extent(first, 0, len(MAGIC) + first.content_bytes),
            *(Extent(part, len(MAGIC), part.content_bytes) for part in self.parts[1:]),
            Extent(None, 0, self.ending.size_bytes),
        ]

    def name_of(self, extent: Extent) -> str:
        """The name of the file that an extent lies in."""
        return extent.part.name if extent.part else ENDING

    def open(self, extent: Extent) -> BinaryIO:
        """The file that an extent lies in; raises FileNotFoundError when that has gone."""
        return self.place.open(self.name_of(extent))

    @contextmanager
    def reading(self, part: Part) -> Iterator[BinaryIO]:
        """The file of a part; what its place does not give meanwhile raises as `Prefix.asked`."""
        with self.place.asked(part.name), self.place.open(part.name) as file:
            yield file

    def look(self, extent: Extent) -> Look:
        """What changes with that file; raises FileNotFoundError."""
        return self.place.look(self.name_of(extent))

    def is_whole(self, extent: Extent) -> bool:
        """Whether that file has the bytes of its digests; reads all of it, and raises OSError.

        An object store counts checksums of its own: of an object the size is compared.
        """
        if isinstance(self.place, Prefix):
            whole = extent.part or self.ending
            return self.look(extent).size == whole.size_bytes
        if extent.part is not None:
            return is_whole(self.place, extent.part)
        with self.open(extent) as file:
            return RowGroup.of(file.read()) == self.ending

    def tidy(self) -> None:
        """Remove the parts that are not listed."""
        keep_parts(self.place, {ENDING, LISTED, COMPLETE, *(part.name for part in self.parts)})

    def document(self, base: str = "") -> dict[str, Any]:
        """What readers are told of the parts, whose addresses begin with `base`.

        It is what the service answers with, and `_manifest.json` of a result that lies elsewhere.
        """
        return {
            "digest": self.digest,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "parts": [
                {
                    "href": f"{base}{part.name}",
                    "rows": part.rows,
                    "size_bytes": part.size_bytes,
                    "digest": part.digest,
                    "row_groups": [group._asdict() for group in part.groups],
                    "ending": part.ending._asdict(),
                }
                for part in self.parts
            ],
            "ending": self.ending._asdict(),
        }


def write_manifest(
    folder: Home,
    output: str | None,
    parts: Iterable[Part],
    ending: bytes,
    syncing: Iterable[Future[None]] = (),
) -> Manifest:
    """Make a result of parts; it is there once the manifest is.

    Where its parts lie at `output`, readers find a manifest beside them. `syncing` are parts on
    their way to the disk, which are waited for before anything tells of the result.
    """
    place = place_of_parts(folder, output)
    told = RowGroup.of(ending)
    manifest = Manifest(place, tuple(parts), told)
    files = {ENDING: ending}
    if output:
        files[LISTED] = json.dumps(manifest.document(), indent=1).encode()
        manifest.tidy()
    _put(place, files)
    for synced in syncing:
        synced.result()
    if output:
        listed = hashlib.sha256(files[LISTED]).hexdigest()
        _put(place, {COMPLETE: f"{listed}\n".encode()})
    content = {"parts": manifest.parts, "ending": told, "output": output}
    whole = json.dumps({**content, "sha256": _sha256_of(content)}).encode()
    _put(own_place(folder), {MANIFEST_NAME: whole})
    return manifest


def _put(place: Place, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        with place.new(name) as file:
            file.write(content)
    # Their bytes and, without a name, all names of the place: together, as one wait for a disk is
    # shorter than several.
    deque(side_by_side(place.sync, [*files, ""]), maxlen=0)


def _sha256_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def look_at_manifest(folder: Home) -> Look:
    """What changes with the result of the job with this folder; raises FileNotFoundError."""
    return own_place(folder).look(MANIFEST_NAME)


def read_manifest(folder: Home) -> Manifest:
    """The result of the job with this folder: FileNotFoundError, or OSError if it is damaged."""
    home = own_place(folder)
    with home.asked(MANIFEST_NAME), home.open(MANIFEST_NAME) as file:
        content = file.read()
    try:
        given = json.loads(content)
        if given.pop("sha256") != _sha256_of(given):
            raise ValueError("it has not the bytes of its checksum")
        parts = tuple(Part.read(one) for one in given["parts"])
        place = place_of_parts(folder, given["output"])
        return Manifest(place, parts, RowGroup(*given["ending"]))
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(f"{MANIFEST_NAME} is damaged: {error}") from error


class Matches(SeekableFile):
    """`matches.parquet`, or some `extents` of it, to be read anywhere.

    So many files are `held` open from the begin, so that they can be read to their end although the
    job is dismissed meanwhile. Of the others one at a time is open.
    """

    def __init__(
        self, manifest: Manifest, held: int = 0, extents: list[Extent] | None = None
    ) -> None:
        self._manifest = manifest
        self._extents = extents or manifest.extents()
        sizes = (extent.size_bytes for extent in self._extents)
        self._edges = list(accumulate(sizes, initial=0))
        self.size = self._edges[-1]
        self._held = held
        self._opened: dict[int, BinaryIO] = {}
        try:
            for number in range(min(held, len(self._extents))):
                self._file(number)
        except OSError:
            self.close()
            raise

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read on; less than there is room for at the end of a part."""
        number = bisect_right(self._edges, self._at) - 1
        if number == len(self._extents):
            return 0
        extent, within = self._extents[number], self._at - self._edges[number]
        file = self._file(number)
        file.seek(extent.start + within)
        view = memoryview(buffer).cast("B")[: extent.size_bytes - within]
        with self._manifest.place.asked():
            size = file.readinto(view)  # type: ignore[attr-defined]
        if view and not size:
            raise OSError(f"a part in {self._manifest.place.href} is shorter than it was")
        self._at += size
        return int(size)

    def _file(self, number: int) -> BinaryIO:
        if number not in self._opened:
            for other in [one for one in self._opened if one >= self._held]:
                self._opened.pop(other).close()
            self._opened[number] = self._manifest.open(self._extents[number])
        return self._opened[number]

    def close(self) -> None:
        """Close the files that are open."""
        for file in self._opened.values():
            file.close()
        self._opened.clear()
        super().close()


def open_matches(folder: Home) -> BinaryIO:
    """`matches.parquet` of the job with this folder; raises as `read_manifest`."""
    # Blocks of its own: a reader may ask for a few bytes at a time, and across parts.
    return io.BufferedReader(Matches(read_manifest(folder)), 1 << 16)
