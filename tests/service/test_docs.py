"""`/docs`: the documentation in a browser, which asks the service for all that it shows."""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from tests.conftest import NO_CLUSTER, running_service
from tests.deploy.test_dashboard import basic
from tests.service.test_keys import new_key


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with a key; yields its client, without the key, and the key."""
    data_dir = tmp_path_factory.mktemp("documented") / "data"
    key = new_key(data_dir, "ann")
    with running_service(data_dir, *NO_CLUSTER, ready=False) as client:
        yield client, key


class _Addresses(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]


def loaded_by(page):
    parser = _Addresses()
    parser.feed(page.text)
    [api] = re.findall(r"\burl: '([^']+)'", page.text)
    return [urljoin(str(page.url), address) for address in (*parser.found, api)]


def test_a_browser_with_a_key_gets_all_that_the_page_loads(guarded):
    client, key = guarded
    page = client.get("/docs", headers=basic(key))
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    parts = loaded_by(page)
    assert len(parts) == 4
    for address in parts:
        assert address.startswith(str(client.base_url)), "nothing from elsewhere"
        part = client.get(address, headers=basic(key))
        assert part.status_code == 200
        assert len(part.content) > 1000
        media_type = part.headers["content-type"].partition(";")[0]
        known = {"js": "text/javascript", "css": "text/css", "png": "image/png"}
        assert media_type == known.get(address.rpartition(".")[2], "application/json")
    assert (
        b"SwaggerUIBundle" in client.get("/docs/swagger-ui-bundle.js", headers=basic(key)).content
    )
    assert client.get("/docs/elsewhere.js", headers=basic(key)).status_code == 404
    assert client.post("/docs", headers=basic(key)).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/docs", "/docs/swagger-ui.css", "/api"])
@pytest.mark.parametrize("headers", [{}, basic("wrong")])
def test_a_browser_is_asked_for_a_key(guarded, path, headers):
    client, key = guarded
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert client.get(path, headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_the_refusal_says_what_a_browser_asks_for(guarded):
    client, _ = guarded
    assert "a browser asks for a name and a password" in client.get("/jobs").json()["detail"]
