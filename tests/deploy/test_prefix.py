"""Behind a proxy: the service below a path, and used by pages of other origins."""

import re
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from urllib.parse import urljoin

import httpx
import pytest

from tests.conftest import finished, free_port, look_up, run_nearest, running_service, wait_until

PREFIX = "/geo"
PAGE = "https://map.example"
SETS = {
    "observations": {"lat": [52.52], "lon": [13.4]},
    "references": {"lat": [50.11, 47.37], "lon": [8.68, 8.54]},
}
# One takes the path off what it passes on, the other leaves it.
PROXIES = {"stripping": "http://{service}/", "passing": "http://{service}"}
CONFIGURATION = """
pid {folder}/{name}.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    server {{
        listen 127.0.0.1:{port};
        location {prefix}/ {{
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
        }}
    }}
}}
"""


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory, shared_cluster):
    """A service that knows its path and one page."""
    data_dir = tmp_path_factory.mktemp("prefixed") / "data"
    flags = ("--root-path", PREFIX, "--cors-origins", PAGE)
    with running_service(data_dir, *shared_cluster, *flags) as client:
        yield client


@contextmanager
def nginx(folder, name, service):
    """A client of an nginx in front of a service."""
    port = free_port()
    text = CONFIGURATION.format(
        folder=folder,
        name=name,
        port=port,
        prefix=PREFIX,
        upstream=PROXIES[name].format(service=service),
    )
    path = folder / f"{name}.conf"
    path.write_text(text)
    process = subprocess.Popen(["nginx", "-c", path, "-g", "daemon off;"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: answers(client), process=process)
            yield client
    finally:
        process.terminate()
        process.wait()


def answers(client):
    try:
        return client.get(f"{PREFIX}/livez").is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def front(prefixed, tmp_path_factory):
    """Clients of the service itself and, where nginx is installed, of the two proxies."""
    with ExitStack() as stack:
        clients = {"service": prefixed}
        if shutil.which("nginx"):
            folder = tmp_path_factory.mktemp("nginx")
            for name in PROXIES:
                netloc = prefixed.base_url.netloc.decode()
                clients[name] = stack.enter_context(nginx(folder, name, netloc))
        yield clients


@pytest.fixture(params=["service", *PROXIES])
def client(request, front):
    """Who asks below the path."""
    if request.param not in front:
        pytest.skip("nginx is not installed")
    return front[request.param]


def hrefs(document):
    """All links in a JSON document."""
    if isinstance(document, dict):
        found = [document["href"]] if isinstance(document.get("href"), str) else []
        return found + [href for value in document.values() for href in hrefs(value)]
    values = document if isinstance(document, list) else []
    return [href for value in values for href in hrefs(value)]


def test_all_links_lead_below_the_path(client):
    base = f"{str(client.base_url).rstrip('/')}{PREFIX}"
    seen, todo = set(), [f"{base}/"]
    execution = client.post(
        f"{base}/processes/nearest/execution",
        json={"inputs": SETS},
        headers={"Prefer": "respond-async"},
    )
    assert execution.status_code == 201
    assert execution.headers["location"].startswith(f"{base}/jobs/")
    finished(client, execution.headers["location"])
    todo.append(execution.headers["location"])
    while todo:
        seen.add(url := todo.pop())
        assert url.startswith(base)
        answer = client.get(url)
        # The links to executions are for POST.
        assert answer.is_success or (url.endswith("/execution") and answer.status_code == 405), url
        # The description of the API has examples with the address of another service.
        if answer.headers["content-type"] == "application/json" and not url.endswith("/api"):
            todo += set(hrefs(answer.json())) - seen - set(todo)
    assert {f"{base}/jobs", f"{base}/docs", f"{base}/processes/nearest"} <= seen
    assert any(url.endswith("/report") for url in seen)
    results = client.get(f"{execution.headers['location']}/results")
    assert f'<{execution.headers["location"]}>; rel="monitor"' in results.headers["link"]


def test_problems_and_redirects_name_the_path(client):
    problem = client.get(f"{PREFIX}/jobs/none").json()
    assert problem["instance"] == f"{PREFIX}/jobs/none"
    for path, target in (("/jobs/", "/jobs"),):
        answer = client.get(PREFIX + path)
        assert answer.is_redirect
        location = urljoin(str(client.base_url), answer.headers["location"])
        assert location == f"{str(client.base_url).rstrip('/')}{PREFIX}{target}"


def test_the_documentation_asks_below_the_path(client):
    page = client.get(f"{PREFIX}/docs")
    parts = re.findall(r"""(?:src|href|url)(?:=|: )["']([^"']+)["']""", page.text)
    assert len(parts) >= 4
    for part in parts:
        address = urljoin(str(page.url), part)
        assert f"{PREFIX}/" in address
        assert client.get(address).is_success, address
    assert client.get(f"{PREFIX}/api").json()["servers"] == [{"url": PREFIX}]


def test_the_service_is_asked_without_the_path_too(prefixed):
    # As a probe does that knows of no proxy.
    assert prefixed.get("/livez").is_success
    assert prefixed.get("/readyz").json()["status"] == "ok"
    assert prefixed.get("/geography").status_code == 404


def test_pages_that_are_allowed_may_use_it(prefixed):
    page = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,prefer",
    }
    ahead = prefixed.options("/resolve", headers={**page, **asked})
    assert ahead.status_code == 200
    assert ahead.headers["access-control-allow-origin"] == PAGE
    assert "POST" in ahead.headers["access-control-allow-methods"]
    for name in asked["Access-Control-Request-Headers"].split(","):
        assert name in ahead.headers["access-control-allow-headers"]
    headers = {**page, "Prefer": "respond-async"}
    answer = run_nearest(prefixed, SETS, headers)
    assert answer.status_code == 201
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "Origin" in answer.headers["vary"]
    shown = answer.headers["access-control-expose-headers"].split(", ")
    finished(prefixed, answer.headers["location"])
    result = prefixed.get(f"{answer.headers['location']}/results", headers=page)
    own = {name for name in (*answer.headers, *result.headers) if "access-control" not in name}
    # What a browser shows of any answer, or what is no business of a page.
    own -= {"content-type", "content-length", "cache-control", "last-modified", "date", "server"}
    own -= {"vary", "content-security-policy", "x-frame-options", "x-content-type-options"}
    assert own == own & {name.lower() for name in shown}
    assert {"location", "etag", "link", "preference-applied", "x-request-id"} <= own
    # A refusal can be read, too.
    refused = run_nearest(prefixed, {}, page)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, PAGE)


def test_other_pages_may_not(prefixed):
    for origin in ("https://evil.example", f"{PAGE}.evil.example", "null", "http://map.example"):
        page = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        ahead = prefixed.options(
            "/resolve", headers={**page, "Access-Control-Request-Method": "POST"}
        )
        assert ahead.status_code == 400
        assert "access-control-allow-origin" not in ahead.headers
        assert look_up(prefixed, SETS, page).status_code == 403
        assert "access-control-allow-origin" not in prefixed.get("/jobs", headers=page).headers
