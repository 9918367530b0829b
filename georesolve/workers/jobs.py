"""What a job is to the workers: two datasets, the match options and a folder of its own."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from georesolve.kernels import MAX_K
from georesolve.kernels.ways import Algorithm
from georesolve.workers.datasets import Dataset, PointSet
from georesolve.workers.index_files import IndexFolder
from georesolve.workers.places import Home, Place, own_place, place_of_parts
from georesolve.workers.widths import Carried

RECORDS = "records"
"""Folder in that of a job: what its chunks have done."""
CANCELLED = "cancelled"
"""A file that exists once a job is cancelled."""
How = Literal["left", "inner"]
PAIRS = ""
"""What a summary counts, which is no column."""


class CarriedTooLong(ValueError):
    """The columns that a result would carry take too much memory."""


@dataclass(frozen=True)
class MatchOptions:
    """How observations are matched.

    What an option means, and what it may be, stands beside it: what the service says of its
    parameters follows from that.
    """

    k: int = field(
        default=1,
        metadata={"description": "neighbours an observation, nearest first", "ge": 1, "le": MAX_K},
    )
    max_distance_m: float | None = field(
        default=None,
        metadata={
            "description": "farther references do not match; inclusive",
            "ge": 0,
            "allow_inf_nan": False,
        },
    )
    exclude_self: bool = field(
        default=False,
        metadata={"description": "no reference of the observation's own row: a set against itself"},
    )
    algorithm: Algorithm = field(
        default="auto", metadata={"description": "how to search; same answer"}
    )
    how: How = field(
        default="left",
        metadata={"description": "left: all observations; inner: matched ones only"},
    )
    columns: tuple[str, ...] = field(
        default=(),
        metadata={"description": "reference columns to carry into the result; `*` for all"},
    )
    observation_columns: tuple[str, ...] = field(
        default=(), metadata={"description": "likewise of the observations"}
    )

    def __post_init__(self) -> None:
        # Equal options are the same, whatever numbers they came as: results tell of them. 0 is
        # added for that of -0.0.
        limit = self.max_distance_m
        vars(self).update(
            k=int(self.k),
            max_distance_m=None if limit is None else float(limit) + 0.0,
            exclude_self=bool(self.exclude_self),
        )

    def told(self) -> dict[str, Any]:
        """What results say of them: not the algorithm, which does not change the answer."""
        return {name: value for name, value in vars(self).items() if name != "algorithm"}


@dataclass(frozen=True)
class PairOptions(MatchOptions):
    """How observations are matched with all references within a distance.

    `k` and `max_distance_m` do not count: nothing is cut off.
    """

    distance_m: float | str = 0.0
    """Metres, inclusive, or the name of a column of the observations: a distance each."""
    once: bool = False
    """Whether of a set against itself each pair is there once, with the lower row first."""
    summary: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Instead of pairs: what is made of each column of the references, and of `PAIRS`."""
    summary_by: Literal["observation", "reference"] = "observation"
    """`reference` where the sets have changed places."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.distance_m
        distance_m = given if isinstance(given, str) else float(given) + 0.0
        vars(self).update(distance_m=distance_m, once=bool(self.once))

    @property
    def summarised(self) -> dict[str, tuple[str, ...]]:
        """What is made of each column."""
        return {name: kinds for name, kinds in self.summary.items() if name != PAIRS}

    def turned(self) -> Self:
        """The same for sets that have changed places."""
        return replace(self, columns=self.observation_columns, observation_columns=self.columns)

    def told(self) -> dict[str, Any]:
        """As the user gave them."""
        own = vars(self.turned() if self.summary_by == "reference" else self)
        return {name: own[name] for name in own.keys() - {"algorithm", "k", "max_distance_m"}}


@dataclass(frozen=True)
class Job:
    """One job and where its files lie."""

    id: str
    folder: Home
    """Its own, or a prefix of the store of the service."""
    observations: Dataset
    references: Dataset
    options: MatchOptions
    indexes: IndexFolder | None = None
    """Where the index of its references is kept; None where these go with the job."""
    output: str | None = None
    """Where its parts are written, if not into its folder: see `places.place_of`."""

    def __dask_tokenize__(self) -> tuple[str, str]:
        """What Dask calls it by, where it would read all of it again for each task.

        Jobs of this process may have the same id, and none has the folder of another.
        """
        return self.id, str(self.folder)

    @property
    def place(self) -> Place:
        """Where its parts lie."""
        return place_of_parts(self.folder, self.output)

    @property
    def records(self) -> Place:
        """Where the records of its chunks lie: what is done."""
        return own_place(self.folder).below(RECORDS)

    def cancel(self) -> None:
        """Have the chunks of it end that workers have in hand: they look for a file."""
        with own_place(self.folder).new(CANCELLED):
            pass

    def resume(self) -> None:
        """Let chunks be computed again."""
        own_place(self.folder).remove([CANCELLED])

    def is_cancelled(self) -> bool:
        """Whether it is: cancelling the future of a task does not stop that, looking does."""
        return own_place(self.folder).has(CANCELLED)

    def carried(self) -> tuple[list[str], list[str]]:
        """Columns that the result carries of the observations and of the references, ids first."""
        return (
            with_id(self.observations, self.options.observation_columns),
            of_references(self.references, self.options),
        )

    def widths(self) -> Carried:
        """What the columns that the result carries take in memory."""
        of_observations, of_references = self.carried()
        return Carried(
            self.observations.width(of_observations), self.references.width(of_references)
        )


def of_references(references: PointSet, options: MatchOptions) -> list[str]:
    """The columns of the references that a result carries: of a summary none, it is of many."""
    is_summary = isinstance(options, PairOptions) and options.summary
    return [] if is_summary else with_id(references, options.columns)


def with_id(dataset: PointSet, columns: tuple[str, ...]) -> list[str]:
    """The columns of a dataset that a result carries: its id, when it has one, and some more."""
    names = ([dataset.id] if dataset.id else []) + list(columns)
    return list(dict.fromkeys(names))
