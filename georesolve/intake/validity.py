"""Rows with invalid coordinates: refused with the first of them, unless they are to be kept."""

import math
from typing import Any

from georesolve.intake.columns import OnInvalid
from georesolve.intake.errors import InvalidInput
from georesolve.workers.datasets import InvalidRow, PointSet


def refuse_invalid(
    dataset: PointSet,
    file: str,
    on_invalid: OnInvalid,
    *,
    points: str | None = None,
    how_to_swap: str | None = None,
) -> None:
    """Refuse points with invalid coordinates, unless they are to be kept.

    Parameters
    ----------
    points
        What the coordinates were taken out of, None where the user has columns of them.
    how_to_swap
        What to do if the axes are swapped, None unless all coordinates would be valid then.

    Raises
    ------
    InvalidInput
        Naming the number of invalid rows and the first of them.
    """
    if on_invalid == "null" or not dataset.invalid_rows:
        return
    errors = [_invalid_row(row, dataset, points, file) for row in dataset.first_invalid]
    first = errors[0]
    advice = "mend them, or keep them with the option on_invalid=null"
    if how_to_swap is not None:
        advice = (
            f"all coordinates are valid once they are swapped: if the axes are, {how_to_swap}; if "
            f"not, {advice}"
        )
    raise InvalidInput(
        f"{file}: {dataset.invalid_rows} of {dataset.rows} rows have invalid coordinates, the "
        f"first one row {first['row']}: {first['detail']}; {advice}",
        errors,
    )


def _invalid_row(
    row: InvalidRow, dataset: PointSet, points: str | None, file: str
) -> dict[str, Any]:
    lat_is_good = -90 <= row.lat_deg <= 90
    value = row.lon_deg if lat_is_good else row.lat_deg
    allowed = f"allowed are degrees from {'-180 to 360' if lat_is_good else '-90 to 90'}"
    if points is None:
        column = dataset.lon if lat_is_good else dataset.lat
        what = "is null or not a number" if math.isnan(value) else f"holds {value!r}"
        detail = f"column {column!r} {what}, {allowed}"
    elif math.isnan(value):
        column, detail = points, f"there is no point in {points!r}"
    else:
        column, axis = points, "longitude" if lat_is_good else "latitude"
        detail = f"the point in {points!r} has the {axis} {value!r}, {allowed}"
    return {"file": file, "column": column, "row": row.row, "detail": detail}
