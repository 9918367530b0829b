"""`/jobs/{id}/tiles`, `/jobs/{id}/distances`: a result on web maps."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pyarrow.compute as pc
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field, create_model

from georesolve.io.datasets import Dataset
from georesolve.io.result_files import TableRows
from georesolve.io.result_formats import features
from georesolve.io.source_files import SourceFailed
from georesolve.service import errors, pools
from georesolve.service.http import openapi
from georesolve.service.http.answers import unchanged
from georesolve.service.jobs.router import Job
from georesolve.service.links import base_of
from georesolve.service.maps.cache import Drawn, Maps
from georesolve.service.maps.picture import empty_tile, picture, scale_of
from georesolve.service.results.response import (
    OwnResults,
    Results,
    refuse_without_result,
    result_of,
)
from georesolve.service.store.rows import JobRow
from georesolve.workers.results.distances import PERCENTS
from georesolve.workers.results.manifest import Manifest
from georesolve.workers.tiles.map_files import (
    MOST_ZOOM,
    read_all_ranks,
    read_matches,
)
from georesolve.workers.tiles.map_shapes import View, shapes_in

router = APIRouter(tags=["maps"])

T = TypeVar("T")

MOST_FEATURES = 2000
_NAMES = {"distance_m": "distance to the nearest reference", "count": "how many match"}
_WORLD_BOUNDS = [-180.0, -85.05112877980659, 180.0, 85.05112877980659]
_NO_VIEW = (0.0, 0.0, 0.0, 0.0)
_PNG_TYPE, _GEOJSON_TYPE = "image/png", "application/geo+json"
_WORLD: dict[str, Any] = {"the world": {"value": 0}}
"""This one `/docs` fills in."""
_MOST = (1 << MOST_ZOOM) - 1


class Colour(BaseModel):
    """A colour, and from which distance, or of a summary from which count, on it is used."""

    color: str
    distance_m: float | None = None
    count: int | None = None


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
    rows: int = Field(
        description="observations that the map shows; pairs, or rows of a summary, of those within "
        "a distance"
    )
    rows_beyond: int = Field(
        description="observations north or south of 85.0511 degrees, where web maps end: not shown"
    )
    counts: dict[str, int] = Field(
        description="observations by status; those with invalid coordinates are not shown"
    )
    most_features: int = Field(description="observations up to which a tile has GeoJSON")
    colors: list[Colour] = Field(
        description="of the median distance of the matched observations of a pixel, or of the "
        "greatest count that a row of a summary has there, which is opaque; else opacity is the "
        "logarithm of how many observations it has"
    )
    color_unmatched: str = Field(
        description="of pixels with unmatched observations, or counts of 0, alone"
    )
    shapes: str | None = Field(
        None, description="where the references are lines or polygons: their address, for a `bbox`"
    )


class Percentile(BaseModel):
    """A distance, or a count, that a part of the matched observations does not exceed."""

    percent: int
    distance_m: float | None = None
    count: float | None = None


class Histogram(BaseModel):
    """Counts between edges; a bin has its lower edge, and the last one both.

    The edges are distances, or of a summary counts.
    """

    edges_m: list[float] | None = None
    edges: list[float] | None = None
    counts: list[int]


class Spread(BaseModel):
    """How far the observations of a result lie from their references, or how many these are."""

    counts: dict[str, int] = Field(description="observations by status")
    percentiles: list[Percentile] = Field(
        description="to 0.01 %; none without a matched observation"
    )
    linear: Histogram
    logarithmic: Histogram = Field(description="the first bin begins at 0")


def _geojson(
    description: str, answers: openapi.Answers | None = None, **told: Any
) -> dict[str, Any]:
    """A route of features, and what is told beside them; as `openapi.route`."""
    kinds = {"type": Literal["FeatureCollection"], **told, "features": list[dict[str, Any]]}
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    made = create_model("GeoJSON", **fields)
    content = {_GEOJSON_TYPE: {"schema": openapi.schema_of(made)}}
    return openapi.route(content, description, answers)


Tile = tuple[int, int, int]
"""Zoom level, column and row."""


def _step(most: int, description: str) -> Any:
    return Path(ge=0, le=most, description=description, openapi_examples=_WORLD)


async def _tile(
    z: Annotated[int, _step(MOST_ZOOM, "zoom level")],
    x: Annotated[int, _step(_MOST, "counted from 180 west")],
    y: Annotated[int, _step(_MOST, "counted from 85 north")],
) -> Tile:
    if max(x, y) >= 1 << z:
        raise errors.NotThere(
            f"there is no tile {z}/{x}/{y}: at zoom {z} columns and rows are 0 to {(1 << z) - 1}"
        )
    return z, x, y


TileOfPath = Annotated[Tile, Depends(_tile)]
Most = Annotated[
    int, Query(ge=0, le=MOST_FEATURES, description="0 asks how many observations there are")
]


class _JobMap(NamedTuple):
    """The map of a job's result, for the owner who asks."""

    job: JobRow
    results: Results
    maps: Maps

    @property
    def shown(self) -> Literal["distance_m", "count"]:
        """What a map shows of the result: distances, or the counts of a summary."""
        return "count" if self.job.options.summary else "distance_m"

    async def manifest(self) -> Manifest:
        if self.shown not in ("distance_m", *self.job.options.made):
            raise errors.NotThere(
                "a map shows distances or counts, which this summary has not: ask for "
                '{"count": true}, too'
            )
        return await self.results.store.files(self.results.manifest_of, self.job)

    def shapes(self) -> Dataset | None:
        """The set that has lines or polygons, if there is one yet."""
        ids = self.job.references, self.job.observations
        sets = (self.results.store.dataset(id) for id in ids)
        return next((one.dataset for one in sets if one and one.dataset.outlines), None)

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns that takes many cores, in the owner's turn."""
        with result_of(self.job):
            return await self.maps.run(self.results.store.owner or "", function)

    async def drawn(self, manifest: Manifest) -> Drawn:
        owner = self.results.store.owner or ""
        observations = partial(self.results.set_of, self.job, "observations")
        with result_of(self.job):
            try:
                return await self.maps.drawn(owner, self.job.id, manifest, observations)
            except SourceFailed as failed:
                raise errors.SetsGone(str(failed)) from None

    async def answer(
        self,
        request: Request,
        tile: Tile,
        media_type: str,
        make: Callable[[Manifest, Drawn], bytes],
    ) -> Response:
        """What is made of a tile, or 304 if the client has it."""
        manifest = await self.manifest()
        tag = "-".join(map(str, (manifest.digest, *tile, media_type)))
        told = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=86400, immutable"}
        if (known := unchanged(request, told)) is not None:
            return known

        async def draw() -> bytes:
            return await self.run(partial(make, manifest, await self.drawn(manifest)))

        # How many features there may be stands in no tag.
        is_picture = media_type == _PNG_TYPE
        name = f"{self.job.id}/{tag}"
        content = await (self.maps.picture(name, draw) if is_picture else draw())
        return Response(content, media_type=media_type, headers=told)


