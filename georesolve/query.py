"""Question, options and their bounds: what a caller may ask of a search."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, TypeVar, get_args

MAX_K = 64
Earth = Literal["sphere", "wgs84"]
EARTHS: tuple[Earth, ...] = get_args(Earth)
"""Surfaces that distances are measured on: a sphere, or the ellipsoid of WGS 84."""
Algorithm = Literal["auto", "tree", "brute"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
How = Literal["left", "inner"]
Question = Literal["nearest", "within"]
Direction = Literal["nearest", "backward", "forward"]
RankBy = Literal["distance", "time"]
SummaryBy = Literal["observation", "reference"]
KINDS = ("sum", "mean", "min", "max")
"""What a summary makes of a column."""
NEAR = ("near_lat", "near_lon", "bearing_deg")
"""Result columns of the option `near`, behind the distances."""

S = TypeVar("S")


class NamedColumns(Protocol):
    """Columns of a set that options refer to."""

    @property
    def id(self) -> str | None: ...  # noqa: D102
    @property
    def lat(self) -> str: ...  # noqa: D102
    @property
    def lon(self) -> str: ...  # noqa: D102
    @property
    def outlines(self) -> Any: ...  # noqa: D102


def option(default: Any, description: str, **more: Any) -> Any:
    """The field of an option, which tells what it means, and what it may be."""
    return field(default=default, metadata={"description": description, **more})


@dataclass(frozen=True)
class FilterOptions:
    """By which columns of each set, and how, references are left out or ranked."""

    observation_by: tuple[str, ...] = ()
    reference_by: tuple[str, ...] = ()
    observation_time: str | None = None
    reference_time: str | None = None
    max_time: str | int | None = None
    time_direction: Direction = "nearest"
    allow_exact: bool = True
    rank_by: RankBy = "distance"

    @property
    def of_observations(self) -> list[str]:
        """The columns of the observations that are needed."""
        return [*self.observation_by, *filter(None, [self.observation_time])]

    @property
    def of_references(self) -> list[str]:
        """Likewise of the references."""
        return [*self.reference_by, *filter(None, [self.reference_time])]


@dataclass(frozen=True)
class MatchOptions:
    """How observations are matched, with the nearest references or with all within a distance.

    What an option means, and what it may be, stands beside it: what the service says of its
    parameters follows from that. `of` is the question that has it, where the other has not.
    """

    question: Question = option("nearest", "within: all references within `distance_m`, not k")
    k: int = option(
        1,
        f"neighbours of each observation, nearest first: 1 to {MAX_K}",
        of="nearest",
        ge=1,
        le=MAX_K,
    )
    max_distance_m: float | None = option(
        None,
        "references farther away do not match, one just as far does",
        of="nearest",
        ge=0,
        allow_inf_nan=False,
    )
    distance_m: float | str | None = option(
        None, "metres, inclusive, or the observations' column of them", of="within"
    )
    exclude_self: bool = option(
        False, "no reference of the observation's own row: a set against itself"
    )
    once: bool = option(False, "of a set against itself each pair once", of="within")
    summary: dict[str, tuple[str, ...]] | None = option(
        None,
        "a row an observation: how many references match it, and sum, mean, min or max of columns "
        "of them; a JSON object",
    )
    summary_by: SummaryBy = option(
        "observation", "reference: a row a reference, of its observations", of="within"
    )
    near: bool = option(False, "also where the reference lies, and the bearing to it, in degrees")
    earth: Earth = option(
        "sphere", "what metres are measured on: a sphere, or for points the ellipsoid of WGS 84"
    )
    algorithm: Algorithm = option("auto", "how to search; same answer")
    how: How = option(
        "left", "left: all observations; inner: matched ones only, the default of within"
    )
    columns: tuple[str, ...] = option((), "reference columns to carry into the result; `*` for all")
    observation_columns: tuple[str, ...] = option((), "likewise of the observations")
    filters: FilterOptions | None = None

    def __post_init__(self) -> None:
        # Equal options are the same, whatever numbers they came as: results tell of them. 0 is
        # added for that of -0.0.
        limit, given = self.max_distance_m, self.distance_m
        vars(self).update(
            k=int(self.k),
            max_distance_m=None if limit is None else float(limit) + 0.0,
            distance_m=given if given is None or isinstance(given, str) else float(given) + 0.0,
            exclude_self=bool(self.exclude_self),
            once=bool(self.once),
            near=bool(self.near),
        )

    @property
    def has_pairs(self) -> bool:
        """Whether the result has a row for each pair: as many as there are, not k."""
        return self.question == "within" and not self.summary

    @property
    def of_pairs(self) -> bool:
        """Whether rows are pairs, or are made of them, and are not the ranks of observations."""
        return self.question == "within" or bool(self.summary)

    @property
    def ranks(self) -> int:
        """Rows that an observation has in a result, unless it is one of pairs."""
        return 1 if self.summary else self.k

    @property
    def made(self) -> list[str]:
        """The columns of a summary."""
        return [
            kind if kind == "count" else f"{name}_{kind}"
            for name, kinds in (self.summary or {}).items()
            for kind in kinds
        ]

    @property
    def summarised(self) -> dict[str, tuple[str, ...]]:
        """What is made of each column, besides the number of pairs, which is that of "count"."""
        return {
            name: made
            for name, kinds in (self.summary or {}).items()
            if (made := tuple(kind for kind in kinds if kind != "count"))
        }

    def kind(self, *sets: NamedColumns) -> str:
        """What of a question code is compiled for, as a word: one of each is quick once one was."""
        filters = self.filters or FilterOptions()
        told = {
            self.question: True,
            f"summary-{self.summary_by}": self.summary,
            "several": self.k > 1,
            self.earth: True,
            "shapes": any(one.outlines is not None for one in sets),
            "by": filters.reference_by,
            "time": filters.reference_time,
        }
        return "-".join(name for name, is_so in told.items() if is_so)

    def in_order(self, observations: S, references: S) -> tuple[S, S]:
        """Two sets as they are searched, or back: they change places for a row a reference."""
        # It is as far from a reference to an observation.
        if self.summary_by == "reference":
            return references, observations
        return observations, references

    def of_observations(self, observations: NamedColumns) -> list[str]:
        """The columns that a result carries of the set whose rows are searched for, ids first."""
        is_turned = self.summary_by == "reference"
        return with_id(observations, self.columns if is_turned else self.observation_columns)

    def of_references(self, references: NamedColumns) -> list[str]:
        """The same of the set that is searched: a row of a summary is of many of them."""
        return [] if self.summary else with_id(references, self.columns)

    @property
    def asked_of_observations(self) -> list[str]:
        """The columns of the observations that say what each may match."""
        metres = [self.distance_m] if isinstance(self.distance_m, str) else []
        filters = self.filters or FilterOptions()
        return list(dict.fromkeys([*metres, *filters.of_observations]))

    def coordinates(self, points: NamedColumns) -> list[str]:
        """The columns of either set that `near` is made of, where it holds points."""
        return [points.lat, points.lon] if self.near and points.outlines is None else []

    def needed_of_references(self, references: NamedColumns) -> list[str]:
        """The columns of the set that is searched that rows of the result are made of."""
        names = [*self.of_references(references), *self.coordinates(references)]
        return list(dict.fromkeys(names))

    def told(self) -> dict[str, Any]:
        """What results say of them: not the algorithm, which does not change the answer."""
        left_out = {"algorithm", "question", *(() if self.of_pairs else ("summary",))}
        if self.filters is None:
            left_out.add("filters")
        return {
            name: asdict(value) if name == "filters" else value
            for name, value in vars(self).items()
            if name not in left_out and QUESTION_OF.get(name, self.question) == self.question
        }


QUESTION_OF = {one.name: one.metadata["of"] for one in fields(MatchOptions) if "of" in one.metadata}
QUESTION_OF["rank_by"] = "nearest"
"""Options of one question alone."""


def with_id(dataset: NamedColumns, columns: tuple[str, ...]) -> list[str]:
    """The columns of a dataset that a result carries: its id, when it has one, and some more."""
    names = ([dataset.id] if dataset.id else []) + list(columns)
    return list(dict.fromkeys(names))
