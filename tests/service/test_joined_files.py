"""Tables cut into files at random give the rows of the whole table, by upload and by address."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import georesolve
from tests.conftest import NO_CLUSTER, running_service
from tests.io.test_opener import CONFLICTS, FORMATS, OUT_OF_DATA, REFERENCE, check, cuts, lay

SOME = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Client of a service that reads files below a folder, and the folder."""
    folder = tmp_path_factory.mktemp("lake")
    flags = [*NO_CLUSTER, "--sources", f"file://{folder}/"]
    with running_service(tmp_path_factory.mktemp("service") / "data", *flags, ready=False) as http:
        yield http, folder


def matched(http, observations, columns):
    body = {"observations": observations, "references": REFERENCE, "observation_columns": columns}
    return http.post("/nearest", json=body, headers={"Accept": "application/vnd.apache.parquet"})


@SOME
@given(cut=cuts(["parquet"]))
def test_an_address_gives_the_rows_of_the_table_that_was_cut(service, cut):
    http, folder = service
    below = folder / str(len([*folder.iterdir()]))
    rows, names = lay(below, cut), [*cut[1]]
    answer = matched(http, {"href": f"file://{below}"}, names)
    assert answer.is_success, answer.text
    check(pq.read_table(pa.BufferReader(answer.content)), cut, rows)


@SOME
@given(data=st.data())
def test_an_upload_gives_the_rows_of_the_table_that_was_cut(service, tmp_path_factory, data):
    http, _ = service
    cut = data.draw(
        cuts([data.draw(st.sampled_from(FORMATS))]).filter(lambda one: len(one[2]) == 1)
    )
    folder = tmp_path_factory.mktemp("upload")
    rows, names = lay(folder, cut), [*cut[1]]
    [path] = (one for one in folder.rglob("0.*") if one.is_file())
    with georesolve.Client(str(http.base_url)) as client:
        result = client.nearest(path, pa.table(REFERENCE), observation_columns=names)
    check(result, cut, rows)


@pytest.mark.parametrize("number", [i for i in range(len(CONFLICTS)) if i != OUT_OF_DATA])
def test_types_without_a_common_one_are_refused_with_both_files(service, number):
    http, folder = service
    below = folder / f"conflict-{number}"
    below.mkdir()
    for name, column in zip(("a", "b"), CONFLICTS[number], strict=True):
        table = pa.table({"lat": [48.0], "lon": [9.0], "value": column})
        pq.write_table(table, below / f"{name}.parquet")
    assert matched(http, {"href": f"file://{below}"}, []).is_success
    answer = matched(http, {"href": f"file://{below}"}, ["value"])
    assert answer.status_code == 400, answer.text
    detail = json.loads(answer.text)["detail"]
    assert all(word in detail for word in ("value", "a.parquet", "b.parquet")), detail
