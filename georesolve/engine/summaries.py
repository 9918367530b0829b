"""Sums, means, least and greatest of the references of pairs, for each observation.

A sum is exact and rounded once, so it does not depend on the order of the pairs. Nulls and NaN are
left out.
"""

import math
from collections.abc import Iterable
from itertools import islice

import numpy as np
import pyarrow as pa

from georesolve.io.numbers import Values
from georesolve.kernels import Pairs

_LOW = 2**32 - 1


def summarised(
    values: Values, kinds: Iterable[str], found: Pairs, valid: np.ndarray
) -> dict[str, pa.Array]:
    """What is made of a column for observations, `valid` those whose coordinates are.

    Of no values the sum is 0, and there is no mean, least or greatest. It raises OverflowError
    where a sum is beyond a number of 64 bits.
    """
    known = values.known[found.reference]
    numbers = values.numbers[found.reference[known]]
    starts = np.concatenate([[0], np.cumsum(known)])[found.starts]
    each = np.diff(starts)
    some = each > 0
    # `reduceat` takes no empty ranges.
    at = starts[:-1][some]
    made: dict[str, pa.Array] = {}
    for kind in kinds:
        of_each = np.zeros(each.size, numbers.dtype)
        if not at.size:
            pass
        elif kind in ("min", "max"):
            of_each[some] = (np.minimum if kind == "min" else np.maximum).reduceat(numbers, at)
        elif numbers.dtype.kind == "i":
            of_each[some] = _whole_sums(numbers, at)
        else:
            left = iter(numbers.tolist())
            of_each[some] = [_sum([*islice(left, size)]) for size in each[some].tolist()]
        if kind == "mean":
            # Python rounds the quotient of two whole numbers once.
            both = zip(of_each.tolist(), np.maximum(each, 1).tolist(), strict=True)
            of_each = np.array([total / size for total, size in both], np.float64)
        made[kind] = pa.array(of_each, mask=~(valid if kind == "sum" else some))
    return made


def _whole_sums(numbers: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Sums from each start to the next, by their upper and lower halves."""
    low = np.add.reduceat(numbers & _LOW, at)
    high = np.add.reduceat(numbers >> 32, at) + (low >> 32)
    if (high != high.astype(np.int32)).any():
        raise OverflowError("a sum is beyond 64 bits")
    whole: np.ndarray = (high << 32) | (low & _LOW)
    return whole


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:
        # Perhaps on the way alone, in this order.
        from fractions import Fraction

        return float(sum(map(Fraction, numbers)))
