"""What is resident on a worker: loaded once, and let go of when others need its place."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from georesolve.engine import resident
from georesolve.engine.memory import indexes_bytes
from georesolve.engine.resident import _Shelf
from georesolve.query import FilterOptions, MatchOptions
from tests.conftest import points, store_points


class Held:
    """Takes a megabyte."""

    nbytes = 1 << 20


def test_what_two_need_is_loaded_once():
    shelf, begun, go = _Shelf(lambda: 10 << 20), threading.Event(), threading.Event()
    loads = []

    def load():
        loads.append(Held())
        begun.set()
        assert go.wait(10)
        return loads[-1]

    with ThreadPoolExecutor() as threads:
        first = threads.submit(shelf.get, ("set", (0, 1)), load, lambda: 1)
        assert begun.wait(10)
        others = [threads.submit(shelf.get, ("set", (0, 1)), load, lambda: 1) for _ in range(3)]
        go.set()
        assert {id(one.result(10)) for one in (first, *others)} == {id(loads[0])}


def test_what_cannot_be_loaded_fails_for_all_who_wait_and_is_tried_again():
    shelf, begun, go = _Shelf(lambda: 10 << 20), threading.Event(), threading.Event()

    def fail():
        begun.set()
        assert go.wait(10)
        raise MemoryError("no memory for it")

    with ThreadPoolExecutor() as threads:
        first = threads.submit(shelf.get, ("set", (0, 1)), fail, lambda: 1)
        assert begun.wait(10)
        other = threads.submit(shelf.get, ("set", (0, 1)), fail, lambda: 1)
        go.set()
        for one in (first, other):
            with pytest.raises(MemoryError, match="no memory"):
                one.result(10)
    assert isinstance(shelf.get(("set", (0, 1)), Held, lambda: 1), Held)


def test_what_was_used_longest_ago_leaves_first():
    shelf = _Shelf(lambda: 3 << 20)
    for i in range(3):
        shelf.get(("set", (i, i + 1)), Held, lambda: Held.nbytes)
    shelf.get(("set", (0, 1)), Held, lambda: Held.nbytes)
    shelf.get(("set", (3, 4)), Held, lambda: Held.nbytes)
    assert [("set", (i, i + 1)) in shelf for i in range(4)] == [True, False, True, True]
    assert shelf.nbytes == 3 << 20


def test_who_finds_no_room_waits_for_another_to_be_done():
    shelf, begun, go = _Shelf(lambda: 3 << 20), threading.Event(), threading.Event()

    def load():
        begun.set()
        assert go.wait(10)
        return Held()

    with ThreadPoolExecutor() as threads:
        large = threads.submit(shelf.get, ("one", (0, 1)), load, lambda: 2 << 20)
        assert begun.wait(10)
        second = threads.submit(shelf.get, ("other", (0, 1)), Held, lambda: 2 << 20)
        assert shelf.get(("small", (0, 1)), Held, lambda: 1 << 20).nbytes, "there is room for it"
        assert not second.done()
        go.set()
        assert large.result(10)
        assert second.result(10)


def test_columns_take_no_place_of_indexes(tmp_path, monkeypatch):
    resident.forget_all()
    names = [f"place {i:0100d}" for i in range(5_000)]
    places = store_points(points(5_000, 1, name=names, code=names), tmp_path / "places.parquet")
    # Of a GPU's worker the one lies on the host, the other on the device.
    monkeypatch.setattr(resident._columns, "_budget", lambda: 600_000)
    resident.resident_index(places, MatchOptions(), (0, places.rows))
    resident.resident_column(places, "name")
    assert resident.is_resident(places, ["name"])
    resident.resident_column(places, "code")
    assert resident.is_resident(places, ["code"])
    assert not resident.is_resident(places, ["name"])
    assert resident._indexes.nbytes <= indexes_bytes()
    resident.forget_all()


def test_keys_wait_for_no_room_that_they_hold_themselves(tmp_path, monkeypatch):
    resident.forget_all()
    names = [f"place {i:0100d}" for i in range(5_000)]
    places = store_points(points(5_000, 1, name=names), tmp_path / "places.parquet")
    # Less than the column and its groups take together.
    monkeypatch.setattr(resident._columns, "_budget", lambda: 600_000)
    keys = resident.resident_keys(places, FilterOptions(("name",), ("name",)))
    assert keys.group.tolist() == [*range(5_000)]
    resident.forget_all()
