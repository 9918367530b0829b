"""Small requests by number of fronts: alone, beside large jobs, and beside large uploads.

    python -m georesolve.benchmarks.fronts --device cuda --fronts 1 2 4 8

`wrk` posts 1 000 observations as JSON to `/nearest` as many clients at once, for some seconds each:
while nothing else happens, while one large job after the other runs, and while one large file after
the other is uploaded.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from georesolve.benchmarks.machine import benchmark_parser, machine, write_figures
from georesolve.benchmarks.service import front_processes, running, sphere, until_successful
from georesolve.benchmarks.small_requests import Case, body_of, drive, warm_up
from georesolve.io.result_formats import JSON, PARQUET

_BODIES = 16


@contextmanager
def again_and_again(action: Callable[[], None] | None) -> Iterator[list[int]]:
    """Have something done in a thread, over and over; yields a list that grows each time."""
    done: list[int] = []
    if action is None:
        yield done
        return
    enough = threading.Event()
    failed: list[BaseException] = []

    def repeat() -> None:
        try:
            while not enough.is_set():
                action()
                done.append(len(done))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield done
    finally:
        enough.set()
        thread.join()
        if failed:
            raise failed[0]


def under_load(
    device: str, fronts: int, where: Path, clients: int, seconds: float, points: bytes
) -> dict[str, Any]:
    """Figures of a service with so many fronts."""
    large = where / "large.parquet"
    with running(
        device, where / f"data-{fronts}", where / f"log-{fronts}", "--fronts", f"{fronts}"
    ) as client:
        parquet = {"Content-Type": PARQUET.media_type}

        def register(content: Any) -> str:
            made = client.post("/datasets", content=content, headers=parquet)
            return f"dataset:{made.raise_for_status().json()['id']}"

        def upload() -> None:
            with large.open("rb") as file:
                register(file)

        references = register(points)
        with large.open("rb") as file:
            observations = register(file)

        def job() -> None:
            done, _ = until_successful(client, observations, references)
            client.delete(f"/jobs/{done['id']}").raise_for_status()

        url = str(client.base_url).rstrip("/")
        id = references.removeprefix("dataset:")
        bodies = tuple(body_of(1_000, seed, id) for seed in range(_BODIES))
        case = Case(front_processes(), url, "/nearest", JSON, PARQUET, bodies)
        # Each front maps the index when it is first asked.
        for _ in range(2 * fronts):
            warm_up(case)
        drive(case, clients, min(seconds, 2))
        found = {}
        for name, beside in (("alone", None), ("beside jobs", job), ("beside uploads", upload)):
            with again_and_again(beside) as done:
                found[name] = drive(case, clients, seconds)
            found[name]["done"] = len(done)
        return found


def main() -> None:
    """Run the benchmark and print its table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--references", type=int, default=1 << 20, help="points registered")
    parser.add_argument("--observations", type=int, default=1 << 26, help="of a job and a file")
    parser.add_argument("--clients", type=int, default=64, help="clients at the same time")
    parser.add_argument("--seconds", type=float, default=5, help="that each figure takes")
    options = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine(("fastapi", "uvicorn")), "fronts": {}}
    columns = ("requests_a_second", "p50", "p99", "done")
    print(f"{'fronts':<8}{'':<18}" + "".join(f"{name:>20}" for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "large.parquet").write_bytes(sphere(options.observations, 2))
        points = sphere(options.references, 1)
        for fronts in options.fronts:
            found = under_load(
                options.device, fronts, where, options.clients, options.seconds, points
            )
            figures["fronts"][fronts] = found
            for name, row in found.items():
                shown = "".join(f"{row[column]:>20.1f}" for column in columns)
                print(f"{fronts:<8}{name:<18}{shown}", flush=True)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
