"""Every CUDA kernel compiles on a machine without a GPU; `tests/faults` has all GPUs supported."""

import re
from functools import cache
from types import SimpleNamespace

import pytest
from numba import cuda, njit, types
from numba.core.compiler import Flags, compile_extra
from numba.core.cpu import CPUContext
from numba.core.registry import cpu_target
from numba.cuda import dispatcher

from georesolve.kernels import (
    boxes_cuda,
    cells_cuda,
    coordinates_cuda,
    ellipsoid_cuda,
    filtered_cuda,
    order_cuda,
    precise_cuda,
    reduce_cuda,
    shapes_cuda,
    walk_cuda,
    within_cuda,
)
from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.filters_cuda import Everything, InPart, OfGroup
from georesolve.kernels.launch_cuda import _without_collector

COMPUTE_CAPABILITY = (9, 0)


def array(dtype, ndim):
    return types.Array(dtype, ndim, "C")


F8_1, F8_2, F8_3 = (array(types.float64, ndim) for ndim in (1, 2, 3))
I8_1, I8_2, I8_3 = (array(types.int64, ndim) for ndim in (1, 2, 3))
F4_2, U4_1 = array(types.float32, 2), array(types.uint32, 1)
I4_1, I4_2 = array(types.int32, 1), array(types.int32, 2)
QUERY = (types.int64, types.boolean, types.int64)
FILTERS = {
    kind: types.BaseTuple.from_types(held, kind)
    for kind, held in {
        Everything: (),
        OfGroup: (I4_1, I4_2, I4_1, F8_1),
        InPart: (I4_1, I4_2, I4_1, F8_1, I8_1, I8_1, types.int64, types.int64, types.boolean),
    }.items()
}

KERNELS = {
    "fill_unit_vectors": (
        coordinates_cuda.fill_unit_vectors,
        (F8_1, F8_1, types.boolean, F8_2),
    ),
    "measure": (coordinates_cuda.measure, (F8_1,)),
    "bound": (order_cuda.bound, (F8_1, F8_1, types.boolean, types.int64, U4_1)),
    "place": (
        order_cuda.place,
        (F8_1, F8_1, types.boolean, U4_1, types.int64, I4_1, types.int64, U4_1, F8_1, F8_2),
    ),
    "mark_kept": (boxes_cuda.mark_kept, (F8_2, I8_1, array(types.boolean, 1))),
    "fill_leaves": (
        boxes_cuda.fill_leaves,
        (F8_2, I8_1, U4_1, U4_1, types.boolean, F8_2, F4_2, F4_2, types.int64),
    ),
    "fill_boxes": (boxes_cuda.fill_boxes, (F8_2, types.boolean, F4_2, I4_1, *[types.int64] * 5)),
    "walk_one": (
        walk_cuda.walk(1, False),
        (
            F8_2,
            F4_2,
            F4_2,
            I4_1,
            U4_1,
            F8_1,
            *[types.int64] * 2,
            I8_1,
            types.int64,
            *QUERY,
            types.boolean,
            I8_2,
            F8_2,
            types.int64,
            I4_1,
            I4_1,
            FILTERS[Everything],
        ),
    ),
    "block_min_reduce": (reduce_cuda.block_min_reduce, (F8_2, F8_1, I4_1, *QUERY, I8_3, F8_3)),
    "global_min_reduce": (reduce_cuda.global_min_reduce, (I8_3, F8_3, I8_2, F8_2)),
    "hard_min_reduce": (
        reduce_cuda.hard_min_reduce(False),
        (F8_2, F8_1, *[types.int64] * 2, I4_1, I4_1, *QUERY, types.boolean, I8_2, F8_2),
    ),
}
KERNELS["hard_min_reduce_of_lists"] = (
    reduce_cuda.hard_min_reduce(True),
    KERNELS["hard_min_reduce"][1],
)
KERNELS["walk_many"] = (walk_cuda.walk(8, False), KERNELS["walk_one"][1])
KERNELS["walk_most"] = (walk_cuda.walk(64, False), KERNELS["walk_one"][1])
for places in (1, 8, 64):
    KERNELS[f"walk_{places}_finely"] = (walk_cuda.walk(places, True), KERNELS["walk_one"][1])
