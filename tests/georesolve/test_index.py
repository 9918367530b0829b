"""`georesolve.Index`: built once, asked often; it is pickled, saved and opened."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pandas as pd
import pytest

import georesolve
from georesolve.engine import in_memory
from tests.conftest import START_SECONDS, points

OBSERVATIONS = points(400, 1)
REFERENCES = points(300, 2, name=[f"r{i}" for i in range(300)])


def saved(index, folder):
    index.save(folder / "index.parquet")
    return georesolve.Index.open(folder / "index.parquet")


@pytest.mark.parametrize(
    "passed_on",
    [
        lambda index, folder: index,
        lambda index, folder: pickle.loads(pickle.dumps(index)),
        saved,
    ],
)
def test_it_answers_as_the_references_do(passed_on, tmp_path, device):
    index = passed_on(georesolve.Index(REFERENCES.to_pandas()), tmp_path)
    assert len(index) == 300
    assert repr(index) == f"<georesolve.Index of 300 references on {device}>"
    assert set(index.columns) >= {"id", "name"}
    for options in ({}, {"k": 2, "columns": ["name"], "max_distance_m": 1e6}):
        expected = georesolve.nearest(OBSERVATIONS, REFERENCES, **options)
        assert index.nearest(OBSERVATIONS, **options).to_pylist() == expected.to_pylist()
        given = georesolve.nearest(OBSERVATIONS, index, **options)
        assert given.to_pylist() == expected.to_pylist()


def test_it_stays_on_its_earth(tmp_path):
    index = georesolve.Index(REFERENCES, earth="wgs84")
    expected = index.nearest(OBSERVATIONS)
    assert not expected.equals(georesolve.nearest(OBSERVATIONS, REFERENCES))
    assert saved(index, tmp_path).nearest(OBSERVATIONS).equals(expected)
    again = georesolve.Index.open(tmp_path / "index.parquet", earth="sphere")
    assert again.nearest(OBSERVATIONS).equals(georesolve.nearest(OBSERVATIONS, REFERENCES))


def test_it_keeps_what_it_was_built_of():
    frame = REFERENCES.to_pandas()
    index = georesolve.Index(frame)
    expected = index.nearest(OBSERVATIONS)
    frame["lat"] = 0.0
    assert index.nearest(OBSERVATIONS).equals(expected)


def test_names_of_columns_are_kept_in_the_file(tmp_path):
    frame = pd.DataFrame({"b": [1.0, 2.0], "l": [3.0, 95.0], "key": ["x", "y"], "lat": [0, 0]})
    index = georesolve.Index(frame, lat="l", lon="b", id="key", on_invalid="null")
    given = saved(index, tmp_path).nearest(([3.1], [1.1]), on_invalid="null", columns=["lat"])
    assert given["reference_key"].tolist() == ["x"]
    assert given["reference_lat"].tolist() == [0]


def test_refusals(tmp_path):
    with pytest.raises(georesolve.InvalidInput, match="references: no column for latitudes"):
        georesolve.Index(pd.DataFrame({"a": [1]}))
    metres = pd.DataFrame({"y": [5.8e6, 5.9e6], "x": [5.3e5, 5.4e5]})
    with pytest.raises(georesolve.InvalidInput, match=r"\(crs=EPSG:25832\)"):
        georesolve.Index(metres)
    with pytest.raises(georesolve.InvalidInput, match=r"\(observation_crs=EPSG:25832\)"):
        georesolve.nearest(metres, metres)
    pd.DataFrame({"lat": [1.0], "lon": [1.0]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(georesolve.InvalidInput, match=r"was not made by Index\.save"):
        georesolve.Index.open(tmp_path / "other.parquet")
    with pytest.raises(FileNotFoundError):
        georesolve.Index.open(tmp_path / "nothing.parquet")


def test_what_was_built_is_mapped_from_a_file_beside(tmp_path, device):
    opened = saved(georesolve.Index(REFERENCES), tmp_path)
    beside = tmp_path / "index.parquet.index"
    # A GPU builds it sooner than it would read it.
    assert beside.exists() == (opened.search._index is not None) == (device == "cpu")
    expected = opened.nearest(OBSERVATIONS)
    # It is of these references; of others, and without it, the search is built anew.
    georesolve.Index(points(9, 5)).save(tmp_path / "other.parquet")
    for change in (lambda: (tmp_path / "other.parquet.index").replace(beside), beside.unlink):
        if device == "cpu":
            change()
        opened = georesolve.Index.open(tmp_path / "index.parquet")
        assert opened.search._index is None
        assert opened.nearest(OBSERVATIONS).equals(expected)


# Python warns of every fork of a process with threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pools_of_processes_search(method):
    """After a search in this process, whose threads a forked one does not have."""
    lat, lon = (REFERENCES[name].to_numpy() for name in ("lat", "lon"))
    index = georesolve.Index((lat, lon), device="cpu")
    many = points(40_000, 3)
    parts = [(lat[::step], lon[::step]) for step in (1, 2)]
    parts.append((many["lat"].to_numpy(), many["lon"].to_numpy()))
    expected = [index.nearest(part)["distance_m"].tobytes() for part in parts]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(index.nearest, parts).get(START_SECONDS)
    assert [one["distance_m"].tobytes() for one in found] == expected


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("asked", [{}, {"by": "id"}])
def test_neither_a_fork_nor_what_is_built_waits_for_what_a_thread_is_building(asked):
    index, is_held, is_over = georesolve.Index(REFERENCES, device="cpu"), Event(), Event()
    built = georesolve.Index(REFERENCES, device="cpu")
    expected = built.nearest(OBSERVATIONS, **asked)

    def build():
        with in_memory._making:
            is_held.set()
            is_over.wait()

    with ThreadPoolExecutor(2) as threads:
        threads.submit(build)
        try:
            is_held.wait()
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found = pool.apply_async(index.nearest, [OBSERVATIONS], asked).get(START_SECONDS)
            again = threads.submit(built.nearest, OBSERVATIONS, **asked).result(START_SECONDS)
        finally:
            is_over.set()
    assert found.equals(expected)
    assert again.equals(expected)


@pytest.mark.parametrize(
    "option", [{"reference_lat": "lat"}, {"reference_layer": "a"}, {"reference_id": "id"}]
)
def test_options_of_references_that_were_read_before_are_refused(option):
    [name] = option
    with pytest.raises(georesolve.InvalidOption, match=rf"{name} .* give Index\({name[10:]}="):
        georesolve.Index(REFERENCES).nearest(OBSERVATIONS, **option)


def test_an_index_is_searched_where_it_lies(device):
    index = georesolve.Index(REFERENCES, device=device)
    other = {"cpu": "cuda", "cuda": "cpu"}[device]
    with pytest.raises(georesolve.InvalidOption, match=f"{other}.*lies on '{device}'"):
        index.nearest(OBSERVATIONS, device=other)
    expected = index.nearest(OBSERVATIONS)
    for same in (device, "auto"):
        assert georesolve.nearest(OBSERVATIONS, index, device=same).equals(expected)
