"""What a client says of a table of points, and GeoJSON as it may send it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from georesolve.intake.columns import LONGEST_NAME, Edges, OnInvalid, Reading, Trust
from georesolve.service.http.parameters import Parameters

ColumnName = Annotated[str, Field(max_length=LONGEST_NAME)]
# PROJ says what it does not know; it would take more, such as the names of files.
CrsName = Annotated[str, Field(pattern="^[A-Za-z0-9: _-]{1,64}$")]


class TableParameters(Parameters):
    """How to read a table of points."""

    lat: ColumnName | None = Field(None, description="name of the column of latitudes")
    lon: ColumnName | None = Field(None, description="name of the column of longitudes")
    geometry: ColumnName | None = Field(
        None,
        description="name of a column of points, or of references of lines and polygons (WKB or "
        "GeoArrow)",
    )
    id: ColumnName | None = Field(None, description="name of the id column")
    layer: ColumnName | None = Field(
        None, description="layer of a GeoPackage, or shapefile of a ZIP archive, with several"
    )
    crs: CrsName | None = Field(
        None,
        description="CRS of columns of coordinates, and of a layer or GeoParquet that does not say "
        "its own, such as EPSG:25832; degrees on WGS 84 without it",
    )
    on_invalid: OnInvalid = Field(
        "error", description="error: refuse invalid coordinates; null: keep them with a status"
    )
    coordinates: Trust = Field(
        "check",
        description="check: refuse a table whose coordinates prove to be metres, radians or "
        "swapped; trust: they are degrees, whatever they look like",
    )

    edges: Edges | None = Field(
        None,
        description="how edges of lines and polygons run: planar, straight in longitude and "
        "latitude; spherical, along great circles; by default as GeoParquet says, else planar",
    )
    densify_m: float | None = Field(
        None,
        ge=0.001,
        allow_inf_nan=False,
        description="metres within which great circles follow a planar edge; 1 by default",
    )

    def reading(self) -> Reading:
        """The same as the readers of files want it; a dataset may be of lines and polygons."""
        own = {name: getattr(self, name) for name in TableParameters.model_fields}
        return Reading(takes_shapes=True, **own)


class PointGeometry(BaseModel):
    """A point of GeoJSON."""

    type: Literal["Point"]
    coordinates: list[float] = Field(
        min_length=2,
        description="longitude and latitude in degrees, and a height that is passed over",
    )


class ShapeGeometry(BaseModel):
    """Lines or polygons of GeoJSON, which references may be."""

    type: Literal["MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon"]
    coordinates: list[Any]


class PointFeature(BaseModel):
    """A feature of GeoJSON, whatever else it has."""

    # Without a point it is a row with invalid coordinates. Schemas of OGC know no type null.
    geometry: PointGeometry | ShapeGeometry | Annotated[None, WithJsonSchema({"enum": [None]})] = (
        None
    )


class FeatureCollection(BaseModel):
    """GeoJSON points, of references also lines and polygons; ids and properties become columns."""

    type: Literal["FeatureCollection"]
    features: list[PointFeature]
