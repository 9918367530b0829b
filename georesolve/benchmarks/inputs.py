"""The point sets of the benchmarks, the same for every device and every peer."""

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def uniform(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points spread evenly over the sphere."""
    return np.degrees(np.arcsin(rng.uniform(-1, 1, n))), rng.uniform(-180, 180, n)


def cities(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points around 2000 places of very unequal size, some 10 km across."""
    lat, lon = uniform(np.random.default_rng(99), 2000)
    weight = 1.0 / np.arange(1, 2001)
    place = rng.choice(2000, n, p=weight / weight.sum())
    return (
        np.clip(lat[place] + rng.normal(0, 0.05, n), -90, 90),
        np.clip(lon[place] + rng.normal(0, 0.05, n), -180, 180),
    )


def box(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points in a box of 10 km: a million of them lie 10 m apart."""
    return 47.0 + rng.uniform(0, 0.09, n), 8.0 + rng.uniform(0, 0.13, n)


def near(rng: np.random.Generator, places: Pair, n: int) -> Pair:
    """Degrees of n points some kilometres from places drawn at random."""
    chosen = rng.integers(0, places[0].size, n)
    lat, lon = (degrees[chosen] for degrees in places)
    return (
        np.clip(lat + rng.normal(0, 0.05, n), -90, 90),
        np.clip(lon + rng.normal(0, 0.05, n), -180, 180),
    )


def oceans(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points in a box of each of three oceans."""
    boxes = np.array([(-40, 40, -170, -130), (-40, 50, -45, -20), (-45, -5, 60, 90)], float)
    south, north, west, east = boxes[rng.integers(0, len(boxes), n)].T
    return rng.uniform(south, north), rng.uniform(west, east)


def nodes(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of a regular grid's n nodes."""
    side = round(n**0.5)
    lat, lon = np.meshgrid(np.arange(side) / side * 64 - 32, np.arange(side) / side * 128 - 64)
    return lat.ravel()[:n], lon.ravel()[:n]


def between(references: Pair, n: int) -> Pair:
    """Degrees of n points exactly between the nodes of a grid, over and over."""
    side = round(references[0].size ** 0.5)
    return np.resize(references[0] + 32 / side, n), np.resize(references[1] + 64 / side, n)


def coincident(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points at one place."""
    return np.full(n, 7.5), np.full(n, -3.25)


def copies(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points at a hundredth as many places: more a place than an answer can name."""
    lat, lon = uniform(np.random.default_rng(99), -(-n // 100))
    order = rng.permutation(n)
    return np.resize(lat, n)[order], np.resize(lon, n)[order]


def cluster(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points, a quarter of them within a metre, the others spread over the sphere."""
    lat, lon = uniform(rng, n)
    lat[::4], lon[::4] = (place + rng.uniform(0, 1e-5, -(-n // 4)) for place in (47.0, 8.0))
    return lat, lon


def zeros(rng: np.random.Generator, n: int) -> Pair:
    """Degrees of n points, a twentieth of them at (0, 0): what some write for a missing value."""
    lat, lon = uniform(rng, n)
    lat[::20] = lon[::20] = 0.0
    return lat, lon


def inputs(kind: str, n_observations: int, n_references: int) -> tuple[Pair, Pair]:
    """References and observations in degrees."""
    rng = np.random.default_rng(7)
    if kind == "grid":
        references = nodes(rng, n_references)
        return references, between(references, n_observations)
    if kind == "oceans":
        return cities(rng, n_references), oceans(rng, n_observations)
    if kind == "ring":
        # Of the pole all are equally far, and from beside it nearly so.
        longitudes = rng.uniform(-180, 180, n_references)
        beside = 90 - rng.uniform(0, 1e-9, n_observations)
        return (0 * longitudes, longitudes), (beside, rng.uniform(-180, 180, n_observations))
    draw = {
        "uniform": uniform,
        "cities": cities,
        "box": box,
        "coincident": coincident,
        "copies": copies,
        "cluster": cluster,
        "zeros": zeros,
    }[kind]
    return draw(rng, n_references), draw(rng, n_observations)


def cartesian(points: Pair) -> np.ndarray:
    """Unit vectors (n, 3) as users of libraries make them."""
    lat, lon = np.radians(points[0]), np.radians(points[1])
    cosine = np.cos(lat)
    return np.stack([cosine * np.cos(lon), cosine * np.sin(lon), np.sin(lat)], axis=1)
