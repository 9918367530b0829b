"""The page at `/`: who gets it, and what it is made of. `tests/faults/test_page.py` uses it."""

import re
from urllib.parse import urljoin

import pytest

from tests.conftest import NO_CLUSTER, running_service
from tests.deploy.test_dashboard import basic
from tests.service.test_keys import new_key

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
"""What Chromium and Firefox send when they open an address."""


def test_browsers_get_the_page_and_programs_the_landing_page(service):
    page = service.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
        answer = service.get("/", headers=headers)
        assert answer.json()["title"] == "georesolve"
        assert {answer.headers["vary"], page.headers["vary"]} == {
            "Accept, Authorization, X-API-Key"
        }


def parts_of(client, page, **headers):
    """What the page loads, and what that loads in turn."""
    [base] = re.findall('<base href="([^"]+)"', page.text)
    found = re.findall('(?:src|href)="(page/[^"]+)"', page.text)
    waiting = [urljoin(urljoin(str(page.url), base), address) for address in found]
    parts = {}
    while waiting:
        address = waiting.pop()
        parts[address] = answer = client.get(address, headers=headers)
        if address.endswith(".js") and "leaflet" not in address:
            names = re.findall(r'(?:from|new URL\() ?"(?:\./)?([\w.]+)"', answer.text)
            waiting += {urljoin(address, name) for name in names} - parts.keys()
    return parts


def test_all_parts_are_there_and_are_kept_for_good(service):
    page = service.get("/", headers=BROWSER)
    parts = parts_of(service, page)
    assert len(parts) > 10
    for address, answer in parts.items():
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
        again = service.get(address, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    address = next(iter(parts))
    digest = re.search("/page/(\\w+)/", address)[1]
    assert service.get(address.replace(digest, "0" * 16)).status_code == 404
    assert service.get(f"/page/{digest}/..%2Frouter.py").status_code == 404


def test_the_policy_lets_no_text_become_a_script(service):
    page = service.get("/", headers=BROWSER)
    policies = page.headers.get_list("content-security-policy")
    assert "frame-ancestors 'self'" in policies
    [policy] = [one for one in policies if "default-src" in one]
    policy = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    # The form is sent by the script; `<base>` names the path below a proxy.
    assert policy["form-action"] == policy["frame-src"] == policy["object-src"] == "'none'"
    assert policy["base-uri"] == "'self'"
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|\sstyle=", page.text)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with a key, below a path; yields its client, without the key, and the key."""
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    key = new_key(data_dir, "ann")
    with running_service(data_dir, *NO_CLUSTER, "--root-path", "/geo", ready=False) as client:
        yield client, key


def test_a_browser_is_asked_for_a_key(guarded):
    client, key = guarded
    refused = client.get("/geo/", headers=BROWSER)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic realm=")
    assert client.get("/geo/").headers["www-authenticate"] == "Bearer"
    page = client.get("/geo", headers=BROWSER | basic(key))
    assert page.status_code == 200
    parts = parts_of(client, page, **basic(key))
    assert all("/geo/page/" in address for address in parts)
    assert {answer.status_code for answer in parts.values()} == {200}


def test_the_key_of_a_browser_is_not_for_pages_of_other_sites(guarded):
    client, key = guarded
    sent = {"content": "lat,lon\n1,2\n", "headers": {"Content-Type": "text/csv", **basic(key)}}

    def register(**headers):
        return client.post("/geo/datasets", **(sent | {"headers": sent["headers"] | headers}))

    own = str(client.base_url).rstrip("/")
    assert register(**{"Sec-Fetch-Site": "same-origin", "Origin": own}).status_code == 201
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        assert register(**headers).status_code == 403, headers
        # A key that the page itself must know is no browser's.
        program = {"Authorization": f"Bearer {key}"}
        assert register(**headers, **program).status_code == 200, headers
