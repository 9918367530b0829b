"""`merge`: the answers of a reference set's pieces, made into the answer of the whole set."""

from collections.abc import Iterable
from functools import reduce

from georesolve.kernels.devices import device_of, implementation
from georesolve.kernels.query import Found


def merge(parts: Iterable[tuple[Found, int]]) -> Found:
    """Merge what was found in the pieces of a reference set, for the same observations and k.

    With each goes the row in the whole set of its piece's first reference; pieces do not overlap.
    Key and row order all candidates strictly, because no two have the same row. So neither the
    order of the parts nor where the set was split shows in the result: it is, byte for byte, what
    a search of the whole set finds.
    """
    whole = [_shifted(found, first_row) for found, first_row in parts]
    if not whole:
        raise ValueError("merge needs at least one part, got none")
    for found in whole[1:]:
        if found.reference.shape != whole[0].reference.shape:
            raise ValueError(
                "parts must have one shape (n_observations, k), got "
                f"{whole[0].reference.shape} and {found.reference.shape}"
            )
    return reduce(implementation(device_of(whole[0].reference), "merge").merge_pair, whole)


def _shifted(found: Found, first_row: int) -> Found:
    # True and False count as 1 and 0: "none" stays -1 without a call to a device's library.
    return Found(found.reference + first_row * (found.reference >= 0), found.key)
