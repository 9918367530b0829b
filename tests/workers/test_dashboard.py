"""The dashboard of an own cluster answers by the names of this machine, to its own pages."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect


def test_it_answers_by_the_names_of_this_machine(cluster):
    port = httpx.URL(cluster.dashboard_url).port
    page = f"http://127.0.0.1:{port}/status"
    for host, status in (
        (f"127.0.0.1:{port}", 200),
        (f"localhost:{port}", 200),
        (f"[::1]:{port}", 200),
        (f"evil.example:{port}", 404),
        ("127.0.0.1.evil.example", 404),
    ):
        assert httpx.get(page, headers={"Host": host}).status_code == status, host


@pytest.mark.parametrize("path", ["status/ws", "eventstream"])
def test_pages_of_other_sites_do_not_connect(cluster, path):
    port = httpx.URL(cluster.dashboard_url).port
    url = f"ws://127.0.0.1:{port}/{path}"
    for origin in (f"http://evil.example:{port}", "http://127.0.0.1:1", "null"):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, origin=origin, subprotocols=["bokeh", "token"])
        assert refused.value.response.status_code == 404, origin


def test_its_own_pages_connect(cluster):
    port = httpx.URL(cluster.dashboard_url).port
    with connect(f"ws://127.0.0.1:{port}/eventstream", origin=f"http://127.0.0.1:{port}"):
        pass
