"""A job that matches two datasets."""

from georesolve.service.database.rows import DatasetRow, Delivery, Repeat
from georesolve.service.database.store import Store
from georesolve.service.errors import NoSuchDataset
from georesolve.service.resolve.models import MatchParameters


def accept_job(
    store: Store,
    observations: DatasetRow,
    references: DatasetRow,
    parameters: MatchParameters,
    delivery: Delivery,
    repeat: Repeat | None = None,
    size_bytes: int = 0,
) -> str:
    """Accept a job with two datasets that can be matched, as `Store.add_job` does.

    Raises
    ------
    NoSuchDataset
        When one of them was removed meanwhile.
    """
    options = parameters.options()
    id = store.add_job(observations, references, options, delivery, repeat, size_bytes)
    if id is None:
        raise NoSuchDataset("one of the two datasets was removed while the job was accepted")
    return id
