"""One task, five ways: three depots near each shop, by ours and by what people use otherwise.

    python benchmarks/five_ways [--repeats N] [--json FILE]

50 000 shops in a CSV as a spreadsheet saves it (semicolons, decimal commas, a byte order mark),
3000 depots in GeoJSON; the three nearest within 50 km, with the name of the depot, as Parquet. A
script for each way stands beside this file, and is run as a process: what it imports counts. The
first of its runs is cold: for ours it compiles kernels. A right row is one whose depot, shop and
rank are those of all pairs compared in float64, on the same sphere.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SHOPS, DEPOTS, K, LIMIT_M = 50_000, 3_000, 3, 50_000.0
RADIUS_M = 6_371_008.8
WAYS = {
    "georesolve.resolve": "by_python.py",
    "georesolve nearest": "by_command.sh",
    "HTTP, service running": "by_http.sh",
    "GeoPandas and pyproj": "by_geopandas.py",
    "sklearn's BallTree": "by_balltree.py",
}


def make_inputs(folder: Path) -> tuple[Path, Path]:
    """Write shops near places of the samples, and depots at places."""
    draw = np.random.default_rng(2026)
    places = pq.read_table(ROOT / "samples" / "places.parquet").to_pandas()
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    at = draw.integers(len(lat), size=SHOPS)
    shops = pd.DataFrame(
        {
            "id": [f"{i:06}" for i in range(SHOPS)],
            "name": [f'Laden "{i}"; Zentrum' for i in range(SHOPS)],
            "latitude": np.clip(lat[at] + draw.normal(0, 0.1, SHOPS), -89, 89).round(6),
            "longitude": np.clip(lon[at] + draw.normal(0, 0.1, SHOPS), -179.9, 179.9).round(6),
        }
    )
    shops.to_csv(folder / "shops.csv", sep=";", decimal=",", encoding="utf-8-sig", index=False)
    features = [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [float(lon[i]), float(lat[i])]},
            "properties": {"name": f"depot {n}"},
        }
        for n, i in enumerate(draw.choice(len(lat), DEPOTS, replace=False))
    ]
    collection = {"type": "FeatureCollection", "features": features}
    (folder / "depots.geojson").write_text(json.dumps(collection))
    return folder / "shops.csv", folder / "depots.geojson"


def right_answer(shops: Path, depots: Path) -> set[tuple[int, int]]:
    """Pairs of a shop and a depot that belong into the result: all pairs compared."""
    table = pd.read_csv(shops, sep=";", decimal=",", encoding="utf-8-sig")
    features = json.loads(depots.read_text())["features"]
    lon, lat = np.array([one["geometry"]["coordinates"] for one in features]).T
    q, depots_rad = np.radians(lat), np.radians(lon)
    pairs = set()
    for row, (shop_lat, shop_lon) in enumerate(table[["latitude", "longitude"]].to_numpy()):
        p = np.radians(shop_lat)
        half = np.sin((q - p) / 2) ** 2
        half += np.cos(p) * np.cos(q) * np.sin((depots_rad - np.radians(shop_lon)) / 2) ** 2
        metres = 2 * RADIUS_M * np.arcsin(np.sqrt(half))
        nearest = np.argsort(metres, kind="stable")[:K]
        pairs |= {(row, int(one)) for one in nearest if metres[one] <= LIMIT_M}
    return pairs


def lines_of(script: Path) -> int:
    """Lines of code of a script: neither empty nor a comment."""
    lines = (line.strip() for line in script.read_text().splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def pairs_of(result: Path) -> set[tuple[int, int]]:
    """Pairs of a shop and a depot in a result."""
    table = pq.read_table(result, columns=["observation", "reference"]).to_pandas().dropna()
    return set(zip(table["observation"].astype(int), table["reference"].astype(int), strict=True))


def main() -> None:
    """Run all ways in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="warm runs of each way")
    parser.add_argument("--json", type=Path, help="where the figures go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = make_inputs(folder)
        right = right_answer(*inputs)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NUMBA_CACHE_DIR": str(folder / "compiled"),
        }
        service, environment["GEORESOLVE_URL"] = start_service(folder, environment)
        try:
            figures = measure(folder, inputs, environment, given.repeats)
        finally:
            service.terminate()
            service.wait()
        for way, script in WAYS.items():
            found = pairs_of(folder / f"{script}.parquet")
            figures[way] |= {
                "lines": lines_of(HERE / script),
                "right": len(found & right),
                "wrong": len(found - right),
                "missing": len(right - found),
            }
    print("| way | lines | cold s | warm s | right rows | wrong | missing |")
    print("|---|---|---|---|---|---|---|")
    for way, of in figures.items():
        warm = sorted(of["warm"])
        print(
            f"| {way} | {of['lines']} | {of['cold']:.2f} "
            f"| {statistics.median(warm):.2f} [{warm[0]:.2f}, {warm[-1]:.2f}] "
            f"| {of['right']} | {of['wrong']} | {of['missing']} |"
        )
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


def start_service(folder: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """Start a service; returns it and its address."""
    log = folder / "service.log"
    command = [sys.executable, "-m", "georesolve", "serve", "--port", "0"]
    command += ["--data-dir", str(folder / "data"), "--dashboard-address", "127.0.0.1:0"]
    with log.open("w") as file:
        service = subprocess.Popen(command, stderr=file, env=environment, text=True)
    while "answers at " not in log.read_text():
        if service.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.1)
    return service, log.read_text().partition("answers at ")[2].split()[0]


def measure(
    folder: Path, inputs: tuple[Path, Path], environment: dict[str, str], repeats: int
) -> dict[str, dict[str, Any]]:
    """Seconds of each way: of its first run, and of later ones, in turns of changing order."""
    figures: dict[str, dict[str, Any]] = {way: {"warm": []} for way in WAYS}
    for turn in range(repeats + 1):
        for way in random.sample(list(WAYS), len(WAYS)):
            script = WAYS[way]
            program = [sys.executable] if script.endswith(".py") else ["bash"]
            own = {"NUMBA_CACHE_DIR": str(folder / "cold" / script)} if turn == 0 else {}
            start = time.perf_counter()
            subprocess.run(
                [*program, HERE / script, *inputs, folder / f"{script}.parquet"],
                env=environment | own,
                check=True,
            )
            seconds = time.perf_counter() - start
            if turn == 0:
                figures[way]["cold"] = seconds
            else:
                figures[way]["warm"].append(seconds)
    return figures


if __name__ == "__main__":
    main()
