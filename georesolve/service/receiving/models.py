"""What a client says of a table of points, and GeoJSON as it may send it."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, Field, WithJsonSchema

from georesolve.io.columns import LONGEST_NAME, OnInvalid, Reading
from georesolve.options import READING, Options
from georesolve.service.http.parameters import Parameters, with_fields

ColumnName = Annotated[str, Field(max_length=LONGEST_NAME)]
# PROJ says what it does not know; it would take more, such as the names of files.
CrsName = Annotated[str, Field(pattern="^[A-Za-z0-9: _-]{1,64}$")]
_NAMES = dict.fromkeys(("lat", "lon", "geometry", "id", "layer"), ColumnName | None)
_TYPES: dict[str, Any] = get_type_hints(Options) | _NAMES | {"crs": CrsName | None}


@with_fields(**{name: (_TYPES[name], READING[name]) for name in READING})
class TableParameters(Parameters):
    """How to read a table of points."""

    if TYPE_CHECKING:
        on_invalid: OnInvalid

    def reading(self, *, takes_shapes: bool = True) -> Reading:
        """The same as the readers of files want it; a dataset may be of lines and polygons."""
        own = {name: getattr(self, name) for name in TableParameters.model_fields}
        return Reading(takes_shapes=takes_shapes, **own)


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
