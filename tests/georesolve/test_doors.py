"""The same bytes by every door: in process, by command and through a service, on every device.

What is compared is made on the CPU; the doors are tried on the device of the run.
"""

import json
import re
from dataclasses import fields
from fractions import Fraction
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import cli, files
from georesolve.io.errors import InvalidOption
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.options import (
    FILTERS,
    JobKeywords,
    NearestKeywords,
    Options,
    WithinKeywords,
    WithinOptions,
)
from georesolve.query import NEAR, QUESTION_OF, MatchOptions, Question
from tests import oracle
from tests.conftest import ROOT, look_up, points, sphere
from tests.kernels.point_sets import SETS

MATCHES = {
    "nearest": {},
    "three near": {"k": 3, "max_distance_m": 2e6},
    "two with bearings": {"k": 2, "max_distance_m": 2e6, "near": True},
    "two on the ellipsoid": {"k": 2, "earth": "wgs84", "near": True},
    "seven by brute force": {"k": 7, "algorithm": "brute", "how": "inner"},
}
TRIED = [
    (name, match)
    for turn, name in enumerate(SETS)
    for number, match in enumerate(MATCHES)
    if not number or name in ("uniform", "NaN") or number == 1 + turn % (len(MATCHES) - 1)
]
"""Every set with one of the matches beside the nearest, and every match with two sets."""
AS_THEY_ARE = {"on_invalid": "null", "coordinates": "trust"}


def flags(options):
    """Options as the command line has them."""
    names = {"k": "-k", "max_distance_m": "--max-distance"}
    given = options.items()
    return [
        word
        for name, value in given
        for word in (
            names.get(name, "--" + name.replace("_", "-")),
            *([] if value is True else [str(value)]),
        )
    ]


def vectors(degrees):
    return unit_vectors(*degrees)[:, :3].T


@pytest.mark.parametrize("question", get_args(Question))
def test_every_door_has_every_option_of_a_match(question):
    """HTTP follows the fields of `MatchOptions`, the command those of the options of Python."""
    asked = {one.name for one in fields(MatchOptions)} - {"question", "filters"} | {*FILTERS}
    options = {name for name in asked if QUESTION_OF.get(name, question) == question}
    in_python = {"nearest": Options, "within": WithinOptions}[question]
    assert options <= {one.name for one in fields(in_python)}
    line = [question, "a.csv", "b.csv", "-o", "c.csv", *(["-d", "1km"] * (question == "within"))]
    given = cli.parser().parse_args(line)
    assert {one.name for one in fields(in_python)} <= vars(given).keys()


@pytest.mark.parametrize(
    ("options", "keywords"), [(Options, NearestKeywords), (WithinOptions, WithinKeywords)]
)
def test_type_checkers_know_every_option(options, keywords):
    """Names and types are those of the fields, where these do not take whatever can be read."""
    checked, typed = get_type_hints(options), get_type_hints(keywords)
    names = {one.name for one in fields(options)}
    assert names <= get_type_hints(JobKeywords).keys()
    # The distance is an argument of its own.
    assert typed.keys() == names - {"distance_m"}
    plain = [one for one in typed if checked[one] is not Any and not one.endswith("columns")]
    assert len(plain) > 30
    assert {one: typed[one] for one in plain} == {one: checked[one] | None for one in plain}


def test_what_is_left_unsaid_is_the_same_by_every_door():
    options = {one.name: one.default for one in fields(Options)}
    theirs = {one.name: one.default for one in fields(MatchOptions) if one.name in options}
    assert theirs.items() <= options.items()
    page = (ROOT / "georesolve/service/page/static/options.js").read_text()
    # Columns are picked from those of the files, and have one name in both.
    theirs = [one.name for one in fields(MatchOptions) if one.name != "filters"] + [*FILTERS]
    theirs = [name for name in theirs if not re.search("columns|_by$|_time$", name)]
    theirs += ["max_time", "rank_by", "summary_by"]
    assert not [name for name in theirs if not re.search(rf'"{name}"|\b{name}:', page)]


