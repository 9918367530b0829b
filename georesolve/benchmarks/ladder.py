"""`georesolve bench`: ways to find the nearest reference, from a loop to a cluster, on one input.

The ladder is that of the case study that georesolve follows: what it climbed over, what it came to,
and ours beside it. Each rung is run on points uniform on the sphere, several times after a run that
is not counted (once where that takes long), with the device synchronised, and its rows are compared
with an exact answer that is not ours. A rung that this machine cannot run says why.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from georesolve.benchmarks.climb import Limits, climb
from georesolve.benchmarks.machine import machine, write_figures
from georesolve.benchmarks.problem import make
from georesolve.benchmarks.rungs import RUNGS, Rung
from georesolve.engine.gpus import count_gpus

SIZES = ((12, 10), (16, 13), (18, 14), (24, 14))
"""Observations and references as powers of two; the first is for what would take hours beyond."""
TOY = ((6, 5), (8, 6))
_PACKAGES = ("matplotlib", "scikit-learn", "scipy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ladder; returns the exit code."""
    options = _parser().parse_args(arguments)
    sizes = options.sizes or (TOY if options.toy else SIZES)
    options.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {"machine": machine(_PACKAGES), "rows": []}
    _show_machine(figures["machine"])
    with tempfile.TemporaryDirectory(prefix="georesolve-bench-") as folder:
        folders = [Path(folder) / f"{m}x{n}" for m, n in sizes]
        figures["exact"] = {
            _title(*size): make(where, *size) for size, where in zip(sizes, folders, strict=True)
        }
        for name in options.only or RUNGS:
            rung = RUNGS[name]
            lacking = _lacking(rung)
            rows = (
                ({"reason": lacking} for _ in sizes)
                if lacking
                else climb(name, folders, Limits(options.repeats, options.limit))
            )
            for (m, n), row in zip(sizes, rows, strict=True):
                print(f"  {name}, {_title(m, n)}: {_outcome(row)}", file=sys.stderr, flush=True)
                size = {"size": _title(m, n), "observations": 2**m, "references": 2**n}
                figures["rows"].append({"rung": name, **size, "timed": rung.timed, **row})
            _compare(figures["rows"])
            write_figures(options.out / "ladder.json", figures)
    for m, n in sizes:
        _show(_title(m, n), [r for r in figures["rows"] if r["size"] == _title(m, n)])
    print("\nexact answers by " + "; ".join(f"{k}: {v}" for k, v in figures["exact"].items()))
    print(f"figures: {options.out / 'ladder.json'}")
    if find_spec("matplotlib"):
        from georesolve.benchmarks.chart import draw

        draw(figures, options.out / "ladder.png")
        print(f"chart: {options.out / 'ladder.png'}")
    else:
        print("no chart: matplotlib is not installed (the extra 'bench' has it)")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="georesolve bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        metavar="MxN",
        help="2^M observations by 2^N references, from small to large (default: "
        + " ".join(f"{m}x{n}" for m, n in SIZES)
        + ")",
    )
    parser.add_argument("--toy", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", choices=RUNGS, metavar="RUNG", help=", ".join(RUNGS))
    parser.add_argument("--repeats", type=int, default=5, help="runs that count (default: 5)")
    parser.add_argument(
        "--limit", type=float, default=20.0, help="seconds that a row may take (default: 20)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("georesolve-bench"),
        help="folder for ladder.json and ladder.png (default: georesolve-bench)",
    )
    return parser


def _size(text: str) -> tuple[int, int]:
    try:
        m, n = map(int, text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected MxN, such as 16x13, got {text!r}") from None
    if not (0 <= m <= 28 and 0 <= n <= 28):
        raise argparse.ArgumentTypeError(f"powers of two are 0 to 28, got {text}")
    return m, n


def _lacking(rung: Rung) -> str | None:
    """What this machine lacks for a rung."""
    if rung.gpu and not count_gpus():
        return "no GPU"
    absent = [package for module, package in rung.needs.items() if not find_spec(module)]
    return f"not installed: {', '.join(absent)}" if absent else None


def _compare(rows: list[dict[str, Any]]) -> None:
    """Add to each row how many times as long as ours it took."""
    medians = {(row["size"], row["rung"]): row.get("median_s") for row in rows}
    for row in rows:
        for ours in RUNGS[row["rung"]].beside:
            median = medians.get((row["size"], ours))
            if median and "median_s" in row:
                row["beside"], row["times_of_ours"] = ours, row["median_s"] / median
                break


def _title(m: int, n: int) -> str:
    return f"2^{m} x 2^{n}"


def _outcome(row: dict[str, Any]) -> str:
    return row.get("reason") or f"{row['median_s'] * 1e3:.3f} ms, {row['wrong']} wrong"


def _show_machine(found: dict[str, Any]) -> None:
    gpus = ", ".join(found["gpus"]) or "none"
    print(f"CPU     {found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB")
    print(f"GPU     {gpus}" + (f"; driver {found['driver']}" if found["driver"] else ""))
    print(f"system  {found['system']}, Python {found['python']}")
    installed = (f"{name} {version}" for name, version in found["versions"].items() if version)
    print(f"        {', '.join(installed)}", flush=True)


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    header = ("median ms", "least", "largest", "runs", "M rows/s", "of ours", "wrong", "checked")
    print(f"\n{title:<26}" + "".join(f"{name:>12}" for name in header) + "  timed")
    for row in rows:
        if "reason" in row:
            print(f"{row['rung']:<26}  {' '.join(row['reason'].split())[:150]}")
            continue
        times = "".join(
            f"{row[f'{name}_s'] * 1e3:12.3f}" for name in ("median", "least", "largest")
        )
        times += f"{len(row['seconds']):12}"
        rate = row["observations"] / row["median_s"] / 1e6
        ratio = f"{row['times_of_ours']:.4g}" if "times_of_ours" in row else "-"
        checks = f"{row['wrong']:12,}{row['checked']:12,}"
        print(f"{row['rung']:<26}{times}{rate:12.4g}{ratio:>12}{checks}  {row['timed']}")


if __name__ == "__main__":
    sys.exit(main())
