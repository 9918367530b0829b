"""One size of the ladder: its points and its exact answer, in files that every process reads."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from georesolve.benchmarks.inputs import Pair, cartesian, inputs

_NUMPY_PAIRS = 2**27
"""Pairs of observation and reference that NumPy compares when there is no scipy: some seconds."""
_ROUNDING = 1e-15
"""Of the radius, 6 nm: unit vectors whose coordinates are float64 tell less apart no better."""


class Problem(NamedTuple):
    """The points of one size, and where they lie.

    Attributes
    ----------
    folder
        Of the files, for processes that read a part.
    references, observations
        Degrees, float64.
    """

    folder: Path
    references: Pair
    observations: Pair


class Prepared(NamedTuple):
    """A problem that a rung has prepared.

    Attributes
    ----------
    run
        What is timed; it returns when the device is done.
    rows
        The row of the nearest reference of every observation, from what `run` returned.
    forget
        Removes what `run` left behind.
    """

    run: Callable[[], Any]
    rows: Callable[[Any], np.ndarray] = np.asarray
    forget: Callable[[Any], object] = lambda answer: None


Prepare = Callable[[Problem], Prepared]


def make(folder: Path, log_m: int, log_n: int) -> str:
    """Write points uniform on the sphere and their exact answer; returns who gave it.

    It is not ours: scipy's cKDTree in float64 says it of all observations, or where that is not
    installed NumPy, which compares some of them with every reference.
    """
    folder.mkdir()
    references, observations = inputs("uniform", 2**log_m, 2**log_n)
    np.save(folder / "references.npy", np.stack(references))
    np.save(folder / "observations.npy", np.stack(observations))
    if find_spec("scipy"):
        tree = import_module("scipy.spatial").cKDTree(cartesian(references))
        rows, step = tree.query(cartesian(observations), workers=-1)[1], 1
        judge = "scipy's cKDTree, float64"
    else:
        step = max(1, 2 ** (log_m + log_n) // _NUMPY_PAIRS)
        rows = _nearest_rows(references, (observations[0][::step], observations[1][::step]))
        judge = f"NumPy, float64, one observation in {step}"
    np.save(folder / "exact.npy", rows)
    return judge


def load(folder: Path) -> Problem:
    """Read a problem."""
    references, observations = (np.load(folder / f"{n}.npy") for n in Problem._fields[1:])
    return Problem(folder, (references[0], references[1]), (observations[0], observations[1]))


def count_wrong(problem: Problem, rows: np.ndarray) -> tuple[int, int]:
    """How many rows are wrong, and of how many: those for which a reference is nearer."""
    n = problem.observations[0].size
    if rows.shape != (n,):
        raise ValueError(f"{n} observations have an answer of shape {rows.shape}")
    exact = np.load(problem.folder / "exact.npy")
    checked = np.arange(0, n, n // exact.size)
    # Of equally near references either is right here: the judges do not know our rule.
    differing = np.flatnonzero(rows[checked] != exact)
    observations = _vectors(problem.observations, checked[differing])
    given, right = (
        np.linalg.norm(_vectors(problem.references, which[differing]) - observations, axis=1)
        for which in (rows[checked], exact)
    )
    absent = rows[checked[differing]] < 0
    return int((absent | (given > right + _ROUNDING)).sum()), checked.size


def _vectors(points: Pair, rows: np.ndarray) -> np.ndarray:
    return cartesian((points[0][rows], points[1][rows]))


def _nearest_rows(references: Pair, observations: Pair) -> np.ndarray:
    among = cartesian(references)
    return np.array(
        [((among - one) ** 2).sum(axis=1).argmin() for one in cartesian(observations)], np.int64
    )