@pytest.mark.parametrize(("name", "match"), TRIED)
def test_every_door_gives_the_same_bytes(service, device, tmp_path, capsys, name, match):
    options = {**MATCHES[match], **AS_THEY_ARE}
    references, observations = SETS[name]
    paths = {}
    for role, (lat, lon) in (("references", references), ("observations", observations)):
        paths[role] = tmp_path / f"{role}.parquet"
        pq.write_table(pa.table({"lat": lat, "lon": lon}), paths[role])
    sets = paths["observations"], paths["references"]
    sent = {role: path.read_bytes() for role, path in paths.items()}
    out = tmp_path / "by-command.parquet"
    command = ["nearest", *map(str, sets), "-o", str(out), "--quiet", "--device", device]

    answer = service.post("/resolve", files=sent, params=options)
    exit_code = cli.main([*command, *flags(options)])

    if not references[0].size:
        refusal = "references: the table has no rows, so nothing can be matched"
        assert (answer.status_code, answer.json()["detail"]) == (400, refusal)
        assert exit_code == 1
        assert refusal in capsys.readouterr().err
        for given in (sets, (observations, references)):
            with pytest.raises(georesolve.InvalidInput, match=refusal):
                georesolve.nearest(*given, device=device, **options)
        return

    files.resolve(*sets, tmp_path / "on-cpu.parquet", Options(**options), device="cpu")
    expected = (tmp_path / "on-cpu.parquet").read_bytes()
    assert exit_code == 0
    assert out.read_bytes() == expected
    assert answer.content == expected
    table = pq.read_table(tmp_path / "on-cpu.parquet").replace_schema_metadata()
    in_process = georesolve.nearest(*sets, device=device, **options)
    assert in_process.combine_chunks().equals(table.combine_chunks())
    arrays = georesolve.nearest(observations, references, device=device, **options)
    on_cpu = georesolve.nearest(observations, references, device="cpu", **options)
    for column in ("observation", "reference", "distance_m", *(NEAR if "near" in options else ())):
        assert arrays[column].tobytes() == on_cpu[column].tobytes(), column
        missing = {"reference": -1, "observation": 0}.get(column, np.nan)
        assert arrays[column].tobytes() == np.array(table[column].fill_null(missing)).tobytes()
    assert arrays["status"].tolist() == table["status"].to_pylist()


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", ["uniform", "few references", "NaN", "only NaN", "duplicates"])
def test_a_summary_of_the_nearest_is_the_same_by_every_door(service, device, tmp_path, name, k):
    (lat, lon), observations = SETS[name]
    options = {"k": k, "max_distance_m": 2e6, **AS_THEY_ARE}
    summary = {"count": True, "size": ["sum", "mean", "min", "max"], "whole": ["sum"]}
    sizes = np.random.default_rng(3).normal(size=lat.size) * 1e3
    of = {"lat": lat, "lon": lon, "size": sizes, "whole": np.arange(lat.size) - 7}
    sets = tmp_path / "observations.parquet", tmp_path / "references.parquet"
    pq.write_table(pa.table(dict(zip(("lat", "lon"), observations, strict=True))), sets[0])
    pq.write_table(pa.table(of), sets[1])
    out = tmp_path / "out.parquet"
    flags_of = ["--count", "--summary", "size:sum,mean,min,max", "--summary", "whole:sum"]
    command = ["nearest", *map(str, sets), "-o", str(out), "--quiet", "--device", device]

    assert cli.main([*command, *flags(options), *flags_of]) == 0
    sent = {path.stem: path.read_bytes() for path in sets}
    asked = {**options, "summary": json.dumps(summary)}
    answer = service.post("/resolve", files=sent, params=asked).raise_for_status()
    in_process = georesolve.nearest(*sets, device=device, summary=summary, **options)

    assert answer.content == out.read_bytes()
    table = pq.read_table(out).replace_schema_metadata()
    assert in_process.combine_chunks().equals(table.combine_chunks())
    found = georesolve.nearest(
        *sets, device="cpu", **options, columns=["size", "whole"]
    ).to_pylist()
    for row in table.to_pylist():
        own = [one for one in found[row["observation"] * k :][:k] if one["reference"] is not None]
        sizes_of = [one["reference_size"] for one in own]
        total = float(sum(map(Fraction, sizes_of)))
        invalid = row["status"] == "invalid_coordinate"
        assert row["count"] == (None if invalid else len(own))
        assert row["size_sum"] == (None if invalid else total)
        assert row["size_mean"] == (total / len(own) if own else None)
        assert row["size_min"] == min(sizes_of, default=None)
        assert row["size_max"] == max(sizes_of, default=None)
        assert row["whole_sum"] == (None if invalid else sum(o["reference_whole"] for o in own))
        assert row["status"] == found[row["observation"] * k]["status"]


