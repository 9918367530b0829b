"""The page in a real browser, as a new user meets it."""

import base64
import io
import json
import re
import shutil

import geopandas
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, expect, sync_playwright

from tests.conftest import NO_CLUSTER, SAMPLES, running_service
from tests.service.test_keys import new_key
from tests.service.test_results import finished_job

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
"""On a busy machine a job of the samples takes seconds."""
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    expect.set_options(timeout=PATIENCE_MS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        yield browser


@pytest.fixture
def page(chromium, service):
    """A page of the service, which asks no other host for anything and has no errors."""
    yield from opened(chromium, service)


def opened(chromium, client, failure=None, **context):
    """Like `page`; the browser tells of requests that fail with `failure`, and may.

    It tells of those, too, that it gave up because networks of the machine came or went.
    """
    url = str(client.base_url).rstrip("/")
    context = chromium.new_context(base_url=url, **context)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    elsewhere, wrong = [], []
    page.on("request", lambda one: one.url.startswith((url, "blob:")) or elsewhere.append(one.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    yield page
    context.close()
    assert elsewhere == []
    allowed = re.compile(rf"Failed to load resource: .*({failure}|ERR_NETWORK_CHANGED)\b")
    assert [text for text in wrong if not allowed.match(text)] == []


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


def refuse_barriers(page):
    """What axe finds serious keeps users out who do not see, or use no mouse."""
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert serious == [], [(one["id"], one["nodes"][0]["html"]) for one in serious]


def drop(page, legend, name):
    """A file is dropped on a set."""
    panel = page.get_by_role("group", name=legend)
    content = (SAMPLES / name).read_bytes()
    transfer = page.evaluate_handle(
        """([name, text]) => {
            const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name));
            return transfer;
        }""",
        [name, base64.b64encode(content).decode()],
    )
    panel.dispatch_event("drop", {"dataTransfer": transfer})
    return panel


def test_the_samples_are_matched(page, pictures):
    page.goto("/")
    panel = drop(page, "Observations", "airports.parquet")
    expect(panel).to_contain_text("28\u202f298")
    panel.get_by_label("name").check()
    panel = page.get_by_role("group", name="References")
    panel.locator("input[type=file]").set_input_files(SAMPLES / "places.parquet")
    expect(panel).to_contain_text("144\u202f563")
    page.screenshot(path=pictures / "match.png", full_page=True)
    refuse_barriers(page)
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    expect(
        page.get_by_role("heading", name="airports.parquet x places.parquet, k = 1")
    ).to_be_visible()
    expect(page.get_by_role("heading", name="Rows by status")).to_be_visible()
    expect(page.get_by_role("region", name="first rows of the result")).to_contain_text("00AA")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "airports.parquet x places.parquet, k = 1.csv"
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 28_298 + 1
    assert "observation_name" in lines[0]
    look_at_the_map(page, pictures)
    page.screenshot(path=pictures / "job.png", full_page=True)
    refuse_barriers(page)
    page.get_by_role("button", name="rename").click()
    page.get_by_label("name", exact=True).fill("Airports and towns")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Airports and towns")).to_be_visible()
    expect(page.get_by_role("button", name="rename Airports and towns")).to_be_focused()
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name="Airports and towns")).to_be_visible()
    refuse_barriers(page)


def test_a_dataset_is_looked_at_and_deleted(page, service):
    made = service.post("/datasets", files={"file": ("spare.csv", POINTS + b"c,5,6\n")}).json()
    page.goto("/?datasets")
    page.get_by_role("link", name="spare.csv").click()
    expect(page.get_by_role("region", name="first rows of the dataset")).to_contain_text("c")
    refuse_barriers(page)
    page.get_by_role("link", name="Match as references").click()
    expect(page.get_by_role("group", name="References")).to_contain_text("spare.csv")
    page.get_by_role("link", name="Datasets").click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="delete spare.csv").click()
    expect(page.get_by_role("link", name="spare.csv")).to_have_count(0)
    assert service.get(f"/datasets/{made['id']}").status_code == 404


def look_at_the_map(page, pictures):
    """Zoom until lines join points, and read of one what it joins."""
    place = page.get_by_role("region", name="map of the result")
    expect(place).to_have_attribute("data-zoom", re.compile("[12]"))
    expect(page.get_by_role("img", name="histogram")).to_be_visible()
    # One airport is the South Pole's.
    expect(page.get_by_text("beyond 85.0511")).to_be_visible()
    tiles = place.locator("img.leaflet-tile")
    expect(tiles.first).to_be_visible()
    for tile in tiles.all():
        expect(tile).to_have_css("opacity", "1")
    place.screenshot(path=pictures / "map.png")
    zoom_in = place.get_by_role("button", name="Zoom in")
    told = page.get_by_text("each with a line")
    for zoom in range(int(place.get_attribute("data-zoom")) + 1, 14):
        zoom_in.click()
        # Set when the observations of the new view are there.
        expect(place).to_have_attribute("data-zoom", str(zoom))
        if told.is_visible():
            break
    expect(told).to_be_visible()
    # What lies in the tiles, but beyond the edge of the map, cannot be pointed at.
    box = place.bounding_box()
    inside = [
        (found["x"] + found["width"] / 2, found["y"] + found["height"] / 2)
        for one in place.locator("path.reference").all()
        if (found := one.bounding_box())
        and box["x"] + 60 < found["x"] < box["x"] + box["width"] - 60
        and box["y"] + 80 < found["y"] < box["y"] + box["height"] - 60
    ]
    page.mouse.move(*inside[0])
    expect(place.locator(".leaflet-tooltip")).to_contain_text(re.compile(r"\w+ → .+: [\d.]+ k?m"))
    place.screenshot(path=pictures / "lines.png")


