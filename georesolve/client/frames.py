"""Matches as the tables that people work with: pyarrow, pandas, GeoPandas, polars."""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from georesolve.extras import needed
from georesolve.nullable import nullable_types

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import polars
    import pyarrow as pa


def read_arrow(source: Path | BytesIO) -> "pa.Table":
    """The matches in a Parquet file."""
    import pyarrow.parquet as pq

    return pq.read_table(source)


def to_pandas(matches: "pa.Table") -> "pd.DataFrame":
    """Matches as a pandas frame.

    What an unmatched row has none of stays a whole number in the others (`Int64`): no float could
    hold each id.
    """
    import pandas as pd

    whole = nullable_types()
    columns = {
        name: column.to_pandas(types_mapper=whole.get if name.startswith("reference") else None)
        for name, column in zip(matches.column_names, matches.columns, strict=True)
    }
    return pd.DataFrame(columns)


def to_polars(matches: "pa.Table") -> "polars.DataFrame":
    """Matches as a polars frame."""
    import polars

    frame = polars.from_arrow(matches)
    assert isinstance(frame, polars.DataFrame), "a table makes a frame"
    return frame


def to_geopandas(matches: "pa.Table") -> "geopandas.GeoDataFrame":
    """Matches as a GeoPandas frame.

    Its geometry is a geometry column that was carried into the result, else the points of carried
    coordinates: of the references, or of the observations.

    Raises
    ------
    ValueError
        When the result carries neither.
    """
    geopandas = needed("geopandas", "gis", "a GeoPandas frame")
    frame = to_pandas(matches)
    geo = json.loads((matches.schema.metadata or {}).get(b"geo", b"{}"))
    names = [name for name in geo.get("columns", {}) if name in frame]
    if names:
        for name in names:
            frame[name] = geopandas.GeoSeries.from_wkb(frame[name], crs="OGC:CRS84")
        primary = geo.get("primary_column")
        return geopandas.GeoDataFrame(frame, geometry=primary if primary in names else names[0])
    for prefix in ("reference_", "observation_"):
        lat, lon = f"{prefix}lat", f"{prefix}lon"
        if lat in frame and lon in frame:
            points = geopandas.points_from_xy(frame[lon], frame[lat], crs="OGC:CRS84")
            return geopandas.GeoDataFrame(frame, geometry=points)
    raise ValueError(
        "the result carries neither a geometry nor columns 'lat' and 'lon': ask for it with "
        "columns=['geometry'], columns=['lat', 'lon'], or observation_columns likewise"
    )


def as_given(matches: "pa.Table", observations: Any) -> Any:
    """Matches as the kind of table that the observations are; those of other kinds as pyarrow.

    A pandas frame has the index of the observations, each as often as it has rows in the result;
    a GeoPandas frame their geometry, too.
    """
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    geopandas = sys.modules.get("geopandas")
    if polars and isinstance(observations, polars.DataFrame | polars.LazyFrame):
        return to_polars(matches)
    if not pandas or not isinstance(observations, pandas.DataFrame | pandas.Series):
        return matches
    frame = to_pandas(matches)
    rows = matches["observation"].to_numpy()
    index = observations.index
    # With a row for each observation it is as it was, a range included.
    is_same = "rank" not in frame and len(rows) == len(index)
    frame.index = index if is_same else index.take(rows)
    if geopandas and isinstance(observations, geopandas.GeoDataFrame | geopandas.GeoSeries):
        points = observations.geometry.take(rows)
        return geopandas.GeoDataFrame(frame, geometry=points)
    return frame
