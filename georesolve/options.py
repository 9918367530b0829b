"""How observations are matched, and how both tables are read: the options of the service."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from georesolve.intake.columns import EVERY, Edges, OnInvalid, Reading, Role, Trust, reading_for
from georesolve.intake.errors import InvalidOption, meant
from georesolve.kernels import ALGORITHMS, MAX_K, Earth
from georesolve.kernels.ways import Algorithm
from georesolve.workers.datasets import PointSet
from georesolve.workers.filters import nanoseconds, told_length
from georesolve.workers.jobs import (
    Direction,
    FilterOptions,
    How,
    MatchOptions,
    Question,
    RankBy,
    about,
)
from georesolve.workers.summaries import KINDS

_METRES = "a finite number of metres, 0 or more"


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What may be said whatever is asked: `Options` describes it."""

    exclude_self: bool = False
    near: bool = False
    earth: Earth = "sphere"
    algorithm: Algorithm = "auto"
    how: How = "left"
    columns: tuple[str, ...] | Literal["*"] = ()
    observation_columns: tuple[str, ...] | Literal["*"] = ()
    lat: str | None = None
    lon: str | None = None
    geometry: str | None = None
    id: str | None = None
    observation_lat: str | None = None
    observation_lon: str | None = None
    observation_geometry: str | None = None
    observation_id: str | None = None
    reference_lat: str | None = None
    reference_lon: str | None = None
    reference_geometry: str | None = None
    reference_id: str | None = None
    layer: str | None = None
    observation_layer: str | None = None
    reference_layer: str | None = None
    crs: str | None = None
    observation_crs: str | None = None
    reference_crs: str | None = None
    on_invalid: OnInvalid = "error"
    coordinates: Trust = "check"
    edges: Edges | None = None
    densify_m: float | None = None
    summary: Any = None
    by: Any = field(
        default=None,
        metadata=about("only references with equal values in these columns of both sets match"),
    )
    observation_by: Any = field(default=None, metadata=about("`by` of the observations alone"))
    reference_by: Any = field(default=None, metadata=about("`by` of the references alone"))
    time: str | None = field(
        default=None,
        metadata=about("the column of times of both sets, for the options that follow"),
    )
    observation_time: str | None = field(
        default=None, metadata=about("`time` of the observations alone")
    )
    reference_time: str | None = field(
        default=None, metadata=about("`time` of the references alone")
    )
    max_time: Any = field(
        default=None,
        metadata=about(
            "references farther apart in time do not match; `15min`, or a number for such times"
        ),
    )
    time_direction: Direction = field(
        default="nearest",
        metadata=about("backward: references not later than the observation; forward: not earlier"),
    )
    allow_exact: bool = field(
        default=True, metadata=about("whether a reference of the very time matches")
    )

    question: ClassVar[Question] = "nearest"

    def __post_init__(self) -> None:
        self._refuse_unless_true_or_false("exclude_self")
        self._refuse_unless_true_or_false("near")
        for name, allowed in _CHOICES.items():
            given = getattr(self, name, allowed[0])
            if given is None and name == "edges":
                continue
            if not isinstance(given, str) or given not in allowed:
                raise InvalidOption(f"{name} must be one of {', '.join(allowed)}, got {given!r}")
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
        self._refuse_unless_true_or_false("allow_exact")
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
            is_number = isinstance(given, Real) and not isinstance(given, bool)
            if not (length is not None and length >= 0) and not (
                is_number and 0 <= given < math.inf
            ):
                raise InvalidOption(
                    "max_time must be a length of time such as '15min', '2h' or '90s' (d, h, min, "
                    f"s, ms, us, ns), a timedelta, or a number, 0 or more, got {given!r}"
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
        by_time = getattr(self, "rank_by", "distance") == "time"
        restricts = (self.max_time is not None, self.time_direction != "nearest",
                     not self.allow_exact)  # fmt: skip
        if filters.observation_time is None:
            if any(restricts) or by_time:
                raise InvalidOption(
                    "time must name the column of times: max_time, time_direction, allow_exact "
                    "and rank_by='time' are for times"
                )
        elif not (any(restricts) or by_time):
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

    def _refuse_unless_true_or_false(self, name: str) -> None:
        given = getattr(self, name)
        if not isinstance(given, bool | np.bool_ | Integral) or given not in (0, 1):
            raise InvalidOption(f"{name} must be True or False, got {given!r}")

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Options by their names; raises TypeError of a name that there is not."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(
                    f"there is no option {name!r}{meant(name, known)}; there are {', '.join(known)}"
                )
        return cls(**given)

    def match(self, observations: PointSet, references: PointSet) -> MatchOptions:
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
        both = Reading(
            *(self.lat, self.lon, self.id, self.geometry, self.on_invalid, self.coordinates),
            layer=self.layer,
            crs=self.crs,
            takes_shapes=role == "references",
            edges=self.edges,
            densify_m=self.densify_m,
        )
        return reading_for(role, both, self)