def test_two_geopackages_in_other_crs_become_a_map_with_names(chromium, service, tmp_path):
    lat, lon = np.array([46.95, 47.38, 47.05]), np.array([7.45, 8.54, 8.31])
    for name, places, crs in (
        ("seen.gpkg", ["Bern", "Zürich", "Luzern"], 2056),
        ("towns.gpkg", ["Köniz", "Uster", "Kriens"], 3857),
    ):
        lat, lon = lat + 0.01, lon + 0.02
        frame = geopandas.GeoDataFrame({"name": places}, geometry=shapely.points(lon, lat))
        frame.set_crs(4326).to_crs(crs).to_file(tmp_path / name, driver="GPKG")
    for page in opened(chromium, service, viewport=PHONE, color_scheme="dark"):
        page.goto("/")
        for legend, name in (("Observations", "seen.gpkg"), ("References", "towns.gpkg")):
            panel = page.get_by_role("group", name=legend)
            panel.locator("input[type=file]").set_input_files(tmp_path / name)
            expect(panel).to_contain_text("3 rows")
        page.get_by_label("(k)").fill("2")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="seen.gpkg x towns.gpkg, k = 2")).to_be_visible()
        place = page.get_by_role("region", name="map of the result")
        # To each of two references.
        expect(place.locator("path.join")).to_have_count(6)
        place.locator("path.observation").first.hover(force=True)
        words = re.compile("Bern → Köniz|Zürich → Uster|Luzern → Kriens")
        expect(place.locator(".leaflet-tooltip")).to_contain_text(words)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_crs_that_is_missing_is_named_in_its_field(chromium, service):
    content = b"name,easting,northing\na,743456.8,5583262.6\nb,471950.7,5508004.9\n"
    for page in opened(chromium, service, failure=400):
        page.goto("/?match")
        panel = put(page, "References", "utm.csv", content)
        expect(panel.get_by_role("alert")).to_contain_text("metres")
        expect(panel.get_by_role("button", name="take all numbers for degrees")).to_have_count(0)
        field = panel.get_by_label("CRS of these coordinates")
        for crs, said in (("utm 32", "PROJ knows no way"), ("25832", "extent 49.72° N")):
            expect(field).to_have_attribute("aria-invalid", "true")
            field.fill(crs)
            page.keyboard.press("Tab")
            expect(panel).to_contain_text(said)
        expect(field).not_to_have_attribute("aria-invalid", "true")


def test_swapped_axes_are_refused_in_words(chromium, service):
    swapped = "sep=;\nid;lat;lon\na;170.5;-45.9\nb;151.2;-33.9\nc;174.8;-36.8\n"
    for page in opened(chromium, service, failure=400):
        page.goto("/?match")
        panel = page.get_by_role("group", name="References")
        file = {"name": "swapped.csv", "mimeType": "text/csv", "buffer": swapped.encode()}
        panel.locator("input[type=file]").set_input_files(file)
        expect(panel.get_by_role("alert")).to_contain_text("swapped")
        rows = panel.get_by_role("region", name="first rows")
        expect(rows.get_by_role("cell", name="170.5", exact=True)).to_be_visible()
        expect(rows).not_to_contain_text("sep=")


def test_axes_that_look_swapped_are_told_before_the_match(page):
    page.goto("/?match")
    put(page, "Observations", "swapped.csv", b"lat,lon\n8.5,47.4\n7.4,46.9\n")
    put(page, "References", "right.csv", b"lat,lon\n47.3,8.6\n46.8,7.3\n")
    expect(page.get_by_text("Look above: the axes of one set look swapped.")).to_be_visible()
    expect(page.get_by_text("which lie apart as they are")).to_be_visible()


def put(page, legend, name, content):
    """A file is chosen for a set."""
    panel = page.get_by_role("group", name=legend)
    file = {"name": name, "mimeType": "text/csv", "buffer": content}
    panel.locator("input[type=file]").set_input_files(file)
    return panel


POINTS = b"place,lat,lon\na,1,2\nb,3,4\n"


@pytest.mark.parametrize(("label", "typed"), [("Not farther than", "5"), ("Latitude", "lat")])
@pytest.mark.parametrize("way", ["click", "Enter"])
def test_what_was_typed_last_takes_no_second_click(page, label, typed, way):
    page.goto("/?match")
    for legend in ("Observations", "References"):
        expect(put(page, legend, "points.csv", POINTS)).to_contain_text("extent")
    expect(page.get_by_text("about")).to_be_visible()
    for closed in page.get_by_text("Columns, layer, CRS").all():
        closed.click()
    page.get_by_label(label).first.click()
    page.keyboard.type(typed)
    if way == "Enter":
        page.keyboard.press("Enter")
    else:
        # As a hand does: the field loses the focus, and changes, before the button is let go.
        page.get_by_role("button", name="Match").hover()
        page.mouse.down()
        page.mouse.up()
    page.wait_for_url(re.compile(r"\?job="))
    expect(page.get_by_text("successful", exact=True)).to_be_visible()
    if typed == "5":
        expect(page.get_by_role("heading", name="within 5 km")).to_be_visible()


