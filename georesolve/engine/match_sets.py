"""Observations, references and options of one match: the input of every search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from georesolve.query import MatchOptions

if TYPE_CHECKING:
    from georesolve.io.datasets import Dataset
    from georesolve.io.index_files import IndexFolder


class CarriedTooLong(ValueError):
    """The columns that a result would carry take too much memory."""


@dataclass(frozen=True)
class MatchSets:
    """Two sets and how they are matched."""

    observations: Dataset
    references: Dataset
    options: MatchOptions
    indexes: IndexFolder | None = None
    """Folder of index files; None if the index of the references is not stored."""

    @property
    def kind(self) -> str:
        """Word for the compiled code that the match needs: see `MatchOptions.kind`."""
        return self.options.kind(self.observations, self.references)

    def carried(self) -> tuple[list[str], list[str]]:
        """Columns that the result carries of the observations and of the references, ids first."""
        of_observations = self.options.of_observations(self.observations)
        return of_observations, self.options.of_references(self.references)