async def _map_of(job: Job, results: OwnResults, request: Request) -> _JobMap:
    refuse_without_result(job)
    return _JobMap(job, results, request.app.state.maps)


JobMap = Annotated[_JobMap, Depends(_map_of)]


@router.get(
    "/jobs/{id}/tiles",
    summary="The result of a job as a layer of a map",
    response_model_exclude_none=True,
)
async def get_tiles(map: JobMap, request: Request) -> TileLayer:
    """The layer as TileJSON 3.0 describes it, which QGIS, Leaflet and MapLibre show.

    The first request makes the map of the result, which takes a second for some millions of rows.
    The coordinates come from the observations of the job, which must be there still then: 410 when
    a registered dataset was removed, or when more than 16 MiB came with a request that did not
    `Accept` GeoJSON. Of `k` references the nearest counts. Pairs within a distance are shown one by
    one, and a summary by its `count`.
    """
    shown, distances = await map.drawn(await map.manifest())
    here = f"{base_of(request)}/jobs/{map.job.id}/tiles"
    scale = scale_of(distances, is_count=map.shown == "count")
    name = "distance of each pair" if map.job.options.has_pairs else _NAMES[map.shown]
    return TileLayer(
        name=name,
        attribution="georesolve",
        tiles=[f"{here}/{{z}}/{{x}}/{{y}}.png"],
        data=[f"{here}/{{z}}/{{x}}/{{y}}.geojson"],
        bounds=shown.bounds_deg or _WORLD_BOUNDS,
        minzoom=0,
        maxzoom=MOST_ZOOM,
        rows=shown.rows,
        rows_beyond=shown.beyond,
        counts=distances.counts,
        most_features=MOST_FEATURES,
        colors=[
            Colour.model_validate({"color": color, map.shown: number})
            for color, number in zip(scale.colours, scale.starts, strict=True)
        ],
        color_unmatched=scale.unmatched,
        shapes=f"{here.removesuffix('tiles')}shapes" if await pools.database(map.shapes) else None,
    )


@router.get(
    "/jobs/{id}/tiles/{z}/{x}/{y}.png",
    summary="A tile of a map of the result",
    openapi_extra=openapi.IF_NONE_MATCH,
    **openapi.route({_PNG_TYPE: openapi.BYTES}, "256 x 256 pixels", openapi.UNCHANGED),
)
async def get_tile(map: JobMap, tile: TileOfPath, request: Request) -> Response:
    """A tile of the web mercator grid, as a picture with a transparent ground.

    A pixel has the colour of the median distance of its matched observations, and an opacity that
    grows with the logarithm of their number; TileJSON tells the colours. Of a summary it is the
    greatest count.
    """
    is_count = map.shown == "count"

    def drawn_tile(_: Manifest, drawn: Drawn) -> bytes:
        shown, distances = drawn
        if not shown.count(*tile):
            return empty_tile()
        square = shown.square(*tile, greatest=is_count)
        return picture(square, scale_of(distances, is_count=is_count), shown.densest(tile[0]))

    return await map.answer(request, tile, _PNG_TYPE, drawn_tile)