def with_points(page):
    """The page with two sets, the same points, and what it says of a job of them."""
    page.goto("/?match")
    for legend in ("Observations", "References"):
        expect(put(page, legend, "points.csv", POINTS)).to_contain_text("extent")
    expect(page.get_by_text("about")).to_be_visible()
    return page


def test_a_button_that_is_pressed_for_long_stays_under_the_pointer(chromium, service):
    # All of the page is in view: nothing but what stands above the button moves it.
    for page in opened(chromium, service, failure=400, viewport={"width": 1280, "height": 2000}):
        distance = with_points(page).locator("input[name=max_distance_m]")
        distance.fill("-5")
        page.keyboard.press("Tab")
        label = page.locator("label", has=distance)
        expect(label.get_by_role("alert")).to_contain_text("greater than")
        expect(page.get_by_role("alert")).to_have_count(1)
        distance.fill("5")
        with page.expect_response("**/estimate"):
            page.get_by_role("button", name="Match").hover()
            page.mouse.down()
            # As long as an estimate would need.
            page.evaluate("new Promise((resolve) => setTimeout(resolve, 1000))")
            page.mouse.up()
        page.wait_for_url(re.compile(r"\?job="))


def ask_within(page, metres, result):
    """Choose the question, the distance and what the result is."""
    page.locator("select[name=question]").select_option("within")
    page.get_by_role("group", name="Question").get_by_label("unit").last.select_option("m")
    page.locator("input[name=distance_m]").fill(metres)
    page.locator("select[name=summary]").select_option(result)


def test_pairs_within_a_distance(page, pictures):
    with_points(page).locator("select[name=question]").select_option("within")
    expect(page.get_by_text("Give the distance first.")).to_be_visible()
    for name in ("k", "max_distance_m"):
        expect(page.locator(f"[name={name}]")).to_be_hidden()
    # Of two points 314 km apart and themselves.
    ask_within(page, "400000", "pairs, nearest first")
    page.keyboard.press("Tab")
    expect(page.get_by_text("4 rows (from a sample")).to_be_visible()
    page.get_by_text("More options").click()
    page.get_by_label("Each pair once").check()
    expect(page.get_by_text("1 row (from a sample")).to_be_visible()
    page.screenshot(path=pictures / "within.png", full_page=True)
    refuse_barriers(page)
    with page.expect_request("**/processes/within/execution") as sent:
        page.get_by_role("button", name="Match").click()
    inputs = sent.value.post_data_json["inputs"]
    assert (inputs["question"], inputs["distance_m"], inputs["once"]) == ("within", 400_000, True)
    assert not {"k", "max_distance_m", "summary", "summary_by"} & inputs.keys()
    expect(page.get_by_text("1 pair in and around this view")).to_be_visible()
    place = page.get_by_role("region", name="map of the result")
    expect(place.locator("path.join")).to_have_count(1)
    page.get_by_text("From a program").click()
    expect(page.get_by_text("median(distance_m)")).to_be_visible()
    expect(page.get_by_role("link", name="GeoJSON lines")).to_be_visible()
    page.screenshot(path=pictures / "pairs.png", full_page=True)
    refuse_barriers(page)


def test_back_and_a_reload_keep_what_was_filled_in(page):
    ask_within(with_points(page), "400", "pairs, nearest first")
    unit = page.locator("select[name=distance_m_unit]")
    unit.select_option("miles")
    page.get_by_text("More options").click()
    page.get_by_label("Each pair once").check()
    panel = page.get_by_role("group", name="References")
    panel.get_by_label("place", exact=True).uncheck()
    expect(page.get_by_text("row (from a sample")).to_be_visible()
    page.get_by_role("button", name="Match").click()
    expect(page.get_by_role("heading", name="all, within 643.7376 km")).to_be_visible()
    for again in (page.go_back, page.reload):
        again()
        expect(page.get_by_text("row (from a sample")).to_be_visible()
        expect(page.locator("select[name=question]")).to_have_value("within")
        expect(page.locator("input[name=distance_m]")).to_have_value("400")
        expect(unit).to_have_value("miles")
        expect(page.get_by_label("Each pair once")).to_be_checked()
        expect(panel.get_by_label("place", exact=True)).not_to_be_checked()
        expect(
            page.get_by_role("group", name="Observations").get_by_label("place", exact=True)
        ).to_be_checked()
    page.get_by_role("link", name="Match").click()
    expect(page.locator("select[name=question]")).to_have_value("nearest")


