"""The result for a frame of cuDF: searched, made and carried on the GPU that the frame lies on."""

import math
from typing import Any

import numpy as np

from georesolve.intake.points import Points
from georesolve.kernels.coordinates import is_valid
from georesolve.searches import RESULT_ROWS, Progress, Search
from georesolve.workers.frames import Frame
from georesolve.workers.jobs import MatchOptions, with_id
from georesolve.workers.matches import STATUSES, statuses


def resolve_frame(
    frame: Frame, points: Points, search: Search, options: MatchOptions, progress: Progress | None
) -> Frame:
    """The matches of a frame of cuDF, of which `points` were read, with its index."""
    import cudf

    lat_deg, lon_deg = (_degrees(frame, name) for name in (points.lat, points.lon))
    of_references = search.references.kept.select(with_id(search.references, options.columns))
    references = cudf.DataFrame.from_arrow(of_references.replace_schema_metadata())
    step = RESULT_ROWS // options.k
    pieces = []
    # No observations are one empty piece: their result has columns, too.
    for start in range(0, max(1, points.rows), step):
        part = slice(start, start + step)
        pieces.append(_matches(search, lat_deg[part], lon_deg[part], start, references, options))
        if progress is not None:
            progress(min(start + step, points.rows), points.rows)
    matches = cudf.concat(pieces, ignore_index=True)
    rows = matches["observation"].to_cupy()
    # Not before: their columns stand between those of the answer and those of the references.
    place = list(matches.columns).index("status") + 1
    for name in reversed(with_id(points, options.observation_columns)):
        matches.insert(place, f"observation_{name}", _taken(frame[name], rows))
    matches.index = frame.index.take(rows)
    return matches


def _degrees(frame: Frame, name: str) -> Any:
    """A column as a float64 array of CuPy, NaN where there is no number."""
    return frame[name].astype("float64").to_cupy(na_value=math.nan)


def _matches(
    search: Search,
    lat_deg: Any,
    lon_deg: Any,
    first_row: int,
    references: Frame,
    options: MatchOptions,
) -> Frame:
    """The rows of a result for some observations, without what is carried of these."""
    import cudf
    import cupy

    k = options.k
    answer = search.answer(lat_deg, lon_deg, first_row, options)
    valid, n_valid = is_valid(lat_deg, lon_deg), search.references.valid_rows
    status = statuses(
        answer.reference.reshape(-1, k), valid, n_valid, exclude_self=options.exclude_self
    )
    reference = answer.reference.reshape(-1)
    unmatched = reference < 0
    columns = {"observation": cupy.arange(first_row, first_row + lat_deg.size).repeat(k)}
    if k > 1:
        columns["rank"] = cupy.tile(cupy.arange(1, k + 1, dtype=np.int32), lat_deg.size)
    rows = cudf.DataFrame(columns)
    rows["reference"] = cudf.Series(reference).mask(unmatched)
    # cuDF takes the NaN of an array for missing.
    rows["distance_m"] = cudf.Series(answer.distance_m.reshape(-1))
    rows["status"] = _taken(cudf.Series(list(STATUSES)), status.reshape(-1).astype("int32"))
    at = cupy.where(unmatched, 0, reference)
    for name in references.columns:
        rows[f"reference_{name}"] = _taken(references[name], at).mask(unmatched)
    return rows[rows["reference"].notna()] if options.how == "inner" else rows


def _taken(column: Any, rows: Any) -> Any:
    return column.take(rows).reset_index(drop=True)