KERNELS["walk_precisely"] = (
    precise_cuda.walk_precisely,
    (
        *(F8_2, F4_2, I4_1, F8_1, types.int64, types.int64, I4_1, I4_1),
        *(*QUERY, types.boolean, I8_2, F8_2, types.int64, I4_1, I4_1),
    ),
)
TREE = KERNELS["walk_one"][1][:5]
KERNELS |= {
    "bound_square": (cells_cuda.bound_square, (F8_2, U4_1, U4_1)),
    "count_occupied": (cells_cuda.count_occupied, (F8_2, U4_1, U4_1, types.int64, I4_1, I4_1)),
    "fill_middles": (cells_cuda.fill_middles, (U4_1, U4_1, types.int64, F8_2, F8_1)),
    "collect": (cells_cuda.collect(False), (*TREE, F8_2, F8_2, F8_1, I8_2, F8_2, I4_2)),
    "collect_finely": (cells_cuda.collect(True), (*TREE, F8_2, F8_2, F8_1, I8_2, F8_2, I4_2)),
    "look_up": (
        cells_cuda.look_up,
        (
            *(F8_1, F8_1, U4_1, U4_1, types.int64, I4_2, F8_2, types.boolean),
            *(I8_2, F8_2, I8_1, F8_1, F8_1, I4_1),
        ),
    ),
    "put": (cells_cuda.put, (I8_1, I8_2, F8_2, types.boolean, I8_2, F8_2)),
}
SEEN = (F8_1, *[types.int64] * 3)
WITHIN = (F8_1, types.boolean, *QUERY[1:], I8_1, I8_1, I4_1, F8_1, FILTERS[Everything])
KERNELS |= {
    f"walk_within_{fine}_{fills}": (
        within_cuda.walk(fine, fills),
        (*TREE, F8_2, *SEEN, I8_1, types.int64, *WITHIN),
    )
    for fine in (False, True)
    for fills in (False, True)
} | {
    "compare_all": (within_cuda.compare_all, (F8_2, *SEEN, types.int64, *WITHIN)),
    "put_in_order": (
        within_cuda.put_in_order,
        (I8_1, types.int64, I4_1, F8_1, I4_1, F8_1, I8_1, F8_1),
    ),
}
RESULTS = (types.boolean, I8_2, F8_2)
RANKING = (F8_2, F4_2, I4_1, U4_1, I8_2, F8_2, I8_1, I8_1, types.boolean, *QUERY, I8_2, F8_2)
for kind in (OfGroup, InPart):
    own = FILTERS[kind]
    KERNELS |= {
        f"walk_one_{kind.__name__}": (
            walk_cuda.walk(1, False, kind),
            (*KERNELS["walk_one"][1][:-1], own),
        ),
        f"walk_many_{kind.__name__}": (
            walk_cuda.walk(8, False, kind),
            (*KERNELS["walk_one"][1][:-1], own),
        ),
        f"count_{kind.__name__}": (
            within_cuda.walk(False, False, kind),
            (*TREE, F8_2, *SEEN, I8_1, types.int64, *WITHIN[:-1], own),
        ),
        f"compare_all_{kind.__name__}": (
            within_cuda.compare_all,
            (F8_2, *SEEN, types.int64, *WITHIN[:-1], own),
        ),
        f"rank_{kind.__name__}": (filtered_cuda.rank(False), (*RANKING, own)),
        f"compare_group_{kind.__name__}": (
            reduce_cuda.compare_group,
            (*(F8_2, F8_1, types.int64, types.int64, I4_1, I4_1), *QUERY, *RESULTS, own),
        ),
    }