def test_a_service_that_is_not_ready_is_asked_again(chromium, tmp_path):
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        for page in opened(chromium, client, failure=503):
            page.clock.install()
            page.goto("/?match")
            for legend in ("Observations", "References"):
                with page.expect_response("**/datasets"):
                    put(page, legend, "points.csv", POINTS)
            expect(page.get_by_text("is asked again: ")).to_be_visible()
            with page.expect_response("**/estimate") as answer:
                pass
            assert answer.value.status == 503
            # While another file is sent there is nothing to ask.
            page.route("**/datasets", lambda _: None)
            expect(page.get_by_text("is asked again: ")).to_be_visible()
            put(page, "References", "others.csv", POINTS)
            page.clock.fast_forward(3000)
            expect(page.get_by_text("Give references first.")).to_be_visible()
            expect(page.get_by_text("The page failed")).to_have_count(0)


@pytest.mark.parametrize("by", ["observation", "reference"])
def test_counts_within_a_distance(page, service, pictures, by):
    # Along the equator every 0.1 degrees: three, and at both ends two, are within 12 km.
    lines = [f"p{i},0,{i / 10}" for i in range(9)]
    page.goto("/?match")
    put(page, "Observations", "line.csv", "\n".join(["id,lat,lon", *lines, "far,40,9"]).encode())
    put(page, "References", "line.csv", "\n".join(["id,lat,lon", *lines, "away,-40,9"]).encode())
    ask_within(page, "12000", f"a count for each {by}")
    page.keyboard.press("Tab")
    expect(page.get_by_text("10 rows, ")).to_be_visible()
    expect(page.locator("[name=how]")).to_be_hidden()
    page.get_by_role("button", name="Match").click()
    legend = page.get_by_role("list", name="counts by colour")
    expect(legend.get_by_role("listitem")).to_have_text(["0", "1", "2", "3 or more"])
    expect(page.get_by_text(f"greatest count of the {by}s in a pixel")).to_be_visible()
    expect(page.get_by_role("img", name="histogram of counts")).to_be_visible()
    page.get_by_text("From a program").click()
    expect(page.get_by_text('max("count")')).to_be_visible()
    expect(page.get_by_role("link", name="GeoJSON lines")).to_have_count(0)
    expect(page.get_by_text(f"10 {by}s in and around this view: point at one")).to_be_visible()
    swatches = legend.locator("rect")
    colours = [one.get_attribute("fill") for one in swatches.all()]
    assert len({*colours}) == 4
    place = page.get_by_role("region", name="map of the result")
    dots = place.locator("path.counted")
    expect(dots).to_have_count(10)
    shown = sorted(one.get_attribute("fill") for one in dots.all())
    assert shown == sorted([colours[3]] * 7 + [colours[2]] * 2 + [colours[0]])
    dots.last.hover(force=True)
    other = {"observation": "reference", "reference": "observation"}[by]
    expect(place.locator(".leaflet-tooltip")).to_have_text(re.compile(rf"^\w+: \d {other}s?$"))
    page.screenshot(path=pictures / f"counts-by-{by}.png", full_page=True)
    refuse_barriers(page)


def test_columns_are_summed(chromium, service):
    for page in opened(chromium, service, failure=400):
        page.goto("/?match")
        put(page, "Observations", "here.csv", b"lat,lon,place\n0,0,a\n0,1,b\n")
        put(page, "References", "there.csv", b"lat,lon,beds,floors\n0,0.1,3,1\n0,0.2,5,2\n")
        ask_within(page, "50000", "a count for each observation")
        field = page.get_by_label("And sum, mean, least and largest of")
        assert field.get_attribute("list") == "references-columns"
        field.fill("beds, rooms")
        page.keyboard.press("Tab")
        expect(page.get_by_text("no column 'rooms'")).to_be_visible()
        expect(field).to_have_attribute("aria-invalid", "true")
        field.fill("beds, floors")
        page.get_by_role("button", name="Match").click()
        rows = page.get_by_role("region", name="first rows of the result")
        cells = [row.split("\t") for row in rows.inner_text().splitlines()]
        assert cells[0][3:7] == ["beds_sum", "beds_mean", "beds_min", "beds_max"]
        assert cells[1][2:7] == ["2", "8", "4", "3", "5"]
        assert cells[2][2:7] == ["0", "0", "–", "–", "–"]


def test_a_map_outlasts_a_change_of_networks(chromium, service):
    for page in opened(chromium, service, failure="ERR_INTERNET_DISCONNECTED"):
        page.route("**/*.geojson?*", lambda one: one.abort("internetdisconnected"), times=2)
        job = finished_job(service, FIJI, SUVA).rpartition("/")[2]
        page.goto(f"/?job={job}")
        place = page.get_by_role("region", name="map of the result")
        expect(place.locator("path.observation").first).to_be_attached()


