"""Which module does which step on which device; the arrays decide the device."""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import numpy as np

Array = Any
"""An array of numpy or CuPy. CuPy is not installed everywhere, so the type cannot be named."""

_FLOAT64 = np.dtype(np.float64)

Device = Literal["cpu", "cuda"]
Step = Literal[
    "coordinates",
    "brute",
    "tree",
    "within",
    "filtered",
    "merge",
    "shapes",
    "outlines",
    "ellipsoid",
]

# Modules by name: those for CUDA are imported only once an array of CuPy has been seen.
_MODULES: dict[Device, dict[Step, str]] = {
    "cpu": {
        "coordinates": "georesolve.kernels.coordinates_cpu",
        "brute": "georesolve.kernels.brute_cpu",
        "tree": "georesolve.kernels.tree_cpu",
        "within": "georesolve.kernels.within_cpu",
        "filtered": "georesolve.kernels.filtered_cpu",
        "merge": "georesolve.kernels.merge_cpu",
        "shapes": "georesolve.kernels.shapes_cpu",
        "outlines": "georesolve.kernels.outlines_cpu",
        "ellipsoid": "georesolve.kernels.ellipsoid_cpu",
    },
    "cuda": {
        "coordinates": "georesolve.kernels.coordinates_cuda",
        "brute": "georesolve.kernels.reduce_cuda",
        "tree": "georesolve.kernels.tree_cuda",
        "within": "georesolve.kernels.within_cuda",
        "filtered": "georesolve.kernels.filtered_cuda",
        "merge": "georesolve.kernels.reduce_cuda",
        "shapes": "georesolve.kernels.shapes_cuda",
        "ellipsoid": "georesolve.kernels.ellipsoid_cuda",
    },
}
_DEVICE_OF_LIBRARY: dict[str, Device] = {"numpy": "cpu", "cupy": "cuda"}


def device_of(array: Array) -> Device:
    """The device that holds an array; raises TypeError of what is neither numpy's nor CuPy's."""
    library = type(array).__module__.partition(".")[0]
    if library not in _DEVICE_OF_LIBRARY or not hasattr(array, "shape"):
        raise TypeError(f"expected an array of numpy or CuPy, got {type(array).__name__}")
    return _DEVICE_OF_LIBRARY[library]


@cache
def implementation(device: Device, step: Step) -> ModuleType:
    """The module that does a step on a device."""
    return import_module(_MODULES[device][step])


def coordinate_pair(lat_deg: Array, lon_deg: Array) -> tuple[Array, Array, Device]:
    """Check a pair of coordinate arrays; returns them contiguous, in float64, and their device.

    TypeError and ValueError say what they hold, where they are or which shapes they have.
    """
    device = device_of(lat_deg)
    if device_of(lon_deg) != device:
        raise TypeError(f"lat_deg is on {device} but lon_deg on {device_of(lon_deg)}: move one")
    if lat_deg.ndim != 1 or lat_deg.shape != lon_deg.shape:
        raise ValueError(
            f"lat_deg and lon_deg must have one shape (n,), got {lat_deg.shape} and {lon_deg.shape}"
        )
    arrays = []
    for name, array in (("lat_deg", lat_deg), ("lon_deg", lon_deg)):
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
        # Asked first: on a GPU a method of an array takes long for what it need not do.
        if array.dtype != _FLOAT64 or not array.flags.c_contiguous:
            array = array.astype(_FLOAT64, order="C")
        arrays.append(array)
    return arrays[0], arrays[1], device
