"""What figures depend on: the processor, the memory, the GPUs, the versions, the commit."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from georesolve.engine.gpus import count_gpus
from georesolve.version import __version__

_PACKAGES = ("dask", "numba", "numpy", "pyarrow")
_GPU_PACKAGES = ("cudf-cu12", "cupy-cuda12x", "dask-cuda", "numba-cuda", "rmm-cu12")


def machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """What this machine is, and the versions of what runs on it; None for what is absent."""
    gpus, driver = _gpus()
    names = {*_PACKAGES, *packages, *(_GPU_PACKAGES if gpus else ())}
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "gpus": gpus,
        "driver": driver,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in sorted(names)},
    }


def benchmark_parser(
    description: str, *, repeats: int | None = None, toy: bool = False
) -> argparse.ArgumentParser:
    """The parser of a benchmark, with what most of them may be told."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, help="turns that count")
    if toy:
        parser.add_argument("--toy", action="store_true", help="small inputs: does it run?")
    return parser


def write_figures(path: Path | None, figures: dict[str, Any] | list[Any]) -> None:
    """Write figures as JSON, with the commit that they were taken of and the machine, if asked."""
    if path is None:
        return
    named = {"figures": figures} if isinstance(figures, list) else figures
    about = {"commit": _commit(), "machine": named.get("machine") or machine()}
    path.write_text(json.dumps(named | about, indent=1))


def _commit() -> str:
    """The commit of this clone, `-dirty` where it was changed; else the version installed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return __version__
    return done.stdout.strip() or __version__


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _gpus() -> tuple[list[str], str | None]:
    """The GPUs that a program may use, each with its memory, and their driver."""
    n = count_gpus()
    if not n:
        return [], None
    import pynvml

    pynvml.nvmlInit()
    try:
        gpus = []
        for i in range(n):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            gib = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
            gpus.append(f"{pynvml.nvmlDeviceGetName(handle)}, {gib:.0f} GiB")
        return gpus, str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
