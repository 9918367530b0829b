"""The mathematics: the exact nearest reference of every observation, on arrays of numpy or CuPy.

No Dask, no HTTP, no files, no logging: those are the layers above.
"""

from kernels.index import ReferenceIndex, build_index
from kernels.nearest import ALGORITHMS, Answer, nearest

__all__ = ["ALGORITHMS", "Answer", "ReferenceIndex", "build_index", "nearest"]
