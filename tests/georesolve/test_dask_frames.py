"""Collections of Dask: the rows, the types and the divisions of what their tables would give."""

import pickle
from functools import partial

import dask
import dask.dataframe as dd
import geopandas
import geopandas.testing
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import georesolve
from tests.conftest import points, sphere

OBSERVATIONS = (
    points(500, 1, name=[f"o{i}" for i in range(500)], reach=np.arange(500) * 3e3)
    .to_pandas()
    .set_index(pd.Index(np.arange(500) * 3, name="when"))
)
REFERENCES = points(300, 2, name=[f"r{i}" for i in range(300)], size=range(300)).to_pandas()
QUESTIONS = {
    "nearest": partial(georesolve.nearest),
    "carried": partial(
        georesolve.nearest, k=3, columns=["name", "size"], observation_columns=["name"]
    ),
    "everything": partial(georesolve.nearest, columns="*", observation_columns="*"),
    "near": partial(georesolve.nearest, near=True),
    "inner": partial(georesolve.nearest, how="inner", max_distance_m=5e5),
    "summary of the nearest": partial(
        georesolve.nearest, k=4, summary={"count": True, "size": ["sum", "mean"]}
    ),
    "within": partial(georesolve.within, distance_m=1e6, columns=["name"]),
    "within, left": partial(georesolve.within, distance_m=1e5, how="left", near=True),
    "a reach each": partial(georesolve.within, distance_m="reach"),
    "summary": partial(georesolve.within, distance_m=1e6, summary={"size": ["sum", "min"]}),
}


def on(device, frame, npartitions):
    """A collection whose partitions lie where the device of the tests is."""
    collection = dd.from_pandas(frame, npartitions=npartitions)
    return collection.to_backend("cudf") if device == "cuda" else collection


def same(given, expected):
    """Whether frames hold the same; those of a GPU have types of their own for text and gaps."""
    if isinstance(given, pd.DataFrame):
        pd.testing.assert_frame_equal(given, expected)
        return
    host = [given.to_pandas()]
    host.append(expected if isinstance(expected, pd.DataFrame) else expected.to_pandas())
    frames = [frame.astype(object).where(frame.notna(), None) for frame in host]
    pd.testing.assert_frame_equal(*frames, check_index_type=False, check_names=False)


@pytest.mark.parametrize("name", QUESTIONS)
def test_rows_types_and_divisions_are_those_of_the_whole(name, device, tmp_path):
    ask, observations = QUESTIONS[name], on(device, OBSERVATIONS, 7)
    path = tmp_path / "references.parquet"
    REFERENCES.to_parquet(path)
    whole = observations.compute(scheduler="sync")
    expected = ask(whole, REFERENCES)
    for references in (
        REFERENCES,
        str(path),
        georesolve.Index(REFERENCES),
        on(device, REFERENCES, 3),
    ):
        matches = ask(observations, references)
        assert isinstance(matches, type(observations))
        assert matches.divisions == observations.divisions
        found = matches.compute(scheduler="sync")
        same(found, expected)
        same(dd.utils.make_meta(matches), found.iloc[:0])


def test_a_partition_alone_has_the_rows_of_the_whole(tmp_path):
    """Dask joins small files where few of their columns are read, and counts partitions anew."""
    kinds = OBSERVATIONS.assign(day=pd.Categorical(["a", "b"] * 250), **dict.fromkeys("cdef", 0.0))
    dd.from_pandas(kinds, npartitions=10).to_parquet(tmp_path / "lake")
    for number, path in enumerate(sorted((tmp_path / "lake").iterdir())):
        path.rename(path.with_name(f"{number}.parquet"))
    collection = dd.read_parquet(tmp_path / "lake", categories={"day": ["a", "b"]})
    matches = georesolve.nearest(collection, REFERENCES, observation_columns=["name", "day"])
    computed = collection.compute(scheduler="sync")
    expected = georesolve.nearest(computed, REFERENCES, observation_columns=["name", "day"])
    for number in range(matches.npartitions):
        part = matches.partitions[number].compute(scheduler="sync")
        same(part, expected.iloc[part["observation"].iloc[0] :][: len(part)])
    matches.to_parquet(tmp_path / "matches")
    written = dd.read_parquet(tmp_path / "matches").compute()
    assert sorted(written["observation"]) == list(range(500))


