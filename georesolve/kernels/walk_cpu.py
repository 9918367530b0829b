"""The walk down a tree of boxes on a CPU, apart from what it looks for.

`walk` leaves out every box that is farther from its own than a bound. What it meets goes to a
collector: a NamedTuple, for whose type compiled code chooses the function that looks at it. Neither
closures nor functions as arguments would do: numba never finds code that has them in its cache.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from georesolve.kernels.boxes_cpu import NODE_STEPS, WIDTH
from georesolve.kernels.distance import closer
from georesolve.kernels.lanes_cpu import children_within, lowest_bit, prefetch_node

# Only compiled code calls them: to take their arguments from Python would be much to compile.
_INLINE = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def by_type(default: Callable[..., Any]) -> Any:
    """A function for compiled code, and others `of` types that its first argument may have."""
    functions: dict[Any, Callable[..., Any]] = {}

    def chosen(*_: Any, **__: Any) -> None:
        """Stands for them in code that is to be compiled."""

    def of(kind: type) -> Callable[..., Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            functions[kind] = function
            return function

        return register

    @overload(chosen, strict=False, jit_options=_INLINE)
    def _choose(first: Any, *_: Any) -> Callable[..., Any]:
        return functions.get(getattr(first, "instance_class", None), default)

    chosen.of = of  # type: ignore[attr-defined]
    return chosen


@by_type
def look(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    """Look at the leaves of a node that bits name; the bound from there on, and the steps taken.

    A bound below 0 ends the walk.
    """
    return worst, 0


@by_type
def take_whole(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    """Take boxes of a node without opening them; gives the bits of those still to be opened."""
    return bits


@njit(inline="always")
def walk(tree, collector, box, worst, near, near_stop, most_steps, stack):  # type: ignore[no-untyped-def]
    """Show a collector all leaves that may hold something at most `worst` from a box.

    Leaves from `near` to `near_stop` come first, and then the others of the node in their middle,
    so that the bound is good for the rest. Returns the steps that were taken; where they are more
    than `most_steps`, not all was shown.
    """
    boxes, levels = tree.boxes, tree.levels
    stack[0] = boxes.shape[0] - 1
    top = 1
    own_node = -1
    if near < near_stop:
        own_node = (near + near_stop - 1) // 2 // WIDTH
        stack[1] = own_node
        top = 2
    visited = False
    level = 0
    steps = 0
    next_near = near
    while top and steps <= most_steps and worst >= 0.0:
        if next_near < near_stop:
            # Taken like a node of which one child is left.
            node, bits = next_near // WIDTH, np.int64(1) << next_near % WIDTH
            next_near += 1
        else:
            top -= 1
            node = stack[top]
            steps += NODE_STEPS
            if node == own_node:
                if visited:
                    continue
                visited = True
            bits = children_within(boxes, node, box, worst)
            level = level_of(levels, node, level)
            bits = take_whole(collector, tree, node, level, bits, box)
            if level:
                top = push_children(boxes, levels, level, node, bits, stack, top)
                continue
            first = min(max(near - node * WIDTH, 0), WIDTH)
            stop = min(max(near_stop - node * WIDTH, 0), WIDTH)
            bits &= (1 << first) - 1 | -(1 << stop)
        worst, more = look(collector, tree, node, bits, box, worst)
        steps += more
    return steps


@njit(inline="always")
def leaf_of(leaf_keys, key, first):  # type: ignore[no-untyped-def]
    """Last leaf whose first key is not above `key`, looked for from leaf `first` upwards."""
    low = first
    jump = 1
    while low + jump < leaf_keys.size and leaf_keys[low + jump] <= key:
        low += jump
        jump *= 2
    high = min(low + jump, leaf_keys.size)
    while high - low > 1:
        middle = (low + high) // 2
        if leaf_keys[middle] <= key:
            low = middle
        else:
            high = middle
    return low


@njit(inline="always")
def leaves_to_fill(k, exclude_self):  # type: ignore[no-untyped-def]
    """So many leaves along the curve that k are found: a bound from the start."""
    return (k + exclude_self + WIDTH - 1) // WIDTH + (k > 1)


@njit(inline="always")
def leaves_near(leaf_keys, leaf, n):  # type: ignore[no-untyped-def]
    """So many leaves along the curve around one: the first, and where they stop."""
    stop = min(leaf + n // 2 + 1, leaf_keys.size)
    return max(stop - n, 0), stop


@njit(inline="always")
def mark(order, start, stop):  # type: ignore[no-untyped-def]
    """Mark observations of an order that a walk gave up; returns how many they are."""
    for place in range(start, stop):
        order[place] = ~order[place]
    return stop - start


@njit(forceinline=True)
def push_children(boxes, levels, level, node, bits, stack, top):  # type: ignore[no-untyped-def]
    """Put a node's children of some bits on the stack; returns its new top."""
    below = levels[level - 1] + (node - levels[level]) * WIDTH
    while bits:
        stack[top] = below + lowest_bit(bits)
        prefetch_node(boxes, stack[top])
        bits &= bits - 1
        top += 1
    return top


@njit(forceinline=True)
def level_of(levels, node, level):  # type: ignore[no-untyped-def]
    """Level of a node, looked for from another one."""
    while node >= levels[level + 1]:
        level += 1
    while node < levels[level]:
        level -= 1
    return level


@njit(inline="always")
def put(chords, rows, last, c, row):  # type: ignore[no-untyped-def]
    """Put something where it belongs before entry `last` of a list, which is overwritten."""
    j = last
    while j > 0 and closer(c, row, chords[j - 1], rows[j - 1]):
        chords[j] = chords[j - 1]
        rows[j] = rows[j - 1]
        j -= 1
    chords[j] = c
    rows[j] = row
