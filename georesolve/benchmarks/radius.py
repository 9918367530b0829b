"""Everything within a distance on a CPU, beside peers, on the same inputs, taking turns.

From degrees in numpy arrays, the index included, with all cores: counts, or pairs. Ours are rows
in order and metres; those of the peers are rows in any order, and they search with a chord, which
is not exact, or join in SQL; those that are not installed are left out. Wall clock and seconds of
processors, which a busy machine changes less.

    python -m georesolve.benchmarks.radius
        [--toy] [--observations 22] [--repeats N] [--only WORD ...] [--json FILE]
"""

import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, cartesian, inputs
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.kernels.query import EARTH_RADIUS_M

_MEAN = 30
"""References that an observation has within the distance, on average."""
_SLICE = 1 << 18
"""Observations that peers look for pairs of at a time: they would not fit into memory together."""


Find = Callable[[Pair, Pair, float], int]
"""How many pairs there are, given references, observations and metres."""


class Taken(NamedTuple):
    """What a turn took, and how many pairs it found."""

    wall_s: float
    processors_s: float
    found: int


def _ours(search: Callable[..., Any]) -> Find:
    def find(references: Pair, observations: Pair, distance_m: float) -> int:
        index = kernels.build_index(*references, copies=True)
        found = search(index, *observations, distance_m)
        return int(found.starts[-1] if isinstance(found, kernels.Pairs) else found.sum())

    return find


def _chord(distance_m: float) -> float:
    return 2.0 * float(np.sin(distance_m / (2.0 * EARTH_RADIUS_M)))


def _scipy(*, pairs: bool) -> Find:
    def find(references: Pair, observations: Pair, distance_m: float) -> int:
        tree = import_module("scipy.spatial").cKDTree(cartesian(references))
        points, chord, found = cartesian(observations), _chord(distance_m), 0
        for first in range(0, len(points), _SLICE):
            part = points[first : first + _SLICE]
            some = tree.query_ball_point(part, chord, workers=-1, return_length=not pairs)
            found += sum(map(len, some)) if pairs else int(some.sum())
        return found

    return find


