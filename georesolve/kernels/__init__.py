"""The mathematics: the exact nearest references, and all within a distance, on numpy or CuPy.

No Dask, no HTTP, no files, no logging: those are the layers above.
"""

from georesolve.kernels.filters import FilteredIndex, Filters, build_filtered_index
from georesolve.kernels.index import ReferenceIndex, build_index, index_of
from georesolve.kernels.merge import merge
from georesolve.kernels.nearest import find, measure, nearest
from georesolve.kernels.query import Answer, Found, Pairs, Query, StepsSpent, Within
from georesolve.kernels.shapes import ShapeIndex, Shapes, nearest_points
from georesolve.kernels.ways import Way, way
from georesolve.kernels.within import count_near, count_within, within

__all__ = [
    "Answer",
    "FilteredIndex",
    "Filters",
    "Found",
    "Pairs",
    "Query",
    "ReferenceIndex",
    "ShapeIndex",
    "Shapes",
    "StepsSpent",
    "Way",
    "Within",
    "build_filtered_index",
    "build_index",
    "count_near",
    "count_within",
    "find",
    "index_of",
    "measure",
    "merge",
    "nearest",
    "nearest_points",
    "way",
    "within",
]
