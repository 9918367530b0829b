"""The page at `/`: who gets it, and what it is made of. `tests/faults/test_page.py` uses it."""

import re
from urllib.parse import urljoin

import geopandas
import pytest

from tests.conftest import NO_CLUSTER, ROOT, running_service
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


def two_layers(folder):
    path = folder / "both.gpkg"
    for layer in ("seen", "towns"):
        points = geopandas.points_from_xy([7.4, 8.5], [46.9, 47.4])
        geopandas.GeoDataFrame(geometry=points, crs=4326).to_file(path, layer=layer)
    return path.read_bytes()


# Files, and the options with which each can be read; None for a value that the user knows.
REFUSED_FILES = {
    "swapped.csv": (
        b"lat,lon\n170.5,-45.9\n151.2,-33.9\n174.8,-36.8\n",
        [{"lat": "lon", "lon": "lat"}, {"coordinates": "trust"}],
    ),
    "invalid.csv": (b"lat,lon\n1,2\n91,120\n-5,6\n7,8\n", [{"on_invalid": "null"}]),
    "metres.csv": (b"lat,lon\n5400000,500000\n5410000,510000\n", [{"crs": None}]),
    "columns.csv": (b"north,east\n1,2\n", [{"lat": None, "lon": None}]),
    "longitude.csv": (b"lat,east\n1,2\n", [{"lon": None}]),
    "german.csv": (
        "lat;lon;name\n1,5;2,5;Köln\n".encode("cp1252"),
        [{"charset": None}, {"charset": "windows-1252"}],
    ),
    "both.gpkg": (two_layers, [{"layer": "seen"}, {"layer": "towns"}]),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_refusal_offers_options_that_let_the_file_be_read(service, tmp_path, name):
    """The page makes fields and buttons of these: it reads no texts."""
    content, ways = REFUSED_FILES[name]
    content = content(tmp_path) if callable(content) else content

    def send(charset=None, **options):
        media_type = f"text/csv; charset={charset}" if charset else "application/octet-stream"
        return service.post("/datasets", files={"file": (name, content, media_type)}, data=options)

    refused = send()
    assert refused.status_code == 400, refused.text
    offered = [way for place in refused.json()["errors"] for way in place.get("options", [])]
    assert offered == ways
    for way in offered:
        if None not in way.values() and way != {"coordinates": "trust"}:
            accepted = send(**way)
            assert accepted.is_success, accepted.text
            service.delete(f"/datasets/{accepted.json()['id']}")
    if {"layer": "seen"} in ways:
        other = send(layer="none")
        assert [way for place in other.json()["errors"] for way in place.get("options", [])] == ways


def test_the_page_reads_no_state_out_of_texts():
    """Details and messages are shown, and never searched."""
    searched = re.compile(
        r"(detail|message|title)\??\.(match|matchAll|includes|startsWith|endsWith|split|search|replace)"
        r"|\.(test|exec)\([^)]*(detail|message|title)"
    )
    scripts = list((ROOT / "georesolve/service/page/static").glob("*.js"))
    assert len(scripts) > 10
    for script in scripts:
        assert searched.findall(script.read_text()) == [], script.name
    assert searched.search('problem.detail.split(": ")')
    assert searched.search("/crs=/.test(problem.detail)")


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
