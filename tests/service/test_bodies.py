"""Bodies in JSON: the memory that they share, names that are given twice, what an error quotes."""

import json
import select
from contextlib import ExitStack

import pytest

from tests.conftest import NO_CLUSTER, look_up, run_nearest, running_service, wait_until
from tests.service.test_connections import head, opened, problem_in
from tests.service.test_keys import as_holder, new_key

TABLE = {"lat": [1.0, 2.0], "lon": [3.0, 4.0]}
SETS = {"observations": TABLE, "references": TABLE}
LARGEST = 64 << 10
LATER = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A service without a cluster that takes small bodies; yields the data folder, too."""
    data_dir = tmp_path_factory.mktemp("small") / "data"
    flags = [*NO_CLUSTER, "--inline-bytes", LARGEST]
    with running_service(data_dir, *flags, ready=False) as client:
        yield client, data_dir


def refusal_of(n, client, stack, *lines):
    """Send nearly all of n of the largest bodies, of which one is too many; returns its answer."""
    kind = ("Content-Type: application/json", "Prefer: respond-async", "Connection: close")
    start = head(
        *kind, *lines, f"Content-Length: {LARGEST}", start="POST /processes/nearest/execution"
    )
    connections = [stack.enter_context(opened(client)) for _ in range(n)]
    for connection in connections:
        connection.sendall(start + (LARGEST - 1000) * b" ")
    (answered, *others), _, _ = select.select(connections, [], [], 30)
    assert not others
    return problem_in(answered.makefile("rb").read())


def test_bodies_share_their_memory_and_a_key_leaves_some(small):
    client, data_dir = small

    def send(client):
        return run_nearest(client, SETS, LATER)

    with ExitStack() as stack:
        status, problem = refusal_of(17, client, stack)
        assert (status, problem["type"]) == (503, "urn:georesolve:problem:too-many-bodies")
        assert f"all may have {16 * LARGEST}" in problem["detail"]
    wait_until(lambda: send(client).status_code == 201)

    with (
        as_holder(client, new_key(data_dir, "ann")) as ann,
        as_holder(client, new_key(data_dir, "ben")) as ben,
    ):
        # Before the service knows of the keys it is open to all, and bodies are nobody's.
        seen = [(client, 401), (ann, 200), (ben, 200)]
        wait_until(lambda: all(one.get("/jobs").status_code == status for one, status in seen))
        mine = f"Authorization: {ann.headers['authorization']}"
        with ExitStack() as stack:
            status, problem = refusal_of(9, client, stack, mine)
            assert (status, problem["type"]) == (503, "urn:georesolve:problem:too-many-bodies")
            assert "of this key" in problem["detail"]
            assert send(ben).status_code == 201
        wait_until(lambda: send(ann).status_code == 201)


ONCE = json.dumps(SETS)[1:-1]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/nearest", f'{{"references": {{}}, {ONCE}}}', "references"),
        ("/nearest", f"{{{ONCE}}}".replace('"lat"', '"lon"', 1), "lon"),
        ("/nearest", f"{{{ONCE}}}".replace('"lat"', '"l\\u006fn"', 1), "lon"),
        ("/estimate", '{"observations": 1, "references": 2, "k": 3, "k": 4}', "k"),
        ("/estimate", f'{{"k": {5000 * "1"}, "k": 4}}', "k"),
        ("/processes/nearest/execution", f'{{"inputs": {{{ONCE}, "k": 1, "k": 2}}}}', "k"),
    ],
    ids=["a set", "a column", "written otherwise", "an option", "digits", "an input"],
)
def test_a_name_is_given_once(service, path, body, name):
    headers = {"Content-Type": "application/json"}
    answer = service.post(path, content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["type"] == "urn:georesolve:problem:invalid-request"
    assert f"the name {name!r} more than once" in answer.json()["detail"]


def test_names_that_only_look_alike_are_taken(service):
    table = TABLE | {"a[1]": [1, 2], "a[2]": [3, 4], "": [5, 6], "{": [1, 2], "}": [None, 1]}
    body = {"observations": table, "references": TABLE}
    assert look_up(service, body).status_code == 200


def test_a_name_twice_among_many_is_found(service):
    names = ", ".join(f'"{n}": 1' for n in range(300_000))
    answer = service.post(
        "/nearest",
        content=f'{{"observations": {{{names}, "299999": 1}}, "references": {{}}}}',
        headers={"Content-Type": "application/json"},
    )
    assert "'299999' more than once" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        lambda name: {name: 1, **SETS},
        lambda name: {**SETS, "observations": {name: 1}},
        lambda name: {**SETS, "observations": {"lat": [1.0], "lon": [1.0], name: [{}]}},
        lambda name: {**SETS, "observations": {"lat": [1.0], name: [1.0]}},
        lambda name: {**SETS, "observations": name},
    ],
    ids=["an option", "no array", "a column", "no longitude", "a dataset"],
)
def test_an_error_quotes_little(service, body):
    answer = look_up(service, body("/~\u00e9x" * 1_000_000))
    assert answer.status_code == 400, answer.text[:1000]
    assert len(answer.content) < 50_000
    assert len(answer.json()["detail"]) < 2100
