"""What clients are told of the map of a result, and of its distances."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from georesolve.service.maps.cache import Drawn
from georesolve.service.maps.picture import UNMATCHED, colours, thresholds
from georesolve.workers.distances import PERCENTS, Distances
from georesolve.workers.map_files import MOST_ZOOM

MOST_FEATURES = 2000
_WORLD = [-180.0, -85.05112877980659, 180.0, 85.05112877980659]


class Colour(BaseModel):
    """A colour, and from which distance on it is used."""

    color: str
    distance_m: float


class TileLayer(BaseModel):
    """A layer of tiles, as TileJSON 3.0 has it, and what its colours mean."""

    tilejson: Literal["3.0.0"] = "3.0.0"
    name: str
    attribution: str
    scheme: Literal["xyz"] = "xyz"
    tiles: list[str]
    data: list[str] = Field(description="the same as GeoJSON, where tiles have few observations")
    vector_layers: list[dict[str, str]] = []
    bounds: list[float] = Field(description="west, south, east, north")
    minzoom: int
    maxzoom: int
    rows: int = Field(description="observations that the map shows")
    rows_beyond: int = Field(
        description="observations north or south of 85.0511 degrees, where web maps end: not shown"
    )
    counts: dict[str, int] = Field(
        description="observations by status; those with invalid coordinates are not shown"
    )
    most_features: int = Field(description="observations up to which a tile has GeoJSON")
    colors: list[Colour] = Field(
        description="of the median distance of the matched observations of a pixel; opacity is the "
        "logarithm of how many observations it has"
    )
    color_unmatched: str = Field(description="of pixels with unmatched observations alone")

    @classmethod
    def of(cls, drawn: Drawn, here: str) -> Self:
        """That of a map, whose address is `here`."""
        from_m = thresholds(drawn.distances.percentiles_m)
        return cls(
            name="distance to the nearest reference",
            attribution="georesolve",
            tiles=[f"{here}/{{z}}/{{x}}/{{y}}.png"],
            data=[f"{here}/{{z}}/{{x}}/{{y}}.geojson"],
            bounds=drawn.map.bounds_deg or _WORLD,
            minzoom=0,
            maxzoom=MOST_ZOOM,
            rows=drawn.map.rows,
            rows_beyond=drawn.map.beyond,
            counts=drawn.distances.counts,
            most_features=MOST_FEATURES,
            colors=[
                Colour(color=color, distance_m=metres)
                for color, metres in zip(colours(), from_m, strict=False)
            ],
            color_unmatched=UNMATCHED,
        )


class Percentile(BaseModel):
    """A distance that a part of the matched observations does not exceed."""

    percent: int
    distance_m: float


class Histogram(BaseModel):
    """Counts between edges; a bin has its lower edge, and the last one both."""

    edges_m: list[float]
    counts: list[int]


class Spread(BaseModel):
    """How far the observations of a result lie from their nearest references."""

    counts: dict[str, int] = Field(description="observations by status")
    percentiles: list[Percentile] = Field(
        description="to 0.01 %; none without a matched observation"
    )
    linear: Histogram
    logarithmic: Histogram = Field(description="the first bin begins at 0")

    @classmethod
    def of(cls, distances: Distances) -> Self:
        """That of some distances."""
        pairs = zip(PERCENTS, distances.percentiles_m, strict=False)
        return cls(
            counts=distances.counts,
            percentiles=[Percentile(percent=one, distance_m=metres) for one, metres in pairs],
            linear=Histogram(**distances.linear._asdict()),
            logarithmic=Histogram(**distances.logarithmic._asdict()),
        )