KERNELS |= {
    "leave_out": (filtered_cuda.leave_out, (F8_1, I4_1, F8_1)),
    "find_parts": (filtered_cuda.find_parts, (I4_1, I8_1, *[types.int64] * 8, I4_1)),
}
KERNELS["rank_by_time"] = (filtered_cuda.rank(True), (*RANKING, FILTERS[InPart]))
BOXES = (I8_2, F8_3, I8_1)
SHAPES = (
    *(*BOXES, *BOXES, F8_2, I8_1, I8_1, array(types.boolean, 1), I8_1, F8_2, I8_1, I8_1),
    *(types.boolean, F8_2, F8_2, F8_1, F8_1, F8_2, I8_1, types.boolean),
)
KERNELS |= {
    "search_near": (shapes_cuda.search_near, (*SHAPES, I8_2, F8_2)),
    "search_around": (
        shapes_cuda.search_around,
        (*SHAPES, F8_1, I8_1, I8_1, I8_1, I8_1, F8_1),
    ),
}
KERNELS |= {
    "settle": (
        ellipsoid_cuda.settle,
        (
            *(F8_2, F8_2, I8_2, F8_2, types.boolean, types.int64, I8_2, F8_2, F8_1),
            *(array(types.boolean, 1), I8_1),
        ),
    ),
    "measure_pairs": (ellipsoid_cuda.measure, (F8_2, F8_2, I8_1, I8_1, F8_1)),
    "bound_distances": (ellipsoid_cuda.bound, (F8_1, F8_1)),
}
ORDERING = {
    "bound",
    "place",
    "bound_square",
    "count_occupied",
    "fill_middles",
    "collect",
    "collect_finely",
    "look_up",
}
"""Kernels whose rounding shows in no answer: they say what stands where, with room for rounding."""

VARIANTS = {
    "walk_many",
    "walk_most",
    "walk_1_finely",
    "walk_64_finely",
    "walk_within_False_False",
    "walk_within_True_True",
    "collect",
    "hard_min_reduce",
    "walk_many_OfGroup",
    "count_OfGroup",
    "compare_all_OfGroup",
    "rank_OfGroup",
    "rank_InPart",
    "compare_group_OfGroup",
}
"""Kernels of the same code as another one, with other constants: `tests/faults` has them."""
FIRST = [name for name in KERNELS if name not in VARIANTS]


@pytest.fixture(autouse=True)
def device_that_functions_are_compiled_for(monkeypatch):
    # numba asks the driver for it when a kernel calls a function, and makes the function once a
    # process.
    if not cuda.is_available():
        device = SimpleNamespace(compute_capability=COMPUTE_CAPABILITY)
        monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)


@cache
def ptx(name, compute_capability=COMPUTE_CAPABILITY):
    kernel, signature = KERNELS[name]
    with _without_collector():
        text, _ = cuda.compile_ptx(kernel.py_func, signature, cc=compute_capability)
    return text


@pytest.mark.parametrize("name", FIRST)
def test_what_decides_is_rounded_step_by_step_and_not_spilled(name):
    look_at(name, ptx(name))


def look_at(name, text):
    """What decides is rounded step by step, and what is not called spills nothing."""
    assert ".entry" in text
    if name in ORDERING:
        return
    # Without a rounding a product and a sum may be fused when the PTX is assembled. Boxes of trees
    # are rounded outwards.
    arithmetic = set(re.findall(r"\b(?:mul|add|sub|fma|mad)[.\w]*\.f64\b", text))
    outwards = {"add.rm.f64", "add.rp.f64"} if name in {"fill_leaves", "fill_boxes"} else set()
    assert arithmetic - outwards <= {"mul.rn.f64", "add.rn.f64"}
    # What walks alone has a stack, and so has a function that is called.
    called = {"search_near", "search_around", "settle", "measure_pairs"}
    assert ".local" not in text or name in called


def test_every_lane_takes_part_in_the_reductions_of_a_leaf():
    # Six values; twice as many are the two arms of a branch.
    assert ptx("fill_leaves").count("redux.sync") == 6


def test_arithmetic_for_an_unknown_target_is_refused():
    class OtherContext(CPUContext):
        pass

    typing_context = cpu_target.typing_context
    other = OtherContext(typing_context, "cpu")

    def times(a):
        return product(a, a)

    flags = Flags()
    with pytest.raises(NotImplementedError, match="not for OtherContext"):
        compile_extra(typing_context, other, times, (types.float64,), None, flags, {})


def test_one_process_compiles_for_a_gpu_and_then_for_the_cpu():
    kernel, signature = KERNELS["fill_unit_vectors"]
    cuda.compile_ptx(kernel.py_func, signature, cc=COMPUTE_CAPABILITY)

    @njit
    def doubled(a: float) -> float:
        return total(a, product(a, 1.0))

    assert doubled(1.5) == 3.0