@pytest.mark.parametrize(
    ("question", "asked"), [("nearest", {"k": 2}), ("within", {"distance_m": 2e6})]
)
def test_where_references_lie_by_doors_of_json_too(service, question, asked):
    """Coordinates as they were given, to the last bit, and bearings of one's own."""
    sets = points(40, 1), points(30, 2)
    expected = getattr(georesolve, question)(*sets, near=True, device="cpu", **asked).to_pydict()
    names = list(expected)
    at = names.index("distance_m") + 1
    assert names[at : at + 4] == [*NEAR, "status"]
    here, there = (
        [table[axis].to_numpy()[expected[role]] for axis in ("lat", "lon")]
        for table, role in zip(sets, ("observation", "reference"), strict=True)
    )
    assert expected["near_lat"] == there[0].tolist()
    assert expected["near_lon"] == there[1].tolist()
    bearing, _ = oracle.bearing_deg(*here, *there)
    np.testing.assert_allclose(expected["bearing_deg"], bearing.astype(float), atol=1e-11)

    inline = dict(
        zip(("observations", "references"), (one.to_pydict() for one in sets), strict=True)
    )
    body = {**inline, **asked, "near": True}
    rows = [
        service.post(f"/{question}", json=body),
        service.post(
            f"/processes/{question}/execution",
            json={"inputs": body},
            headers={"Accept": "application/json"},
        ),
    ]
    for answer in rows:
        one = pa.Table.from_pylist(answer.raise_for_status().json())
        assert one.select(NEAR).to_pydict() == {name: expected[name] for name in NEAR}
    with georesolve.Client(str(service.base_url)) as client:
        by_client = getattr(client, question)(*sets, near=True, **asked)
        assert by_client.to_pydict() == expected
        index = georesolve.Index(sets[1])
        assert getattr(index, question)(sets[0], near=True, **asked).to_pydict() == expected


EQUAL = [
    {"k": 2, "max_distance_m": 50_000, "exclude_self": False},
    {"k": 2, "max_distance_m": 50_000.0, "exclude_self": 0},
    {"k": np.int64(2), "max_distance_m": np.float32(50_000), "exclude_self": np.bool_(False)},
    {"k": np.uint8(2), "max_distance_m": np.int32(50_000), "exclude_self": np.int8(0)},
]