@dataclass(frozen=True, kw_only=True)
class Options(_Shared):
    """What a user may say, with the names and the defaults of the service.

    Parameters
    ----------
    k
        Neighbours an observation, nearest first: 1 to 64.
    max_distance_m
        References farther than this many metres do not match; None for no limit.
    exclude_self
        Whether an observation does not match the reference of its own row: the two are one set.
    near
        Whether the result also has `near_lat` and `near_lon`, where the reference lies as it was
        given, and `bearing_deg`, in which direction from the observation.
    earth
        ``sphere``: metres are those of great circles on a sphere of the Earth's mean radius;
        ``wgs84``: those of geodesics on the ellipsoid of WGS 84, by which the nearest is found.
        For points.
    algorithm
        ``auto``, ``tree`` or ``brute``: the answer is the same.
    how
        ``left``: a row for every observation; ``inner``: for matched ones only.
    columns, observation_columns
        Columns to carry into the result, of the references and of the observations; ``*`` for all.
    lat, lon, geometry, id
        Names of columns in both tables; None where they are to be recognised. Those that begin with
        ``observation_`` or ``reference_`` count for one table, and before these.
    layer, observation_layer, reference_layer
        Name of the layer of a GeoPackage that has several; None for the only one, or the only one
        of points. For both files, or for one, which counts before.
    crs, observation_crs, reference_crs
        CRS of columns of coordinates, or of a layer that does not say its own, such as
        ``EPSG:25832``; None for degrees on WGS 84. For both tables, or for one.
    on_invalid
        ``error``: rows with invalid coordinates are refused; ``null``: kept, with a status.
    coordinates
        ``check``: a table whose coordinates prove to be metres, radians or swapped is refused;
        ``trust``: they are degrees, whatever they look like.
    edges
        How edges of lines and polygons run: ``planar``, straight in longitude and latitude, or
        ``spherical``, along great circles. None for what GeoParquet says of them, else planar.
    densify_m
        Metres within which arcs of great circles follow a planar edge; None for 1.
    summary
        Instead of a row for each match one for each observation: ``{"count": True}`` for the number
        of its references, ``{"size": ["sum", "mean", "min", "max"]}`` for what is made of a column
        of them.
    by, observation_by, reference_by
        Only references with equal values in these columns match: a name, or a list of names, of
        both sets or of one. Text, whole numbers, booleans, dates and categories of these compare
        by value; an observation without a value matches nothing (`missing_value`).
    time, observation_time, reference_time
        The columns of times: timestamps of any unit, all with a zone or all without; dates; or
        whole numbers. The result has `time_apart`, reference less observation.
    max_time
        References farther apart in time do not match: ``15min``, a timedelta, or a number for times
        that are numbers. What is that far apart does.
    time_direction
        ``backward``: references not later than the observation; ``forward``: not earlier;
        ``nearest``: both.
    allow_exact
        Whether a reference of the very time of the observation matches.
    rank_by
        ``time``: the least time apart comes first, then the nearest, then the lowest row.

    Raises
    ------
    InvalidOption
        When a value is not allowed.
    """

    k: int = 1
    max_distance_m: float | None = None
    rank_by: RankBy = field(
        default="distance", metadata=about("time: the least time apart comes first")
    )

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


@dataclass(frozen=True, kw_only=True)
class WithinOptions(_Shared):
    """What a user may say of all references within a distance; the others are as in `Options`.

    Parameters
    ----------
    distance_m
        Metres; a distance equal to it matches. Or the name of a column of the observations, which
        has a distance for each.
    how
        ``inner``: a row for every pair; ``left``: and one for every observation without a pair.
    once
        Whether of a set against itself each pair is there once, with its lower row as the
        observation.
    summary_by
        ``reference`` for a summary with a row for each reference, of the observations' columns.

    Raises
    ------
    InvalidOption
        When a value is not allowed.
    """

    distance_m: float | str
    how: How = "inner"
    once: bool = False
    summary_by: Literal["observation", "reference"] = "observation"

    question = "within"

    def __post_init__(self) -> None:
        given = self.distance_m
        if not isinstance(given, str) and not _are_metres(given):
            raise InvalidOption(
                f"distance_m must be {_METRES}, or the name of a column of the observations, got "
                f"{given!r}"
            )
        self._refuse_unless_true_or_false("once")
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


FILTERS = {one.name: one for one in fields(Options) if one.metadata}
"""The options by group and in time, as `MatchOptions` has others."""
_CHOICES = {
    "earth": get_args(Earth),
    "algorithm": ALGORITHMS,
    "how": get_args(How),
    "on_invalid": get_args(OnInvalid),
    "coordinates": get_args(Trust),
    "edges": get_args(Edges),
    "time_direction": get_args(Direction),
    "rank_by": get_args(RankBy),
    "summary_by": ("observation", "reference"),
}