@router.get(
    "/jobs/{id}/tiles/{z}/{x}/{y}.geojson",
    summary="The observations of a tile",
    openapi_extra=openapi.IF_NONE_MATCH,
    **_geojson("its observations", openapi.UNCHANGED, observations=int),
)
async def get_tile_features(
    map: JobMap,
    tile: TileOfPath,
    request: Request,
    most: Most = MOST_FEATURES,
    ranks: Annotated[
        Literal["first", "all"],
        Query(description="all: a line to each of `k` references, and not to the nearest alone"),
    ] = "first",
) -> Response:
    """The observations of a tile with the columns of the result, where these are `most` or fewer.

    A matched one is a line from the observation to its reference, in two pieces where it crosses
    the antimeridian; others are points, as are the rows of a summary, and those of a result without
    `near` whose references are lines or polygons. `observations` tells how many the tile has: where
    these are too many, there are no features.
    """

    def collection(manifest: Manifest, drawn: Drawn) -> bytes:
        count = drawn.map.count(*tile)
        found: list[str] = []
        if 0 < count <= most:
            rows, distances = drawn.map.rows_of(*tile)
            if ranks == "all" and map.job.options.ranks > 1:
                table = read_all_ranks(manifest, rows, map.job.options.ranks)
            else:
                table = read_matches(manifest, rows, distances)
            sets = partial(map.results.set_of, map.job)
            own = {False: table}
            # A result says where lines and polygons are nearest if it was asked to.
            is_joined = map.job.options.near or sets("references").outlines is None
            if map.shown != "count" and is_joined:
                is_matched = pc.is_valid(table["reference"])
                own = {True: table.filter(is_matched), False: table.filter(pc.invert(is_matched))}
            for lines, rows in own.items():
                if rows.num_rows:
                    found += features(TableRows(rows), sets, lines=lines)
        head = f'{{"type":"FeatureCollection","observations":{count},"features":['
        return (head + ",\n".join(found) + "]}\n").encode()

    return await map.answer(request, tile, _GEOJSON_TYPE, collection)


def _view(text: str) -> View:
    try:
        west, south, east, north = map(float, text.split(","))
    except ValueError:
        west, south, east, north = _NO_VIEW
    if not (-720 <= west < east <= 720 and -90 <= south < north <= 90):
        raise errors.misplaced(
            "/query/bbox",
            f"{text[:80]!r} is no view: give west,south,east,north in degrees, west and south "
            "before the others, from -720 to 720 and from -90 to 90",
        )
    return west, south, east, north


@router.get(
    "/jobs/{id}/shapes",
    summary="The lines and polygons of the references in a view",
    **_geojson("the largest of them", shapes=int | None),
)
async def get_shapes(
    map: JobMap,
    bbox: Annotated[
        str,
        Query(
            description="west,south,east,north in degrees; a map may be turned beyond 180",
            json_schema_extra={"example": "-180,-90,180,90"},
        ),
    ],
) -> Response:
    """Lines and polygons as a map of 1024 pixels shows them, with 20 000 points together at most.

    `shapes` tells how many are in view: where these are too many, there are features of the largest
    alone. Of a set whose column of them takes more than 32 MiB there are none: `shapes` is null.
    """
    view, own = _view(bbox), await pools.database(map.shapes)
    if own is None:
        raise errors.NotThere("the references are points, or are not kept any more")
    count, found = await map.run(partial(shapes_in, own, view))
    shapes = "null" if count is None else count
    head = f'{{"type":"FeatureCollection","shapes":{shapes},"features":['
    return Response((head + ",\n".join(found) + "]}\n").encode(), media_type=_GEOJSON_TYPE)


@router.get(
    "/jobs/{id}/distances",
    summary="How the distances of a result are spread",
    response_model_exclude_none=True,
)
async def get_distances(map: JobMap) -> Spread:
    """Observations by status, percentiles of their distances, and two histograms.

    The histograms have 64 bins from 0 to the greatest distance: one of equal widths, one whose
    edges from the second on have equal ratios. Of `k` references the nearest counts. Of a summary
    counts take the place of distances, and edges are whole numbers, fewer where these are small.
    """
    found = await map.run(partial(map.maps.distances, map.job.id, await map.manifest()))
    edges = "edges" if map.shown == "count" else "edges_m"
    linear, ratios = (
        Histogram.model_validate({edges: one.edges, "counts": one.counts})
        for one in (found.linear, found.logarithmic)
    )
    percentiles = [
        Percentile.model_validate({"percent": percent, map.shown: number})
        for percent, number in zip(PERCENTS, found.percentiles, strict=False)
    ]
    return Spread(counts=found.counts, percentiles=percentiles, linear=linear, logarithmic=ratios)
