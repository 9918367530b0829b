"""How much of the disk a job takes, as far as that is known before it runs."""

from pathlib import Path

from service.database.rows import DatasetRow
from service.datasets.ingest import Ingested
from service.errors import NoSuchDataset
from workers.estimate import Size, size_of_dataset, size_of_rows
from workers.jobs import MatchOptions

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


def set_bytes(observations: PlannedSet, references: PlannedSet, sizes: Sizes) -> int:
    """Bytes that the sets of a job will take on the disk, without those that lie there already."""
    sets = zip((observations, references), sizes, strict=True)
    return sum(size.size_bytes for one, size in sets if not _lies_on_disk(one))


def carried_bytes(sizes: Sizes, options: MatchOptions) -> int:
    """Bytes of the columns that are carried into a result, each value as often as it stands there.

    A value that a file holds once for many of its rows counts once for all of these.
    """
    observations, references = sizes
    rows = observations.rows * options.k
    of_references = sum(column.encoded for column in references.carried)
    of_observations = sum(column.encoded for column in observations.carried)
    return of_observations * options.k + of_references * rows // max(1, references.rows)


def _lies_on_disk(one: PlannedSet) -> bool:
    return not isinstance(one, int) and isinstance(one.dataset.file, Path)
