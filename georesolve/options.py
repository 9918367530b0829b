"""How observations are matched, and how both tables are read: the options of the service.

This is the one list of them: calls, the command line, clients and checks follow its fields, and
what an option means stands beside it, here or in `MatchOptions`. Editors and type checkers see in
calls what is typed as keywords, which are the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from numbers import Integral, Real
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from georesolve.engine.durations import nanoseconds, told_length
from georesolve.io.columns import (
    EVERY,
    Edges,
    OnInvalid,
    Reading,
    Role,
    Trust,
    reading_for,
)
from georesolve.io.errors import InvalidOption, meant
from georesolve.query import (
    KINDS,
    MAX_K,
    Algorithm,
    Direction,
    Earth,
    FilterOptions,
    How,
    MatchOptions,
    Question,
    RankBy,
    SummaryBy,
    option,
)

if TYPE_CHECKING:
    from georesolve.io.datasets import PointSet

T = TypeVar("T", bound="_Shared")

_METRES = "a finite number of metres, 0 or more"
_MATCH = {one.name: one for one in fields(MatchOptions)}


def _of_match(name: str) -> Any:
    """An option as `MatchOptions` has it."""
    return field(default=_MATCH[name].default, metadata=_MATCH[name].metadata)


def fields_of(options: type[Any]) -> list[Field[Any]]:
    """The options of a class, first those that it has alone."""
    shared = {one.name for one in fields(_Shared)}
    return sorted(fields(options), key=lambda one: one.name in shared)


def _described(options: type[T]) -> type[T]:
    """Options whose class tells the few values that some may have, and what all of them mean."""
    told = (
        f"{one.name}\n    {one.metadata['description']}"
        for one in fields_of(options)
        if one.metadata
    )
    options.__doc__ = "\n".join([f"{options.__doc__}\n\nParameters\n----------", *told])
    values: dict[str, tuple[Any, ...]] = {}
    for name, hint in get_type_hints(options).items():
        kinds = get_args(hint) if get_origin(hint) is Union else (hint,)
        if hint is bool:
            values[name] = (False, True)
        elif all(kind is NoneType or get_origin(kind) is Literal for kind in kinds):
            values[name] = tuple(one for kind in kinds for one in get_args(kind) or (None,))
    options.values = values
    return options


class ReadingKeywords(TypedDict, total=False):
    """How a table is read; None leaves an option of a call at its default."""

    lat: str | None
    lon: str | None
    geometry: str | None
    id: str | None
    layer: str | None
    crs: str | None
    on_invalid: OnInvalid | None
    coordinates: Trust | None
    edges: Edges | None
    densify_m: float | None


class _SharedKeywords(ReadingKeywords, total=False):
    exclude_self: bool | None
    near: bool | None
    earth: Earth | None
    algorithm: Algorithm | None
    how: How | None
    columns: Sequence[str] | Literal["*"] | None
    observation_columns: Sequence[str] | Literal["*"] | None
    observation_lat: str | None
    observation_lon: str | None
    observation_geometry: str | None
    observation_id: str | None
    observation_layer: str | None
    observation_crs: str | None
    reference_lat: str | None
    reference_lon: str | None
    reference_geometry: str | None
    reference_id: str | None
    reference_layer: str | None
    reference_crs: str | None
    summary: Mapping[str, Any] | None
    by: str | Sequence[str] | None
    observation_by: str | Sequence[str] | None
    reference_by: str | Sequence[str] | None
    time: str | None
    observation_time: str | None
    reference_time: str | None
    max_time: str | float | timedelta | np.timedelta64 | None
    time_direction: Direction | None
    allow_exact: bool | None


class NearestKeywords(_SharedKeywords, total=False):
    """The fields of `Options`, as calls take them."""

    k: int | None
    max_distance_m: float | None
    rank_by: RankBy | None


class WithinKeywords(_SharedKeywords, total=False):
    """Those of `WithinOptions`, but for the distance."""

    once: bool | None
    summary_by: SummaryBy | None


class JobKeywords(NearestKeywords, WithinKeywords, total=False):
    """Either question to a service, which may write the result where `output` says."""

    question: Question
    distance_m: float | str
    output: str | None
    name: str | None


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What may be said whatever is asked."""

    exclude_self: bool = _of_match("exclude_self")
    near: bool = _of_match("near")
    earth: Earth = _of_match("earth")
    algorithm: Algorithm = _of_match("algorithm")
    how: How = _of_match("how")
    columns: tuple[str, ...] | Literal["*"] = _of_match("columns")
    observation_columns: tuple[str, ...] | Literal["*"] = _of_match("observation_columns")
    lat: str | None = option(None, "name of the column of latitudes")
    lon: str | None = option(None, "name of the column of longitudes")
    geometry: str | None = option(
        None,
        "name of a column of points, or of references of lines and polygons (WKB or GeoArrow)",
    )
    id: str | None = option(None, "name of the id column")
    observation_lat: str | None = None
    observation_lon: str | None = None
    observation_geometry: str | None = None
    observation_id: str | None = None
    reference_lat: str | None = None
    reference_lon: str | None = None
    reference_geometry: str | None = None
    reference_id: str | None = None
    layer: str | None = option(
        None, "layer of a GeoPackage, or shapefile of a ZIP archive, with several"
    )
    observation_layer: str | None = None
    reference_layer: str | None = None
    crs: str | None = option(
        None,
        "CRS of columns of coordinates, and of a layer or GeoParquet that does not say its own, "
        "such as EPSG:25832; degrees on WGS 84 without it",
    )
    observation_crs: str | None = None
    reference_crs: str | None = None
    on_invalid: OnInvalid = option(
        "error", "error: refuse invalid coordinates; null: keep them with a status"
    )
    coordinates: Trust = option(
        "check",
        "check: refuse a table whose coordinates prove to be metres, radians or swapped; trust: "
        "they are degrees, whatever they look like",
    )
    edges: Edges | None = option(
        None,
        "how edges of lines and polygons run: planar, straight in longitude and latitude; "
        "spherical, along great circles; by default as GeoParquet says, else planar",
    )
    densify_m: float | None = option(
        None,
        "metres within which great circles follow a planar edge, and to which distances to it are "
        "right; 1 by default",
        ge=0.001,
        allow_inf_nan=False,
    )
    summary: Any = _of_match("summary")
    by: Any = option(None, "only references with equal values in these columns of both sets match")
    observation_by: Any = option(None, "`by` of the observations alone")
    reference_by: Any = option(None, "`by` of the references alone")
    time: str | None = option(
        None, "the column of times of both sets, by which `max_time` and others restrict or rank"
    )
    observation_time: str | None = option(None, "`time` of the observations alone")
    reference_time: str | None = option(None, "`time` of the references alone")
    max_time: Any = option(
        None,
        "references farther apart in time do not match: 15min, 2h, 90s, 1d, or a number for times "
        "that are numbers",
    )
    time_direction: Direction = option(
        "nearest", "backward: references not later than the observation; forward: not earlier"
    )
    allow_exact: bool = option(True, "false: no reference of the very time matches")

    question: ClassVar[Question] = "nearest"
    values: ClassVar[dict[str, tuple[Any, ...]]]

    def __post_init__(self) -> None:
        for name, allowed in self.values.items():
            given = getattr(self, name)
            if allowed == (False, True):
                if not isinstance(given, bool | np.bool_ | Integral) or given not in allowed:
                    raise InvalidOption(f"{name} must be True or False, got {given!r}")
            elif not isinstance(given, str | None) or given not in allowed:
                words = ", ".join(filter(None, allowed))
                raise InvalidOption(f"{name} must be one of {words}, got {given!r}")
        if self.densify_m is not None and not (_are_metres(self.densify_m) and self.densify_m > 0):
            raise InvalidOption(
                f"densify_m must be a number of metres, more than 0, or None for 1 metre, got "
                f"{self.densify_m!r}"
            )
        for name in ("columns", "observation_columns"):
            given = getattr(self, name)
            if isinstance(given, str) and given == EVERY:
                continue
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise InvalidOption(
                    f"{name} must be a list of names, or {EVERY!r} for all: write [{str(given)!r}]"
                )
            names = [*given]
            if not all(isinstance(one, str) for one in names):
                raise InvalidOption(f"{name} must be names of columns, got {given!r}")
            # Each once, in the order that they were given.
            object.__setattr__(self, name, tuple(dict.fromkeys(map(str, names))))
        self._settle_summary()
        for name in ("time", "observation_time", "reference_time"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidOption(
                    f"{name} must be the name of a column, got {getattr(self, name)!r}"
                )
        self._check_filters()

    @property
    def filters(self) -> FilterOptions | None:
        """By group and in time, if that is asked."""
        own = _names_of("observation_by", self.observation_by, self.by)
        theirs = _names_of("reference_by", self.reference_by, self.by)
        own_time, their_time = self.observation_time or self.time, self.reference_time or self.time
        if not (own or theirs or own_time or their_time):
            return None
        return FilterOptions(
            observation_by=own,
            reference_by=theirs,
            observation_time=own_time,
            reference_time=their_time,
            max_time=told_length(self.max_time),
            time_direction=self.time_direction,
            allow_exact=bool(self.allow_exact),
            rank_by=getattr(self, "rank_by", "distance"),
        )

    def _check_filters(self) -> None:
        given = self.max_time
        if given is not None:
            length = nanoseconds(given)
            # numpy counts a timedelta64 among the integers.
            is_length = isinstance(given, np.timedelta64)
            is_number = isinstance(given, Real) and not isinstance(given, bool) and not is_length
            if not (length is not None and length >= 0) and not (
                is_number and 0 <= given < math.inf
            ):
                unit = np.datetime_data(given.dtype)[0] if is_length else ""
                advice = ": give days, as months and years differ" if unit in ("M", "Y") else ""
                raise InvalidOption(
                    "max_time must be a length of time such as '15min', '2h' or '90s' (d, h, min, "
                    "s, ms, us, ns), in Python also a timedelta such as "
                    f"pandas.Timedelta('1h30min'), or a number, 0 or more, got {given!r}{advice}"
                )
        filters = self.filters or FilterOptions()
        own, theirs = filters.observation_by, filters.reference_by
        if len(own) != len(theirs):
            raise InvalidOption(
                f"by compares columns one by one: {len(own)} of the observations "
                f"({', '.join(own)}) and {len(theirs)} of the references ({', '.join(theirs)})"
            )
        if (filters.observation_time is None) != (filters.reference_time is None):
            raise InvalidOption(
                "time is of both sets: give time, or observation_time and reference_time"
            )
        restricts = (
            self.max_time is not None
            or self.time_direction != "nearest"
            or not self.allow_exact
            or getattr(self, "rank_by", "distance") == "time"
        )
        if restricts and filters.observation_time is None:
            raise InvalidOption(
                "time must name the column of times: max_time, time_direction, allow_exact "
                "and rank_by='time' are for times"
            )
        if filters.observation_time is not None and not restricts:
            raise InvalidOption(
                "time restricts nothing so: give max_time, time_direction or rank_by='time'"
            )
        if self.filters is not None and self.summed() == "observations":
            raise InvalidOption(
                "summary_by='reference' knows no groups and times: leave by and time out"
            )

    def _settle_summary(self) -> None:
        if self.summary is None or self.summary == {}:
            vars(self).update(summary={})
            return
        carried = "observation_columns" if self.summed() == "observations" else "columns"
        for name in ("near", carried):
            if getattr(self, name):
                raise InvalidOption(f"{name} is for pairs, and a summary has none: leave one out")
        vars(self).update(summary=_summary(self.summary), how="left")

    def summed(self) -> Role:
        """The set of which a summary has columns."""
        is_turned = getattr(self, "summary_by", "observation") == "reference"
        return "observations" if is_turned else "references"

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Options by their names, None for the default; raises TypeError of unknown names."""
        known = {field.name: field.default for field in fields(cls)}
        for name in given:
            if name not in known:
                raise TypeError(
                    f"there is no option {name!r}{meant(name, known)}; there are {', '.join(known)}"
                )
        said = (name for name, one in given.items() if one is not None or known[name] is MISSING)
        return cls(**{name: given[name] for name in said})

    def match(self, observations: "PointSet", references: "PointSet") -> MatchOptions:
        """The options that say how to match two sets."""
        names = [field.name for field in fields(MatchOptions)]
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        for name, one in (("columns", references), ("observation_columns", observations)):
            if given[name] == EVERY:
                given[name] = tuple(one.columns)
        return MatchOptions(**given)

    def kept(self, role: Role) -> list[str] | None:
        """Columns that a result carries of a set, or that it is made of; None for all."""
        names = self.columns if role == "references" else self.observation_columns
        if names == EVERY:
            return None
        distance = getattr(self, "distance_m", None) if role == "observations" else None
        filters = self.filters or FilterOptions()
        of_both = {"observations": filters.of_observations, "references": filters.of_references}
        summed = [name for name, kinds in self.summary.items() if kinds != ("count",)]
        return [
            *names,
            *([distance] if isinstance(distance, str) else []),
            *(summed if role == self.summed() else []),
            *(name for name in of_both[role] if name not in names),
        ]

    def reading(self, role: Role) -> Reading:
        """How to read one of the two tables."""
        of_both = {one.name for one in fields(self)}.intersection(Reading._fields)
        given = {name: getattr(self, name) for name in of_both}
        return reading_for(role, Reading(**given, takes_shapes=role == "references"), self)


@_described
@dataclass(frozen=True, kw_only=True)
class Options(_Shared):
    """What a user may say, with the names and the defaults of the service.

    What names a column, a layer or a CRS of both tables can be said of one alone, which counts
    before, as `observation_lat` or `reference_crs`. What is not allowed raises InvalidOption.
    """

    k: int = _of_match("k")
    max_distance_m: float | None = _of_match("max_distance_m")
    rank_by: RankBy = option("distance", "time: the least time apart comes first")

    def __post_init__(self) -> None:
        # True is a whole number to Python, and to nobody else; those of numpy are numbers, too.
        if isinstance(self.k, bool) or not isinstance(self.k, Integral) or not 1 <= self.k <= MAX_K:
            raise InvalidOption(f"k must be a whole number from 1 to {MAX_K}, got {self.k!r}")
        limit = self.max_distance_m
        if limit is not None and not _are_metres(limit):
            raise InvalidOption(
                f"max_distance_m must be {_METRES}, or None for no limit, got {limit!r}"
            )
        super().__post_init__()


@_described
@dataclass(frozen=True, kw_only=True)
class WithinOptions(_Shared):
    """What a user may say of all references within a distance.

    What names a column, a layer or a CRS of both tables can be said of one alone, which counts
    before, as `observation_lat` or `reference_crs`. What is not allowed raises InvalidOption.
    """

    distance_m: float | str = field(metadata=_MATCH["distance_m"].metadata)
    how: How = field(default="inner", metadata=_MATCH["how"].metadata)
    once: bool = _of_match("once")
    summary_by: SummaryBy = _of_match("summary_by")

    question = "within"

    def __post_init__(self) -> None:
        given = self.distance_m
        if not isinstance(given, str) and not _are_metres(given):
            raise InvalidOption(
                f"distance_m must be {_METRES}, or the name of a column of the observations, got "
                f"{given!r}"
            )
        super().__post_init__()
        if self.summary_by != "reference":
            return
        if not self.summary:
            raise InvalidOption("summary_by is for a summary: give one, as {'count': True}")
        if self.once or isinstance(self.distance_m, str):
            raise InvalidOption(
                "summary_by='reference' takes one distance for all, and not once: leave it out, or "
                "give a number as distance_m"
            )


def _names_of(option: str, own: Any, of_both: Any) -> tuple[str, ...]:
    """Names of columns, of one set or else of both."""
    given = of_both if own is None else own
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise InvalidOption(
            f"{option} must be the name of a column, or a list of some, got {given!r}: name one, "
            "or leave it out"
        )
    return tuple(names)


def _summary(given: Any) -> dict[str, tuple[str, ...]]:
    """What is made of which column; raises InvalidOption where that cannot be."""
    if not isinstance(given, Mapping) or not given:
        raise InvalidOption(
            f"summary must be a dict such as {{'count': True, 'size': ['sum']}}, got {given!r}"
        )
    made: dict[str, tuple[str, ...]] = {}
    for name, kinds in given.items():
        # The number of pairs stands with what is made of a column "count", if there is one.
        allowed = (*KINDS, "count") if name == "count" else KINDS
        one = ["count"] if name == "count" and kinds is True else kinds
        listed = [*one] if isinstance(one, Iterable) and not isinstance(one, str) else []
        if not listed or not all(kind in allowed for kind in listed):
            raise InvalidOption(
                f"summary makes {', '.join(KINDS)} of a column: write {{{str(name)!r}: ['sum']}}, "
                f"got {{{name!r}: {kinds!r}}}"
            )
        made[str(name)] = tuple(dict.fromkeys(listed))
    return made


def _are_metres(given: Any) -> bool:
    try:
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        return is_number and 0 <= float(given) < math.inf
    except OverflowError:
        return False


READING = {one.name: one for one in fields(Options) if one.name in ReadingKeywords.__annotations__}
"""How a table is read."""
FILTERS = {
    one.name: one
    for one in fields(Options)
    if one.name in {"by", "time", *(of.name for of in fields(FilterOptions))}
}
"""The options by group and in time, as `MatchOptions` has others."""
