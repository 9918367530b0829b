"""What is refused because its coordinates cannot be degrees, and what is remarked.

By what evidence, `workers.evidence` says; ``coordinates="trust"`` takes numbers for the degrees
that the client says they are. Rows at exactly (0, 0) ("null island") are resolved as they are;
`remarks` names them where there are a dozen or more. A single one may be a point of a grid, or the
buoy that lies there.
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


def remarks(observations: Dataset, references: Dataset) -> list[str]:
    """What looks wrong with two sets that were taken all the same, in words."""
    sets = {"observations": observations.null_island, "references": references.null_island}
    return [
        f"{name}: {rows} rows are at exactly (0, 0), which devices report that have no position; "
        f"they were resolved as they are. The first of them, counted from 0: "
        f"{', '.join(map(str, first))}"
        for name, (rows, first) in sets.items()
        if rows >= _DOZEN
    ]
