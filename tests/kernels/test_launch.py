"""Launch of CUDA kernels: which arrays are refused, without a GPU; all searches on one launch."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from georesolve.kernels import coordinates_cuda, launch_cuda
from georesolve.kernels.filters_cuda import OfGroup


class Array(np.ndarray):
    """Array of numpy with an address in the form of CuPy."""

    data = SimpleNamespace(ptr=0)


class ReachesDeviceError(Exception):
    """Raised where a launch asks for the device."""


WRONG = {
    "every second": np.zeros(10)[::2],
    "columns": np.zeros((5, 4))[:, :2],
    "Fortran": np.zeros((5, 4), order="F"),
    "reversed": np.zeros(5)[::-1],
    "broadcast": np.broadcast_to(0.0, 5),
}
RIGHT = {
    "all": np.zeros((5, 4)),
    "rows": np.zeros((5, 4))[1:3],
    "one": np.zeros(10)[::10],
    "empty": np.zeros((5, 4))[:, :0],
}


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    def reach_device():
        raise ReachesDeviceError

    runtime = SimpleNamespace(getDevice=reach_device)
    module = SimpleNamespace(ndarray=Array, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", module)


def launch(array):
    for arguments in ((7, array), (OfGroup(0, 0, True, array),)):
        yield lambda arguments=arguments: launch_cuda.launch(
            coordinates_cuda.measure, 1, 32, *arguments
        )


@pytest.mark.parametrize("name", WRONG)
def test_an_array_that_is_not_contiguous_is_refused(name):
    for start in launch(WRONG[name].view(Array)):
        with pytest.raises(ValueError, match=r"kernel measure got an array .* C-contiguous"):
            start()


@pytest.mark.parametrize("name", RIGHT)
def test_a_contiguous_array_is_launched(name):
    for start in launch(RIGHT[name].view(Array)):
        with pytest.raises(ReachesDeviceError):
            start()
