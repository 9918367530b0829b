"""Every CUDA kernel compiles for every GPU that is supported, on a machine that has none."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher

from tests.kernels.test_compile import COMPUTE_CAPABILITY, KERNELS, VARIANTS, look_at, ptx

# `make test` compiles for 9.0, but for variants.
OTHERS = [(7, 5), (8, 0), (12, 0)]


def texts(compute_capability):
    device = SimpleNamespace(compute_capability=compute_capability)
    dispatcher.get_current_device = lambda: device
    names = VARIANTS if compute_capability == COMPUTE_CAPABILITY else KERNELS
    return {name: ptx(name, compute_capability) for name in names}


def made_for(compute_capability):
    # In a process of its own, as numba makes a function that kernels call once a process.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(texts, compute_capability).result()


def test_variants_are_rounded_step_by_step_and_not_spilled():
    for name, text in made_for(COMPUTE_CAPABILITY).items():
        look_at(name, text)


@pytest.mark.parametrize("compute_capability", OTHERS, ids=str)
def test_kernels_compile(compute_capability):
    made = made_for(compute_capability)
    assert all(".entry" in text for text in made.values())
    # Before 8.0 a warp cannot reduce in one instruction: it does by exchanges.
    assert ("redux.sync" in made["walk_one"]) == (compute_capability >= (8, 0))
    assert ("shfl.sync.bfly" in made["walk_one"]) == (compute_capability < (8, 0))
