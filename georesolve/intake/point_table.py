"""A table of points: which columns hold what, and whether its rows are degrees."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.intake.columns import LONGEST_NAME, Origin, Reading, find_columns
from georesolve.intake.errors import InvalidInput, TooLarge
from georesolve.intake.geometry import add_coordinates, geometries_of, geometry_of
from georesolve.intake.plausibility import refuse_implausible, refuse_invalid
from georesolve.intake.sources import Table
from georesolve.workers.datasets import PointSet
from georesolve.workers.evidence import Evidence, slices


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many rows and columns a table may have, and to how many bytes a file may unpack."""

    rows: int = sys.maxsize
    columns: int = sys.maxsize
    unpacked_bytes: int = sys.maxsize


def degrees(array: pa.Array) -> np.ndarray:
    """Coordinates as an array of numpy, NaN where they are null."""
    # `fill_null` copies also where there is nothing to fill.
    filled = array.fill_null(math.nan) if array.null_count else array
    numbers: np.ndarray = filled.to_numpy()
    return numbers


class Findings(NamedTuple):
    """What the rows of a table showed, and where its coordinates come from."""

    origin: Origin
    evidence: Evidence

    def refuse(self, points: PointSet, reading: Reading, file: str) -> None:
        """Refuse a table for what all of its rows showed; `points` counted them."""
        refuse_implausible(self.evidence, self.origin, reading, file)
        are_swapped = self.evidence.may_be_swapped
        refuse_invalid(
            points,
            file,
            reading.on_invalid,
            points=self.origin.points,
            how_to_swap=self.origin.how_to_swap(reading.prefix) if are_swapped else None,
        )


class PointTable:
    """A table whose columns have their meaning, and whose rows are checked as they pass by.

    The `schema` is that of the batches: coordinates are float64, and those of a geometry column
    stand beside it. `columns` hold the coordinates and the id; `geometries` is what GeoParquet says
    of the others.
    """

    def __init__(self, table: Table, reading: Reading, file: str, bounds: Bounds) -> None:
        schema, self._batches, self._declared_rows, points = table
        if len(schema.names) > bounds.columns:
            raise TooLarge(
                f"{file}: {len(schema.names)} columns are more than the limit of {bounds.columns}"
            )
        if self._declared_rows is not None and self._declared_rows > bounds.rows:
            raise TooLarge(
                f"{file}: {self._declared_rows} rows are more than the limit of {bounds.rows}"
            )
        self.geometries = geometries_of(schema)
        if reading.lat is not None or reading.lon is not None:
            points = None
        else:
            geometry = geometry_of(schema, reading.geometry, file)
            if geometry is not None:
                self._batches = add_coordinates(self._batches, geometry, file)
                for name in (geometry.lon, geometry.lat):
                    schema = schema.append(pa.field(name, pa.float64()))
                points = geometry
            if points is not None:
                reading = reading._replace(lat=points.lat, lon=points.lon, geometry=None)
        _check_names(schema.names, file)
        self.columns = find_columns(schema.names, reading, file)
        for name in self.columns[:2]:
            check_numeric(schema.field(name), file)
        types = dict.fromkeys(self.columns[:2], pa.float64())
        self.schema = pa.schema(
            [(f.name, types.get(f.name) or _plain_type(f.type)) for f in schema]
        )
        self._reading, self._file, self._bounds = reading, file, bounds
        self._origin = Origin(self.columns, points and points.column)
        self._evidence = Evidence()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, which are counted and looked at; coordinates may be null."""
        seen = 0
        for batch in self._batches:
            seen += batch.num_rows
            if seen > self._bounds.rows:
                raise TooLarge(f"{self._file}: more rows than the limit of {self._bounds.rows}")
            arrays = [
                array if array.type == field.type else pc.cast(array, field.type, safe=False)
                for array, field in zip(batch.columns, self.schema, strict=True)
            ]
            checked = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            lat, lon = (degrees(checked[name]) for name in self.columns[:2])
            for rows in slices(batch.num_rows):
                self._evidence.add(lat[rows], lon[rows])
            yield checked

    @property
    def findings(self) -> Findings:
        """What the rows have shown that have been read."""
        return Findings(self._origin, self._evidence)

    def refuse_invalid(self, points: PointSet) -> None:
        """Refuse what the rows showed, once all have passed."""
        self.check_rows(points)
        self.findings.refuse(points, self._reading, self._file)

    def check_rows(self, points: PointSet) -> None:
        """Refuse rows that are not as many as the table declared, once all have passed."""
        if self._declared_rows not in (None, points.rows):
            raise InvalidInput(
                f"{self._file}: the file says that it has {self._declared_rows} rows, and has "
                f"{points.rows}"
            )


def _check_names(names: list[str], file: str) -> None:
    for name in names:
        if "\0" in name or len(name) > LONGEST_NAME:
            raise InvalidInput(
                f"{file}: the column name {name[:80]!r} has {len(name)} characters: up to "
                f"{LONGEST_NAME} are allowed, and no NUL among them",
                [{"file": file, "column": name[:80], "detail": "not allowed as a name"}],
            )


def _plain_type(type: pa.DataType) -> pa.DataType:
    # Views have no kernel that takes rows of them.
    if pa.types.is_string_view(type):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type) else type


def check_numeric(field: pa.Field, file: str) -> None:
    """Refuse a column of coordinates that holds no numbers."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InvalidInput(
            f"{file}: the column {field.name!r} holds {kind}, not numbers: give degrees as numbers",
            [{"file": file, "column": field.name, "row": 0, "detail": f"holds {kind}"}],
        )
