"""Every CUDA kernel compiles for every GPU that is supported, on a machine that has none."""

from types import SimpleNamespace

import pytest
from numba import cuda, njit, types
from numba.cuda import dispatcher

from kernels import coordinates_cuda, order_cuda, reduce_cuda, tree_cuda
from kernels.arithmetic import product, total

COMPUTE_CAPABILITIES = [(7, 5), (8, 0), (9, 0), (12, 0)]


def array(dtype, ndim):
    return types.Array(dtype, ndim, "C")


F8_1, F8_2, F8_3 = (array(types.float64, ndim) for ndim in (1, 2, 3))
I8_1, I8_2, I8_3 = (array(types.int64, ndim) for ndim in (1, 2, 3))
F4_2, I4_1, U4_1 = array(types.float32, 2), array(types.int32, 1), array(types.uint32, 1)
QUERY = (types.int64, types.boolean, types.int64)

KERNELS = {
    "fill_unit_vectors": (coordinates_cuda.fill_unit_vectors, (F8_1, F8_1, F8_2)),
    "fill_distances": (coordinates_cuda.fill_distances, (F8_1, F8_1)),
    "bound": (order_cuda.bound, (F8_2, I4_1)),
    "place": (order_cuda.place, (F8_2, I4_1, U4_1, F8_1)),
    "fill_leaves": (tree_cuda.fill_leaves, (F8_2, I8_1, I4_1, F8_2, F4_2, F4_2, types.int64)),
    "fill_boxes": (tree_cuda.fill_boxes, (F4_2, *[types.int64] * 4)),
    "walk_one": (
        tree_cuda.walk_one,
        (
            F8_2,
            F4_2,
            F4_2,
            I4_1,
            I4_1,
            F8_1,
            *[types.int64] * 2,
            I8_1,
            types.int64,
            *QUERY,
            I8_2,
            F8_2,
        ),
    ),
    "block_min_reduce": (reduce_cuda.block_min_reduce, (F8_2, F8_2, *QUERY, I8_3, F8_3)),
    "global_min_reduce": (reduce_cuda.global_min_reduce, (I8_3, F8_3, I8_2, F8_2)),
}
KERNELS["walk_many"] = (tree_cuda.walk_many, KERNELS["walk_one"][1])
DECIDING = [
    "fill_unit_vectors",
    "fill_distances",
    "walk_one",
    "walk_many",
    "block_min_reduce",
    "global_min_reduce",
]


@pytest.fixture(autouse=True)
def device_that_functions_are_compiled_for(monkeypatch):
    # numba asks the driver for it when a kernel calls a function. What it makes of a function, once
    # a process, is the same for all that are supported.
    if not cuda.is_available():
        device = SimpleNamespace(compute_capability=COMPUTE_CAPABILITIES[0])
        monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)


def ptx(name, compute_capability):
    kernel, signature = KERNELS[name]
    text, _ = cuda.compile_ptx(kernel.py_func, signature, cc=compute_capability)
    return text


@pytest.mark.parametrize("compute_capability", COMPUTE_CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_compiles(name, compute_capability):
    assert ".entry" in ptx(name, compute_capability)


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_is_never_fused_nor_spilled(name):
    text = ptx(name, (9, 0))
    assert "fma.rn.f64" not in text
    assert ".local" not in text


def test_one_process_compiles_for_a_gpu_and_then_for_the_cpu():
    ptx("fill_unit_vectors", (9, 0))

    @njit
    def doubled(a: float) -> float:
        return total(a, product(a, 1.0))

    assert doubled(1.5) == 3.0
