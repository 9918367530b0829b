"""Every CUDA kernel compiles for every GPU that is supported, on a machine that has none."""

import pytest

from tests.kernels.test_compile import (
    KERNELS,
    OLDEST,
    device_that_functions_are_compiled_for,
    ptx,
)

__all__ = ["device_that_functions_are_compiled_for"]
# `make test` compiles for 9.0.
OTHERS = [OLDEST, (8, 0), (12, 0)]


@pytest.mark.parametrize("compute_capability", OTHERS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_compiles(name, compute_capability):
    assert ".entry" in ptx(name, compute_capability)
