"""Distances as people write them: `50km`, `800 m`, `3mi`."""

import argparse
import re

METRES = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0, "ft": 0.3048, "yd": 0.9144}
"""Metres of each unit: the international foot, yard and mile, and the nautical mile."""

_DISTANCE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]*)\s*")


def metres(text: str) -> float:
    """Metres of a distance with its unit, or of a number of metres.

    Raises
    ------
    argparse.ArgumentTypeError
        When the text is not a distance.
    """
    match = _DISTANCE.fullmatch(text)
    if match is not None and (unit := match[2] or "m") in METRES:
        try:
            return float(match[1]) * METRES[unit]
        except ValueError:
            pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a distance: write a number and one of {', '.join(METRES)}, as in 50km"
    )


def told(distance_m: float) -> str:
    """A distance in the unit that people would take for it."""
    if distance_m < 1000:
        return f"{distance_m:.3g} m" if distance_m < 100 else f"{distance_m:.0f} m"
    return f"{distance_m / 1000:,.1f} km"
