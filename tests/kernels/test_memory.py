"""Memory that is used again: only when nobody holds it, and not without end."""

import gc

import numpy as np
import pytest

from georesolve.kernels import build_index, memory_cpu, nearest
from georesolve.kernels.memory_cpu import kept

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    # What other tests left in circles must not come back in the middle of one of these.
    gc.collect()
    monkeypatch.setattr(memory_cpu, "_free", {})


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_no_view_of_it_is_left():
    array = kept(SIZE, 2)
    first = address(array)
    assert first % 64 == 0
    assert array.shape == (SIZE, 2)
    assert array.flags.writeable
    view = array[5:, 1]
    del array
    assert address(kept(SIZE, 2)) != first
    memory_cpu._free.clear()
    view[:] = 7.0
    del view
    gc.collect()
    again = kept(SIZE * 2, dtype=np.int64)
    assert address(again) == first
    assert again.dtype == np.int64


def test_a_much_larger_piece_is_not_taken():
    array = kept(SIZE)
    first = address(array)
    del array
    smaller = kept(SIZE // 2)
    assert address(smaller) != first


def test_no_more_is_kept_than_a_limit_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(memory_cpu, "_MOST_BYTES", 3 * 8 * SIZE)
    arrays = [kept(SIZE) for _ in range(5)]
    last = [address(array) for array in arrays[2:]]
    while arrays:
        del arrays[0]
    assert list(memory_cpu._free) == last


def test_what_is_larger_than_the_limit_drives_nothing_out(monkeypatch):
    monkeypatch.setattr(memory_cpu, "_MOST_BYTES", 3 * 8 * SIZE)
    small, large = kept(SIZE), kept(4 * SIZE)
    last = [address(small)]
    del small
    del large
    assert list(memory_cpu._free) == last


def test_an_answer_keeps_its_numbers_while_others_are_made():
    rng = np.random.default_rng(3)
    index = build_index(rng.uniform(-90, 90, 5000), rng.uniform(-180, 180, 5000))
    points = rng.uniform(-90, 90, (2, 200_000))
    answer = nearest(index, *points)
    rows, metres = answer.reference.copy(), answer.distance_m.copy()
    for _ in range(3):
        nearest(index, *points[::-1])
    np.testing.assert_array_equal(answer.reference, rows)
    np.testing.assert_array_equal(answer.distance_m, metres)
