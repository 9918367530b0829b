"""`way`: which search runs for how many points, and why. Arithmetic alone, which needs no device.

What decides was measured, and has no effect on the answer.
"""

from typing import Literal, NamedTuple

from georesolve.kernels.devices import Device
from georesolve.kernels.query import Query, Within
from georesolve.query import Algorithm, Earth

Search = Literal["brute", "cells", "packets", "singles", "shapes", "filtered"]

_LANES = 16
_FEW_PAIRS, _FEW_PAIRS_OF_LISTS = 1 << 17, 1 << 14
"""Observations that a CPU's brute force compares at a time, however few fill the last, and pairs up
to which it is faster."""
_BRUTE_REFERENCES = 1024
_BRUTE_PAIRS = 1 << 26
"""On a GPU brute force is faster up to so many references and pairs: it neither sorts nor walks."""
_CELLS: dict[Device, tuple[int, int]] = {"cpu": (1 << 17, 48), "cuda": (1 << 21, 64)}
"""Observations, and for each reference, from which cells pay for themselves."""
_PACKETS_FROM = 64
_SPREAD = 16
_SPREAD_OF_LISTS = 4
"""Observations, and references for each, from and up to which packets pay on a CPU. Sixteen
observations that are far apart have little of their walks in common."""
_SPREAD_WITHIN = 128
"""The same for all within a distance, where walks do not end early."""
_SORT_FROM = 1 << 17
_SORT_FROM_PLACES = 1 << 20
"""Observations, or places in their lists, from which sorting them pays on a GPU."""


class Way(NamedTuple):
    """How observations are searched, and what decides, in words.

    Each with all references by ``brute`` force, from a table of ``cells``, down the tree in
    ``packets`` of neighbours, or as ``singles``; of ``shapes`` down the trees of these, and
    ``filtered`` down the trees of a group.
    """

    search: Search
    why: str

    def __str__(self) -> str:
        return f"{self.search}, because {self.why}"


def way(
    device: Device,
    n_observations: int,
    n_references: int,
    query: Query | Within,
    algorithm: Algorithm = "auto",
    *,
    earth: Earth = "sphere",
    filtered: bool = False,
) -> Way:
    """Which search runs, and why.

    A table of cells answers what it can, and walks the rest; on the ellipsoid it is not proven. On
    a CPU a sample of the observations decides whether it is made; of equal references the tree
    counts those that an answer can name. Where `filtered`, groups or times leave some out.
    """
    if algorithm == "brute":
        return Way("brute", "it was asked for")
    if filtered:
        return Way("filtered", "groups or times leave references out")
    if earth == "wgs84":
        return walk(device, n_observations, n_references, query)
    if algorithm == "auto" and _prefers_brute(device, n_observations, n_references, query):
        return Way("brute", "so few pairs take less time than a walk")
    if suits_cells(device, n_observations, n_references, query):
        return Way(
            "cells", f"there are {_CELLS[device][1]} or more observations for each reference"
        )
    return walk(device, n_observations, n_references, query)


def walk(device: Device, n_observations: int, n_references: int, query: Query | Within) -> Way:
    """How observations walk down the tree, and why."""
    if device == "cuda":
        k = query.k if isinstance(query, Query) else 1
        places = n_observations << (k - 1).bit_length()
        if n_observations >= _SORT_FROM or places >= _SORT_FROM_PLACES:
            return Way("packets", "there are enough observations to sort them")
        return Way("singles", "there are too few observations to sort them")
    spread = spread_of(query)
    if n_observations < _PACKETS_FROM:
        return Way("singles", f"there are fewer than {_PACKETS_FROM} observations")
    if n_observations * spread < n_references:
        return Way("singles", f"there are more than {spread} references for each observation")
    return Way("packets", f"there are at most {spread} references for each observation")


def spread_of(query: Query | Within) -> int:
    """References for each observation beyond which packets do not pay on a CPU."""
    if isinstance(query, Within):
        return _SPREAD_WITHIN
    return _SPREAD_OF_LISTS if query.k > 1 or query.exclude_self else _SPREAD


def suits_cells(
    device: Device, n_observations: int, n_references: int, query: Query | Within
) -> bool:
    """Whether cells may answer, and are likely to pay for themselves."""
    least, spread = _CELLS[device]
    return (
        isinstance(query, Query)
        and query.k == 1
        and not query.exclude_self
        and query.most_steps is None
        and 0 < spread * n_references <= n_observations
        and n_observations >= least
    )


def _prefers_brute(
    device: Device, n_observations: int, n_references: int, query: Query | Within
) -> bool:
    if device == "cuda":
        return n_references <= _BRUTE_REFERENCES and n_references * n_observations <= _BRUTE_PAIRS
    if isinstance(query, Within):
        return False
    pairs = n_references * _LANES * -(-n_observations // _LANES)
    return pairs <= (_FEW_PAIRS_OF_LISTS if query.k > 1 else _FEW_PAIRS)
