"""Lengths of time, as users give them and as results tell them."""

import re
from datetime import timedelta
from fractions import Fraction
from typing import Any

import numpy as np

from georesolve.kernels.filters import GREATEST

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
NANOSECONDS |= {"min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
"""Of each unit."""
_NUMPY_UNITS: dict[str, int | Fraction] = {
    **NANOSECONDS,
    "m": NANOSECONDS["min"],
    "D": NANOSECONDS["d"],
    "W": 7 * NANOSECONDS["d"],
    **{unit: Fraction(1, 1000**i) for i, unit in enumerate(("ps", "fs", "as"), 1)},
}
_DURATION = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([a-z]+)\s*")


def nanoseconds(given: Any) -> Fraction | None:
    """A length of time in nanoseconds; None of what is none."""
    if isinstance(given, str):
        parts = _DURATION.fullmatch(given)
        known = parts and NANOSECONDS.get(parts[2])
        return Fraction(parts[1]) * known if parts and known else None
    if isinstance(given, np.timedelta64):
        unit, size = np.datetime_data(given.dtype)
        # Months and years have no length, and 64 bits of nanoseconds hold 292 years.
        if np.isnat(given) or unit not in _NUMPY_UNITS:
            return None
        return Fraction(int(given.astype(np.int64)) * size * _NUMPY_UNITS[unit])
    if isinstance(given, timedelta):
        more = int(getattr(given, "nanoseconds", 0))
        return Fraction(given // timedelta(microseconds=1) * 1000 + more)
    return None


def told_length(given: Any) -> str | int | None:
    """A length of time, or a number of a unit, as results tell it: equal ones are the same."""
    length = nanoseconds(given)
    if length is None:
        return None if given is None else min(int(given // 1), GREATEST)
    size, unit = max((size, unit) for unit, size in NANOSECONDS.items() if int(length) % size == 0)
    return f"{int(length) // size}{unit}"