def test_groups_and_times(chromium, service):
    # Until the window is there the service refuses the column of times.
    for page in opened(chromium, service, failure=400):
        page.goto("/?match")
        rows = "lat,lon,kind,hour\n50.1,8.7,1,3\n52.5,13.4,2,4\n"
        for legend in ("Observations", "References"):
            expect(put(page, legend, "kinds.csv", rows.encode())).to_contain_text("extent")
        page.get_by_text("More options").click()
        expect(page.locator("[name=max_time]")).to_be_hidden()
        page.locator("[name=by]").fill("kind, none")
        page.locator("[name=time]").fill("hour")
        page.keyboard.press("Tab")
        page.locator("[name=max_time]").fill("1")
        page.keyboard.press("Tab")
        label = page.locator("label", has=page.locator("[name=by]"))
        expect(label.get_by_role("alert")).to_contain_text("no column 'none'")
        page.locator("[name=by]").fill("kind")
        page.locator("select[name=rank_by]").select_option("time")
        refuse_barriers(page)
        with page.expect_request("**/processes/nearest/execution") as sent:
            page.get_by_role("button", name="Match").click()
        inputs = sent.value.post_data_json["inputs"]
        assert (inputs["by"], inputs["time"], inputs["max_time"]) == (["kind"], "hour", 1)
        page.wait_for_url(re.compile(r"\?job="))
        page.get_by_text("Options", exact=True).click()
        expect(page.get_by_text("rank_by").or_(page.get_by_text("rank by"))).to_be_visible()
        expect(page.get_by_text("The same on the ellipsoid")).to_have_count(0)


def test_columns_of_other_names_are_compared(page):
    page.goto("/?match")
    put(page, "Observations", "here.csv", b"lat,lon,kind,seen\n0,0,1,10\n0,1,2,20\n")
    put(page, "References", "there.csv", b"lat,lon,type,made\n0,0,2,21\n0,9,1,9\n")
    page.get_by_text("More options").click()
    page.locator("[name=by]").fill("kind = type")
    page.locator("[name=time]").fill("seen=made")
    page.keyboard.press("Tab")
    page.locator("[name=max_time]").fill("5")
    page.get_by_role("button", name="Match").click()
    expect(page.get_by_role("heading", name="by kind, at most 5 apart")).to_be_visible()
    rows = page.get_by_role("region", name="first rows of the result")
    cells = [row.split("\t") for row in rows.inner_text().splitlines()]
    at = cells[0].index("reference"), cells[0].index("time_apart")
    assert [tuple(row[one] for one in at) for row in cells[1:]] == [("1", "-1"), ("0", "1")]


def test_times_apart_are_lengths_of_time(page, tmp_path):
    page.goto("/?match")
    for legend, hours in (("Observations", [8, 9]), ("References", [7.5, 9])):
        times = pa.array([int(3600 * one) for one in hours]).cast(pa.timestamp("s"))
        table = pa.table({"lat": [50.1, 52.5], "lon": [8.7, 13.4], "at": times})
        pq.write_table(table, tmp_path / f"{legend}.parquet")
        panel = page.get_by_role("group", name=legend)
        panel.locator("input[type=file]").set_input_files(tmp_path / f"{legend}.parquet")
        expect(panel).to_contain_text("extent")
    page.get_by_text("More options").click()
    page.locator("[name=time]").fill("at")
    page.keyboard.press("Tab")
    page.locator("select[name=rank_by]").select_option("time")
    page.get_by_role("button", name="Match").click()
    rows = page.get_by_role("region", name="first rows of the result")
    expect(rows).to_contain_text("30 min 0 s before")
    expect(rows).to_contain_text("at the same time")
    expect(page.get_by_role("heading", name="k = 1, in time")).to_be_visible()


def test_airports_with_another_nearest_place_on_the_ellipsoid(page, pictures):
    page.goto("/")
    for role, name in {"Observations": "airports", "References": "places"}.items():
        panel = page.get_by_role("group", name=role)
        panel.locator("input[type=file]").set_input_files(SAMPLES / f"{name}.parquet")
        expect(panel).to_contain_text("extent")
    page.get_by_text("More options").click()
    page.get_by_label("Measure on").select_option("wgs84")
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    expect(page.get_by_role("heading", name="k = 1, on the ellipsoid")).to_be_visible()
    page.get_by_text("The same on the sphere").click()
    page.get_by_role("button", name="List what differs").click()
    listed = page.get_by_role("region", name="other nearest references")
    expect(listed).to_be_visible()
    page.screenshot(path=pictures / "earths.png", full_page=True)
    expect(page.get_by_text("37 of 28\u202f298 observations have another nearest")).to_be_visible()
    rows = [line.split("\t") for line in listed.inner_text().replace("\u202f", "").splitlines()[1:]]
    told = re.findall(
        r"^\w{4} (.+): (.+) (\d+ m), (.+) (\d+ m)$",
        (SAMPLES.parent / "docs/ellipsoid.md").read_text(),
        re.MULTILINE,
    )
    assert len(told) == 37
    assert sorted(rows) == sorted([name, far, m, near, n] for name, near, n, far, m in told)


def test_rows_that_were_kept_without_coordinates_are_kept_on_the_other_earth(page):
    page.goto("/?match")
    page.get_by_text("More options").click()
    page.get_by_label("Rows with invalid coordinates").select_option("null")
    put(page, "Observations", "some.csv", b"lat,lon\n1,1\n95,1\n")
    expect(put(page, "References", "points.csv", POINTS)).to_contain_text("extent")
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    # What comes above later would move the button away below the pointer.
    expect(page.get_by_text("in and around this view")).to_be_visible()
    expect(page.get_by_role("region", name="first rows of the result")).to_be_visible()
    page.get_by_text("The same on the ellipsoid").click()
    page.get_by_role("button", name="List what differs").click()
    expect(page.get_by_text("0 of 2 observations have another nearest")).to_be_visible()


