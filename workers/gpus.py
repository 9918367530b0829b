"""The GPUs of this machine, counted without touching them."""

import os

from kernels.devices import Device
from workers.settings import DeviceChoice


class NoGpuError(RuntimeError):
    """A GPU was asked for and there is none."""


def count_gpus() -> int:
    """Number of GPUs that a process started now may use.

    It asks the driver's management library, which makes no CUDA context: the process that asks may
    be one that never computes.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def choose_device(choice: DeviceChoice) -> Device:
    """The device to compute on: what was asked for, or for ``auto`` a GPU when there is one.

    Raises
    ------
    NoGpuError
        When ``cuda`` was asked for and this machine has no GPU: never a quiet fall back.
    """
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
