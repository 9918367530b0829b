"""One rung on all sizes, in a process of its own: whatever happens to it, the ladder goes on."""

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from georesolve.benchmarks.problem import Prepared, Problem, count_wrong, load
from georesolve.benchmarks.rungs import RUNGS

_START_SECONDS = 150.0
"""What a rung may take beside its runs: for its cluster, its kernels, its input."""


class Limits(NamedTuple):
    """How often a row is measured, and for how many seconds."""

    repeats: int
    seconds: float


def climb(name: str, sizes: list[Path], limits: Limits) -> Iterator[dict[str, Any]]:
    """Measure a rung; yields a row for every size: its figures, or the reason why there are none.

    A size is left out when the ones before it say that a run would take more than the limit.
    """
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_measure_all, args=(name, sizes, limits, sender), name=name)
    process.start()
    sender.close()
    patience = limits.seconds + _START_SECONDS
    try:
        for done in range(len(sizes)):
            if not receiver.poll(patience):
                reason = f"stopped: nothing came of it in {patience:.0f} s"
                yield from ({"reason": reason} for _ in sizes[done:])
                return
            try:
                row = receiver.recv()
            except EOFError:
                process.join()
                reason = f"its process ended with exit code {process.exitcode}"
                yield from ({"reason": reason} for _ in sizes[done:])
                return
            yield row
        process.join(_START_SECONDS)
    finally:
        if process.exitcode != 0:
            # With it its children: workers of Dask, a service.
            assert process.pid is not None, "it was started"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.join()


def _measure_all(name: str, sizes: list[Path], limits: Limits, sender: Connection) -> None:
    """What the process does."""
    os.setsid()
    rung = RUNGS[name]
    left = list(sizes)
    # Of a job nearly all is the same for any small size: one says nothing of the next.
    seen = [(0, 0.0)] if rung.grows == "pairs" else []
    # Whatever a library raises is the reason why a row has no figures, and no reason to end.
    try:
        with rung.open() as prepare:
            while left:
                problem = load(left[0])
                work = problem.observations[0].size
                work *= problem.references[0].size if rung.grows == "pairs" else 1
                expected = _expected(seen, work)
                if expected > limits.seconds:
                    row: dict[str, Any] = {"reason": _too_long(expected, limits)}
                else:
                    try:
                        row = _measure(prepare(problem), problem, limits, expected)
                        seen.append((work, row["median_s"]))
                    except (Exception, SystemExit) as error:
                        row = {"reason": _words(error)}
                left.pop(0)
                sender.send(row)
    except (Exception, SystemExit) as error:
        for _ in left:
            sender.send({"reason": _words(error)})


def _expected(seen: list[tuple[int, float]], work: int) -> float:
    """Seconds of a run, along the line through the work and the seconds of the last two."""
    if len(seen) < 2:
        return 0.0
    (before, less), (last, more) = seen[-2:]
    return more + max(0.0, (more - less) / (last - before)) * (work - last)


def _measure(
    prepared: Prepared, problem: Problem, limits: Limits, expected: float
) -> dict[str, Any]:
    """Seconds of several runs after one that is not counted, and the wrong rows of the last.

    A run of more than half of the limit counts at once: the size before it has warmed up the rest.
    """
    seconds: list[float] = []
    answer = prepared.run() if expected <= limits.seconds / 2 else None
    while not seconds or (
        len(seconds) < limits.repeats and sum(seconds) + seconds[-1] < limits.seconds / 2
    ):
        if answer is not None:
            prepared.forget(answer)
        answer = None
        start = time.perf_counter()
        answer = prepared.run()
        seconds.append(time.perf_counter() - start)
    wrong, checked = count_wrong(problem, prepared.rows(answer))
    prepared.forget(answer)
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "least_s": min(seconds),
        "largest_s": max(seconds),
        "wrong": wrong,
        "checked": checked,
    }


def _too_long(expected: float, limits: Limits) -> str:
    units = ((3600, "hours"), (60, "minutes"), (1, "s"))
    value, unit = next((expected / n, unit) for n, unit in units if expected > 1.7 * n or n == 1)
    return (
        f"a run would take about {value:.0f} {unit}, by the sizes before it; a row has "
        f"{limits.seconds:g} s (--limit)"
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
