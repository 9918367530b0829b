"""Collections of Dask, whose partitions are matched one by one when they are computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

from georesolve.frames import given
from georesolve.intake.columns import Role
from georesolve.intake.errors import InvalidInput, InvalidOption
from georesolve.intake.points import Points
from georesolve.kernels.devices import Device
from georesolve.kernels.query import Earth
from georesolve.options import Options, WithinOptions
from georesolve.searches import Search
from georesolve.tables import kinds_of
from georesolve.workers.gpus import DeviceChoice, choose_device

Asked = Options | WithinOptions
Match = Callable[[Any, int, Search, Asked], Any]
"""Matches a table of observations, from a row on, with the references of a search."""


class References:
    """References as a worker holds them, with the search of them that it makes of them once."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self._searches: dict[tuple[Device, Earth], Search] = {}
        self._making = RLock()

    def search(self, device: DeviceChoice, asked: Asked) -> Search:
        """The search on the device that this process chooses."""
        search = Search(self.points, choose_device(device), earth=asked.earth)
        key = search.device, asked.earth
        with self._making:
            search = self._searches.setdefault(key, search)
            search.making = self._making
            if asked.filters is None:
                # Now, so that of several threads one builds it.
                _ = search.index
            return search

    def __reduce__(self) -> Any:
        return References, (self.points,)


def is_collection(table: Any) -> bool:
    """Whether a table is a dataframe of Dask, whatever its partitions are."""
    return "dask.DataFrame" in kinds_of(table)


def matched_later(
    observations: Any, references: Any, asked: Asked, device: DeviceChoice, match: Match
) -> Any:
    """The collection of what the partitions of a collection match.

    References are points, a table that is read now, or a collection that a worker puts together
    later. They are one task, whose result each worker gets once.
    """
    import pandas as pd
    from dask.base import tokenize
    from dask.dataframe.dispatch import make_meta
    from dask.delayed import delayed

    if is_collection(references):
        known = _points(make_meta(references), "references", asked)
        held = delayed(_together, pure=True)(references.to_delayed(), asked)
    else:
        is_read = isinstance(references, Points)
        known = references if is_read else _points(references, "references", asked)
        content = tokenize(known.sha256, vars(known))
        # Not looked into: Dask looks for collections.
        held = delayed(References(known), name=f"references-{content}", traverse=False)
    empty = make_meta(observations)
    points = _points(empty, "observations", asked)
    # How many references there will be is not known now.
    nothing = replace(known.part(0, 0), rows=max(1, known.rows))
    meta = match(empty, 0, Search(nothing, "cpu", earth=asked.earth), asked)
    if (needed := _needed(empty, points, asked)) is not None:
        observations = observations[needed]
    # One row a partition.
    rows = observations.map_partitions(_length, meta=pd.Series(dtype="int64"), clear_divisions=True)
    first_rows = rows.cumsum() - rows
    # A set against itself has all rows of the references: for that alone all are counted first.
    is_own = asked.exclude_self or getattr(asked, "once", False)
    total = rows.sum() if is_own else None
    return observations.map_partitions(
        _matched, first_rows, total, held, asked, device, match, meta=meta
    )


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


def _together(pieces: Sequence[Any], asked: Asked) -> References:
    from dask.dataframe.dispatch import concat

    return References(_points(concat([*pieces]), "references", asked))


def _matched(
    observations: Any,
    first_rows: Any,
    total: Any,
    held: References,
    asked: Asked,
    device: DeviceChoice,
    match: Match,
) -> Any:
    first_row = int(first_rows.iloc[0])
    if total is not None and int(total) != held.points.rows:
        raise InvalidOption(
            f"exclude_self and once are for a set resolved against itself, but there are {total} "
            f"observations and {held.points.rows} references: give one collection as both"
        )
    try:
        return match(observations, first_row, held.search(device, asked), asked)
    except InvalidInput as error:
        raise InvalidInput(f"in the partition that begins at row {first_row}: {error}") from error
