"""Agreement of two passes over the same input: one counts results, the other writes them.

Memory for results is as large as the counts require, and uninitialised. A pass that writes stays
within the memory of each item and counts again, so that a disagreement is an error and never a
wrong result.
"""

from georesolve.kernels.devices import Array


class PassesDisagreeError(RuntimeError):
    """A pass that counts results and a pass that writes them found different numbers."""


def check_passes(counts: Array, written: Array, item: str = "observation") -> None:
    """Compare the numbers of results per item of both passes, arrays of one device."""
    differs = counts != written
    if not differs.any():
        return
    row = int(differs.argmax())
    raise PassesDisagreeError(
        f"{item} {row} has {int(counts[row])} results by the pass that counts and "
        f"{int(written[row])} by the pass that writes; both numbers must be equal. This is an "
        f"error of georesolve: report it with the coordinates of the {item}"
    )