def test_where_it_is_computed_says_how_partitions_are_shuffled():
    """Not where it was asked for, of a cluster that is gone since."""
    shuffled = dd.from_pandas(OBSERVATIONS, npartitions=4).shuffle("name")
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        matches = georesolve.nearest(shuffled, REFERENCES)
    found = matches.compute(scheduler="sync")
    assert sorted(found["observation"]) == list(range(500))


def test_on_a_cluster_references_are_sent_once_and_results_kept_and_written(
    dask_client, device, tmp_path
):
    references = points(50_000, 3).to_pandas()
    observations = on(device, OBSERVATIONS, 40)
    matches = georesolve.nearest(observations, references, k=2)
    graph = matches.optimize().dask
    # Two coordinates and an id of eight bytes each.
    assert 24 * 50_000 < len(pickle.dumps(dict(graph))) < 2 * 24 * 50_000
    expected = georesolve.nearest(OBSERVATIONS, references, k=2)
    kept = matches.persist()
    same(kept.compute(), expected)
    same(kept.head(5), expected.head(5))
    matches.to_parquet(tmp_path)
    written = dd.read_parquet(tmp_path).compute()
    assert written["distance_m"].equals(expected["distance_m"])
    of_collection = georesolve.within(observations, on(device, references, 4), 2e5)
    same(of_collection.compute(), georesolve.within(OBSERVATIONS, references, 2e5))


def test_a_collection_against_itself(device):
    collection = on(device, OBSERVATIONS, 6)
    for ask in (
        partial(georesolve.nearest, exclude_self=True),
        partial(georesolve.within, distance_m=1e6, once=True),
    ):
        expected = ask(OBSERVATIONS, OBSERVATIONS)
        found = ask(collection, collection).compute(scheduler="sync")
        assert found["reference"].to_numpy().tolist() == expected["reference"].tolist()
    moved = OBSERVATIONS.assign(lat=OBSERVATIONS["lat"].where(OBSERVATIONS.index != 900, 1.0))
    with pytest.raises(georesolve.InvalidOption, match="observations and references differ"):
        georesolve.nearest(collection, moved, exclude_self=True).compute(scheduler="sync")
    few = on(device, OBSERVATIONS.iloc[:450], 6)
    with pytest.raises(georesolve.InvalidOption, match="450 observations and 500 references"):
        georesolve.nearest(few, collection, exclude_self=True).compute(scheduler="sync")


def test_references_of_the_same_places_are_not_each_others(device):
    collection = on(device, OBSERVATIONS, 3)
    renamed = REFERENCES.assign(name=[f"new {i}" for i in range(300)])
    first, second = (
        georesolve.nearest(collection, one, columns=["name"]) for one in (REFERENCES, renamed)
    )
    for lazy, references in ((second, renamed), (first, REFERENCES)):
        expected = georesolve.nearest(OBSERVATIONS, references, columns=["name"])
        found = lazy.compute(scheduler="sync")["reference_name"]
        found = found if isinstance(found, pd.Series) else found.to_pandas()
        assert found.tolist() == expected["reference_name"].tolist()


def test_partitions_may_be_empty(device):
    collection = on(device, OBSERVATIONS, 10)
    some = collection[(collection["reach"] < 1e5) | (collection["reach"] > 1.2e6)]
    assert not all(some.map_partitions(len).compute(scheduler="sync"))
    expected = georesolve.nearest(some.compute(scheduler="sync"), REFERENCES)
    same(georesolve.nearest(some, REFERENCES).compute(scheduler="sync"), expected)


def test_geometries(tmp_path):
    dask_geopandas = pytest.importorskip("dask_geopandas")
    lat, lon = sphere(90, 5)
    frame = geopandas.GeoDataFrame(
        {"name": [f"n{i}" for i in range(90)]},
        geometry=geopandas.points_from_xy(lon, lat),
        crs=4326,
    )
    collection = dask_geopandas.from_geopandas(frame, npartitions=4)
    for references in (REFERENCES, collection):
        matches = georesolve.nearest(collection, references, k=2, observation_columns=["name"])
        assert isinstance(matches, dask_geopandas.GeoDataFrame)
        whole = frame if references is collection else references
        computed = collection.compute(scheduler="sync")
        expected = georesolve.nearest(computed, whole, k=2, observation_columns=["name"])
        geopandas.testing.assert_geodataframe_equal(matches.compute(scheduler="sync"), expected)


