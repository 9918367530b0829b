"""Every CUDA kernel compiles for every GPU that is supported, on a machine that has none."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher

from tests.kernels.test_compile import KERNELS, ptx

# `make test` compiles for 9.0.
OTHERS = [(7, 5), (8, 0), (12, 0)]


def texts(compute_capability):
    device = SimpleNamespace(compute_capability=compute_capability)
    dispatcher.get_current_device = lambda: device
    return {name: ptx(name, compute_capability) for name in KERNELS}


@pytest.mark.parametrize("compute_capability", OTHERS, ids=str)
def test_kernels_compile(compute_capability):
    # In a process of its own, as numba makes a function that kernels call once a process.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        made = pool.submit(texts, compute_capability).result()
    assert all(".entry" in text for text in made.values())
    # Before 8.0 a warp cannot reduce in one instruction: it does by exchanges.
    assert ("redux.sync" in made["walk_one"]) == (compute_capability >= (8, 0))
    assert ("shfl.sync.bfly" in made["walk_one"]) == (compute_capability < (8, 0))
