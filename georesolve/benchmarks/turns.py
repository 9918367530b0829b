"""The CPU's searches beside those of another version, beside easier data, and beside brute force.

Two processes take turns, and the median of their ratios counts, with its upper bound (95 %). Times
are from degrees to rows and metres, the index included, with all cores.

    git worktree add /tmp/old COMMIT
    python -m georesolve.benchmarks.turns --old /tmp/old [--pairs 15] [--only WORD ...] [--toy]
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from math import comb
from pathlib import Path
from typing import NamedTuple

import numpy as np

from georesolve.benchmarks.inputs import inputs

_HERE = Path(__file__).resolve().parents[2]
_CONFIDENCE = 0.95
_PROGRAM = """
import sys, time
import numpy as np
from georesolve import kernels
for line in sys.stdin:
    path, k, exclude_self, algorithm = line.split()
    with np.load(path) as sets:
        references, observations = sets["references"], sets["observations"]
    query = {"k": int(k), "exclude_self": exclude_self == "True", "algorithm": algorithm}
    start = time.perf_counter()
    kernels.nearest(kernels.build_index(*references), *observations, **query)
    print(time.perf_counter() - start, flush=True)
"""


class Search(NamedTuple):
    """What is timed: point sets of a kind, and how they are searched."""

    kind: str
    observations: int
    references: int
    k: int = 1
    exclude_self: bool = False
    algorithm: str = "auto"


class Comparison(NamedTuple):
    """A search, its base, whether the other version does that, and the most the ratio may be."""

    search: Search
    base: Search
    by_old: bool
    most: float


_USUAL = (
    ("uniform", 2**20, 2**14),
    ("uniform", 2**20, 2**20),
    ("uniform", 2**12, 2**20),
    ("cities", 2**18, 2**17),
    ("box", 2**18, 2**18),
    ("grid", 2**18, 2**18),
)
_EQUAL = (("coincident", 2**20, 2**20), ("copies", 2**20, 2**20))
_CLUSTER = ("cluster", 2**18, 2**20)
_RING = (("ring", 2**9, 2**20), ("ring", 2**12, 2**18))


def comparisons() -> dict[str, Comparison]:
    """All comparisons, by name."""
    found = {}
    ways = [(k, own) for k in (1, 8, 64) for own in (False, True)]
    for k, own in ways:
        way = f"k = {k}" + (", exclude_self" if own else "")
        for kind, m, n in _USUAL:
            if own and m != n:
                continue
            search = Search(kind, m, n, k, own)
            found[f"{kind} {m} x {n}, {way}: old"] = Comparison(search, search, True, 1.08)
        for kind, m, n in (*_EQUAL, _CLUSTER):
            base = Search("uniform", m, n, k, own)
            name = f"{kind} {m} x {n}, {way}: spread"
            found[name] = Comparison(Search(kind, m, n, k, own), base, False, 3.0)
        for kind, m, n in _RING:
            search = Search(kind, m, n, k, own)
            base = search._replace(algorithm="brute")
            found[f"{kind} {m} x {n}, {way}: brute"] = Comparison(search, base, False, 1.5)
    return found


def upper_bound(ratios: list[float]) -> float:
    """What the median of ratios is below with a confidence of 95 %, however they are spread."""
    n = len(ratios)
    below = 0.0
    for i, ratio in enumerate(sorted(ratios)):
        below += comb(n, i) / 2**n
        if below >= _CONFIDENCE:
            return ratio
    return max(ratios)


class _Version:
    """A process that searches with one version of the sources."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root)}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _PROGRAM]
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self._process = stack.enter_context(process)

    def seconds(self, path: Path, search: Search) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, search.k, search.exclude_self, search.algorithm, file=self._process.stdin)
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main(arguments: list[str] | None = None) -> int:
    """Compare; returns 1 when a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, default=_HERE, help="sources of the other version")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of comparisons")
    parser.add_argument("--toy", action="store_true", help="sizes for a test of the benchmark")
    options = parser.parse_args(arguments)
    failed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        new, old = _Version(_HERE, stack), _Version(options.old, stack)
        for name, (search, base, by_old, most) in comparisons().items():
            if not all(word in name for word in options.only):
                continue
            pair = [
                (new, _stored(search, folder / "search.npz", toy=options.toy), search),
                (old if by_old else new, _stored(base, folder / "base.npz", toy=options.toy), base),
            ]
            for version, path, asked in pair:
                version.seconds(path, asked)
            times: list[list[float]] = []
            for _ in range(options.pairs):
                order = random.sample(pair, 2)
                taken = {id(one): one[0].seconds(*one[1:]) for one in order}
                times.append([taken[id(one)] for one in pair])
            ratios = [a / b for a, b in times]
            bound = upper_bound(ratios)
            failed += bound > most
            own, other = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            print(
                f"{name:56}{own:10.2f} ms{other:10.2f} ms  ratio {statistics.median(ratios):5.2f}"
                f"  at most {bound:5.2f}  {'ok' if bound <= most else f'ABOVE {most}'}",
                flush=True,
            )
    return int(failed > 0)


def _stored(search: Search, path: Path, *, toy: bool) -> Path:
    sizes = (search.observations, search.references)
    references, observations = inputs(search.kind, *(min(n, 2**8) if toy else n for n in sizes))
    if search.exclude_self and search.kind != "ring":
        # The set is matched with itself, or a part of it.
        size = observations[0].size
        observations = references[0][:size], references[1][:size]
    np.savez(path, references=np.stack(references), observations=np.stack(observations))
    return path


if __name__ == "__main__":
    raise SystemExit(main())
