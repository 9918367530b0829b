"""Products and sums rounded once, in compiled code for a CPU and for a GPU alike.

IEEE 754 makes ``+ - * /`` and ``sqrt`` the same on every machine, but NVVM contracts ``a * b + c``
into a fused multiply-add, which rounds once instead of twice, and ``numba.cuda.jit`` has no switch
against it. Every formula whose bits matter is therefore written with `product` and `total`, which
become ``mul.rn.f64`` and ``add.rn.f64`` there: instructions that are never fused. On a CPU they are
a plain ``fmul`` and ``fadd`` without fast-math flags, which LLVM does not fuse either.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_DOUBLE = ir.DoubleType()
_BINARY = ir.FunctionType(_DOUBLE, [_DOUBLE, _DOUBLE])


# Names, not classes: a process without a GPU never imports numba.cuda.
_IS_CUDA = {"CPUContext": False, "CUDATargetContext": True}


def _is_cuda(context: Any) -> bool:
    target = type(context).__name__
    if target not in _IS_CUDA:
        raise NotImplementedError(
            f"products and sums must not be fused, and how to say so is known for "
            f"{', '.join(_IS_CUDA)} only, not for {target}"
        )
    return _IS_CUDA[target]


def _nvvm(builder: Any, name: str, arguments: Any) -> Any:
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, _BINARY, name)
    return builder.call(function, arguments)


# These stand outside the intrinsics because numba keeps one implementation an intrinsic, the
# latest, for all targets: made anew for a GPU, it would be missing from the CPU's table.
def _generate_product(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if _is_cuda(context):
        return _nvvm(builder, "llvm.nvvm.mul.rn.d", arguments)
    return builder.fmul(*arguments)


def _generate_total(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if _is_cuda(context):
        return _nvvm(builder, "llvm.nvvm.add.rn.d", arguments)
    return builder.fadd(*arguments)


def _generate_polynomial(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    *lower, value = cgutils.unpack_tuple(builder, arguments[0])
    for coefficient in reversed(lower):
        value = _generate_product(context, builder, None, (value, arguments[1]))
        value = _generate_total(context, builder, None, (value, coefficient))
    return value


@intrinsic
def product(typing_context, a, b):  # type: ignore[no-untyped-def]
    """``a * b`` in float64, rounded to nearest and never fused with a following sum."""
    return types.float64(types.float64, types.float64), _generate_product


@intrinsic
def total(typing_context, a, b):  # type: ignore[no-untyped-def]
    """``a + b`` in float64, rounded to nearest and never fused with a preceding product."""
    return types.float64(types.float64, types.float64), _generate_total


@intrinsic
def polynomial(typing_context, coefficients, u):  # type: ignore[no-untyped-def]
    """``c[0] + c[1] * u + c[2] * u**2 + ...`` by Horner's rule, of `product` and `total`.

    Written out by the compiler: a loop over a long tuple is not unrolled, it picks each coefficient
    by a chain of branches.
    """
    return types.float64(types.UniTuple(types.float64, len(coefficients)), types.float64), (
        _generate_polynomial
    )