def test_no_more_columns_are_read_than_are_needed(tmp_path, device):
    observations = OBSERVATIONS.reset_index(drop=True)
    observations.to_parquet(path := tmp_path / "observations.parquet")
    row_group = pq.read_metadata(path).row_group(0)
    names = [row_group.column(i).path_in_schema for i in range(row_group.num_columns)]
    damaged = row_group.column(names.index("reach"))
    with path.open("r+b") as file:
        file.seek(damaged.dictionary_page_offset or damaged.data_page_offset)
        file.write(bytes(damaged.total_compressed_size))
    with pytest.raises((OSError, RuntimeError)):
        pq.read_table(path)
    with dask.config.set({"dataframe.backend": "cudf" if device == "cuda" else "pandas"}):
        collection = dd.read_parquet(path)
    matches = georesolve.nearest(collection, REFERENCES, observation_columns=["name"])
    observations["name"] = observations["name"].astype(str(collection["name"].dtype))
    expected = georesolve.nearest(observations, REFERENCES, observation_columns=["name"])
    same(matches.compute(scheduler="sync"), expected)


def test_what_is_wrong_is_said_now_or_with_its_partition(device):
    collection = on(device, OBSERVATIONS, 5)
    for wrong, said in {
        "columns": "columns: there is no column 'nothing'",
        "observation_columns": "observation_columns: there is no column 'nothing'",
    }.items():
        with pytest.raises(georesolve.InvalidOption, match=said):
            georesolve.nearest(collection, REFERENCES, **{wrong: ["nothing"]})
    with pytest.raises(georesolve.InvalidInput, match="observations: no column for latitudes"):
        georesolve.nearest(collection[["name"]], REFERENCES)
    for options in ({"progress": print}, {"first_row": 3}):
        with pytest.raises(georesolve.InvalidOption, match="a collection of Dask, which is match"):
            georesolve.nearest(collection, REFERENCES, **options)
    by_reference = {"summary": {"count": True}, "summary_by": "reference"}
    with pytest.raises(georesolve.InvalidOption, match="a collection of Dask, which is matched"):
        georesolve.within(collection, REFERENCES, 1e5, **by_reference)
    wrong = OBSERVATIONS.copy()
    wrong.iloc[321, wrong.columns.get_loc("lat")] = 91.0
    matches = georesolve.nearest(on(device, wrong, 5), REFERENCES)
    said = r"in the partition that begins at row 300: observations: 1 of 100 rows .* row 21"
    with pytest.raises(georesolve.InvalidInput, match=said):
        matches.compute(scheduler="sync")


def test_references_alone_may_be_a_collection(device):
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES)
    with dask.config.set(scheduler="sync"):
        found = georesolve.nearest(OBSERVATIONS, on(device, REFERENCES, 3))
    same(found, expected)


@pytest.mark.parametrize("kind", ["pandas", "arrays"])
def test_parts_of_a_set_count_from_their_first_row(kind):
    def as_kind(frame):
        return frame if kind == "pandas" else {name: frame[name].to_numpy() for name in frame}

    index = georesolve.Index(OBSERVATIONS.reset_index(drop=True))
    whole = index.nearest(as_kind(OBSERVATIONS), exclude_self=True, observation_columns=["name"])
    found = [
        index.nearest(
            as_kind(OBSERVATIONS.iloc[start : start + 130]),
            exclude_self=True,
            observation_columns=["name"],
            first_row=start,
        )
        for start in range(0, 500, 130)
    ]
    for name in whole:
        parts = np.concatenate([np.asarray(part[name]) for part in found])
        np.testing.assert_array_equal(parts, np.asarray(whole[name]))
    for wrong in (-1, 0.5, "a"):
        with pytest.raises(georesolve.InvalidOption, match="first_row must be a row, 0 or more"):
            index.nearest(OBSERVATIONS, first_row=wrong)
    with pytest.raises(georesolve.InvalidOption, match="observations and references differ"):
        index.nearest(OBSERVATIONS.iloc[:130], exclude_self=True, first_row=1)
