"""Collections of Dask, whose partitions are matched one by one when they are computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from georesolve.engine.gpus import DeviceChoice
from georesolve.engine.in_memory import Search
from georesolve.frames import given
from georesolve.io.columns import Role
from georesolve.io.errors import InvalidInput, InvalidOption
from georesolve.io.points import Points
from georesolve.io.tables import kinds_of
from georesolve.options import Options, WithinOptions

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
    later. They are one task, the search of whose result each worker gets once.
    """
    import pandas as pd
    from dask.base import tokenize
    from dask.dataframe.dispatch import make_meta
    from dask.delayed import delayed

    if is_collection(references):
        known = _points(make_meta(references), "references", asked)
        if texts := _summarized_texts(known, asked):
            raise InvalidInput(
                f"summary: the column {texts[0]!r} of a collection of references holds text, whose "
                "sums are whole numbers or not, and types must be known before partitions are "
                "read: cast the column to numbers, or give the references as one table"
            )
        held = delayed(_together, pure=True)(references.to_delayed(), asked, device)
    else:
        is_read = isinstance(references, Points)
        known = references if is_read else _points(references, "references", asked)
        content = tokenize(known.sha256, vars(known))
        # Not looked into: Dask looks for collections.
        sent = delayed(known, name=f"references-{content}", traverse=False)
        held = delayed(Search, pure=True)(sent, device, None, asked.earth)
    empty = make_meta(observations)
    points = _points(empty, "observations", asked)
    # How many references there will be is not known now.
    nothing = replace(known.part(0, 0), rows=max(1, known.rows))
    if _summarized_texts(known, asked):
        nothing = known
    meta = match(empty, 0, Search(nothing, "cpu", earth=asked.earth), asked)
    if (needed := _needed(empty, points, asked)) is not None:
        observations = observations[needed]
    # What Dask does to the reading of files once it knows what is read is done now: later, it joins
    # partitions to be counted, but not one that is asked for alone.
    observations = observations.map_partitions(_same, meta=make_meta(observations))
    # Not more of it: by what partitions are shuffled is chosen where they are computed.
    observations = type(observations)(observations.expr.simplify().rewrite("tune", {}))
    # One row a partition.
    rows = observations.map_partitions(_length, meta=pd.Series(dtype="int64"), clear_divisions=True)
    first_rows = rows.cumsum() - rows
    # A set against itself has all rows of the references: for that alone all are counted first.
    is_own = asked.exclude_self or getattr(asked, "once", False)
    total = rows.sum() if is_own else None
    # The values of a collection of references decide the type of a column of objects.
    objects = [name for name in meta.columns if meta[name].dtype == object]
    return observations.map_partitions(
        _matched, first_rows, total, held, asked, match, objects, meta=meta
    )


def _points(table: Any, role: Role, asked: Asked) -> Points:
    return given(table, role).points(asked.reading(role), asked.kept(role))


def _summarized_texts(references: Points, options: Asked) -> list[str]:
    """Columns of text in a summary: the type of a sum depends on the values."""
    types = {field.name: field.type for field in references.kept.schema}
    summarized = {name for name, kinds in options.summary.items() if kinds != ("count",)}
    return [
        name
        for name in summarized.intersection(types)
        if getattr(types[name], "value_type", types[name]) in (pa.string(), pa.large_string())
    ]


def _needed(empty: Any, points: Points, asked: Asked) -> list[str] | None:
    """The columns of the observations that are read; None for all."""
    kept = asked.kept("observations")
    if kept is None or not {points.lat, points.lon} <= {*empty.columns}:
        return None
    return [name for name in empty.columns if name in {points.lat, points.lon, points.id, *kept}]


def _same(frame: Any) -> Any:
    return frame


def _length(frame: Any) -> Any:
    import pandas as pd

    return pd.Series([len(frame)])


def _together(pieces: Sequence[Any], asked: Asked, device: DeviceChoice) -> Search:
    from dask.dataframe.dispatch import concat

    points = _points(concat([*pieces]), "references", asked)
    return Search(points, device, earth=asked.earth)


def _matched(
    observations: Any,
    first_rows: Any,
    total: Any,
    held: Search,
    asked: Asked,
    match: Match,
    objects: list[str],
) -> Any:
    first_row = int(first_rows.iloc[0])
    if total is not None and int(total) != held.references.rows:
        raise InvalidOption(
            f"exclude_self and once are for a set resolved against itself, but there are {total} "
            f"observations and {held.references.rows} references: give one collection as both"
        )
    try:
        matches = match(observations, first_row, held, asked)
    except InvalidInput as error:
        raise InvalidInput(f"in the partition that begins at row {first_row}: {error}") from error
    typed = [name for name in objects if matches[name].dtype != object]
    return matches.astype(dict.fromkeys(typed, object)) if typed else matches
