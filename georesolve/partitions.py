"""Collections of Dask, whose partitions are matched one by one when they are computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from georesolve.frames import given
from georesolve.intake.columns import Role
from georesolve.intake.errors import InvalidInput
from georesolve.intake.points import Points
from georesolve.options import Options, WithinOptions
from georesolve.searches import Search
from georesolve.tables import kinds_of
from georesolve.workers.gpus import DeviceChoice, choose_device

Asked = Options | WithinOptions
Match = Callable[[Any, int, Search, Asked], Any]
"""Matches a table of observations, from a row on, with the references of a search."""


def is_collection(table: Any) -> bool:
    """Whether a table is a dataframe of Dask, whatever its partitions are."""
    return "dask.DataFrame" in kinds_of(table)


def matched_later(
    observations: Any, references: Any, asked: Asked, device: DeviceChoice, match: Match
) -> Any:
    """The collection of what the partitions of a collection match.

    References are points, a table that is read now, or a collection that a worker puts together
    later. Their search is one task, whose result each worker gets once.
    """
    import pandas as pd
    from dask.dataframe.dispatch import make_meta
    from dask.delayed import delayed

    if is_collection(references):
        known = _points(make_meta(references), "references", asked)
        search = delayed(_search, pure=True)(references.to_delayed(), asked, device)
    else:
        is_read = isinstance(references, Points)
        known = references if is_read else _points(references, "references", asked)
        # By its content, and not looked into: Dask looks for collections in dataclasses.
        held = delayed(known, name=f"references-{known.sha256}", traverse=False)
        search = delayed(_search_of, pure=True)(held, device)
    empty = make_meta(observations)
    points = _points(empty, "observations", asked)
    # How many references there will be is not known now.
    nothing = replace(known.part(0, 0), rows=max(1, known.rows))
    meta = match(empty, 0, Search(nothing, "cpu"), asked)
    if (needed := _needed(empty, points, asked)) is not None:
        observations = observations[needed]
    # One row a partition.
    rows = observations.map_partitions(_length, meta=pd.Series(dtype="int64"), clear_divisions=True)
    first_rows = rows.cumsum() - rows
    return observations.map_partitions(_matched, first_rows, search, asked, match, meta=meta)


def _points(table: Any, role: Role, asked: Asked) -> Points:
    return given(table, role).points(asked.reading(role), asked.kept(role))


def _needed(empty: Any, points: Points, asked: Asked) -> list[str] | None:
    """The columns of the observations that are read; None for all."""
    kept = asked.kept("observations")
    if kept is None or not {points.lat, points.lon} <= {*empty.columns}:
        return None
    return [name for name in empty.columns if name in {points.lat, points.lon, points.id, *kept}]


def _length(frame: Any) -> Any:
    import pandas as pd

    return pd.Series([len(frame)])


def _search(pieces: Sequence[Any], asked: Asked, device: DeviceChoice) -> Search:
    from dask.dataframe.dispatch import concat

    return _search_of(_points(concat([*pieces]), "references", asked), device)


def _search_of(references: Points, device: DeviceChoice) -> Search:
    return Search(references, choose_device(device))


def _matched(observations: Any, first_rows: Any, search: Search, asked: Asked, match: Match) -> Any:
    first_row = int(first_rows.iloc[0])
    try:
        return match(observations, first_row, search, asked)
    except InvalidInput as error:
        raise InvalidInput(f"in the partition that begins at row {first_row}: {error}") from error
