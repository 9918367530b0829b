"""What is refused because its coordinates cannot be degrees, and what is remarked.

By what evidence, `workers.evidence` says; ``coordinates="trust"`` takes numbers for the degrees
that the client says they are. Rows at exactly (0, 0) ("null island") are resolved as they are;
`remarks` names them where there are a dozen or more. A single one may be a point of a grid, or the
buoy that lies there. It also names two sets that lie apart as they are, and together once the axes
of one are swapped: all of Europe is within 90 degrees of Greenwich, so its table alone proves
nothing.
"""

from georesolve.intake.columns import Origin, Reading
from georesolve.intake.errors import InvalidInput
from georesolve.workers.datasets import Dataset
from georesolve.workers.evidence import Evidence

_DOZEN = 12


def refuse_implausible(evidence: Evidence, origin: Origin, reading: Reading, file: str) -> None:
    """Refuse a table whose coordinates prove not to be degrees.

    Raises
    ------
    InvalidInput
        With the number of rows that say so, one of them, and what to do.
    """
    if reading.coordinates == "trust":
        return
    found = evidence.verdict(
        origin.names,
        origin.how_to_swap(reading.prefix),
        keeps_invalid=reading.on_invalid == "null",
    )
    if found is None:
        return
    lat_name, lon_name = origin.names
    is_lon = found.kind in ("metres", "scaled") and abs(found.lon) > abs(found.lat)
    raise InvalidInput(
        f"{file}: {found.told(origin.names, 'row {}'.format)}",
        [
            {
                "file": file,
                "column": origin.points or (lon_name if is_lon else lat_name),
                "row": found.row,
                "detail": f"{found.example(origin.names)}: {found.kind}",
            }
        ],
    )


Box = tuple[float, float, float, float]
"""West, south, east and north in degrees."""


def looks_swapped(observations: Box | None, references: Box | None) -> list[str]:
    """What there is to say of two sets by their extents: that the axes of one look swapped."""
    if observations is None or references is None:
        return []
    west, south, east, north = references
    apart = min(shared for shared, _ in _shared(observations, references)) < 0
    together = _shared(observations, (south, west, north, east))
    if not apart or not all(shared >= least / 2 > 0 for shared, least in together):
        return []
    return [
        f"the axes of one set look swapped: observations have {_told(observations)}, references "
        f"{_told(references)}, which lie apart as they are, and together once latitude and "
        "longitude of one set are swapped. If they are swapped, name the columns of that set the "
        "other way round (observation_lat and observation_lon, or reference_lat and reference_lon)"
    ]


def _shared(one: Box, other: Box) -> list[tuple[float, float]]:
    """Degrees that two extents share, below 0 where they lie apart, and that the smaller one has.

    First those of longitude, then of latitude.
    """
    return [
        (
            min(one[at + 2], other[at + 2]) - max(one[at], other[at]),
            min(one[at + 2] - one[at], other[at + 2] - other[at]),
        )
        for at in (0, 1)
    ]


def _told(box: Box) -> str:
    west, south, east, north = box
    return f"latitudes from {south:.6g} to {north:.6g} and longitudes from {west:.6g} to {east:.6g}"


def remarks(observations: Dataset, references: Dataset) -> list[str]:
    """What looks wrong with two sets that were taken all the same, in words."""
    sets = {"observations": observations.null_island, "references": references.null_island}
    return looks_swapped(observations.bbox, references.bbox) + [
        f"{name}: {rows} rows are at exactly (0, 0), which devices report that have no position; "
        f"they were resolved as they are. The first of them, counted from 0: "
        f"{', '.join(map(str, first))}"
        for name, (rows, first) in sets.items()
        if rows >= _DOZEN
    ]
