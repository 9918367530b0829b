"""How clients say that a table is to be read."""

from pydantic import Field

from georesolve.intake.columns import OnInvalid, Reading, Trust
from georesolve.service.parameters import ColumnName, Parameters


class TableParameters(Parameters):
    """How to read a table of points."""

    lat: ColumnName | None = Field(None, description="name of the column of latitudes")
    lon: ColumnName | None = Field(None, description="name of the column of longitudes")
    geometry: ColumnName | None = Field(
        None, description="name of a column of points (WKB or GeoArrow)"
    )
    id: ColumnName | None = Field(None, description="name of the id column")
    on_invalid: OnInvalid = Field(
        "error", description="error: refuse invalid coordinates; null: keep them with a status"
    )
    coordinates: Trust = Field(
        "check",
        description="check: refuse a table whose coordinates prove to be metres, radians or "
        "swapped; trust: they are degrees, whatever they look like",
    )

    def reading(self) -> Reading:
        """The same as the readers of files want it."""
        return Reading(
            self.lat, self.lon, self.id, self.geometry, self.on_invalid, self.coordinates
        )
