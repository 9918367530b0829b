"""`nearest`, `within`, and `Index`: references that are searched more than once."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.dask_frames import is_collection, matched_later
from georesolve.engine.compilation import compiling
from georesolve.engine.gpus import DeviceChoice
from georesolve.engine.in_memory import Progress, Search
from georesolve.frames import given, warn_of_extents
from georesolve.io.columns import NAMED, PREFIXES
from georesolve.io.errors import InvalidInput, InvalidOption
from georesolve.io.local_files import complete
from georesolve.io.points import Points, write_points, write_shapes
from georesolve.io.validation import check_match
from georesolve.options import (
    NearestKeywords,
    Options,
    ReadingKeywords,
    WithinKeywords,
    WithinOptions,
    fields_of,
)
from georesolve.query import Earth, FilterOptions, MatchOptions, with_id

F = TypeVar("F", bound=Callable[..., Any])
_OF_BOTH_TABLES = ("on_invalid", "coordinates", "edges", "densify_m")


class _Call(TypedDict, total=False):
    first_row: int | None
    device: DeviceChoice
    progress: Progress | None


class _Nearest(_Call, NearestKeywords):
    pass


class _Within(_Call, WithinKeywords):
    pass


def _taking(options: type[Options | WithinOptions]) -> Callable[[F], F]:
    """Show the keywords of a function in its signature, with the defaults of these options."""

    def shown(function: F) -> F:
        own = signature(function)
        *first, last = own.parameters.values()
        hints = get_args(last.annotation)[0].__annotations__
        defaults: dict[str, Any] = {"first_row": None, "device": "auto", "progress": None}
        defaults |= {one.name: one.default for one in fields_of(options)}
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in defaults.items()
            if name in hints
        ]
        vars(function)["__signature__"] = own.replace(parameters=[*first, *more])
        return function

    return shown


@_taking(Options)
def nearest(observations: Any, references: Any, **options: Unpack[_Nearest]) -> Any:
    """Find the nearest reference of every observation, exactly, on the globe.

    Parameters
    ----------
    observations, references
        Tables of points in degrees, WGS 84: a DataFrame of pandas, polars or cuDF, one of GeoPandas
        in any CRS (without one it is taken for degrees, with a warning), an Arrow table or
        whatever has an Arrow C stream, a pair of arrays (latitudes, longitudes), a dict of arrays
        by name, a list of records, or the path of a file (Parquet, Arrow, CSV, GeoJSON, GeoPackage,
        FlatGeobuf, shapefile), a folder or a glob, also at an address (``s3://``, ``gs://``,
        ``az://``; of ``https://`` one file). References may also be an `Index`. Observations may be
        a collection of Dask (`dask.dataframe`, `dask_cudf`, `dask_geopandas`), which is matched
        partition by partition when it is computed, and so may references.
    k
        Neighbours an observation, nearest first: 1 to 64.
    max_distance_m
        References farther than this many metres do not match; a distance equal to it does.
    exclude_self
        Whether an observation does not match the reference of its own row: the two are one set.
    near
        Whether the result also has `near_lat` and `near_lon`, the coordinates of the reference as
        they were given, and `bearing_deg`.
    earth
        ``sphere``: metres are those of great circles on a sphere of radius 6 371 008.8 m, and the
        nearest is the nearest by them. ``wgs84``: those of geodesics on the ellipsoid of WGS 84,
        within 1 um, and so is the nearest; for points. None is the sphere, or what an `Index` is
        for; another one beside that is refused.
    how
        ``left``: a row for every observation; ``inner``: for matched ones only.
    columns
        Columns of the references to carry into the result, as ``reference_<name>``; ``"*"`` for
        all. An id column is carried anyway.
    summary
        One row for every observation instead of k: ``{"count": True}`` for how many references
        matched, ``{"size": ["sum", "mean", "min", "max"]}`` for what is made of a column of them.
    first_row
        The row of the first observation, where they are a part of a set: the result counts from it,
        and with `exclude_self` they are the references from that row on.
    device
        ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one. An `Index` is searched on the
        device that it was made for: another one is refused.
    progress
        Called with the number of observations that are resolved, and of all.
    **options
        Further ones, see `georesolve.options.Options`; None leaves any at its default: `by`,
        `time` and `max_time`, `time_direction`, `allow_exact`, `rank_by` for matches by group and
        in time; `observation_columns`, `algorithm`, `lat`, `lon`, `geometry`, `id`, `layer`, `crs`
        (each also for one table alone, as in `observation_lat`), `on_invalid`, `coordinates`,
        `edges`, `densify_m`.

    Returns
    -------
    matches
        A table of the kind of the observations, with their index; for arrays a dict of arrays, for
        a path an Arrow table, for a collection one with its divisions. Its columns are those of the
        service: `observation` (row from 0), `rank` (for k > 1), `reference` (row, missing where
        there is none; -1 in arrays), `distance_m`, `status`, and what is carried. With `near` there
        are `near_lat`, `near_lon` and `bearing_deg` behind the distance: the direction in which the
        great circle, or the geodesic, to the reference begins, clockwise from north, from 0 up to
        360 degrees. All three are missing where there is no reference, and the bearing also where
        the distance is 0.
        At a pole the longitude of the observation says where north is. A GeoDataFrame has the
        points of the observations as its geometry. A summary has the columns `observation`,
        `count`, `size_sum` and so on, `status`, and what is carried of the observations. Its sums
        are exact, and missing values left out: of none the sum is 0, and all else is missing.

    Raises
    ------
    InvalidInput
        When a table is not one of points in degrees, in the words of the service.
    InvalidOption
        When an option is not allowed, or does not fit the tables.
    TypeError
        When something is no table, or an option does not exist.
    NoGpuError
        When ``cuda`` is asked for and there is no GPU.

    Examples
    --------
    >>> import georesolve
    >>> berlin, paris = (52.52, 13.40), (48.86, 2.35)
    >>> matches = georesolve.nearest(([50.11], [8.68]), tuple(zip(berlin, paris)))
    >>> matches["reference"], matches["distance_m"].round()
    (array([0]), array([423279.]))
    """
    with compiling():
        return _resolved(Options, observations, references, **options)


@_taking(WithinOptions)
def within(
    observations: Any, references: Any, distance_m: float | str, **options: Unpack[_Within]
) -> Any:
    """Find all references within a distance of every observation, exactly, on the globe.

    They are those that `nearest` finds with `max_distance_m`, however many.

    Parameters
    ----------
    observations, references, exclude_self, near, earth, columns, summary, first_row, device
        As for `nearest`, and so are `progress` and further options.
    distance_m
        Metres; a reference at that distance matches. Or the name of a column of the observations,
        which has a distance for each.
    once
        Whether of a set against itself each pair is there once, the lower row as the observation.
    how
        ``inner``: a row for every pair; ``left``: and one for every observation without a pair.
    summary_by
        ``reference`` for a summary with a row for every reference, of the observations' columns.

    Returns
    -------
    pairs
        A table as that of `nearest`: for each observation its references, nearest first, equal
        ones by row.

    Raises
    ------
    InvalidInput, InvalidOption, TypeError, NoGpuError
        As for `nearest`; InvalidInput also when a row of the column has no distance.

    Examples
    --------
    >>> import georesolve
    >>> berlin, paris = (52.52, 13.40), (48.86, 2.35)
    >>> pairs = georesolve.within(([50.11], [8.68]), tuple(zip(berlin, paris)), 450_000)
    >>> pairs["reference"], pairs["distance_m"].round()
    (array([0]), array([423279.]))
    """
    asked: dict[str, Any] = {"distance_m": distance_m, **options}
    with compiling():
        return _resolved(WithinOptions, observations, references, **asked)


def _resolved(
    kind: type[Options | WithinOptions],
    observations: Any,
    references: Any,
    /,
    *,
    first_row: int | None = None,
    device: DeviceChoice = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    asked = kind.of(**options)
    if first_row is not None and not (isinstance(first_row, Integral) and first_row >= 0):
        raise InvalidOption(f"first_row must be a row, 0 or more, got {first_row!r}")
    search = references.search if isinstance(references, Index) else None
    if search is not None:
        prefix = PREFIXES["references"]
        for name, value in vars(asked).items():
            is_of_references = name.startswith(prefix) or name in ("edges", "densify_m")
            # It has all columns.
            is_of_references &= name not in ("reference_by", "reference_time")
            if is_of_references and value is not None:
                raise InvalidOption(
                    f"{name} says how references are read, and an Index has read its own: give "
                    f"Index({name.removeprefix(prefix)}={value!r}) instead"
                )
        if (earth := options.get("earth")) not in (None, search.earth):
            raise InvalidOption(
                f"earth is {earth!r}, but the Index is of {search.earth!r}: leave it out, or give "
                f"Index(earth={earth!r}) instead"
            )
        asked = replace(asked, earth=search.earth)
    if is_collection(observations):
        if asked.summed() == "observations" or progress is not None or first_row is not None:
            raise InvalidOption(
                "observations are a collection of Dask, which is matched later and in parts: "
                "summary_by='reference', progress and first_row are for tables: leave them out"
            )
        known = references if search is None else search.references
        return matched_later(observations, known, asked, device, _matched)
    table = given(observations, "observations", first_row)
    points = table.points(asked.reading("observations"), asked.kept("observations"))
    if search is None:
        known = _references(references, observations, points, asked)
        search = Search(known, device, earth=asked.earth)
    elif device not in ("auto", search.device):
        raise InvalidOption(
            f"device is {device!r}, but the Index lies on {search.device!r}: leave device out, or "
            f"give Index(device={device!r})"
        )
    match = _checked(points, search.references, asked, first_row)
    if match.summary_by == "reference":
        if isinstance(references, Index):
            raise InvalidOption(
                "summary_by='reference' searches the observations, not an Index: give the table of "
                "the references"
            )
        # It is as far from a reference to an observation.
        searched = table.on_host(points, match.summarised)
        table = given(references, "references")
        points = search.references
        search = Search(searched, search.device, asking=points, earth=match.earth)
    return table.resolve(points, search, match, progress)


def _checked(
    points: Points, references: Points, asked: Options | WithinOptions, first_row: int | None
) -> MatchOptions:
    """How points are matched, which `asked` says and both sets allow."""
    match = asked.match(points, references)
    against = references
    if first_row is not None and (match.exclude_self or match.once):
        against = references.part(first_row, points.rows)
    check_match(points, against, match, asked.on_invalid)
    if asked.coordinates == "check":
        warn_of_extents(points, references, is_part=first_row is not None)
    return match


def _matched(
    observations: Any, first_row: int, search: Search, asked: Options | WithinOptions
) -> Any:
    """The result for a part of the observations."""
    table = given(observations, "observations", first_row)
    points = table.points(asked.reading("observations"), asked.kept("observations"))
    match = _checked(points, search.references, asked, first_row)
    return table.resolve(points, search, match, None)


def _references(
    references: Any, observations: Any, points: Points, asked: Options | WithinOptions
) -> Points:
    kept = asked.kept("references")
    needed = points.columns if kept is None else with_id(points, tuple(kept))
    is_same = references is observations and {*needed} <= {*points.kept.column_names}
    # Points read of them have no edges.
    is_same &= (asked.edges or asked.densify_m) is None
    reading = asked.reading("references")
    theirs = asked.reading("observations")._replace(prefix="", takes_shapes=True)
    if is_same and reading._replace(prefix="") == theirs:
        return points
    return given(references, "references").points(reading, kept)


class Index:
    """References ready to be searched: built once, asked often.

    It can be pickled, and saved to a file.

    Parameters
    ----------
    references
        A table of points, as for `nearest`. All of its columns are kept, in memory.
    earth
        ``sphere`` or ``wgs84``: what distances are measured on, as for `nearest`.
    by, time
        Columns of the references by whose groups and times it will be asked: what that needs is
        built now. Searches name them again.
    device
        ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
    **reading
        How they are read, as for `nearest`: `lat`, `lon`, `geometry`, `id`, `layer`, `crs`,
        `on_invalid`, `coordinates`, `edges`, `densify_m`.

    Raises
    ------
    InvalidInput
        When it is not a table of points in degrees.
    """

    @_taking(Options)
    def __init__(
        self,
        references: Any,
        *,
        earth: Earth = "sphere",
        by: str | Sequence[str] | None = None,
        time: str | None = None,
        device: DeviceChoice = "auto",
        **reading: Unpack[ReadingKeywords],
    ) -> None:
        for name in reading:
            if name not in (*NAMED, *_OF_BOTH_TABLES):
                known = ", ".join((*NAMED, *_OF_BOTH_TABLES, "earth", "by", "time", "device"))
                raise TypeError(f"an Index has no option {name!r}: there are {known}")
        own = {
            name if name in _OF_BOTH_TABLES else PREFIXES["references"] + name: one
            for name, one in reading.items()
        }
        options = Options.of(**own, earth=earth, reference_by=by, observation_by=by)
        # What it says of its options is said of these.
        own_reading = options.reading("references")._replace(prefix="")
        points = given(references, "references").points(own_reading, None)
        self.search = Search(points, device, earth=options.earth)
        if by is not None or time is not None:
            filters = options.filters or FilterOptions()
            filters = replace(filters, observation_time=time, reference_time=time)
            nothing = points.part(0, 0)
            batch = self.search.batch(nothing, 0, MatchOptions(filters=filters))
            assert batch.narrowed is not None, "there are groups or times"
            self.search.filtered(batch.narrowed)

    def __len__(self) -> int:
        return self.search.references.rows

    def __repr__(self) -> str:
        return f"<georesolve.Index of {len(self)} references on {self.search.device}>"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that a result can carry."""
        return tuple(self.search.references.kept.column_names)

    @_taking(Options)
    def nearest(self, observations: Any, **options: Unpack[_Nearest]) -> Any:
        """Find the nearest reference of every observation: see `georesolve.nearest`."""
        return nearest(observations, self, **options)

    @_taking(WithinOptions)
    def within(self, observations: Any, distance_m: float | str, **options: Unpack[_Within]) -> Any:
        """Find all references within a distance of every observation: see `georesolve.within`."""
        return within(observations, self, distance_m, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the references to a file, as Parquet that any program reads.

        On a CPU what was built of them on a sphere lies beside it, in a file whose name ends in
        ``.index``: `open` maps that into memory, and does without it. Each file is complete or
        absent, whatever happens meanwhile.
        """
        points = self.search.references
        with complete(Path(path)) as temporary:
            if points.shapes is None:
                write_points(points, temporary, {"earth": self.search.earth})
            else:
                write_shapes(points, temporary)
        self.search.save_index(_beside(path))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        earth: Earth | None = None,
        device: DeviceChoice = "auto",
    ) -> Self:
        """Read references that were saved, and map what was built of them.

        It is built anew where its file is missing, damaged or of another version. `earth` is None
        for that of the Index that was saved.

        Raises
        ------
        InvalidInput
            When the file was not made by `save`.
        """
        try:
            metadata = pq.read_schema(path).metadata or {}
            own = json.loads(metadata[b"georesolve"])
            names = {name: own[name] for name in ("lat", "lon", "id")}
            names["geometry"] = json.loads(metadata.get(b"geo", b"{}")).get("primary_column")
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise InvalidInput(
                f"references: {os.fspath(path)!r} was not made by Index.save: make an Index of it, "
                "which reads any table of points"
            ) from error
        trusted: dict[str, Any] = {"on_invalid": "null", "coordinates": "trust"}
        index = cls(
            Path(path), **names, **trusted, earth=earth or own.get("earth", "sphere"), device=device
        )
        index.search.open_index(_beside(path))
        return index


def _beside(path: str | os.PathLike[str]) -> Path:
    """Where the index of saved references lies."""
    return Path(f"{os.fspath(path)}.index")
