"""Points in memory: checked, counted, and ready to be searched."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from georesolve.intake.point_table import PointTable, degrees
from georesolve.workers.datasets import Census, Dataset, InvalidRow, write_dataset
from georesolve.workers.evidence import slices


@dataclass(frozen=True)
class Points:
    """A point set in memory: most is as in `workers.datasets.Dataset`.

    `lat_deg` and `lon_deg` are float64 arrays of shape (rows,), NaN where there is no number.
    `kept` has the columns that a result may carry, `columns` the names of all that the table had.
    """

    lat_deg: np.ndarray
    lon_deg: np.ndarray
    kept: pa.Table
    columns: Sequence[str]
    rows: int
    invalid_rows: int
    first_invalid: Sequence[InvalidRow]
    lat: str
    lon: str
    id: str | None
    bbox: tuple[float, float, float, float] | None = None

    @property
    def valid_rows(self) -> int:
        """Number of rows whose coordinates are valid."""
        return self.rows - self.invalid_rows

    @cached_property
    def sha256(self) -> str:
        """Of the coordinates: sets in memory are the same when these are."""
        digest = sha256(np.ascontiguousarray(self.lat_deg).data)
        digest.update(np.ascontiguousarray(self.lon_deg).data)
        return digest.hexdigest()


def gather(
    table: PointTable, keep: Collection[str] | None, columns: Sequence[str] | None = None
) -> Points:
    """Take the rows of a table into memory.

    A result may carry the id, and the columns to `keep` as far as the table has them (None for
    all). `columns` are the names of all that the user gave, where the table is a part of these.
    """
    lat, lon, id = table.columns
    names = [
        field.name
        for field in table.schema
        if keep is None or field.name == id or field.name in keep
    ]
    census, pieces = Census(), []
    arrays: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for batch in table.batches():
        pair = [degrees(batch[name]) for name in (lat, lon)]
        for rows in slices(batch.num_rows):
            census.add(pair[0][rows], pair[1][rows])
        for column, array in zip(arrays, pair, strict=True):
            column.append(array)
        pieces.append(batch.select(names))
    schema = pa.schema([table.schema.field(name) for name in names])
    lat_deg, lon_deg = map(_joined, arrays)
    points = Points(
        lat_deg=lat_deg,
        lon_deg=lon_deg,
        kept=pa.Table.from_batches(pieces, schema).combine_chunks(),
        columns=tuple(columns or table.schema.names),
        rows=census.rows,
        invalid_rows=census.invalid_rows,
        first_invalid=tuple(census.first_invalid),
        lat=lat,
        lon=lon,
        id=id,
        bbox=census.bbox,
    )
    table.refuse_invalid(points)
    return points


def _joined(pieces: list[np.ndarray]) -> np.ndarray:
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0), *pieces])


def write_points(points: Points, path: Path) -> Dataset:
    """Write points, and what is kept beside them, as a canonical dataset."""
    table = points.kept
    for name, column in ((points.lat, points.lat_deg), (points.lon, points.lon_deg)):
        if name in table.column_names:
            table = table.drop_columns(name)
        table = table.append_column(name, pa.array(column))
    return write_dataset(
        table.schema, table.to_batches(), path, lat=points.lat, lon=points.lon, id=points.id
    )
