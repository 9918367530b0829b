"""The slow and obvious answer, which shares no code with the product: numpy and a textbook."""

import mpmath
import numpy as np

RADIUS_M = 6_371_008.8
_BLOCK = 8
"""Observations compared at a time: their cosines stay in the cache of a processor."""
_MARGIN = np.float32(2e-6)


def haversine_m(lat, lon, lats, lons):
    """Great-circle metres between points, by the haversine formula on degrees; broadcasts."""
    p, q = np.radians(lat), np.radians(lats)
    half = np.sin((q - p) / 2) ** 2
    half = half + np.cos(p) * np.cos(q) * np.sin((np.radians(lons) - np.radians(lon)) / 2) ** 2
    return 2 * RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


def bearing_deg(lat, lon, lats, lons):
    """The textbook's bearing in long doubles, and the sine of the angle between the points."""
    p, s, q, t = (np.radians(np.asarray(one, np.longdouble)) for one in (lat, lon, lats, lons))
    east = np.sin(t - s) * np.cos(q)
    north = np.cos(p) * np.sin(q) - np.sin(p) * np.cos(q) * np.cos(t - s)
    return np.degrees(np.arctan2(east, north)) % 360, np.hypot(east, north)


def nearest(lat, lon, lats, lons):
    """Row of and metres to the nearest of many points, ties to the lowest row.

    All pairs are compared by the cosine of their angle, in float32; whatever comes within a margin
    of six times its rounding error is then compared by haversine.
    """
    references = np.ascontiguousarray(cartesian(lats, lons).T, np.float32)
    rows = np.empty(len(lat), np.int64)
    metres = np.empty(len(lat))
    for start in range(0, len(lat), _BLOCK):
        block = slice(start, start + _BLOCK)
        observations = cartesian(lat[block], lon[block]).astype(np.float32)
        # Not `@`, whose threads wait for each other on a busy machine.
        cosines = np.einsum("ik,kj->ij", observations, references)
        floor = cosines.max(axis=1) - _MARGIN
        for i in range(len(floor)):
            near = np.flatnonzero(cosines[i] >= floor[i])
            distances = haversine_m(lat[start + i], lon[start + i], lats[near], lons[near])
            best = distances.argmin()
            rows[start + i], metres[start + i] = near[best], distances[best]
    return rows, metres


def cartesian(lat, lon):
    p, q = np.radians(lat), np.radians(lon)
    return np.stack([np.cos(p) * np.cos(q), np.cos(p) * np.sin(q), np.sin(p)], axis=1)


def nearest_rows(vectors, observations, k=1, exclude_self=False, first_row=0):
    """Rows and float64 squared chords of the k nearest of unit vectors (3, n), ties by row.

    The definition to the last bit: numpy rounds every product and sum once, as written.
    """
    n = observations.shape[1]
    rows, chords = np.full((n, k), -1, np.int64), np.full((n, k), np.inf)
    for i in range(n):
        dx, dy, dz = observations[:, i, None] - vectors
        chord2 = dx * dx + dy * dy + dz * dz
        candidates = np.flatnonzero(chord2 <= 5)
        if exclude_self:
            candidates = candidates[candidates != first_row + i]
        if candidates.size > k:
            # Only those are sorted that are no farther than the k-th: all the others are.
            kth = np.partition(chord2[candidates], k - 1)[k - 1]
            candidates = candidates[chord2[candidates] <= kth]
        candidates = candidates[np.argsort(chord2[candidates], kind="stable")][:k]
        rows[i, : candidates.size] = candidates
        chords[i, : candidates.size] = chord2[candidates]
    return rows, chords


def rows_within(vectors, observations, chord2, exclude_self=False, once=False, first_row=0):
    """Starts, rows and squared chords of all unit vectors (3, n) within a squared chord of each.

    As `nearest_rows`; `chord2` is one for all observations, or one each.
    """
    n = observations.shape[1]
    chord2 = np.broadcast_to(chord2, n)
    starts, rows, chords = np.zeros(n + 1, np.int64), [np.empty(0, np.int64)], [np.empty(0)]
    for i in range(n):
        dx, dy, dz = observations[:, i, None] - vectors
        squares = dx * dx + dy * dy + dz * dz
        found = np.flatnonzero(squares <= chord2[i])
        if once:
            found = found[found > first_row + i]
        elif exclude_self:
            found = found[found != first_row + i]
        found = found[np.argsort(squares[found], kind="stable")]
        rows.append(found)
        chords.append(squares[found])
        starts[i + 1] = starts[i] + found.size
    return starts, np.concatenate(rows), np.concatenate(chords)


def chord2_exact(lat, lon, lats, lons):
    """Squared chords in long double, from degrees reduced to the first octant; broadcasts.

    2^-63 relative is enough to tell which of two references is nearer where float64 cannot.
    """
    a, b = _cartesian_exact(lat, lon), _cartesian_exact(lats, lons)
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def _cartesian_exact(lat, lon):
    (sine_lat, cosine_lat), (sine_lon, cosine_lon) = _sine_cosine(lat), _sine_cosine(lon)
    return cosine_lat * cosine_lon, cosine_lat * sine_lon, sine_lat