def test_a_map_that_is_drawn_slowly_says_so(page):
    held = []
    page.route("**/tiles/*/*/*.png", lambda one: held.append(one))
    with_points(page).get_by_role("button", name="Match").click()
    told = page.get_by_text("The map is being drawn")
    place = page.get_by_role("region", name="map of the result")
    expect(place).to_have_attribute("data-zoom", re.compile(r"\d"))
    expect(told).to_be_visible()
    for one in held:
        one.continue_()
    expect(page.get_by_text("2 observations in and around this view")).to_be_visible()
    expect(told).to_have_count(0)


def test_beside_a_tile_with_too_many_points_there_are_no_dots(page):
    rows = [f"{1 + i / 1e4},{1 if i < 2100 else 40}" for i in range(2400)]
    page.goto("/")
    put(page, "Observations", "crowd.csv", "\n".join(["lat,lon", *rows]).encode())
    expect(put(page, "References", "points.csv", POINTS)).to_contain_text("extent")
    asked = []
    page.on("request", lambda one: ".geojson" in one.url and asked.append(one.url))
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    expect(page.get_by_text("Zoom in to see lines")).to_be_visible()
    assert asked
    assert [url for url in asked if "most=0" not in url] == []


def test_what_is_wrong_with_a_distance_stands_beside_it(chromium, service):
    for page in opened(chromium, service, failure=400):
        ask_within(with_points(page), "-5", "pairs, nearest first")
        label = page.locator("label", has=page.locator("input[name=distance_m]"))
        expect(label.get_by_role("alert")).to_contain_text("greater than")


def test_a_match_without_sets_says_what_is_missing(page):
    page.goto("/?match")
    page.get_by_role("button", name="Match").click()
    expect(page.get_by_text("Give both sets first.")).to_be_visible()
    assert "job=" not in page.url


HOSTILE = [
    '<meta http-equiv="refresh" content="0;url=http://elsewhere.invalid/">',
    "<img src=http://elsewhere.invalid/ onerror=document.title=1>",
    '"><svg onload=document.title=1><a href=http://elsewhere.invalid/>',
]
"""What is only text where it becomes text: `opened` looks for requests and errors."""
MADE_OF_IT = "meta[http-equiv], main img:not(.leaflet-tile), main a[href*=elsewhere], svg[onload]"


def test_names_of_strangers_are_texts_on_the_page(page, service):
    page.goto("/?match")
    for legend in ("Observations", "References"):
        heading = ",".join(f'"{one.replace(chr(34), chr(34) * 2)}"' for one in HOSTILE)
        content = f"lat,lon,{heading}\n1,2,a,b,c\n3,4,d,e,f\n".encode()
        # The name of a file has no slash.
        panel = put(page, legend, f"{HOSTILE[1]}.csv".replace("/", ""), content)
        for name in HOSTILE:
            expect(panel.get_by_role("columnheader", name=name, exact=True)).to_be_visible()
            expect(panel.get_by_label(name)).to_be_visible()
        assert page.locator(MADE_OF_IT).count() == 0
    lat, lon = [0.0, 0.1, 0.2], [0.0, 0.1, 0.2]
    strange = pa.table({"id": HOSTILE, "lat": lat, "lon": lon, HOSTILE[0]: HOSTILE})
    location = finished_job(service, strange, strange, columns=HOSTILE[0], max_distance_m=5)
    page.goto(f"/?job={location.rpartition('/')[2]}")
    place = page.get_by_role("region", name="map of the result")
    expect(page.get_by_text("each with a line")).to_be_visible()
    for name in HOSTILE:
        shown = set()
        for one in place.locator("path.reference").all():
            one.hover(force=True)
            tooltip = place.locator(".leaflet-tooltip")
            expect(tooltip).to_have_count(1)
            shown.add(tooltip.inner_text())
        assert f"{name} → {name}: 0 m" in shown
    assert page.locator(MADE_OF_IT).count() == 0
    expect(page.get_by_text(HOSTILE[0]).first).to_be_visible()


def test_a_job_is_cancelled(page, service, long_job):
    observations, references, options = long_job
    page.goto("/?match")
    for legend, table in (("Observations", observations), ("References", references)):
        sink = io.BytesIO()
        pq.write_table(table, sink)
        file = {"name": "long.parquet", "mimeType": "", "buffer": sink.getvalue()}
        panel = page.get_by_role("group", name=legend)
        panel.locator("input[type=file]").set_input_files(file)
        expect(panel).to_contain_text("extent")
    page.get_by_text("More options").click()
    page.get_by_label("How to search").select_option(options["algorithm"])
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("dismissed", exact=True)).to_be_visible()
    id = page.url.partition("?job=")[2]
    assert service.get(f"/jobs/{id}").json()["status"] == "dismissed"


def test_the_cluster(page, pictures):
    page.goto("/?cluster")
    expect(page.get_by_text("1 on")).to_be_visible()
    expect(page.get_by_role("cell", name="small requests")).to_be_visible()
    refuse_barriers(page)


@pytest.mark.parametrize("address", ["/?match", "/?jobs", "/?datasets", "/?cluster"])
def test_on_a_phone_in_the_dark(chromium, service, address):
    for page in opened(chromium, service, viewport=PHONE, color_scheme="dark"):
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).not_to_have_text("…")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        refuse_barriers(page)


