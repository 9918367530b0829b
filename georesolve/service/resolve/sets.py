"""The two sets of a request, made or found: what it asks for, and what that takes.

Arrays and registered datasets are at hand. Other sources take their time: files of strangers are
decoded in a sandbox, and the footers of files elsewhere are read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic_core import to_json

from georesolve.intake.columns import OnInvalid, Reading, Role
from georesolve.intake.matching import check_match
from georesolve.service import pools
from georesolve.service.errors import InvalidInput, NoSuchDataset
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.receiving.receiving import Upload, keep_upload
from georesolve.service.resolve.models import ROLES, NearestInputs
from georesolve.service.resolve.service import Service
from georesolve.service.resolve.sources import Arrays, Elsewhere, GeoJson, PointSource, Registered
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.datasets import Dataset
from georesolve.workers.estimate import Size, size_of_dataset, size_of_rows
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.places import Object
from georesolve.workers.sources import Manifest

PointSet = Ingested | DatasetRow
"""An upload (deleted unless it is kept), or a registered dataset."""
PlannedSet = int | PointSet
"""A set of a job, or how many rows it will have."""
Pointer = Callable[[str], str]
"""Tells the JSON pointer of an option or a set in a request."""


class Asked(NamedTuple):
    """What a request asks for.

    Attributes
    ----------
    options
        How to match the two sets, with the names of all columns to carry.
    on_invalid
        What becomes of rows with invalid coordinates.
    pointer
        For errors.
    output
        The address that the result is to be written to, if not into the folder of the service.
    """

    observations: PointSet
    references: PointSet
    options: MatchOptions
    on_invalid: OnInvalid
    pointer: Pointer
    output: str | None = None

    @property
    def sets(self) -> tuple[PointSet, PointSet]:
        """Both sets."""
        return self.observations, self.references

    @property
    def datasets(self) -> tuple[Dataset, Dataset]:
        """What both sets hold."""
        return self.observations.dataset, self.references.dataset

    def check(self) -> None:
        """Check that the two sets can be matched, as `intake.matching` does."""
        observations, references = self.datasets
        if isinstance(references.file, Manifest) and references.file.keeps_invalid:
            raise InvalidInput(
                f"references: those at {references.file.href} are not counted before they are "
                "read, so none of them may be invalid: leave out on_invalid=null, or upload them"
            )
        for role, one in zip(ROLES, self.datasets, strict=True):
            href = one.file.href if isinstance(one.file, Manifest) else None
            if self.output and href and _start_of(self.output).startswith(_start_of(href)):
                raise InvalidInput(
                    f"output: {self.output} lies in the folder of the {role}, {href}, where "
                    "the result would be read as one of them: name another folder"
                )
        check_match(observations, references, self.options, self.on_invalid, self.pointer)


def _start_of(href: str) -> str:
    """The start of whatever lies at an address; that of a local folder without links."""
    lies_at, star, _ = href.partition("*")
    # Only what begins as the last name before a star may be meant by it.
    folder, _, name = lies_at.rpartition("/") if star else (lies_at.rstrip("/"), "/", "")
    if folder.startswith("file://"):
        folder = f"file://{Path(folder.removeprefix('file://')).resolve()}"
    return f"{folder}/{name}"


async def asked_by(
    inputs: NearestInputs,
    pointer: Pointer,
    service: Service,
    folder: Path,
    output: str | None = None,
) -> Asked:
    """Make or find both sets, in a folder that goes with the request."""
    observations, references = [
        await made(getattr(inputs, role), pointer(role), service, inputs.reading_of(role), folder)
        for role in ROLES
    ]
    return _asked(inputs, observations, references, pointer, output)


def _asked(
    inputs: NearestInputs,
    observations: PointSet,
    references: PointSet,
    pointer: Pointer,
    output: str | None = None,
) -> Asked:
    options = inputs.options(observations.dataset, references.dataset)
    return Asked(observations, references, options, inputs.on_invalid, pointer, output)


async def made(
    source: PointSource, place: str, service: Service, reading: Reading, folder: Path
) -> PointSet:
    """Make or find one set; `place` is where it stands in the request."""
    match source:
        case Registered(id):
            return await service.store.files(service.library.use, id)
        case Elsewhere(href):
            look = service.ingest.from_href
            return await pools.remote(service.owner, look, href, reading, place)
        case Upload():
            return await service.ingest.from_upload(source, reading, folder, service.owner)
        case GeoJson(document, inside):
            content = await pools.compute(to_json, document)
            upload = await pools.disk(
                keep_upload, content, folder, "application/geo+json", place + inside
            )
            return await service.ingest.from_upload(upload, reading, folder, service.owner)
        case Arrays(columns, inside):
            async with service.ingest.converting.place(service.owner):
                make = service.ingest.from_arrays
                return await pools.compute(make, columns, reading, place + inside)


async def used(inputs: NearestInputs, service: Service) -> dict[str, DatasetRow] | None:
    """The registered sets by what they were called, each used; None where not all is at hand."""
    sources = inputs.observations, inputs.references
    if not all(isinstance(one, Registered | Arrays) for one in sources):
        return None
    found: dict[str, DatasetRow] = {}
    for id in {one.id: None for one in sources if isinstance(one, Registered)}:
        row = service.library.known(id)
        found[id] = await service.store.files(service.library.use, id) if row is None else row
    return found


def asked_at_hand(
    inputs: NearestInputs, pointer: Pointer, service: Service, found: Mapping[str, DatasetRow]
) -> Asked:
    """The same in this thread, with the datasets that `used` gave."""

    def at_hand(source: PointSource, role: Role) -> PointSet:
        if isinstance(source, Registered):
            return found[source.id]
        assert isinstance(source, Arrays), "`used` says what is at hand"
        place = pointer(role) + source.place
        return service.ingest.from_arrays(source.columns, inputs.reading_of(role), place)

    observations, references = [at_hand(getattr(inputs, role), role) for role in ROLES]
    return _asked(inputs, observations, references, pointer)


def sizes_of(
    observations: PlannedSet, references: PlannedSet, options: MatchOptions
) -> tuple[Size, Size]:
    """How large both sets of a job are; blocks while their files are looked into."""
    try:
        return _size(observations, options.observation_columns), _size(references, options.columns)
    except FileNotFoundError:
        raise NoSuchDataset("one of the two datasets was removed meanwhile") from None


def _size(one: PlannedSet, columns: tuple[str, ...]) -> Size:
    return size_of_rows(one) if isinstance(one, int) else size_of_dataset(one.dataset, columns)


def bytes_of_sets(
    observations: PlannedSet, references: PlannedSet, sizes: tuple[Size, Size]
) -> tuple[int, int]:
    """Bytes that the sets of a job will take on the disk, and those that will be kept for it.

    What lies on the disk takes no more of it; what is registered, or lies elsewhere, is not kept
    for the job.
    """
    on_disk = kept = 0
    for one, size in zip((observations, references), sizes, strict=True):
        file = None if isinstance(one, int) else one.dataset.file
        if not isinstance(file, Path | Object | Manifest):
            on_disk += size.size_bytes
        if not isinstance(one, DatasetRow) and not isinstance(file, Manifest):
            kept += size.size_bytes
    return on_disk, kept
