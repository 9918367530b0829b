"""Whether two sets of points can be matched as the options say."""

from collections.abc import Callable

from georesolve.intake.columns import OnInvalid, listed
from georesolve.intake.errors import InvalidInput, InvalidOption
from georesolve.intake.plausibility import refuse_invalid
from georesolve.workers.datasets import PointSet
from georesolve.workers.jobs import MatchOptions


def check_match(
    observations: PointSet,
    references: PointSet,
    options: MatchOptions,
    on_invalid: OnInvalid,
    pointer: Callable[[str], str] = "/{}".format,
) -> None:
    """Check that two sets can be matched; `pointer` tells where an option stands in a request."""
    if not references.rows:
        raise InvalidInput("references: the table has no rows, so nothing can be matched")
    refuse_invalid(observations, "observations", on_invalid)
    refuse_invalid(references, "references", on_invalid)
    if options.exclude_self and observations.sha256 != references.sha256:
        raise InvalidOption(
            "exclude_self is for a set resolved against itself, but observations and references "
            "differ: send the same dataset as both, or leave it out",
            [{"pointer": pointer("exclude_self"), "detail": "the two sets differ"}],
        )
    _check_columns(references, options.columns, "columns", pointer)
    named = options.observation_columns
    _check_columns(observations, named, "observation_columns", pointer)


def _check_columns(
    dataset: PointSet, names: tuple[str, ...], option: str, pointer: Callable[[str], str]
) -> None:
    for name in names:
        if name not in dataset.columns:
            raise InvalidOption(
                f"{option}: there is no column {name[:80]!r}; found {listed(dataset.columns)}",
                [{"pointer": pointer(option), "detail": f"no column {name!r}"}],
            )
