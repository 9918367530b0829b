"""Addresses of clients: in the log, told by proxies that are trusted, and wrong keys from each."""

import json
import re

import pytest

from georesolve.service.auth.access import WrongKeys
from georesolve.service.http.entrance import address_of
from tests.conftest import NO_CLUSTER, running_service, wait_until
from tests.service.test_keys import as_holder, new_key

WRONG = {"X-API-Key": "gr_wrong"}


@pytest.fixture(scope="module", params=["text", "json"])
def watched(tmp_path_factory, request):
    """A service with a key, without a cluster, behind a proxy on 127.0.0.1."""
    data_dir = tmp_path_factory.mktemp("watched") / "data"
    key = new_key(data_dir, "ann", "--role", "admin")
    flags = [*NO_CLUSTER, "--log-format", request.param]
    with running_service(data_dir, *flags, ready=False) as client:
        yield client, key, request.param


def clients_in_log(client, format, path):
    """The address in each line of a request for a path."""
    lines = [line for line in client.log.read_text().splitlines() if f"GET {path} " in line]
    if format == "json":
        return [json.loads(line)["client"] for line in lines]
    return [re.search(r"(\S+) GET", line)[1] for line in lines]


def test_every_line_of_a_request_has_the_address_of_its_client(watched):
    client, _, format = watched
    client.get("/a")
    for told, path in (
        ("192.0.2.7", "/b"),
        ("198.51.100.1, 192.0.2.7", "/c"),
        ("2001:DB8::1", "/d"),
        ("evil;text" * 20, "/e"),
    ):
        client.get(path, headers={"X-Forwarded-For": told})
    wait_until(lambda: clients_in_log(client, format, "/e"))
    found = [clients_in_log(client, format, path) for path in ("/a", "/b", "/c", "/d", "/e")]
    assert found == [["127.0.0.1"], ["192.0.2.7"], ["192.0.2.7"], ["2001:db8::1"], ["unknown"]]


def test_wrong_keys_are_slowed_by_address_and_counted(watched):
    client, key, _ = watched

    def asked(address, **headers):
        return client.get("/jobs", headers={"X-Forwarded-For": address, **headers})

    def counted(holder):
        text = holder.get("/metrics").text
        return float(re.search(r"^georesolve_wrong_keys_total (\S+)", text, re.M)[1])

    with as_holder(client, key) as holder:
        before = counted(holder)
        answers = [asked("192.0.2.1", **WRONG) for _ in range(300)]
        assert counted(holder) == before + 300
    assert [answer.status_code for answer in answers] == [401] * 120 + [429] * 180
    problem = answers[-1].json()
    assert problem["type"] == "urn:georesolve:problem:too-many-wrong-keys"
    assert "192.0.2.1" in problem["detail"]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    # Others are not slowed, and nobody can lock out who has a right key.
    assert asked("192.0.2.2", **WRONG).status_code == 401
    assert asked("192.0.2.1", **{"X-API-Key": key}).status_code == 200
    # To send none is no guess.
    assert asked("192.0.2.1").status_code == 401


def test_hosts_of_a_network_count_together_and_the_table_has_a_bound():
    wrong = WrongKeys()
    assert [wrong.count(f"2001:db8::{n:x}") for n in range(121)] == [0] * 120 + [60]
    assert wrong.count("2001:db8:0:1::1") == 0
    for n in range(20_000):
        wrong.count(f"10.0.{n >> 8}.{n & 255}")
    assert len(wrong._counts) == 10_000


@pytest.mark.parametrize("client", [None, ("x\ny", 0), ("", 0)])
def test_an_address_that_is_none_is_not_written_down(client):
    assert address_of({"client": client}) == "unknown"
