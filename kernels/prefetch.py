"""A hint to a CPU that memory will be needed soon: it fetches while the loop does other work."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTE_POINTER = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_PREFETCH = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _INT, _INT, _INT])
_KEEP = 3
_DATA = 1


def _generate(context: Any, builder: Any, signature: Any, arguments: Any, write: int) -> Any:
    array_type = signature.args[0]
    array = context.make_array(array_type)(context, builder, arguments[0])
    pointer = cgutils.get_item_pointer(
        context, builder, array_type, array, arguments[1:], wraparound=False
    )
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, _PREFETCH, name)
    constants = [_INT(value) for value in (write, _KEEP, _DATA)]
    builder.call(function, [builder.bitcast(pointer, _BYTE_POINTER), *constants])
    return context.get_dummy_value()


@intrinsic
def prefetch(typing_context, array, i, j):  # type: ignore[no-untyped-def]
    """Fetch the cache line of ``array[i, j]`` to be read; the indices are not negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _generate(context, builder, signature, arguments, 0)

    return types.void(array, types.intp, types.intp), generate


@intrinsic
def prefetch_for_write(typing_context, array, i, j):  # type: ignore[no-untyped-def]
    """Fetch the cache line of ``array[i, j]`` to be written; the indices are not negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _generate(context, builder, signature, arguments, 1)

    return types.void(array, types.intp, types.intp), generate