def test_equal_options_give_equal_bytes_by_every_door(service, tmp_path):
    # The same rows by other bytes: what the inputs were, the result does not tell.
    lat, lon = sphere(3_000, 5)
    table = pa.table({"lat": lat, "lon": lon})
    files_of, results, tables = {}, set(), []
    for name, compression in (("one", "zstd"), ("other", "none")):
        files_of[name] = tmp_path / f"{name}.parquet"
        pq.write_table(table, files_of[name], compression=compression)
    csv = tmp_path / "points.csv"
    pa.csv.write_csv(table, csv)
    files_of["text"] = csv
    out = tmp_path / "out.parquet"
    with georesolve.Client(str(service.base_url)) as client:
        for path in files_of.values():
            for options in EQUAL:
                files.resolve(path, path, out, Options(**options), device="cpu")
                results.add(out.read_bytes())
                tables.append(client.nearest(path, path, **options))
    for k, metres, self in (("2", "50000", "false"), ("2", "5e4", "0")):
        arguments = ["nearest", str(csv), str(csv), "-o", str(out), "--quiet", "--device", "cpu"]
        assert cli.main([*arguments, "-k", k, "--max-distance", metres]) == 0
        results.add(out.read_bytes())
        query = {"k": k, "max_distance_m": metres, "exclude_self": self}
        one = "points.csv", csv.read_bytes()
        sent = {"observations": one, "references": one}
        results.add(service.post("/resolve", files=sent, params=query).content)
    axes = {"lat": lat.tolist(), "lon": lon.tolist()}
    for options in ({"max_distance_m": 50_000}, {"max_distance_m": 50_000.0}):
        asked = {"observations": axes, "references": axes, "k": 2, **options}
        results.add(look_up(service, asked).content)
    assert len(results) == 1
    assert all(table.equals(tables[0], check_metadata=True) for table in tables)
    told = json.loads(pq.read_schema(out).metadata[b"georesolve"])
    assert told.keys() == {"version", "radius_m", "options", "counts"}


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"k": True}, "whole number from 1 to 64"),
        ({"k": 2.0}, "whole number from 1 to 64"),
        ({"k": np.bool_(True)}, "whole number from 1 to 64"),
        ({"max_distance_m": True}, "finite number of metres"),
        ({"max_distance_m": 10**400}, "finite number of metres"),
        ({"max_distance_m": np.float32("nan")}, "finite number of metres"),
        ({"exclude_self": "no"}, "True or False"),
        ({"exclude_self": 2}, "True or False"),
        ({"algorithm": ["tree"]}, "auto, tree, brute"),
        ({"columns": 5}, "list of names"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_at_the_door(options, allowed):
    with pytest.raises(InvalidOption, match=f"{next(iter(options))} must be.*{allowed}"):
        georesolve.nearest(([1.0], [2.0]), ([1.0], [2.0]), **options)


def test_columns_are_any_names_in_a_row():
    asked = Options(columns=np.array(["name", "id", "name"]))
    assert asked == Options(columns=["name", "id"])
    assert {type(one) for one in asked.columns} == {str}


def test_true_is_no_number_for_the_service(service):
    axes = {"lat": [1.0], "lon": [2.0]}
    for name in ("k", "max_distance_m"):
        answer = look_up(service, {"observations": axes, "references": axes, name: True})
        assert answer.status_code == 400
        [error] = answer.json()["errors"]
        assert error["pointer"] == f"/{name}"


def test_sets_that_match_only_when_swapped_are_remarked_by_every_door(service, tmp_path, capsys):
    random = np.random.default_rng(8)
    lat, lon = random.uniform(36, 70, 500), random.uniform(-10, 30, 500)
    told = "the axes of one set look swapped: observations have latitudes from -9.9"
    references = lat, lon
    with pytest.warns(UserWarning, match=told):
        georesolve.nearest((lon, lat), references)
    with pytest.warns(UserWarning, match=told):
        georesolve.Index(references).nearest((lon, lat))
    # Warnings are errors here: none is given.
    georesolve.nearest((lon, lat), references, coordinates="trust")
    georesolve.nearest(references, references)
    paths = []
    for name, axes in (("observations", (lon, lat)), ("references", (lat, lon))):
        paths.append(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table(dict(zip(("lat", "lon"), axes, strict=True))), paths[-1])
    command = ["nearest", *map(str, paths), "--quiet"]
    for wanted in (["-o", str(tmp_path / "out.csv")], ["--plan"]):
        assert cli.main([*command, *wanted]) == 0
        assert f"georesolve: warning: {told}" in capsys.readouterr().err
    trusted = [*command, "-o", str(tmp_path / "out.csv"), "--coordinates", "trust"]
    assert cli.main(trusted) == 0
    assert capsys.readouterr().err == ""
    server = ["-o", str(tmp_path / "out.parquet"), "--server", str(service.base_url)]
    assert cli.main([*command, *server]) == 0
    assert f"georesolve: warning: {told}" in capsys.readouterr().err


def test_python_warns_of_whole_sets_that_lie_far_apart():
    here = np.linspace(0, 5, 40)
    far, near = (here + 60, here + 100), (here, here)
    index = georesolve.Index(far)
    for call in (lambda: georesolve.nearest(near, far), lambda: index.within(near, 1e6)):
        with pytest.warns(UserWarning, match="the two sets lie far apart") as warned:
            call()
        assert [one.filename for one in warned] == [__file__]
    # Warnings are errors here: a few points, a part of a set, and what is trusted give none.
    georesolve.nearest((here[:11], here[:11]), far)
    georesolve.nearest(near, ([70.0], [130.0]))
    few = np.where(np.arange(40) < 11, here, np.nan)
    georesolve.nearest((few, few), far, on_invalid="null")
    georesolve.nearest(near, far, first_row=0)
    georesolve.nearest(near, far, coordinates="trust")
    georesolve.nearest(near, near)


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize(
    "name", [name for name, (references, _) in SETS.items() if references[0].size]
)
def test_the_rows_are_those_of_the_oracle(device, name, exclude_self):
    references, observations = SETS[name]
    if exclude_self:
        references = observations
    if not references[0].size:
        return
    options = {"k": 3, "exclude_self": exclude_self, **AS_THEY_ARE}
    given = georesolve.nearest(observations, references, device=device, **options)
    sample = slice(0, 200)
    rows, _ = oracle.nearest_rows(
        vectors(references),
        vectors([p[sample] for p in observations]),
        k=3,
        exclude_self=exclude_self,
    )
    assert given["reference"].reshape(-1, 3)[sample].tolist() == rows.tolist()
    found = given["reference"] >= 0
    here, there = given["observation"][found], given["reference"][found]
    metres = oracle.haversine_m(*(p[here] for p in observations), *(p[there] for p in references))
    np.testing.assert_allclose(given["distance_m"][found], metres, rtol=1e-7, atol=0.2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "max_distance_m": 1e6, "columns": ["name"], "observation_columns": ["name"]},
        {"how": "inner", "max_distance_m": 3e5, "columns": ["name"]},
    ],
)
def test_a_frame_of_cudf_stays_on_the_gpu(monkeypatch, options):
    """Of its columns the coordinates come to the host, where they are checked, and the id."""
    cudf = pytest.importorskip("cudf")
    observations = points(500, 1, name=[f"o{i}" for i in range(500)])
    references = points(300, 2, name=[f"r{i}" for i in range(300)])
    frame = cudf.DataFrame.from_arrow(observations)
    frame.index = cudf.Index(np.arange(500) * 3, name="when")
    given_references = cudf.DataFrame.from_arrow(references)
    expected = georesolve.nearest(observations, references, device="cpu", **options)
    index = georesolve.Index(given_references)

    to_arrow, taken = cudf.DataFrame.to_arrow, []

    def watched(self, *arguments, **named):
        taken.extend(self.columns)
        return to_arrow(self, *arguments, **named)

    monkeypatch.setattr(cudf.DataFrame, "to_arrow", watched)
    found = georesolve.nearest(frame, index, **options)
    if "near" not in options:
        # Bearings are made on the host, which has the rows for that.
        assert sorted(taken) == ["id", "lat", "lon"]
    monkeypatch.undo()
    assert type(found) is cudf.DataFrame
    assert found.index.to_arrow().to_pylist() == [
        3 * i for i in expected["observation"].to_pylist()
    ]
    assert found.to_arrow(preserve_index=False).to_pydict() == expected.to_pydict()
    both = georesolve.nearest(frame, given_references, **options)
    assert both.to_arrow(preserve_index=False).to_pydict() == expected.to_pydict()