def _sine_cosine(degrees):
    degrees = np.asarray(degrees, np.longdouble)
    turns = np.round(degrees / 90)
    # Pi to the last bit of a long double: np.pi is a float64.
    pi = np.longdouble(np.pi) + np.longdouble(1.2246467991473531772e-16)
    angle = (degrees - 90 * turns) * pi / 180
    sine, cosine = np.sin(angle), np.cos(angle)
    quarter = turns.astype(np.int64) % 4
    return (
        np.choose(quarter, [sine, cosine, -sine, -cosine]),
        np.choose(quarter, [cosine, -sine, -cosine, sine]),
    )


def arc_chord2(vectors, a, b):
    """Float64 squared chords from unit vectors (3, n) to the nearest points of arcs, shape (n, m).

    The definition to the last bit, as that of `nearest_rows`; ends (3, m) are unit vectors.
    """
    p, a, b = vectors[:, :, None], a[:, None, :], b[:, None, :]
    n = _cross(a - b, a + b)
    square = _dot(n, n)
    has_direction = square > 2.0**-90
    beside = has_direction & (_dot(p - a, _cross(n, a)) > 0) & (_dot(p - b, _cross(b, n)) > 0)
    height = _dot(p - a, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        inverse = 1 / square
        sine2 = height * height * inverse
        far = _cross(n, p)
        chord2 = np.where(
            sine2 <= 0.5,
            2 * sine2 / (1 + np.sqrt(1 - sine2)),
            2 - 2 * np.sqrt(_dot(far, far) * inverse),
        )
    ends = np.minimum(_dot(p - a, p - a), _dot(p - b, p - b))
    nearest = np.where(beside, np.minimum(ends, chord2), ends)
    return np.where((nearest <= 2.0**-94) & has_direction, 0, nearest)


def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a, b):
    return (
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    )


def arc_m(lat, lon, ends):
    """Metres from a point to the nearest point of an arc, in 40 digits; ends (2, 2) in degrees."""
    p, (a, b) = _vector(lat, lon), (_vector(*end) for end in ends)
    n = _cross(a, b)
    square = _dot(n, n)
    if square > 0 and _dot(p, _cross(n, a)) > 0 and _dot(p, _cross(b, n)) > 0:
        height = _dot(p, n) / mpmath.sqrt(square)
        far = _cross(n, p)
        angle = mpmath.atan2(abs(height), mpmath.sqrt(_dot(far, far) / square))
    else:
        angle = min(
            2 * mpmath.asin(mpmath.sqrt(_dot(d, d)) / 2) for d in (_minus(p, a), _minus(p, b))
        )
    return RADIUS_M * angle


def is_in_polygon(lat, lon, arcs, holds_south):
    """Whether a polygon holds a point, in 40 digits; its arcs are ends in degrees, western first.

    As often as the meridian to the south pole meets them.
    """
    inside = holds_south
    for a, b in arcs:
        apart = _eastwards(a[1], b[1])
        if _eastwards(a[1], lon) < apart:
            # Over a pole, the nearer one, of which no meridian has both ends.
            height = _dot(_vector(lat, lon), _cross(_vector(*a), _vector(*b)))
            inside ^= bool(height > 0) if abs(apart - 180) > 1e-12 else a[0] + b[0] < 0
    return inside


def _eastwards(lon, to_lon):
    return (mpmath.mpf(float(to_lon)) - mpmath.mpf(float(lon))) % 360


def _minus(a, b):
    return [p - q for p, q in zip(a, b, strict=True)]


def _vector(lat, lon):
    p, q = (mpmath.radians(mpmath.mpf(float(one))) for one in (lat, lon))
    return mpmath.cos(p) * mpmath.cos(q), mpmath.cos(p) * mpmath.sin(q), mpmath.sin(p)


def planar_m(lat, lon, ends, samples=9, candidates=48):
    """Metres from points to the nearest of edges (n, 2, 2) that are straight in degrees.

    Golden section in long doubles, around the nearest samples of all edges.
    """
    start, way = ends[:, 0], ends[:, 1] - ends[:, 0]
    shares = np.linspace(0, 1, samples)
    degrees = start[:, None] + way[:, None] * shares[:, None]
    places = cartesian(degrees[..., 1].ravel(), degrees[..., 0].ravel())
    metres = np.empty(len(lat))
    for i, point in enumerate(cartesian(lat, lon)):
        near = np.argpartition(-(places @ point), min(candidates, len(places) - 1))[:candidates]
        edge, share = np.divmod(near, samples)

        def distance_m(at, edge=edge, i=i):
            there = start[edge] + way[edge] * at[:, None]
            return haversine_m(np.longdouble(lat[i]), lon[i], there[:, 1], there[:, 0])

        golden = (np.sqrt(np.longdouble(5)) - 1) / 2
        low = np.maximum(shares[share] - 1 / (samples - 1), 0).astype(np.longdouble)
        high = np.minimum(shares[share] + 1 / (samples - 1), 1).astype(np.longdouble)
        for _ in range(50):
            left, right = high - golden * (high - low), low + golden * (high - low)
            is_left = distance_m(left) < distance_m(right)
            low, high = np.where(is_left, low, left), np.where(is_left, right, high)
        metres[i] = min(distance_m(at).min() for at in (low, high, (low + high) / 2))
    return metres
