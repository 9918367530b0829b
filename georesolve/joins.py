"""`sjoin_nearest` and `sjoin`: GeoPandas's joins of points by distance, on the globe."""

import math
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from georesolve.engine.compilation import compiling
from georesolve.engine.gpus import DeviceChoice
from georesolve.engine.in_memory import Search
from georesolve.engine.plan import cut_by
from georesolve.engine.questions import Batch, Within
from georesolve.frames import given, warn_of_extents
from georesolve.io.columns import Reading, Role
from georesolve.io.errors import InvalidInput
from georesolve.io.extras import needed
from georesolve.io.points import Points
from georesolve.kernels.query import is_valid
from georesolve.options import Options
from georesolve.query import MAX_K, Earth, MatchOptions

if TYPE_CHECKING:
    from geopandas import GeoDataFrame

_HOWS = ["left", "right", "inner"]
_WHOLE_GLOBE_M = 2.0**25
"""Farther than any two points are apart."""


_Found = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The rows that ask, of the right where all of it is kept, those that are found for them, -1 for
none, and the metres between."""


def sjoin_nearest(
    left_df: "GeoDataFrame",
    right_df: "GeoDataFrame",
    how: str = "inner",
    max_distance: float | None = None,
    lsuffix: str = "left",
    rsuffix: str = "right",
    distance_col: str | None = None,
    exclusive: bool = False,
    *,
    k: int = 1,
    earth: Earth = "sphere",
    device: DeviceChoice = "auto",
) -> "GeoDataFrame":
    """Join points to their nearest points, as `geopandas.sjoin_nearest` does, in metres.

    Distances are metres, whatever the CRS: each frame is transformed to longitude and
    latitude on WGS 84 by its own. A frame without a CRS is taken for degrees, with a warning.

    Parameters
    ----------
    left_df, right_df : GeoDataFrame
        Frames of points; missing and empty ones match nothing.
    how : {"inner", "left", "right"}
        Which rows are kept, and whose index and geometry: ``left`` and ``right`` all of that side,
        ``inner`` those of the left that have a match.
    max_distance : float, optional
        Metres, more than 0; a distance equal to it matches.
    lsuffix, rsuffix : str
        What is appended to the names that both frames have, and to ``index_``.
    distance_col : str, optional
        Name of a column for the distances in metres.
    exclusive : bool
        Whether points at a distance of 0 do not match.
    k : int
        How many of the nearest are wanted, 1 to 64. All that are as near as the last of them are
        given, ordered by distance and then by row.
    earth : {"sphere", "wgs84"}
        What metres are measured on: a sphere, or the ellipsoid of WGS 84, by geodesics; for points.
    device : {"auto", "cpu", "cuda"}
        Where to search.

    Raises
    ------
    ValueError
        When an argument is not what it may be, or names of columns are in each other's way.
    InvalidInput
        When a geometry is not a point, or not on the globe.
    MissingExtra
        When GeoPandas is not installed.
    """
    if max_distance is not None and not (isinstance(max_distance, Real) and max_distance > 0):
        raise ValueError(
            f"max_distance must be greater than 0, a number of metres, got {max_distance!r}"
        )
    Options(k=k)
    asking, searched = _sets(left_df, right_df, how, "sjoin_nearest", earth)
    if how == "right":
        asking, searched = searched, asking
    with compiling():
        search = Search(searched, device, earth=earth)
        rows, found, metres = _nearest(search, asking, k, max_distance, exclusive)
    if how == "inner":
        matched = found >= 0
        rows, found, metres = rows[matched], found[matched], metres[matched]
    pairs = rows, found, metres
    return _joined(left_df, right_df, pairs, how, (lsuffix, rsuffix), distance_col)


def sjoin(
    left_df: "GeoDataFrame",
    right_df: "GeoDataFrame",
    how: str = "inner",
    predicate: str = "dwithin",
    lsuffix: str = "left",
    rsuffix: str = "right",
    distance: Any = None,
    *,
    distance_col: str | None = None,
    earth: Earth = "sphere",
    device: DeviceChoice = "auto",
) -> "GeoDataFrame":
    """Join points to all points within a distance, as `geopandas.sjoin` does, in metres.

    Frames, CRSs, what is returned and what is raised are as for `sjoin_nearest`, which describes
    the other parameters, too.

    Parameters
    ----------
    predicate : {"dwithin", "intersects"}
        Within a distance; or at none, in a polygon or on its edge.
    distance : float, or array of shape (n_left,)
        Of ``dwithin``: metres, one distance or one for each row of the left; what is at that
        distance matches.
    """
    if predicate not in ("dwithin", "intersects"):
        raise ValueError(
            f"predicate must be 'dwithin' or 'intersects', got {predicate!r}: points are joined to "
            "the polygons that hold them by 'intersects'"
        )
    if predicate == "intersects":
        if distance is not None:
            raise ValueError(f"distance is of 'dwithin', and 'intersects' has none: {distance!r}")
        distance = 0.0
    left, right = _sets(left_df, right_df, how, "sjoin", earth)
    try:
        metres = np.asarray(distance, np.float64)
    except (TypeError, ValueError):
        metres = np.asarray(math.nan)
    if metres.shape not in ((), (left.rows,)) or not ((metres >= 0) & (metres < np.inf)).all():
        raise ValueError(
            f"distance must be metres, 0 or more: a number, or {left.rows} for the rows of the "
            f"left, got {distance!r:.80}; predicate='intersects' joins to polygons without one"
        )
    each = metres if metres.ndim else float(metres)
    batch = Batch(left.lat_deg, left.lon_deg, 0, each)
    with compiling():
        search = Search(right, device, earth=earth)
        within = search.within(MatchOptions(question="within", earth=earth))
        starts, reference, distance_m = within.pairs(batch)
    pairs = np.arange(left.rows).repeat(np.diff(starts)), reference, distance_m
    if how == "left":
        pairs = _whole(left.rows, *pairs)
    elif how == "right":
        pairs = _whole(right.rows, reference, pairs[0], distance_m)
    return _joined(left_df, right_df, pairs, how, (lsuffix, rsuffix), distance_col)


def _sets(
    left_df: "GeoDataFrame",
    right_df: "GeoDataFrame",
    how: str,
    called: str,
    earth: Earth,
) -> tuple[Points, Points]:
    """The points of two frames that are joined, whose arguments are checked."""
    geopandas = needed("geopandas", "gis", called)
    for name, frame in (("left_df", left_df), ("right_df", right_df)):
        if not isinstance(frame, geopandas.GeoDataFrame):
            raise ValueError(f"{name!r} should be GeoDataFrame, got {type(frame)}")
    if how not in _HOWS:
        raise ValueError(f'`how` was "{how}" but is expected to be in {_HOWS}')
    Options(earth=earth)
    references = _points(right_df, "references", takes_shapes=True)
    if earth != "sphere" and references.shapes is not None:
        raise ValueError(
            f"earth={earth!r} is for points, but right_df has lines or polygons, which are on a "
            "sphere alone: leave it out"
        )
    observations = _points(left_df, "observations")
    warn_of_extents(observations, references)
    return observations, references


def _points(frame: "GeoDataFrame", role: Role, *, takes_shapes: bool = False) -> Points:
    geometry = frame.geometry
    reading = Reading(
        geometry=geometry.name,
        on_invalid="null",
        # Without a CRS: degrees, of which it is looked whether they can be.
        coordinates="check" if geometry.crs is None else "trust",
        takes_shapes=takes_shapes,
    )
    points = given(geometry.to_frame(), role).points(reading, ())
    lat_deg, lon_deg = points.lat_deg, points.lon_deg
    is_there = ~(np.isnan(lat_deg) | np.isnan(lon_deg))
    outside = np.flatnonzero(is_there & ~is_valid(lat_deg, lon_deg))
    if outside.size:
        row = int(outside[0])
        raise InvalidInput(
            f"{role}: {outside.size} points are not on the globe, the first one row {row}, at "
            f"latitude {float(lat_deg[row])!r} and longitude {float(lon_deg[row])!r}: allowed are "
            "latitudes from -90 to 90 and longitudes from -180 to 360"
        )
    return points


def _nearest(
    search: Search, points: Points, k: int, max_distance_m: float | None, exclusive: bool
) -> _Found:
    """The k nearest references of points, and all that are as near as the last of them.

    Each point has a row at least: where it has no reference that is -1, and the metres NaN.
    """
    if points.shapes is None:
        asking, found, metres = _near(search, points, k, exclusive)
    elif exclusive:
        raise ValueError(
            "exclusive with how='right' is for points, and right_df has lines or polygons: leave "
            "one of them out"
        )
    else:
        asking, found, metres = _near_shapes(search, points, k)
    fits = (metres > 0) | (not exclusive)
    if max_distance_m is not None:
        fits &= metres <= max_distance_m
    return _as_near(k, *_whole(points.rows, asking[fits], found[fits], metres[fits]))


def _as_near(k: int, asking: np.ndarray, found: np.ndarray, metres: np.ndarray) -> _Found:
    """Of `_whole` pairs the k nearest, and all that are as near as the last of them."""
    starts = np.flatnonzero(np.diff(asking, prepend=-1))
    last = np.minimum(starts + k, np.append(starts[1:], asking.size)) - 1
    fits = ~(metres > metres[last[asking]])
    return asking[fits], found[fits], metres[fits]


def _whole(rows: int, asking: np.ndarray, found: np.ndarray, metres: np.ndarray) -> _Found:
    """Pairs and the rows that have none, by the row that asks, the distance and the one found."""
    alone = np.setdiff1d(np.arange(rows), asking)
    asking = np.concatenate([asking, alone])
    found = np.concatenate([found, np.full(alone.size, -1)])
    metres = np.concatenate([metres, np.full(alone.size, math.nan)])
    order = np.lexsort((found, metres, asking))
    return asking[order], found[order], metres[order]


def _near(search: Search, points: Points, k: int, exclusive: bool) -> _Found:
    """References of points that are at most as far as the k-th, besides those at their place."""
    width = min(MAX_K, k + 1 + exclusive)
    answer = search.answer(points.lat_deg, points.lon_deg, MatchOptions(k=width))
    reference, metres = (column.reshape(-1, width) for column in answer)
    wanted = k + (
        np.count_nonzero(metres == 0, axis=1) if exclusive else np.zeros(points.rows, int)
    )
    limit = metres[np.arange(points.rows), np.minimum(wanted, width) - 1]
    is_whole = (metres[:, -1] > limit) | (reference[:, -1] < 0)
    at, place = np.nonzero(is_whole[:, None] & (reference >= 0) & ~(metres > limit[:, None]))
    # All within the distance of the others are as near, where a search does not tell of so many.
    rows = np.flatnonzero(~is_whole)
    within = search.within(MatchOptions(question="within"))
    asked = Batch(points.lat_deg[rows], points.lon_deg[rows], 0, 0.0)
    wanted = k + (within.counts(asked) if exclusive else np.zeros(rows.size, int))
    reach, few = limit[rows], np.flatnonzero(wanted > width)
    while few.size:
        reach[few] = 2 * reach[few] + 1
        part = Batch(asked.lat_deg[few], asked.lon_deg[few], 0, reach[few])
        few = few[(within.counts(part) < wanted[few]) & (reach[few] < _WHOLE_GLOBE_M)]
    starts, found, distance_m = within.pairs(asked._replace(distance_m=reach))
    return (
        np.concatenate([at, rows.repeat(np.diff(starts))]),
        np.concatenate([reference[at, place], found]),
        np.concatenate([metres[at, place], distance_m]),
    )


def _near_shapes(search: Search, shapes: Points, k: int) -> _Found:
    """Points that are at most as far from lines and polygons as the k-th: they look for these.

    That of a shape is at most as far as that of the point that it begins at. Shapes with about as
    long a way are looked for together, as many as have few enough pairs within it.
    """
    answer = search.answer(shapes.lat_deg, shapes.lon_deg, MatchOptions(k=k))
    reach = answer.distance_m.reshape(-1, k)[:, -1]
    steps = np.ceil(np.log2(np.nan_to_num(reach, nan=_WHOLE_GLOBE_M / 2) + 1))
    near = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        within, batch = _around(search, shapes, rows, 2.0**step)
        # Few shapes, as most often, cannot have more, and then they are not counted.
        are_few = rows.size * search.references.rows <= within.made_pairs
        each = np.zeros(rows.size, int) if are_few else within.counts(batch)
        for start, stop in cut_by(each, within.made_pairs):
            own = rows[start:stop]
            if own.size < rows.size:
                within, batch = _around(search, shapes, own, 2.0**step)
            starts, point, metres = within.pairs(batch)
            pairs = np.arange(own.size).repeat(np.diff(starts)), point, metres
            shape, point, metres = _as_near(k, *_whole(own.size, *pairs))
            near.append((own[shape], point, metres))
    shape, point, metres = (np.concatenate(column) for column in zip(*near, strict=True))
    return shape, point, metres


def _around(
    search: Search, shapes: Points, rows: np.ndarray, distance_m: float
) -> tuple[Within, Batch]:
    """What finds the points within a distance of some of the shapes, and these."""
    assert shapes.shapes is not None, "there are some"
    own = replace(shapes, rows=rows.size, shapes=shapes.shapes.some(rows))
    options = MatchOptions(question="within", distance_m=distance_m)
    within = Search(search.references, search.device, own).within(options)
    return within, Batch(shapes.lat_deg[rows], shapes.lon_deg[rows], 0, distance_m)


def _joined(
    left_df: "GeoDataFrame",
    right_df: "GeoDataFrame",
    pairs: _Found,
    how: str,
    suffixes: tuple[str, str],
    distance_col: str | None,
) -> "GeoDataFrame":
    """Put the rows of pairs beside each other, with the index and the geometry of one side."""
    import pandas as pd

    frames = (left_df, right_df)
    own = 1 if how == "right" else 0
    rows = pairs[1::-1] if own else pairs[:2]
    geometry = frames[own].geometry.name
    # Those of the columns that an index becomes: its own, or one with the suffix.
    index_names: list[list[Any]] = []
    for frame, other, suffix in zip(frames, frames[::-1], suffixes, strict=True):
        index_names.append([*frame.index.names])
        for level, own_name in enumerate(frame.index.names):
            name = f"index_{suffix}{level if frame.index.nlevels > 1 else ''}"
            if own_name is None and (name in frame.columns or name in other.columns):
                raise ValueError(f"{name!r} cannot be a column name in the frames being joined")
            index_names[-1][level] = name if own_name is None else own_name
    # GeoPandas joins columns of several levels as tuples, too.
    plain = [
        pd.DataFrame(frame).set_axis(frame.columns.to_flat_index(), axis="columns")
        for frame in frames
    ]
    plain[1 - own] = plain[1 - own].drop(columns=frames[1 - own].geometry.name)
    plain = [
        frame.reset_index(names=names) for frame, names in zip(plain, index_names, strict=True)
    ]
    shared = plain[0].columns.intersection(plain[1].columns)
    if len(shared) and not any(suffixes):
        raise ValueError(f"columns overlap but no suffix specified: {shared}")
    taken = []
    for side, suffix in enumerate(suffixes):
        kept = {geometry} if side == own else set()
        new = {name: f"{name}_{suffix}" for name in shared if suffix and name not in kept}
        index_names[side] = [new.get(name, name) for name in index_names[side]]
        # -1 is no label of theirs: such a row is missing.
        taken.append(plain[side].rename(columns=new).reindex(rows[side]).reset_index(drop=True))
    joined = pd.concat(taken, axis=1)
    if not joined.columns.is_unique:
        twice = joined.columns[joined.columns.duplicated()].tolist()
        raise ValueError(f"several columns would have the names {twice}: choose other suffixes")
    joined = joined.set_index(index_names[own])
    joined.index.names = frames[own].index.names
    if distance_col is not None:
        joined[distance_col] = pairs[2]
    return type(frames[own])(joined, geometry=geometry, crs=frames[own].crs)
