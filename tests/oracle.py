"""The slow and obvious answer, which shares no code with the product: numpy and a textbook."""

import numpy as np

RADIUS_M = 6_371_008.8
_BLOCK = 256
_MARGIN = 1e-9


def haversine_m(lat, lon, lats, lons):
    """Great-circle metres between points, by the haversine formula on degrees; broadcasts."""
    p, q = np.radians(lat), np.radians(lats)
    half = np.sin((q - p) / 2) ** 2
    half = half + np.cos(p) * np.cos(q) * np.sin((np.radians(lons) - np.radians(lon)) / 2) ** 2
    return 2 * RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


def nearest(lat, lon, lats, lons):
    """Row of and metres to the nearest of many points, ties to the lowest row.

    All pairs are compared by the cosine of their angle, a matrix product; whatever comes within a
    margin a million times its rounding error is then compared by haversine.
    """
    references = _cartesian(lats, lons)
    rows = np.empty(len(lat), np.int64)
    metres = np.empty(len(lat))
    for start in range(0, len(lat), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines = _cartesian(lat[block], lon[block]) @ references.T
        floor = cosines.max(axis=1) - _MARGIN
        for i in range(len(floor)):
            near = np.flatnonzero(cosines[i] >= floor[i])
            distances = haversine_m(lat[start + i], lon[start + i], lats[near], lons[near])
            best = distances.argmin()
            rows[start + i], metres[start + i] = near[best], distances[best]
    return rows, metres


def _cartesian(lat, lon):
    p, q = np.radians(lat), np.radians(lon)
    return np.stack([np.cos(p) * np.cos(q), np.cos(p) * np.sin(q), np.sin(p)], axis=1)
