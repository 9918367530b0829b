"""How much of the disk a job takes, as far as that is known before it runs."""

from pathlib import Path

from georesolve.service.errors import NoSuchDataset
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.datasets import Dataset
from georesolve.workers.estimate import Size, size_of_dataset, size_of_rows
from georesolve.workers.jobs import MatchOptions, with_id
from georesolve.workers.places import Object
from georesolve.workers.sources import Manifest

PlannedSet = int | Ingested | DatasetRow
"""A set of a job, or how many rows it will have."""
Sizes = tuple[Size, Size]


def sizes_of(observations: PlannedSet, references: PlannedSet, options: MatchOptions) -> Sizes:
    """How large both sets of a job are; blocks while their files are looked into.

    Raises
    ------
    NoSuchDataset
        When one of them was removed meanwhile.
    """
    try:
        return _size(observations, options.observation_columns), _size(references, options.columns)
    except FileNotFoundError:
        raise NoSuchDataset("one of the two datasets was removed meanwhile") from None


def _size(one: PlannedSet, columns: tuple[str, ...]) -> Size:
    return size_of_rows(one) if isinstance(one, int) else size_of_dataset(one.dataset, columns)


def bytes_of_sets(
    observations: PlannedSet, references: PlannedSet, sizes: Sizes
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


def carried_bytes(observations: Dataset, references: Dataset, options: MatchOptions) -> int:
    """Memory that the columns take that are carried into a result, if all references are alike."""
    rows = observations.rows * options.k
    of_references = references.width(with_id(references, options.columns)).total
    of_observations = observations.width(with_id(observations, options.observation_columns)).total
    return of_observations * options.k + of_references * rows // max(1, references.rows)
