"""What a search takes of a GPU: arithmetic that needs no CUDA.

So a process that may not touch a GPU can tell it, too.
"""

from georesolve.kernels.query import Query
from georesolve.kernels.ways import suits_cells

WARP = 32


def level_sizes(n_references: int) -> list[int]:
    """Boxes of each level, padded to groups of 32, from the leaves to a root of one group."""
    count = -(-n_references // WARP)
    sizes = [-(-count // WARP) * WARP]
    while sizes[-1] > WARP:
        count = sizes[-1] // WARP
        sizes.append(-(-count // WARP) * WARP)
    return sizes


def search_bytes(n_references: int, n_observations: int, k: int = 1) -> int:
    """Device memory that an index and one search in it take at most, in bytes.

    Beyond the degrees of both sets, which the caller holds: unit vectors, tree, cells, answers, and
    what sorting needs besides.
    """
    boxes = sum(level_sizes(n_references)) * 6 * 4
    leaves = -(-n_references // WARP) * WARP * (4 * 8 + 3 * 4)
    index = n_references * 3 * 8 + leaves + boxes
    # Places (4), rows (8) and the sort's second copies of both, unit vectors (32), and counters.
    sort = 2 * (4 + 8) + 32 + 1
    # And the row of one that a walk gives up, and a walk in float64 after it.
    answers = n_observations * (3 * 8 + 2 * 4 + k * (8 + 8 + 8))
    if suits_cells("cuda", n_observations, n_references, Query(k)):
        # Of each of the cells, which are half as many as observations at most, its middle, reach,
        # nearest reference and row of the table; and 24 for an observation that may be left over.
        answers += n_observations * (40 + 24)
    # References that crowd are sorted again while the tree of the first order is held; until that
    # is settled, their unit vectors, places and rows are held beside the observations.
    unsettled = n_references * (32 + 4 + 8)
    searched = unsettled + answers + n_observations * sort
    return index + max(n_references * 2 * sort, searched) + (1 << 24)
