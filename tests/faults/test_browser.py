"""`/docs` in a real browser: what it shows can be tried as it stands, and tried again."""

import re
import shutil
from uuid import uuid4

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.conftest import finished, running_service
from tests.service.test_keys import new_key
from tests.service.test_openapi import OPERATIONS

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
"""On a busy machine the page takes seconds to draw a long answer."""
CSV = "id,lat,lon\nBerlin,52.52,13.4\nParis,48.86,2.35\n"


@pytest.fixture(scope="module", params=["without keys", "with keys"])
def documented(request, tmp_path_factory, device):
    """A fresh service; yields a client and, if it has one, its key."""
    data_dir = tmp_path_factory.mktemp("documented") / "data"
    key = None
    if request.param == "with keys":
        # Checks and metrics are for operators.
        key = new_key(data_dir, "ann", "--role", "admin")
    with running_service(data_dir, "--device", device) as client:
        if key:
            client.headers["Authorization"] = f"Bearer {key}"
        yield client, key


@pytest.fixture(scope="module")
def page(documented):
    """`/docs`, opened as somebody does who has the key."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    client, key = documented
    url = str(client.base_url).rstrip("/")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        password = {"username": "me", "password": key} if key else None
        page = browser.new_context(http_credentials=password).new_page()
        page.set_default_timeout(PATIENCE_MS)
        wrong = []
        page.on("pageerror", lambda error: wrong.append(error))
        page.goto(f"{url}/docs")
        page.locator(".opblock").first.wait_for()
        if key:
            page.locator(".authorize.unlocked").first.click()
            form = page.locator(".auth-container").filter(has_text="HTTPBearer")
            form.locator("input").fill(key)
            form.get_by_role("button", name="Apply credentials").click()
            page.locator(".close-modal").click()
        yield page
        assert wrong == []


POLYGON = """{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {},
"geometry": {"type": "Polygon", "coordinates": [[[7, 46], [8, 46], [8, 47], [7, 46]]]}}]}"""


def of_own(client, path):
    """What a path wants of the user's own dataset or job: no example can know it."""
    # Points of this call alone: a set that has a name cannot be removed.
    points = f"{CSV}{uuid4()},46.95,7.45\n"
    sent = {"content": points, "headers": {"Content-Type": "text/csv"}}
    dataset = client.post("/datasets", **sent).json()["id"]
    if path.startswith("/datasets"):
        return {"id": dataset}
    if path == "/nearest":
        return {"references": dataset}
    points = references = {"dataset": dataset}
    if path.endswith("/shapes"):
        sent = {"content": POLYGON, "headers": {"Content-Type": "application/geo+json"}}
        references = {"dataset": client.post("/datasets", **sent).json()["id"]}
    body = {"inputs": {"observations": points, "references": references}}
    headers = {"Prefer": "respond-async"}
    answer = client.post("/processes/nearest/execution", json=body, headers=headers)
    finished(client, answer.headers["location"])
    id = answer.json()["id"]
    if not path.endswith("/parts/{name}"):
        return {"id": id}
    [part] = client.get(f"/jobs/{id}/results/parts").json()["parts"]
    return {"id": id, "name": part["href"].rpartition("/")[2]}


def execute(page, block, name):
    """Press the button; returns the status of the answer, which is shown, too."""
    method, _, path = name.partition(" ")
    address = re.compile("https?://[^/]+" + re.sub(r"{\w+}", "[^/]+", path) + r"(\?.*)?$")
    with page.expect_response(
        lambda answer: answer.request.method == method and address.fullmatch(answer.url) is not None
    ) as answer:
        block.locator(".execute").click()
    status = answer.value.status
    shown = block.locator(".live-responses-table .response .response-col_status").first
    expect(shown).to_contain_text(str(status), timeout=PATIENCE_MS)
    return status


def bodies(operation):
    """Each body that is shown: its media type, and the name of its example where it has several."""
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return [(None, None)]
    return [
        (media_type, example)
        for media_type, about in content.items()
        for example in about.get("examples", [None])
        # A file is nothing that an example could show, unless it stands in a form.
        if about["schema"].get("format") != "binary"
    ]


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_shown_can_be_tried_twice(documented, page, name):
    client, _ = documented
    operation, path = OPERATIONS[name], name.partition(" ")[2]
    documentation = {int(status) for status in operation["responses"] if status.isdecimal()}
    [tag] = operation["tags"]
    block = page.locator(f"#operations-{tag}-{operation['operationId']}")
    block.locator(".opblock-summary-control").click()
    block.locator(".try-out__btn").click()
    sent = block.locator(".opblock-section-request-body")
    tried = 0
    for media_type, example in bodies(operation):
        if media_type is not None:
            sent.locator("select.content-type").select_option(media_type)
        if example is not None:
            sent.locator("select.examples-select-element").select_option(example)
        for file in block.locator("input[type=file]").all():
            file.set_input_files({"name": "a.csv", "mimeType": "text/csv", "buffer": CSV.encode()})
        own = ("/jobs/{id}", "/datasets/{id}")
        is_own = path.startswith(own) and not name.startswith("PUT")
        if is_own or name == "GET /nearest":
            wanted = {one["name"] for one in operation.get("parameters", [])}
            for parameter, value in of_own(client, path).items():
                if parameter not in wanted:
                    continue
                row = block.locator(f"tr[data-param-name={parameter}] input")
                assert row.input_value() == ""
                row.fill(value)
        statuses = [execute(page, block, name) for _ in range(2)]
        tried += 1
        if name.startswith("DELETE"):
            assert statuses.pop() in (404, 409, 410)
        assert all(200 <= status < 300 for status in statuses), (media_type, example, statuses)
        assert set(statuses) <= documentation
    assert tried
    block.locator(".opblock-summary-control").click()
