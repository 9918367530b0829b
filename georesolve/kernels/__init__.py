"""The mathematics: the exact nearest reference of every observation, on arrays of numpy or CuPy.

No Dask, no HTTP, no files, no logging: those are the layers above.
"""

from georesolve.kernels.index import ReferenceIndex, build_index, index_of
from georesolve.kernels.merge import merge
from georesolve.kernels.nearest import find, measure, nearest
from georesolve.kernels.query import MAX_K, Answer, Found, Query, StepsSpent
from georesolve.kernels.ways import ALGORITHMS, Way, way

__all__ = [
    "ALGORITHMS",
    "MAX_K",
    "Answer",
    "Found",
    "Query",
    "ReferenceIndex",
    "StepsSpent",
    "Way",
    "build_index",
    "find",
    "index_of",
    "measure",
    "merge",
    "nearest",
    "way",
]
