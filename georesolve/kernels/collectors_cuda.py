"""What a walk on a GPU collects for each of its observations, a lane an observation.

A *collector* is a type by which the compiler chooses: `One` keeps the nearest reference, `Several`
(`kernels.keys_cuda`) a list of them. It holds what stays as it is; what it has *kept* so far is a
value of its own, in registers. A new question is a new type that `implements` these functions.
"""

import math
from typing import NamedTuple

from numba import cuda, float32, int32, int64

from georesolve.kernels.distance import closer
from georesolve.kernels.warp_cuda import ALL_LANES, by_type


class One(NamedTuple):
    """Keeps the nearest reference of (x, y, z): its squared chord and its row."""

    x: float
    y: float
    z: float


@by_type(One)
def nothing(collector, places, bundle):  # type: ignore[no-untyped-def]
    """What is kept before anything is offered."""
    return math.inf, -1.0


@by_type(One)
def offer(collector, kept, able, chord2, row, place):  # type: ignore[no-untyped-def]
    """What is kept after each `able` lane was offered a reference, by its place in the tree."""
    best_chord2, best_row = kept
    if closer(chord2, row, best_chord2, best_row) and able:
        best_chord2 = chord2
        best_row = row
    return best_chord2, best_row


@by_type(One)
def farthest(collector, kept):  # type: ignore[no-untyped-def]
    """The largest squared chord that may yet enter, in float32."""
    return float32(kept[0])


@by_type(One)
def may_enter(collector, kept, lane, chord2):  # type: ignore[no-untyped-def]
    """Whether a reference so far from one lane's observation may enter what that lane keeps."""
    return chord2 <= cuda.shfl_sync(ALL_LANES, kept[0], lane)


@by_type(One)
def effort(collector, kept):  # type: ignore[no-untyped-def]
    """Ties that the warp settled since this was asked last, and what is kept."""
    return int32(0), kept


@by_type(One)
def write(collector, places, kept, row, writes, width, stage, k, measure, reference, chord2):  # type: ignore[no-untyped-def]
    """Write what the lanes that are told to have kept into their rows."""
    if writes:
        reference[row, 0] = int64(kept[1])
        chord2[row, 0] = kept[0]