@pytest.mark.gpu
@pytest.mark.parametrize("near", [False, True])
def test_frames_of_cudf_with_missing_and_few_rows(near):
    cudf = pytest.importorskip("cudf")
    lat, lon = (axis.tolist() for axis in sphere(20, 3))
    table = pa.table({"lat": [*lat, None, 95.0], "lon": [*lon, 1.0, 1.0], "id": range(22)})
    for observations in (table, table.slice(0, 0)):
        options = {"k": 2, "near": near, "on_invalid": "null"}
        expected = georesolve.nearest(observations, table, device="cpu", **options)
        frame = cudf.DataFrame.from_arrow(observations)
        found = georesolve.nearest(frame, table, **options)
        assert found.to_arrow(preserve_index=False).to_pydict() == expected.to_pydict()
    frame = cudf.DataFrame.from_arrow(table)
    alone = georesolve.nearest(frame, frame, exclude_self=True, on_invalid="null")
    on_cpu = georesolve.nearest(table, table, exclude_self=True, on_invalid="null", device="cpu")
    assert alone.to_arrow(preserve_index=False).to_pydict() == on_cpu.to_pydict()
    on_host = georesolve.nearest(frame, frame, exclude_self=True, on_invalid="null", device="cpu")
    assert on_host.to_arrow(preserve_index=False).to_pydict() == on_cpu.to_pydict()
