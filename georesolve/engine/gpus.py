"""The GPUs of this machine, counted without touching them."""

import itertools
import os
from typing import Literal, get_args

from georesolve.kernels.devices import Device

DeviceChoice = Literal["auto", "cpu", "cuda"]


class NoGpuError(RuntimeError):
    """A GPU was asked for and there is none."""


def count_gpus() -> int:
    """Number of GPUs that a process started now may use.

    It asks the driver's management library, which makes no CUDA context: the process that asks may
    be one that never computes.
    """
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        # In the order of their numbers.
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return count_visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))


def count_visible(uuids: list[str], names: str | None) -> int:
    """Number of GPUs that CUDA shows of those with these UUIDs.

    `names` is what ``CUDA_VISIBLE_DEVICES`` says (CUDA C++ Programming Guide, "CUDA Environment
    Variables"): numbers, or begins of UUIDs, up to the first that names no GPU.
    """
    if names is None:
        return len(uuids)

    def is_there(name: str) -> bool:
        if name.isdecimal():
            return int(name) < len(uuids)
        # A part of a GPU has a UUID of its own.
        return name.startswith("MIG-") or any(uuid.startswith(name) for uuid in uuids if name)

    shown = itertools.takewhile(is_there, map(str.strip, names.split(",")))
    return len(list(shown)) if uuids else 0


def choose_device(choice: DeviceChoice) -> Device:
    """The device to compute on: what was asked for, or for ``auto`` a GPU when there is one.

    It raises NoGpuError when ``cuda`` was asked for and this machine has no GPU: never a quiet fall
    back.
    """
    if choice not in (choices := get_args(DeviceChoice)):
        raise ValueError(f"device must be one of {', '.join(choices)}, got {choice!r}")
    if choice == "cpu":
        return "cpu"
    if count_gpus():
        return "cuda"
    if choice == "cuda":
        raise NoGpuError(
            "device is 'cuda', but this machine shows no GPU (install the driver and the extra "
            "'gpu', check CUDA_VISIBLE_DEVICES), or set device to 'auto' or 'cpu'"
        )
    return "cpu"
