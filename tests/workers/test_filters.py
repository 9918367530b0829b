"""Jobs by group and in time: the bytes of the command however cut, and references in pieces."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve import files
from georesolve.engine import memory, resident
from georesolve.engine.filter_encoding import check_filters
from georesolve.engine.plan import Chunk
from georesolve.engine.questions import Batch
from georesolve.engine.resident import resident_keys
from georesolve.engine.search import question_of
from georesolve.io.datasets import read_rows
from georesolve.io.errors import InvalidInput
from georesolve.options import Options, WithinOptions
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from georesolve.workers.results.manifest import open_matches
from tests.conftest import store_points
from tests.georesolve.test_filters import tables
from tests.workers.test_pipeline import cut_into, ignore, never

WINDOW = {"time": "t", "max_time": "1h"}
ASKED = {
    "groups": {"by": ["country", "kind"], "k": 2, "columns": ["country"]},
    "window": {"by": "country", **WINDOW, "near": True, "max_distance_m": 5e6},
    "by time": {"time": "t", "rank_by": "time", "time_direction": "backward", "how": "inner"},
    "itself": {"by": "country", "time": "t", "max_time": "2h", "exclude_self": True},
    "pairs": {"distance_m": 4e6, "by": "kind", **WINDOW, "how": "left"},
    "counts": {"distance_m": 4e6, "by": "country", "summary": {"count": True, "kind": ["sum"]}},
    "of the nearest": {"k": 3, **WINDOW, "summary": {"kind": ["max"]}},
}


def sets_of(asked):
    observations, others = tables(300, 200)
    pair = observations, observations if asked.get("exclude_self") else others
    return [pa.Table.from_pandas(one, preserve_index=False) for one in pair]


def asked_for(asked):
    return (WithinOptions if "distance_m" in asked else Options)(**asked)


@pytest.mark.parametrize("name", ASKED)
def test_bytes_are_those_of_the_command_however_cut(cluster, monkeypatch, tmp_path, name):
    asked, tables = asked_for(ASKED[name]), sets_of(ASKED[name])
    paths = [tmp_path / "observations.parquet", tmp_path / "references.parquet"]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    out = tmp_path / "out.parquet"
    counts = files.resolve(*paths, out, asked, device="cpu").counts
    sets = [store_points(one, path) for one, path in zip(tables, paths, strict=True)]
    cut_into(monkeypatch, 70)
    job = Job(*sets, asked.match(*sets), id=f"{tmp_path.name}", folder=tmp_path / "job")
    _, progress = run(cluster, job, ignore, never)
    with open_matches(job.folder) as file:
        assert file.read() == out.read_bytes()
    assert dict(progress.counts) == counts


def test_pieces_of_references_do_not_show(tmp_path, monkeypatch):
    sets = [store_points(one, tmp_path / f"{i}.parquet") for i, one in enumerate(sets_of({}))]
    monkeypatch.setattr(resident, "ROW_GROUP", 1)
    match = asked_for({"by": "country", **WINDOW, "k": 3}).match(*sets)
    columns = read_rows(sets[0].file, 0, sets[0].rows, ["lat", "lon", "country", "t"])
    degrees = [axis.to_numpy() for axis in columns.columns[:2]]

    def found(match):
        filters = resident_keys(sets[1], match.filters).bind(match, columns)
        job = Job(*sets, match, id="pieces", folder=tmp_path)
        question = question_of(job, Chunk(0, sets[0].rows), filters)
        return question.answer(Batch(*degrees, 0, 0.0, filters))

    whole = found(match)
    with memory.in_pieces(37):
        assert len(resident.pieces(sets[1])) > 3
        assert [one.tobytes() for one in found(match)] == [one.tobytes() for one in whole]
        with pytest.raises(InvalidInput, match="as rank_by='time' needs: give workers more"):
            found(asked_for({"time": "t", "rank_by": "time"}).match(*sets))
    resident.forget_all()


def test_types_are_looked_at_and_no_values(tmp_path):
    sets = [store_points(one, tmp_path / f"{i}.parquet") for i, one in enumerate(sets_of({}))]
    assert check_filters(*sets, asked_for(WINDOW).match(*sets)).unit == "ms"
    with pytest.raises(InvalidInput, match="holds double, and by takes text"):
        check_filters(*sets, asked_for({"by": "lat"}).match(*sets))


@pytest.mark.parametrize(("asked", "n"), [({}, 1), ({"rank_by": "time"}, 2)])
def test_windows_of_several_widths_share_an_index(tmp_path, asked, n):
    """But where times rank: what is built for that is the fastest for a window."""
    sets = [store_points(one, tmp_path / f"{i}.parquet") for i, one in enumerate(sets_of({}))]
    found = []
    for max_time in ("1h", "3h"):
        match = asked_for({"time": "t", "max_time": max_time, **asked}).match(*sets)
        narrowed = check_filters(*sets, match)
        narrowed = narrowed._replace(keys=resident_keys(sets[1], match.filters))
        found += resident.indexes(sets[1], match, resident.pieces(sets[1]), narrowed)
    assert len({id(index) for _, index in found}) == n
    resident.forget_all()
