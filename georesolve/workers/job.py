"""Job: two sets, the options of their match, and a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from georesolve.engine.match_sets import MatchSets
from georesolve.io.storage import Home, Place, own_place, place_of_parts

RECORDS = "records"
"""Folder in that of a job: what its chunks have done."""
CANCELLED = "cancelled"
"""A file that exists once a job is cancelled."""


@dataclass(frozen=True)
class Job(MatchSets):
    """Match that runs on a cluster, and the places of its files."""

    id: str = field(kw_only=True)
    folder: Home = field(kw_only=True)
    """Its own, or a prefix of the store of the service."""
    output: str | None = field(default=None, kw_only=True)
    """Where its parts are written, if not into its folder: see `storage.place_of`."""
    counted: tuple[Sequence[int], Sequence[int]] = field(default=((), ()), kw_only=True)
    """Once its pairs are counted: the observation that each counted chunk starts with, and the rows
    of the result before it; both with the end."""

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

    def counting(self) -> Job:
        """The job that counts the pairs of this one first: its folder goes with the records."""
        counted: dict[str, tuple[str, ...]] = {"count": ("count",)}
        options = replace(
            self.options, summary=counted, how="left", observation_columns=(), near=False
        )
        return replace(
            self,
            folder=self.records.below("counted"),
            observations=replace(self.observations, id=None),
            options=options,
            output=None,
        )

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