def _sklearn(*, pairs: bool) -> Find:
    def find(references: Pair, observations: Pair, distance_m: float) -> int:
        tree = import_module("sklearn.neighbors").KDTree(cartesian(references))
        chord = _chord(distance_m)

        def count(part: np.ndarray) -> int:
            some = tree.query_radius(part, chord, count_only=not pairs)
            return sum(map(len, some)) if pairs else int(some.sum())

        points = cartesian(observations)
        parts = np.array_split(points, max(numba.get_num_threads(), len(points) // _SLICE))
        with ThreadPoolExecutor(numba.get_num_threads()) as pool:
            return sum(pool.map(count, parts))

    return find


def _joined(query: Callable[[str, pa.Table, pa.Table], int], on: str) -> Callable[[bool], Find]:
    """A join by SQL: `on` has places for metres, or for degrees."""

    def method(pairs: bool) -> Find:
        columns = "o.i AS observation, r.i AS reference" if pairs else "count(*) AS n"

        def find(references: Pair, observations: Pair, distance_m: float) -> int:
            o, r = (
                pa.table({"i": np.arange(lat.size), "lat": lat, "lon": lon})
                for lat, lon in (observations, references)
            )
            degrees = float(np.degrees(distance_m / EARTH_RADIUS_M))
            where = on.format(metres=distance_m, degrees=degrees)
            return query(f"SELECT {columns} FROM {where}", o, r)

        return find

    return method


def _in_sedona(sql: str, o: pa.Table, r: pa.Table) -> int:
    session = import_module("sedonadb").connect()
    session.create_data_frame(o).to_view("observations", overwrite=True)
    session.create_data_frame(r).to_view("refs", overwrite=True)
    return _number(session.sql(sql).to_arrow_table())


def _in_duckdb(sql: str, o: pa.Table, r: pa.Table) -> int:
    database = spatial_duckdb()
    database.register("observations", o)
    database.register("refs", r)
    return _number(database.execute(sql).to_arrow_table())


def spatial_duckdb() -> Any:
    """A DuckDB in memory with its extension `spatial`, of a wheel: nothing is downloaded."""
    folder = Path(str(import_module("duckdb_extension_spatial").__file__)).parent
    (extension,) = folder.rglob("spatial.duckdb_extension")
    database = import_module("duckdb").connect(config={"allow_unsigned_extensions": "true"})
    database.execute(f"LOAD '{extension}'")
    return database


def _number(found: pa.Table) -> int:
    return int(found["n"][0].as_py()) if found.column_names == ["n"] else found.num_rows


_sedona = _joined(
    _in_sedona,
    "(SELECT i, ST_GeogPoint(lon, lat) AS g FROM observations) AS o JOIN "
    "(SELECT i, ST_GeogPoint(lon, lat) AS g FROM refs) AS r ON ST_DWithin(o.g, r.g, {metres})",
)
_duckdb = _joined(
    # On a plane of degrees, which is less to do: on a sphere it compares all with all.
    _in_duckdb,
    "(SELECT i, ST_Point(lon, lat) AS g FROM observations) AS o JOIN "
    "(SELECT i, ST_Point(lon, lat) AS g FROM refs) AS r ON ST_DWithin(o.g, r.g, {degrees})",
)
METHODS = {
    "ours, counts": _ours(kernels.count_within),
    "scipy cKDTree, counts": _scipy(pairs=False),
    "sklearn KDTree, counts": _sklearn(pairs=False),
    "SedonaDB, counts": _sedona(False),
    "DuckDB on a plane, counts": _duckdb(False),
    "ours, pairs": _ours(kernels.within),
    "scipy cKDTree, pairs": _scipy(pairs=True),
    "sklearn KDTree, pairs": _sklearn(pairs=True),
    "SedonaDB, pairs": _sedona(True),
    "DuckDB on a plane, pairs": _duckdb(True),
}


def distance_for(mean: float, references: Pair, observations: Pair) -> float:
    """Metres within which a sample of the observations has so many references on average."""
    index = kernels.build_index(*references, copies=True)
    step = max(1, observations[0].size // 2**14)
    lat_deg, lon_deg = (degrees[::step].copy() for degrees in observations)
    low, high = 0.0, 2e7
    for _ in range(40):
        middle = (low + high) / 2
        if kernels.count_within(index, lat_deg, lon_deg, middle).mean() < mean:
            low = middle
        else:
            high = middle
    return high


def _installed(name: str) -> bool:
    try:
        METHODS[name](*inputs("uniform", 64, 64), 1.0)
    except ImportError as error:
        print(f"{name}: left out: {error}")
        return False
    return True


def main(arguments: list[str] | None = None) -> None:
    """Print what all methods take on all inputs."""
    parser = benchmark_parser(__doc__, repeats=3, toy=True)
    parser.add_argument("--observations", type=int, default=22, help="as a power of two")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="of methods")
    given = parser.parse_args(arguments)
    m, n = (2**10, 2**9) if given.toy else (2**given.observations, 2**20)
    chosen = [name for name in METHODS if any(word in name for word in given.only)]
    chosen = [name for name in chosen if _installed(name)]
    figures = []
    for kind in ("uniform", "cities"):
        references, observations = inputs(kind, m, n)
        distance_m = distance_for(_MEAN, references, observations)
        print(f"{kind}: {m} observations, {n} references, {distance_m:.1f} m")
        for name in chosen:
            # Once before it is timed: ours compile.
            if name.startswith("ours"):
                METHODS[name](references, observations, distance_m)
        turns = [name for name in chosen for _ in range(given.repeats)]
        random.Random(1).shuffle(turns)
        taken: dict[str, list[Taken]] = {name: [] for name in chosen}
        for name in turns:
            before = time.perf_counter(), time.process_time()
            found = METHODS[name](references, observations, distance_m)
            after = time.perf_counter(), time.process_time()
            taken[name].append(Taken(after[0] - before[0], after[1] - before[1], found))
        for name, times in taken.items():
            wall = statistics.median(one.wall_s for one in times)
            least = min(one.wall_s for one in times)
            processors = statistics.median(one.processors_s for one in times)
            print(
                f"  {name}: {wall:.3f} s, least {least:.3f} s, of processors {processors:.3f} s; "
                f"{times[0].found} found"
            )
            figures += [{"kind": kind, "method": name} | one._asdict() for one in times]
    write_figures(given.json, figures)


if __name__ == "__main__":
    main()