FIJI = pa.table(
    {
        "id": ["east", "west", "alone", "pole"],
        "lat": [-17.0, -17.5, 5.0, 89.0],
        "lon": [179.0, -179.0, 178.0, 0.0],
    }
)
SUVA = pa.table({"id": ["suva"], "lat": [-17.2], "lon": [-179.2]})


def test_the_edges_of_the_world_with_the_keyboard(chromium, service, pictures):
    location = finished_job(service, FIJI, SUVA, max_distance_m=300_000)
    id = location.rpartition("/")[2]
    for page in opened(chromium, service, viewport=PHONE, color_scheme="dark"):
        page.goto(f"/?job={id}")
        expect(page.get_by_text("beyond max distance").first).to_be_visible()
        expect(page.get_by_text("Beyond 85.0511° north or south")).to_contain_text("1 row")
        place = page.get_by_role("region", name="map of the result")
        expect(place).to_have_attribute("data-zoom", "1")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        refuse_barriers(page)
        for _ in range(100):
            page.keyboard.press("Tab")
            if place.evaluate("place => place === document.activeElement"):
                break
        # East to the antimeridian, and in.
        for _ in range(3):
            page.keyboard.press("ArrowRight")
            expect(place.locator(".leaflet-pan-anim")).to_have_count(0)
        for zoom in (2, 3):
            page.keyboard.press("+")
            expect(place).to_have_attribute("data-zoom", str(zoom))
        for name in ("observation", "reference", "unmatched"):
            expect(place.locator(f"path.{name}").first).to_be_in_viewport()
        # 1.8 degrees and 0.2, where the way round would be 1000 pixels.
        pixels = 256 * 2**3 / 360
        widths = [one.bounding_box()["width"] for one in place.locator("path.join").all()]
        assert sorted(widths) == pytest.approx([0.2 * pixels, 1.8 * pixels], abs=4)
        shown = [one.get_attribute("src") for one in place.locator("img.leaflet-tile").all()]
        # A pixel of a tile is two of the map.
        assert {one.split("/")[-2] for one in shown if "/tiles/2/" in one} >= {"3", "0"}
        place.locator("path.unmatched").first.hover()
        expect(place.locator(".leaflet-tooltip")).to_have_text("alone: beyond max distance")
        place.screenshot(path=pictures / "antimeridian.png")


def test_a_key_is_asked_for(chromium, tmp_path):
    data_dir = tmp_path / "data"
    key = new_key(data_dir, "ann")
    with running_service(data_dir, *NO_CLUSTER, ready=False) as client:
        for page in opened(chromium, client, failure=401):
            # The dialog of a browser is closed without a key.
            with pytest.raises(Error, match="INVALID_AUTH_CREDENTIALS"):
                page.goto("/")
        with_key = {"username": "me", "password": key}
        for page in opened(chromium, client, http_credentials=with_key):
            page.goto("/?match")
            panel = drop(page, "References", "airports-1000.csv")
            expect(panel).to_contain_text("1\u202f000")
            expect(panel).to_contain_text("Lowell Field")
            [dataset] = client.get("/datasets", headers={"X-API-Key": key}).json()["datasets"]
            points = {"dataset": dataset["id"]}
            body = {"inputs": {"observations": points, "references": points}}
            headers = {"X-API-Key": key, "Prefer": "respond-async"}
            job = client.post("/processes/nearest/execution", json=body, headers=headers).json()
            # Its events come with the key, too, and so does the button's request.
            page.goto(f"/?job={job['id']}")
            expect(page.get_by_text("waiting for workers")).to_be_visible()
            page.get_by_role("button", name="Cancel").click()
            expect(page.get_by_text("dismissed", exact=True)).to_be_visible()


def test_lines_and_polygons_are_drawn_and_joined(page, pictures, tmp_path):
    lon, lat = (
        axis.ravel() for axis in np.meshgrid(np.arange(-125, -65, 2.0), np.arange(25, 50, 2.0))
    )
    zones = shapely.buffer(shapely.points(lon, lat), 0.7)
    roads = shapely.linestrings(np.stack([lon + 1, lat, lon, lat + 1], axis=1).reshape(-1, 2, 2))
    shapes = {"zone": np.arange(2 * lon.size), "shape": shapely.to_wkb([*zones, *roads])}
    geo = {
        "primary_column": "shape",
        "columns": {"shape": {"encoding": "WKB", "geometry_types": []}},
    }
    table = pa.table(shapes).replace_schema_metadata({"geo": json.dumps(geo)})
    pq.write_table(table, tmp_path / "zones.parquet")
    page.goto("/")
    drop(page, "Observations", "airports-1000.csv")
    panel = page.get_by_role("group", name="References")
    panel.locator("input[type=file]").set_input_files(tmp_path / "zones.parquet")
    expect(panel).to_contain_text("lines and polygons")
    expect(panel).to_contain_text("of the first vertex")
    expect(panel.get_by_label("zone")).to_be_checked()
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    place = page.get_by_role("region", name="map of the result")
    expect(place.locator("path.shape").filter(visible=True).first).to_be_visible()
    place.screenshot(path=pictures / "shapes.png")
    # Shapes may be drawn before the observations of the view are there.
    expect(place).to_have_attribute("data-zoom", re.compile(r"\d"))
    zoom_in = place.get_by_role("button", name="Zoom in")
    told = page.get_by_text("each with a line")
    for zoom in range(int(place.get_attribute("data-zoom")) + 1, 9):
        zoom_in.click()
        expect(place).to_have_attribute("data-zoom", str(zoom))
        if told.is_visible():
            break
    expect(told).to_be_visible()
    expect(place.locator("path.shape").filter(visible=True).first).to_be_visible()
    place.screenshot(path=pictures / "joined.png")
    refuse_barriers(page)
    page.goto("/")
    put(page, "Observations", "inside.csv", b"lat,lon\n25,-125\n27,-123\n")
    panel = page.get_by_role("group", name="References")
    panel.locator("input[type=file]").set_input_files(tmp_path / "zones.parquet")
    expect(panel).to_contain_text("lines and polygons")
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    expect(page.get_by_text("All distances are 0 m.")).to_be_visible()
    expect(place.locator(".key")).to_have_text(" Distance: 0 m")


