"""The dashboard of Dask through the proxy, for those who may see it and their pages only."""

import base64
import json
import re

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.conftest import free_port, running_service
from tests.deploy.test_proxy import nginx
from tests.service.test_keys import new_key


@pytest.fixture(scope="module")
def exposed(tmp_path_factory, device):
    """A service with a key behind the proxy; yields a client of the proxy, and the key."""
    folder = tmp_path_factory.mktemp("exposed")
    dashboard = f"127.0.0.1:{free_port()}"
    key = new_key(folder / "data", "ann")
    flags = ("--device", device, "--dashboard-address", dashboard)
    with running_service(folder / "data", *flags) as service:
        address = f"127.0.0.1:{service.base_url.port}"
        with (
            nginx(folder, address, dashboard) as port,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            yield client, key


def basic(password):
    return {"Authorization": f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}"}


@pytest.mark.parametrize("headers", [{}, basic("wrong"), {"Authorization": "Basic %%%"}])
def test_a_browser_is_asked_for_a_key(exposed, headers):
    client, _ = exposed
    answer = client.get("/dask/status", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")


def test_the_service_takes_the_key_of_a_browser(exposed):
    client, key = exposed
    assert client.get("/jobs", headers=basic(key)).status_code == 200
    assert client.get("/jobs", headers={"X-API-Key": key}).status_code == 200
    assert client.get("/jobs", headers=basic("wrong")).status_code == 401


def test_pages_and_what_they_are_made_of(exposed):
    client, key = exposed
    auth = basic(key)
    start = client.get("/dask", headers=auth, follow_redirects=True)
    assert str(start.url).endswith("/dask/status")
    assert "<title>Dask Diagnostic UI</title>" in start.text
    made_of = re.findall(r'(?:src|href)="(statics?/[^"]*)"', start.text)
    assert len(made_of) > 5
    for path in made_of:
        part = client.get(f"/dask/{path}", headers=auth)
        assert part.status_code == 200
        assert len(part.content) > 0
        etag = part.headers["etag"]
        again = client.get(f"/dask/{path}", headers={**auth, "If-None-Match": etag})
        assert again.status_code == 304
    assert client.get("/dask/info/main/workers.html", headers=auth).status_code == 200
    assert client.get("/dask/no-such-page", headers=auth).status_code == 404


def test_what_leads_elsewhere_or_changes_something_is_closed(exposed):
    client, key = exposed
    port = client.base_url.port
    target = f"{port}/127.0.0.1/livez"
    # What is written otherwise is the same address, and no way around it.
    assert client.get("/%64ask/st%61tus", headers=basic(key)).status_code == 200
    for path in (
        *(f"proxy/{target}", f"%70roxy/{target}", "/proxy/1/x/"),
        *(f"%2e/proxy/{target}", f"x/%2E%2e/proxy/{target}", "status/%2e%2e/%2e%2e/livez"),
    ):
        assert client.get(f"/dask/{path}", headers=basic(key)).status_code in (401, 404)
    assert client.post("/dask/status", headers=basic(key)).status_code == 403


def websocket_url(client, path):
    return str(client.base_url.copy_with(scheme="ws", path=path))


def bokeh(client, key, page="status", **headers):
    """Connect as a page of the dashboard does."""
    text = client.get(f"/dask/{page}", headers=basic(key)).text
    token = re.search(r'"token":"([^"]+)"', text)[1]
    return connect(
        websocket_url(client, f"/dask/{page}/ws"),
        subprotocols=["bokeh", token],
        additional_headers={**basic(key), **headers},
        max_size=None,
    )


def header_of(connection):
    """The header of the next message: the parts that follow it have none."""
    while True:
        part = connection.recv(timeout=60)
        if isinstance(part, str) and "msgtype" in (parsed := json.loads(part)):
            return parsed


def test_a_page_is_kept_up_to_date(exposed):
    client, key = exposed
    origin = str(client.base_url).rstrip("/")
    with bokeh(client, key, Origin=origin) as connection:
        assert connection.subprotocol == "bokeh"
        assert header_of(connection)["msgtype"] == "ACK"
        for part in ({"msgid": "mine", "msgtype": "PULL-DOC-REQ"}, {}, {}):
            connection.send(json.dumps(part))
        while (header := header_of(connection)).get("reqid") != "mine":
            pass
        assert header["msgtype"] == "PULL-DOC-REPLY"


def test_pages_of_other_sites_may_not_connect(exposed):
    client, key = exposed
    for origin in ("https://elsewhere.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused, bokeh(client, key, Origin=origin):
            pass
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        connect(websocket_url(client, "/dask/status/ws"))
    assert refused.value.response.status_code == 401
