"""The two sets of a request, made or found: what it asks for, and what that takes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pydantic_core import to_json

from georesolve.engine.estimate import Size, size_of_dataset, size_of_rows
from georesolve.engine.filter_encoding import check_filters
from georesolve.io.columns import NAMED, PREFIXES, OnInvalid, Role
from georesolve.io.datasets import Dataset
from georesolve.io.source_files import SourceFailed, SourceFiles
from georesolve.io.storage import Object
from georesolve.io.validation import check_match
from georesolve.query import FilterOptions, MatchOptions
from georesolve.service import errors, pools
from georesolve.service.receiving.ingest import Folder
from georesolve.service.receiving.uploads import Upload, keep_upload
from georesolve.service.resolve import models
from georesolve.service.resolve.context import Service
from georesolve.service.store.rows import DatasetRow, Delivery

PlannedSet = int | DatasetRow
"""A set of a job, or how many rows it will have."""
_FEW_COLUMNS, _FEW_VALUES = 16, 12_000
"""So many are made a table in some milliseconds, in which the event loop waits."""


class Asked(NamedTuple):
    """What a request asks for: two sets that can be matched, and how, with all columns to carry.

    `delivery` is None for the bare result, of which a small one leaves no job.
    """

    observations: DatasetRow
    references: DatasetRow
    options: MatchOptions
    on_invalid: OnInvalid
    delivery: Delivery | None = None
    name: str | None = None

    @property
    def sets(self) -> tuple[DatasetRow, DatasetRow]:
        """Both sets."""
        return self.observations, self.references

    @property
    def datasets(self) -> tuple[Dataset, Dataset]:
        """What both sets hold."""
        return self.observations.dataset, self.references.dataset


def title_of(asked: Asked) -> str:
    """What a job is called: `airports.csv x places.parquet, k = 3`, unless its client says."""
    if asked.name:
        return asked.name
    options = asked.options
    sets = options.in_order(*asked.sets)
    rows = [one.dataset.rows for one in sets]
    plain = ["1 row" if n == 1 else f"{n} rows" for n in rows]
    names = [one.name[:80] or other for one, other in zip(sets, plain, strict=True)]
    distance = options.distance_m
    if options.question == "nearest":
        asks = f"k = {options.k}"
        distance = options.max_distance_m
    else:
        asks = f"a count for each {options.summary_by}" if options.summary else "all"
    if isinstance(distance, float):
        distance = f"{distance / 1000:.15g} km" if distance >= 1000 else f"{distance:.15g} m"
    if options.filters and options.filters.observation_by:
        by = filter(str.isprintable, ", ".join(options.filters.observation_by)[:80])
        asks += f", by {''.join(by)}"
    if options.filters and options.filters.observation_time:
        most = options.filters.max_time
        asks += f", at most {most} apart" if most is not None else ", in time"
    earth = ", on the ellipsoid" if options.earth == "wgs84" else ""
    return f"{names[0]} x {names[1]}, {asks}{f', within {distance}' if distance else ''}{earth}"


async def _check(service: Service, asked: Asked, inputs: models.MatchInputs) -> None:
    """Check that the two sets can be matched, as `io.validation` does."""
    observations, references = asked.datasets
    if isinstance(references.file, SourceFiles) and references.file.keeps_invalid:
        raise errors.InvalidInput(
            f"references: those at {references.file.href} are not counted before they are "
            "read, so none of them may be invalid: leave out on_invalid=null, or upload them"
        )
    output = asked.delivery.output if asked.delivery else None
    for role, one in zip(models.ROLES, asked.datasets, strict=True):
        href = one.file.href if isinstance(one.file, SourceFiles) else None
        if output and href and _start_of(output).startswith(_start_of(href)):
            raise errors.InvalidInput(
                f"output: {output} lies in the folder of the {role}, {href}, where "
                "the result would be read as one of them: name another folder"
            )
    _refuse_mixed(observations, references, asked.options)
    check_match(observations, references, asked.options, asked.on_invalid, inputs.pointer)
    await check_types(service, *asked.datasets, asked.options)


def _refuse_mixed(observations: Dataset, references: Dataset, options: MatchOptions) -> None:
    """Refuse columns of files read in place that have no common type, if the request names them."""
    filters = options.filters or FilterOptions()
    by_observation = [*options.of_observations(observations), *options.asked_of_observations]
    by_reference = [*options.of_references(references), *filters.of_references, *options.summarised]
    for dataset, names in ((observations, by_observation), (references, by_reference)):
        if isinstance(dataset.file, SourceFiles):
            for name, refusal in dataset.file.refusals:
                if name in names:
                    raise errors.InvalidInput(refusal)


async def check_types(
    service: Service, observations: Dataset, references: Dataset, options: MatchOptions
) -> None:
    """Refuse columns that cannot be compared, by group or in time."""
    datasets = observations, references
    if options.filters is None:
        return
    check = partial(check_filters, *datasets, options)
    try:
        if any(one.lies_elsewhere for one in datasets):
            await pools.remote(service.owner, check)
        else:
            await pools.disk(check)
    except SourceFailed as failed:
        raise errors.InvalidInput(str(failed)) from None
    except FileNotFoundError:
        raise errors.NoSuchDataset("one of the two datasets was removed meanwhile") from None


def _start_of(href: str) -> str:
    """The start of whatever lies at an address; that of a local folder without links."""
    lies_at, star, _ = href.partition("*")
    # Only what begins as the last name before a star may be meant by it.
    folder, _, name = lies_at.rpartition("/") if star else (lies_at.rstrip("/"), "/", "")
    if folder.startswith("file://"):
        folder = f"file://{Path(folder.removeprefix('file://')).resolve()}"
    return f"{folder}/{name}"


async def asked_by(
    inputs: models.MatchInputs,
    service: Service,
    folder: Folder,
    delivery: Delivery | None = None,
    name: str | None = None,
    *,
    is_short: bool = False,
) -> Asked:
    """Make or find both sets, and check them."""
    if delivery and delivery.output is not None:
        delivery = replace(delivery, output=service.sinks.output(delivery.output.strip()))
    observations, references = [
        await planned(inputs, role, service, folder, is_short=is_short) for role in models.ROLES
    ]
    assert not isinstance(observations, int), "it is a set"
    assert not isinstance(references, int), "it is a set"
    options = inputs.options(observations.dataset, references.dataset)
    asked = Asked(observations, references, options, inputs.on_invalid, delivery, name)
    await _check(service, asked, inputs)
    one, other = options.in_order(*asked.sets)
    return asked._replace(observations=one, references=other)


async def planned(
    inputs: models.MatchInputs | models.EstimateInputs,
    role: Role,
    service: Service,
    folder: Folder,
    *,
    is_short: bool = False,
) -> PlannedSet:
    """Make or find a set, in a folder that goes with the request; or how many rows it will have.

    Of a request that is short, small arrays are made a table by the event loop.
    """
    ingest, owner = service.ingest, service.owner
    source: int | models.PointSource = getattr(inputs, role)
    if isinstance(source, int):
        return source
    if isinstance(source, models.DatasetReference):
        names = [f"{PREFIXES[role]}{name}" for name in NAMED]
        names += ["edges", "densify_m"] if role == "references" else []
        if isinstance(inputs.observations, models.DatasetReference) and role == "references":
            # They would be of both sets, and neither is read.
            names += NAMED
        for name in names:
            if getattr(inputs, name) is not None:
                detail = "a dataset keeps what it was registered with: register it so instead"
                raise errors.misplaced(inputs.pointer(name), detail)
        if is_short and (row := service.library.known(source.dataset)) is not None:
            return row
        return await service.library.used(source.dataset)
    place, reading = inputs.pointer(role), inputs.reading_of(role)
    match source:
        case models.SourceReference(href=href):
            return await pools.remote(owner, ingest.from_href, href, reading, place)
        case Upload():
            return await ingest.from_upload(source, reading, folder.path, owner)
        case models.GeoJson(document, inside):
            content = await pools.compute(owner, to_json, document)
            upload = await pools.disk(
                keep_upload, content, folder.path, "application/geo+json", place + inside
            )
            return await ingest.from_upload(upload, reading, folder.path, owner)
        case models.Arrays(columns, inside, by_row):
            if by_row and not columns:
                columns = {name: [] for name in inputs.named_columns(role)}
            given = columns, reading, place + inside, by_row
            values = sum(map(len, columns.values()))
            if is_short and len(columns) <= _FEW_COLUMNS and values <= _FEW_VALUES:
                return ingest.from_arrays(*given)
            return await pools.compute(owner, ingest.from_arrays, *given)


def sizes_of(
    observations: PlannedSet, references: PlannedSet, options: MatchOptions
) -> tuple[Size, Size]:
    """How large both sets of a job are; blocks while their files are looked into."""
    try:
        return (
            _size(observations, options.of_observations),
            _size(references, options.of_references),
        )
    except FileNotFoundError:
        raise errors.NoSuchDataset("one of the two datasets was removed meanwhile") from None


def _size(one: PlannedSet, carried: Callable[[Dataset], list[str]]) -> Size:
    if isinstance(one, int):
        return size_of_rows(one)
    return size_of_dataset(one.dataset, carried(one.dataset))


def bytes_of(
    observations: PlannedSet, references: PlannedSet, sizes: tuple[Size, Size]
) -> tuple[int, int]:
    """Bytes that the sets of a job will take on the disk, and those that will be kept for it."""
    on_disk = kept = 0
    for one, size in zip((observations, references), sizes, strict=True):
        file = None if isinstance(one, int) else one.dataset.file
        if not isinstance(file, Path | Object | SourceFiles):
            on_disk += size.size_bytes
        if (isinstance(one, int) or not one.id) and not isinstance(file, SourceFiles):
            kept += size.size_bytes
    return on_disk, kept