def test_a_refused_file_is_read_in_another_way_by_a_button(chromium, service, tmp_path):
    lat, lon = np.array([46.95, 47.38]), np.array([7.45, 8.54])
    for layer, places in (("seen", ["Bern", "Zürich"]), ("towns", ["Köniz", None])):
        frame = geopandas.GeoDataFrame(
            {"name": places}, geometry=shapely.points(lon, lat), crs=4326
        )
        frame.loc[[one is None for one in places], "geometry"] = None
        frame.to_file(tmp_path / "both.gpkg", layer=layer, driver="GPKG")
    for page in opened(chromium, service, failure=400):
        page.goto("/?match")
        panel = page.get_by_role("group", name="References")
        panel.locator("input[type=file]").set_input_files(tmp_path / "both.gpkg")
        expect(panel.get_by_role("alert")).to_contain_text("Which layer?")
        expect(panel.get_by_label("Layer of a GeoPackage")).to_be_hidden()
        refuse_barriers(page)
        panel.get_by_role("button", name="towns").click()
        expect(panel.get_by_role("alert")).to_contain_text("there is no point")
        panel.get_by_role("button", name="keep them, without a match").click()
        expect(page.locator("select[name=on_invalid]")).to_be_visible()
        expect(panel).to_contain_text("1 of them without valid coordinates")
        assert panel.get_by_label("Layer of a GeoPackage").input_value() == "towns"
        put(page, "References", "excel.csv", "lat;lon;name\n1,5;2,5;Köln\n".encode("cp1252"))
        panel.get_by_role("button", name="Read it as windows-1252").click()
        expect(panel.get_by_role("region", name="first rows")).to_contain_text("Köln")
        swapped = b"lat,lon\n170.5,-45.9\n151.2,-33.9\n174.8,-36.8\n"
        put(page, "References", "swapped.csv", swapped)
        panel.get_by_role("button", name="Latitude is lon, longitude is lat").click()
        expect(panel).to_contain_text("extent 45.90° S")


def test_polygons_are_filled_by_their_counts(page, tmp_path, pictures):
    zones = geopandas.GeoDataFrame(
        {"name": ["one", "two", "none"]},
        geometry=shapely.box(np.array([1, 3, 5]), 1, np.array([2, 4, 6]), 2),
        crs=4326,
    )
    zones.to_crs(3857).to_file(tmp_path / "zones.gpkg", driver="GPKG")
    page.goto("/?match")
    put(page, "Observations", "inside.csv", b"lat,lon\n1.5,1.5\n1.5,3.4\n1.6,3.6\n")
    panel = page.get_by_role("group", name="References")
    panel.locator("input[type=file]").set_input_files(tmp_path / "zones.gpkg")
    expect(panel).to_contain_text("lines and polygons")
    ask_within(page, "0", "a count for each reference")
    page.get_by_role("button", name="Match").click()
    page.wait_for_url(re.compile(r"\?job="))
    place = page.get_by_role("region", name="map of the result")
    shapes = place.locator("path.shape")
    expect(shapes).to_have_count(3)
    # All of each is in view, not only where it begins.
    frame = place.bounding_box()
    for box in [one.bounding_box() for one in shapes.all()]:
        for at, size in (("x", "width"), ("y", "height")):
            assert frame[at] < box[at] < box[at] + box[size] < frame[at] + frame[size]
    expect(page.get_by_text("Point at a line or a polygon")).to_be_visible()
    swatches = page.get_by_role("list", name="counts by colour").locator("rect")
    colours = [one.get_attribute("fill") for one in swatches.all()]
    filled = [one.get_attribute("fill") for one in shapes.all()]
    assert sorted(filled) == sorted(colours)
    for shape, colour in zip(shapes.all(), filled, strict=True):
        shape.hover(force=True)
        count = colours.index(colour)
        words = f"{['none', 'one', 'two'][count]}: {count} observation{'' if count == 1 else 's'}"
        expect(place.locator(".leaflet-tooltip")).to_have_text(words)
    place.screenshot(path=pictures / "filled.png")
    refuse_barriers(page)
