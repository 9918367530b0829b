"""Searches beside those of another version, beside easier data, and beside brute force.

Processes of two versions take turns, and the median of their ratios counts, with its upper bound
(95 %). On a GPU there are several of each version: where one of them lies in memory and on which
cores it runs may cost it a tenth for as long as it lives. Times are from degrees to rows and
metres, the index included: with all cores, or on one GPU with the degrees in its memory.

    git worktree add /tmp/old COMMIT
    python -m georesolve.benchmarks.turns --old /tmp/old [--device cuda] [--pairs 15]
        [--only WORD ...] [--json FILE] [--toy]
"""

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
from georesolve.benchmarks.machine import benchmark_parser, write_figures

_HERE = Path(__file__).resolve().parents[2]
_CONFIDENCE = 0.95
_PROCESSES = {"cpu": 1, "cuda": 6}
"""Processes of a version: on a CPU the memory of more would be in each other's way."""
_PROGRAM = """
import sys, time
import numpy as np
from georesolve import kernels
on_gpu = sys.argv[1] == "cuda"
if on_gpu:
    import cupy
    wait = cupy.cuda.Device().synchronize
loaded = None
for line in sys.stdin:
    path, k, exclude_self, algorithm = line.split()
    if path != loaded:
        with np.load(path) as sets:
            references, observations = sets["references"], sets["observations"]
        if on_gpu:
            references, observations = cupy.asarray(references), cupy.asarray(observations)
        loaded = path
    query = {"k": int(k), "exclude_self": exclude_self == "True", "algorithm": algorithm}
    if on_gpu:
        wait()
    start = time.perf_counter()
    answer = kernels.nearest(kernels.build_index(*references), *observations, **query)
    if on_gpu:
        wait()
    print(time.perf_counter() - start, flush=True)
    del answer
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


class Bars(NamedTuple):
    """What is compared on a device, and the most that an old version may be better by.

    Attributes
    ----------
    usual
        Kinds and sizes that are compared with the other version.
    hard
        Those that are compared with as many spread points.
    rings
        Those that are compared with brute force.
    own
        Whether each is matched with itself, too.
    """

    most: float
    usual: tuple[tuple[str, int, int], ...]
    hard: tuple[tuple[str, int, int], ...]
    rings: tuple[tuple[str, int, int], ...]
    own: tuple[bool, ...]


_BARS = {
    "cpu": Bars(
        1.08,
        (
            ("uniform", 2**20, 2**14),
            ("uniform", 2**20, 2**20),
            ("uniform", 2**12, 2**20),
            ("cities", 2**18, 2**17),
            ("box", 2**18, 2**18),
            ("grid", 2**18, 2**18),
        ),
        (
            ("coincident", 2**20, 2**20),
            ("copies", 2**20, 2**20),
            ("cluster", 2**18, 2**20),
        ),
        (("ring", 2**9, 2**20), ("ring", 2**12, 2**18)),
        (False, True),
    ),
    "cuda": Bars(
        1.03,
        (
            ("uniform", 2**24, 2**14),
            ("uniform", 2**22, 2**20),
            ("uniform", 2**20, 2**24),
            ("uniform", 2**20, 2**17),
            ("cities", 2**22, 2**17),
            ("grid", 2**20, 2**20),
        ),
        (
            ("zeros", 2**20, 2**20),
            ("coincident", 2**16, 2**18),
            ("cluster", 2**20, 2**20),
        ),
        (
            ("ring", 2**9, 2**20),
            ("ring", 2**14, 2**18),
            ("ring", 2**18, 2**14),
        ),
        (False,),
    ),
}


def comparisons(device: str) -> dict[str, Comparison]:
    """All comparisons on a device, by name."""
    found = {}
    bars = _BARS[device]
    for k, own in ((k, own) for k in (1, 8, 64) for own in bars.own):
        way = f"k = {k}" + (", exclude_self" if own else "")
        for kind, m, n in bars.usual:
            if own and m != n:
                continue
            search = Search(kind, m, n, k, own)
            found[f"{kind} {m} x {n}, {way}: old"] = Comparison(search, search, True, bars.most)
        for kind, m, n in bars.hard:
            base = Search("uniform", m, n, k, own)
            name = f"{kind} {m} x {n}, {way}: spread"
            found[name] = Comparison(Search(kind, m, n, k, own), base, False, 3.0)
        for kind, m, n in bars.rings:
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
    """Processes that search with one version of the sources."""

    def __init__(self, root: Path, device: str, stack: ExitStack) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root)}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _PROGRAM, device]
        # From its own folder: Python looks for modules where it starts before it looks elsewhere.
        self._processes = [
            stack.enter_context(
                subprocess.Popen(
                    command, cwd=root, env=environment, stdin=pipe, stdout=pipe, text=True
                )
            )
            for _ in range(_PROCESSES[device])
        ]

    def warm_up(self, path: Path, search: Search) -> None:
        for turn in range(2 * len(self._processes)):
            self.seconds(turn, path, search)

    def seconds(self, turn: int, path: Path, search: Search) -> float:
        """What a search takes, in each turn with the next process."""
        process = self._processes[turn % len(self._processes)]
        assert process.stdin is not None
        assert process.stdout is not None
        print(path, search.k, search.exclude_self, search.algorithm, file=process.stdin)
        process.stdin.flush()
        return float(process.stdout.readline())


def main(arguments: list[str] | None = None) -> int:
    """Compare; returns 1 when a bound is exceeded."""
    parser = benchmark_parser(__doc__, toy=True)
    parser.add_argument(
        "--old", type=lambda text: Path(text).resolve(), default=_HERE,
        help="sources of the other version",
    )  # fmt: skip
    parser.add_argument("--device", choices=list(_BARS), default="cpu")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of comparisons")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, float]] = {}
    failed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        new, old = (_Version(root, options.device, stack) for root in (_HERE, options.old))
        for name, (search, base, by_old, most) in comparisons(options.device).items():
            if options.only and not any(word in name for word in options.only):
                continue
            paths = [_stored(one, folder, toy=options.toy) for one in (search, base)]
            pair = [(new, paths[0], search), (old if by_old else new, paths[1], base)]
            for version, path, asked in pair:
                version.warm_up(path, asked)
            times: list[list[float]] = []
            for turn in range(options.pairs):
                order = random.sample(pair, 2)
                taken = {id(one): one[0].seconds(turn, *one[1:]) for one in order}
                times.append([taken[id(one)] for one in pair])
            ratios = [a / b for a, b in times]
            bound = upper_bound(ratios)
            failed += bound > most
            own, other = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            figures[name] = {
                "own_ms": own,
                "other_ms": other,
                "ratio": statistics.median(ratios),
                "at_most": bound,
                "bar": most,
            }
            write_figures(options.json, {"pairs": options.pairs, "comparisons": figures})
            print(
                f"{name:56}{own:10.2f} ms{other:10.2f} ms  ratio {statistics.median(ratios):5.2f}"
                f"  at most {bound:5.2f}  {'ok' if bound <= most else f'ABOVE {most}'}",
                flush=True,
            )
    return int(failed > 0)


def _stored(search: Search, folder: Path, *, toy: bool) -> Path:
    sizes = (search.observations, search.references)
    own = search.exclude_self and search.kind != "ring"
    # Sets that several comparisons have are made, and loaded, once.
    path = folder / f"{search.kind}-{sizes[0]}-{sizes[1]}{'-own' if own else ''}.npz"
    if path.exists():
        return path
    references, observations = inputs(search.kind, *(min(n, 2**8) if toy else n for n in sizes))
    if own:
        # The set is matched with itself, or a part of it.
        size = observations[0].size
        observations = references[0][:size], references[1][:size]
    np.savez(path, references=np.stack(references), observations=np.stack(observations))
    return path


if __name__ == "__main__":
    raise SystemExit(main())
