"""Indexes in files: the answers of a built one, however often and by whom; damage, age, room."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import shapely

from georesolve import kernels
from georesolve.io import index_files
from georesolve.io.datasets import Edging
from georesolve.io.index_files import IndexFolder, map_index, write_index
from georesolve.io.outlines import outline_of, shapes_of
from tests.conftest import sphere

SET = "5e7" * 21 + "5"
OBSERVATIONS = sphere(500, 2)


@pytest.fixture
def folder(tmp_path):
    return IndexFolder(tmp_path / "indexes", 1 << 30, 0)


def build(n=3_000):
    return kernels.build_index(*sphere(n, 1))


def never():
    raise AssertionError("there is a file")


def answers(index):
    """By both searches, for few and for many neighbours."""
    return [
        [array.tobytes() for array in kernels.nearest(index, *OBSERVATIONS, k=k, algorithm=way)]
        for k in (1, 5)
        for way in ("tree", "brute")
    ]


@pytest.mark.parametrize("n", [0, 1, 8, 9, 3_000])
def test_a_mapped_index_answers_as_the_one_that_was_written(tmp_path, n):
    index, path = build(n), tmp_path / "some.index"
    write_index(index, path, SET)
    mapped = map_index(path, SET)
    assert answers(mapped) == answers(index)
    for name, array in index.arrays().items():
        np.testing.assert_array_equal(mapped.arrays()[name], array)
        # Of another type the kernels would be compiled once more.
        assert mapped.arrays()[name].flags.writeable


@pytest.mark.parametrize("edges", ["planar", "spherical"])
def test_a_mapped_index_of_shapes_answers_alike(tmp_path, edges):
    lat, lon = (axis[:40] for axis in sphere(50, 1))
    how, shapes = Edging(edges), shapely.points(lon, lat)
    shapes[::2] = shapely.box(lon, lat / 2, lon + 1, lat / 2 + 3)[::2]
    index = kernels.ShapeIndex(40, shapes_of(outline_of(shapes, how), how))
    write_index(index, tmp_path / "some.index", SET)
    mapped = map_index(tmp_path / "some.index", SET)
    assert answers(mapped) == answers(index)
    reference, distance_m = kernels.nearest(mapped, *OBSERVATIONS)
    near = [
        kernels.nearest_points(one, kernels.query.Degrees(*OBSERVATIONS), reference, distance_m)
        for one in (mapped, index)
    ]
    assert np.array_equal(*near)


def test_rows_that_are_not_valid_are_in_it(tmp_path):
    lat, lon = sphere(100, 3)
    lat[::7] = np.nan
    index = kernels.build_index(lat, lon)
    write_index(index, tmp_path / "some.index", SET)
    assert answers(map_index(tmp_path / "some.index", SET)) == answers(index)


def test_it_is_built_once(folder):
    index = folder.index(SET, build)
    assert answers(index) == answers(build())
    assert answers(folder.index(SET, never)) == answers(index)
    assert [path.name for path in folder.path.iterdir()] == [f"{SET}.index"]


def _named(folder):
    """In a process of its own; tells whether it was the one that built it."""
    built = []
    index = folder.index(SET, lambda: built.append(1) or build())
    return answers(index), len(built)


def test_one_of_several_processes_builds_it(folder):
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        found = list(processes.map(_named, [folder] * 2))
    assert [one for one, _ in found] == [answers(build())] * 2
    assert sum(built for _, built in found) == 1


@pytest.mark.parametrize("place", [0, 9, 40, 5_000, -4_090, None])
def test_a_damaged_one_is_built_anew(folder, place):
    folder.index(SET, build)
    path = folder.path / f"{SET}.index"
    content = bytearray(path.read_bytes())
    if place is None:
        del content[-4096:]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    assert map_index(path, SET) is None
    assert answers(folder.index(SET, build)) == answers(build())
    assert map_index(path, SET) is not None


def test_one_of_other_kernels_or_of_another_set_is_built_anew(folder, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(index_files, "digest_of_sources", lambda: "older")
        folder.index(SET, build)
    path = folder.path / f"{SET}.index"
    assert map_index(path, SET) is None
    write_index(build(), path, "another")
    assert map_index(path, SET) is None
    folder.index(SET, build)
    assert map_index(path, SET) is not None


def test_what_was_opened_longest_ago_goes_first(folder):
    size = build().nbytes
    folder = IndexFolder(folder.path, 2 * size + size // 2, 0)
    for i, name in enumerate("abc"):
        folder.index(name, build)
        path = folder.path / f"{name}.index"
        os.utime(path, (i, i))
        if name == "b":
            folder.index("a", never)
    assert sorted(path.stem for path in folder.path.glob("*.index")) == ["a", "c"]
    # A mapped one outlives its file.
    index = folder.index("c", never)
    folder.forget("c")
    assert answers(index) == answers(build())


@pytest.mark.parametrize(("most", "free"), [(1_000, 0), (1 << 30, 1 << 60)])
def test_without_room_it_stays_in_memory(folder, most, free):
    tight = IndexFolder(folder.path, most, free)
    assert answers(tight.index(SET, build)) == answers(build())
    assert not list(folder.path.glob("*.index"))


def test_on_a_full_disk_files_go(folder):
    folder.index(SET, build)
    folder.keep_free()
    assert list(folder.path.glob("*.index"))
    IndexFolder(folder.path, 1 << 30, 1 << 60).keep_free()
    assert not list(folder.path.glob("*.index"))


def test_where_nothing_can_be_written_it_is_built(tmp_path):
    (tmp_path / "file").touch()
    folder = IndexFolder(tmp_path / "file" / "indexes", 1 << 30, 0)
    assert answers(folder.index(SET, build)) == answers(build())


def test_only_those_of_some_sets_are_kept(folder):
    for name in ("a", "b"):
        folder.index(name, build)
    (folder.path / ".b.index.0123").touch()
    folder.keep_only({"b"})
    assert [path.name for path in folder.path.iterdir()] == ["b.index"]
