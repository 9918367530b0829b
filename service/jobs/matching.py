"""Whether two datasets can be matched, and a job that matches them."""

from georesolve.service.database.rows import DatasetRow, Delivery, Repeat
from georesolve.service.database.store import Store
from georesolve.service.datasets.columns import listed
from georesolve.service.datasets.validity import refuse_invalid
from georesolve.service.errors import InvalidInput, InvalidRequest, NoSuchDataset
from georesolve.service.models import MatchParameters
from georesolve.workers.datasets import Dataset


def check_match(
    observations: Dataset, references: Dataset, parameters: MatchParameters, pointer: str
) -> None:
    """Check that two datasets can be matched.

    Parameters
    ----------
    pointer
        Where the parameters stand in the request.

    Raises
    ------
    InvalidInput
        When there are no references, or rows with invalid coordinates that are not to be kept.
    InvalidRequest
        When a column to carry does not exist.
    """
    if not references.rows:
        raise InvalidInput("references: the table has no rows, so nothing can be matched")
    refuse_invalid(observations, "observations", parameters.on_invalid)
    refuse_invalid(references, "references", parameters.on_invalid)
    if parameters.exclude_self and observations.sha256 != references.sha256:
        raise InvalidRequest(
            "exclude_self is for a set resolved against itself, but observations and references "
            "differ: send the same dataset as both, or leave it out",
            [{"pointer": f"{pointer}/exclude_self", "detail": "the two sets differ"}],
        )
    _check_columns(references, parameters.columns, "columns", pointer)
    named = parameters.observation_columns
    _check_columns(observations, named, "observation_columns", pointer)


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


def _check_columns(dataset: Dataset, names: list[str], option: str, pointer: str) -> None:
    for name in names:
        if name not in dataset.columns:
            raise InvalidRequest(
                f"{option}: there is no column {name[:80]!r}; found {listed(dataset.columns)}",
                [{"pointer": f"{pointer}/{option}", "detail": f"no column {name!r}"}],
            )
