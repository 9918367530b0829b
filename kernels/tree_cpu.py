"""The pruned search on a CPU. (To be replaced by the tree: this is its contract only.)"""

from typing import NamedTuple

import numpy as np

from kernels import brute_cpu
from kernels.index import ReferenceIndex
from kernels.query import Found, Query


class Tree(NamedTuple):
    """Nothing yet."""


def build(vectors: np.ndarray) -> Tree:
    """Make the tree of unit vectors, shape (3, n)."""
    return Tree()


def prefers_brute(index: ReferenceIndex, n_observations: int, query: Query) -> bool:
    """Whether `auto` should take brute force: measured, and without effect on the answer."""
    return True


def search(index: ReferenceIndex, observations: np.ndarray, query: Query) -> Found:
    """The k nearest references of every observation; as `kernels.brute_cpu.search`."""
    return brute_cpu.search(index, observations, query)
