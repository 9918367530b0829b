"""API keys: made, used and revoked while a service runs; who sees what; the names it answers to."""

import io
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, redirect_stdout

import httpx
import pytest

from georesolve import Client
from georesolve.cli.serve import main
from georesolve.service.auth.access import _without_port
from georesolve.service.clock import now
from georesolve.service.settings import Settings
from tests.conftest import (
    NO_CLUSTER,
    ROOT,
    finished,
    free_port,
    look_up,
    points,
    run_nearest,
    running_service,
    wait_until,
)
from tests.forks import run
from tests.service.test_jobs import PARQUET, parquet, start_job

DAY = 86_400.0
SET = {"lat": [1.0, 2.0], "lon": [3.0, 4.0]}


def keys(data_dir, *arguments):
    """Run `georesolve keys` as an administrator does."""
    return run("georesolve", ["keys", *arguments, "--data-dir", str(data_dir)])


def new_key(data_dir, name, *flags):
    """A key that the command makes, in this process: one of its own takes a second to start."""
    with redirect_stdout(io.StringIO()) as told:
        assert main(["keys", "create", name, "--data-dir", str(data_dir), *flags]) == 0
    return told.getvalue().strip()


def as_holder(client, key):
    return httpx.Client(
        base_url=client.base_url, timeout=60, headers={"Authorization": f"Bearer {key}"}
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, shared_cluster):
    """A service with the keys of two holders; yields its client, without a key, and theirs."""
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    ann, ben = new_key(data_dir, "ann"), new_key(data_dir, "ben")
    with (
        running_service(data_dir, *shared_cluster) as client,
        as_holder(client, ann) as ann_client,
        as_holder(client, ben) as ben_client,
    ):
        yield client, ann_client, ben_client


def test_without_a_key_only_probes_are_answered(guarded):
    client, ann, _ = guarded
    for path in ("/livez", "/readyz", "/healthz"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "checks": []})
    for method, path in (
        ("GET", "/"),
        ("GET", "/jobs"),
        ("HEAD", "/jobs"),
        ("POST", "/resolve"),
        ("POST", "/nearest"),
        ("POST", "/datasets"),
        ("GET", "/nowhere"),
    ):
        answer = client.request(method, path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
        if method != "HEAD":
            assert answer.json()["type"] == "urn:georesolve:problem:unauthorized"
            assert "Authorization: Bearer KEY" in answer.json()["detail"]
    assert ann.get("/nowhere").status_code == 404


def test_ways_to_send_a_key(guarded):
    client, ann, _ = guarded
    key = ann.headers["authorization"].split()[1]

    def status(**headers):
        return client.get("/jobs", headers=headers).status_code

    assert status(Authorization=f"bearer  {key}") == 200
    assert status(**{"X-API-Key": key}) == 200
    for wrong in (key[:-1], key + "x", key[:11], key[:-1] + "é", "", "gr_", "x" * 5000):
        answer = client.get("/jobs", headers={"X-API-Key": wrong.encode()})
        assert answer.status_code == 401, wrong
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert wrong[3:11] not in answer.text or not wrong[3:11]
    assert status(Authorization=f"Basic {key}") == 401
    assert client.get("/jobs", params={"key": key}).status_code == 401


def test_owners_see_only_what_is_theirs(guarded):
    _, ann, ben = guarded
    content = parquet(points(50, 11))
    headers = {"Content-Type": PARQUET}
    created = ann.post("/datasets", content=content, headers=headers)
    assert created.status_code == 201
    dataset = created.headers["location"]
    job = start_job(ann, points(20, 1), points(20, 2))
    assert finished(ann, job)["status"] == "successful"
    for path in (dataset, f"{dataset}/data.parquet", job, f"{job}/results", f"{job}/report"):
        assert ann.get(path).status_code == 200
        answer = ben.get(path)
        assert answer.status_code == 404, path
        # Not a word more than of what never was.
        nobodys = ben.get(re.sub("[0-9a-f]{32}", "0" * 32, path)).json()
        assert {**answer.json(), "instance": "", "detail": ""} == {
            **nobodys,
            "instance": "",
            "detail": "",
        }
    assert ben.get(f"{job}/events").status_code == 404
    for path in (dataset, job):
        assert ben.delete(path).status_code == 404
    body = {"observations": f"dataset:{dataset.rpartition('/')[2]}", "references": SET}
    answer = look_up(ben, body)
    assert (answer.status_code, answer.json()["title"]) == (404, "There is no such dataset")
    assert ben.get("/jobs").json()["jobs"] == []
    assert ben.get("/datasets").json()["datasets"] == []
    # The same content: each registers it once, neither learns of the other.
    theirs = ben.post("/datasets", content=content, headers=headers)
    assert theirs.status_code == 201
    assert theirs.headers["location"] != dataset
    again = ann.post("/datasets", content=content, headers=headers)
    assert (again.status_code, again.headers["location"]) == (200, dataset)
    assert ben.delete(theirs.headers["location"]).status_code == 204
    assert ann.get(f"{dataset}/data.parquet").status_code == 200


def test_keys_count_while_the_service_runs(tmp_path):
    data_dir = tmp_path / "data"
    with running_service(data_dir, *NO_CLUSTER, ready=False) as client:
        assert client.get("/jobs").status_code == 200
        body = {"observations": SET, "references": SET}
        answer = run_nearest(client, body, {"Prefer": "respond-async"})
        key = new_key(data_dir, "the first")
        wait_until(lambda: client.get("/jobs").status_code == 401)
        with as_holder(client, key) as holder:
            # What was made without a key belongs to nobody with one.
            assert holder.get("/jobs").json()["jobs"] == []
            assert holder.get(answer.headers["location"]).status_code == 404
            second = new_key(data_dir, "the second")
            with as_holder(client, second) as other:
                wait_until(lambda: other.get("/jobs").status_code == 200)
            listed = keys(data_dir, "list").stdout.splitlines()
            assert [line.split()[:2] for line in listed] == [
                [key[:11], "valid"],
                [second[:11], "valid"],
            ]
            assert all("never used" not in line for line in listed)
            assert key not in keys(data_dir, "list").stdout
            assert keys(data_dir, "revoke", key[:11]).returncode == 0
            wait_until(lambda: holder.get("/jobs").status_code == 401)
            assert "revoked" in holder.get("/jobs").json()["detail"]
        assert keys(data_dir, "revoke", key[:11]).returncode == 1
        assert client.get(answer.headers["location"]).status_code == 401
        assert keys(data_dir, "revoke", second).returncode == 0
        with as_holder(client, second) as other:
            wait_until(lambda: other.get("/jobs").status_code == 401)
        # Without a key that is valid, the service is not open again.
        assert client.get(answer.headers["location"]).status_code == 401
    everything = b"".join(path.read_bytes() for path in data_dir.rglob("*sqlite*"))
    assert key[:11].encode() in everything
    assert key.encode() not in everything
    assert key not in client.log.read_text()


def test_what_was_made_without_keys_is_adopted(tmp_path):
    data_dir = tmp_path / "data"
    csv = {"headers": {"Content-Type": "text/csv"}}
    once = {"Prefer": "respond-async", "Idempotency-Key": '"one"'}
    with running_service(data_dir, *NO_CLUSTER, ready=False) as client:
        sites = client.put("/datasets/sites", content="lat,lon\n1,2\n", **csv).json()["id"]
        other = client.post("/datasets", content="lat,lon\n5,6\n", **csv).json()["id"]
        live, ended = (
            run_nearest(client, {"observations": SET, "references": f"dataset:{sites}"}, headers)
            for headers in ({"Prefer": "respond-async"}, once)
        )
        live, ended = (answer.headers["location"] for answer in (live, ended))
        with closing(sqlite3.connect(data_dir / "georesolve.sqlite")) as database, database:
            gone = "UPDATE jobs SET status = 'failed', finished = updated WHERE id = ?"
            database.execute(gone, [ended.rpartition("/")[2]])
        told = keys(data_dir, "create", "ann")
        assert "2 datasets and 2 jobs were made without keys" in told.stderr
        assert "'georesolve keys adopt ann' gives them" in told.stderr
        with as_holder(client, told.stdout.strip()) as ann:
            wait_until(lambda: client.get("/jobs").status_code == 401)
            # She sends the same again, as it seems to have gone.
            own = ann.post("/datasets", content="lat,lon\n1,2\n", **csv).json()["id"]
            mine = run_nearest(ann, {"observations": SET, "references": SET}, once)
            ann.put("/datasets/sites", content="lat,lon\n3,4\n", **csv)
            refused = keys(data_dir, "adopt", "ann")
            assert "of 'ann' has datasets called sites of its own" in refused.stderr
            assert ann.delete("/datasets/sites").status_code == 204
            assert keys(data_dir, "adopt", "ann").stderr.endswith(
                "2 datasets and 2 jobs that were made without keys are from now on those of 'ann'\n"
            )
            listed = {one["id"]: one["names"] for one in ann.get("/datasets").json()["datasets"]}
            assert listed == {own: ["sites", "sites@1"], other: []}
            assert ann.get("/datasets/sites").json()["expires"] is None
            jobs = {one["id"] for one in ann.get("/jobs").json()["jobs"]}
            assert {live, ended} <= {f"{client.base_url}/jobs/{id}" for id in jobs}
            assert len(jobs) == 3
            # An Idempotency-Key stays that of her own request.
            again = run_nearest(ann, {"observations": SET, "references": SET}, once)
            assert again.headers["location"] == mine.headers["location"]
            with closing(sqlite3.connect(data_dir / "georesolve.sqlite")) as database:
                used = dict(database.execute('SELECT id, "references" FROM jobs'))
            assert used[live.rpartition("/")[2]] == sites
            assert used[ended.rpartition("/")[2]] == own
            assert ann.get(f"/datasets/{sites}").status_code == 404
    assert (data_dir / "datasets" / f"{sites}.parquet").exists(), "an unfinished job reads it"
    nothing = "there is nothing that was made without keys, and nothing was changed"
    assert nothing in keys(data_dir, "adopt", "ann").stderr
    new_key(data_dir, "prometheus", "--role", "metrics")
    assert "has the role metrics" in keys(data_dir, "adopt", "prometheus").stderr


def test_a_key_with_a_new_secret_keeps_what_is_its_own(guarded):
    client, ann, _ = guarded
    data_dir = client.log.with_suffix("")
    old = new_key(data_dir, "cleo")
    with as_holder(client, old) as holder:
        wait_until(lambda: holder.get("/jobs").status_code == 200)
        body = {"observations": SET, "references": SET}
        headers = {"Prefer": "respond-async"}
        job = run_nearest(holder, body, headers).headers["location"]
        done = keys(data_dir, "rotate", "cleo")
        assert done.returncode == 0, done.stderr
        new = done.stdout.strip()
        wait_until(lambda: holder.get("/jobs").status_code == 401)
    with as_holder(client, new) as holder:
        wait_until(lambda: holder.get("/jobs").status_code == 200)
        assert finished(holder, job)["status"] == "successful"
    assert ann.get(job).status_code == 404
    # By its prefix, as listed, too.
    assert keys(data_dir, "rotate", new[:11]).stdout.startswith("gr_")


def test_no_answer_enters_a_shared_cache(guarded):
    """Every answer is private and differs by the key; JSON is not stored at all."""
    client, ann, _ = guarded
    body = {"observations": SET, "references": SET}
    job = run_nearest(ann, body, {"Prefer": "respond-async"}).headers["location"]
    finished(ann, job)
    csv = {"content": "lat,lon\n1,2\n", "headers": {"Content-Type": "text/csv"}}
    dataset = ann.post("/datasets", **csv).headers["location"]
    part = ann.get(f"{job}/results/parts").json()["parts"][0]["href"]
    values = {"z": 0, "x": 0, "y": 0, "name": part.rpartition("/")[2]}
    queries = {"/nearest": {"lat": 1, "lon": 2, "references": dataset.rpartition("/")[2]}}
    stored = {"/nearest": "private, no-cache"}
    paths = ann.get("/api").json()["paths"]
    for path in (one for one, operations in paths.items() if "get" in operations):
        above = dataset if path.startswith("/datasets/{id}") else job
        id = "nearest" if path.startswith("/processes") else above.rpartition("/")[2]
        for holder in (ann, client):
            answer = holder.get(path.format(**values, id=id), params=queries.get(path))
            vary = re.split(r",\s*", answer.headers["vary"])
            assert {"Authorization", "X-API-Key"} <= {*vary}, path
            assert len(vary) == len({*vary})
            caching = answer.headers["cache-control"]
            assert caching.startswith("private"), path
            if answer.headers["content-type"].partition(";")[0].endswith("/json"):
                allowed = stored.get(path, "private, no-store") if answer.is_success else None
                if not path.startswith("/jobs/{id}/results"):
                    assert caching == (allowed or "private, no-store"), path
    assert "Accept" in ann.get(f"{job}/results").headers["vary"]
    assert ann.get(f"{job}/results").headers["cache-control"] == "private, immutable"


def test_the_role_user_sees_neither_checks_nor_metrics(guarded):
    client, ann, ben = guarded
    with as_holder(client, "gr_wrong") as no_owner:
        for holder in (ann, ben, client, no_owner):
            for path in ("/readyz", "/healthz"):
                answer = holder.get(path)
                assert (answer.status_code, answer.json()) == (200, {"status": "ok", "checks": []})
    refused = ann.get("/metrics")
    assert (refused.status_code, "role user" in refused.json()["detail"]) == (403, True)
    assert client.get("/metrics").status_code == 401
    key = new_key(client.log.with_suffix(""), "operator", "--role", "admin")
    with as_holder(client, key) as operator:
        wait_until(lambda: operator.get("/jobs").status_code == 200)
        assert "georesolve_workers" in operator.get("/metrics").text
        assert operator.get("/readyz").json()["checks"]


def test_the_role_metrics_reads_metrics_alone(guarded):
    client, _, _ = guarded
    key = new_key(client.log.with_suffix(""), "prometheus", "--role", "metrics")
    with as_holder(client, key) as prometheus:
        wait_until(lambda: prometheus.get("/metrics").status_code == 200)
        assert "georesolve_workers" in prometheus.get("/metrics").text
        assert prometheus.get("/readyz").json()["checks"]
        for method, path in (("GET", "/"), ("GET", "/jobs"), ("POST", "/resolve"), ("GET", "/api")):
            refused = prometheus.request(method, path)
            assert refused.status_code == 403, path
            assert refused.json()["type"] == "urn:georesolve:problem:forbidden"
            assert "reads /metrics and nothing else" in refused.json()["detail"]


def test_the_role_admin_sees_what_all_have(guarded):
    client, ann, ben = guarded
    key = new_key(client.log.with_suffix(""), "root", "--role", "admin")
    ann_prefix = ann.headers["authorization"].split()[1][:11]
    body = {"observations": SET, "references": SET}
    job = run_nearest(ann, body, {"Prefer": "respond-async"}).headers["location"]
    csv = {"content": "lat,lon\n1,2\n", "headers": {"Content-Type": "text/csv"}}
    dataset = ann.put("/datasets/sites", **csv).json()["id"]
    assert ann.get(f"/datasets/{dataset}").json()["owner"] is None
    with as_holder(client, key) as admin:
        wait_until(lambda: admin.get("/jobs").status_code == 200)
        assert finished(admin, job)["owner"] == "ann"
        owners = {one["id"]: one["owner"] for one in admin.get("/jobs").json()["jobs"]}
        assert owners[job.rpartition("/")[2]] == "ann"
        assert admin.get(f"{job}/results").content == ann.get(f"{job}/results").content
        for path in ("results/matches.geojson", "tiles/0/0/0.png", "tiles/0/0/0.geojson"):
            shown = admin.get(f"{job}/{path}")
            assert (shown.status_code, shown.content) == (200, ann.get(f"{job}/{path}").content)
        listed = {one["id"]: one for one in admin.get("/datasets").json()["datasets"]}
        assert listed[dataset] == admin.get(f"/datasets/{dataset}").json()
        # So the page deletes by a name what is the caller's own alone.
        own_to = [one.get(f"/datasets/{dataset}").json()["is_own"] for one in (ann, admin)]
        assert own_to == [True, False]
        assert (listed[dataset]["owner"], listed[dataset]["names"]) == ("ann", ["sites", "sites@1"])
        assert admin.get(f"/datasets/{dataset}/data.parquet").status_code == 200
        assert admin.get("/datasets/sites").status_code == 404
        inputs = {"observations": SET, "references": f"dataset:{dataset}"}
        assert look_up(admin, inputs).content == look_up(ann, inputs).content
        assert look_up(ben, inputs).status_code == 404
        with Client(str(client.base_url), key) as of_admin:
            assert of_admin.datasets(owner="ann")[0].id == dataset
            assert f"/jobs/{of_admin.jobs(owner='ann')[0].id}" in job
            assert (of_admin.datasets(owner="ben"), of_admin.jobs(owner="")) == ([], [])
            assert {one.owner for one in of_admin.datasets(owner=ann_prefix)} == {"ann"}
        assert admin.get("/jobs?owner=nobody").status_code == 400
        refused = ann.get("/datasets?owner=ben")
        assert (refused.status_code, "role admin" in refused.json()["detail"]) == (403, True)
        # A name is its owner's: the admin's own of that name stays.
        own = admin.put("/datasets/sites", **csv | {"content": "lat,lon\n5,6\n"}).json()["id"]
        newest = ann.put("/datasets/sites", **csv | {"content": "lat,lon\n3,4\n"}).json()["id"]
        assert admin.delete(f"/datasets/{dataset}").status_code == 204
        assert ann.get(f"/datasets/{dataset}").status_code == 404
        assert admin.delete(f"/datasets/{newest}").status_code == 204
        assert ann.get("/datasets/sites").status_code == 404
        assert admin.get("/datasets/sites").json()["id"] == own
        assert admin.delete("/datasets/sites").status_code == 204
        own = run_nearest(admin, body, {"Prefer": "respond-async"})
        code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "keys.md").read_text(), re.DOTALL)
        code = code[1].replace("http://localhost:8000", str(client.base_url)).replace("KEY", key)
        for content in ("1,2", "3,4"):
            ben.put(
                "/datasets/his", **csv | {"content": f"lat,lon\n{content}\n"}
            ).raise_for_status()
        his = run_nearest(ben, body, {"Prefer": "respond-async"}).headers["location"]
        exec(compile(code, "docs/keys.md", "exec"), {})
        assert ben.get("/datasets").json()["datasets"] == []
        assert ben.get(his).json()["status"] == "dismissed"
        assert ben.get(own.headers["location"]).status_code == 404
        assert ben.delete(job).status_code == 404
        assert admin.delete(job).json()["status"] == "dismissed"
    assert ann.get(job).json()["status"] == "dismissed"
    assert "owner" not in ann.get(job).json()


def test_a_key_expires(guarded):
    client, _, _ = guarded
    data_dir = client.log.with_suffix("")
    key = new_key(data_dir, "visitor", "--expires", "90d")
    with as_holder(client, key) as visitor:
        wait_until(lambda: visitor.get("/jobs").status_code == 200)
        [listed] = [row for row in keys(data_dir, "list").stdout.splitlines() if key[:11] in row]
        assert re.search(r"  valid  user  created 20\S+  expires 20\S+  last used", listed)
        # Made a hundred days ago.
        with closing(sqlite3.connect(data_dir / "georesolve.sqlite")) as database, database:
            times = "created = ?, expires = ?"
            then = (now(-100 * DAY), now(-10 * DAY), key[:11])
            database.execute(f"UPDATE keys SET {times} WHERE prefix = ?", then)
        wait_until(lambda: visitor.get("/jobs").status_code == 401)
        refused = visitor.get("/jobs")
        assert refused.json()["type"] == "urn:georesolve:problem:key-expired"
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        assert f"expired at {then[1]}" in refused.json()["detail"]
    [listed] = [row for row in keys(data_dir, "list").stdout.splitlines() if key[:11] in row]
    assert "  expired  user  " in listed
    again = keys(data_dir, "rotate", "visitor").stdout.strip()
    with as_holder(client, again) as visitor:
        wait_until(lambda: visitor.get("/jobs").status_code == 200)
    [listed] = [row for row in keys(data_dir, "list").stdout.splitlines() if again[:11] in row]
    [until] = re.findall("expires (\\S+)", listed)
    assert now(89 * DAY) < until < now(90 * DAY)


@pytest.mark.parametrize("time", ["90", "0d", "-1d", "1y", "9d9h", "d"])
def test_a_time_that_is_none_is_told(tmp_path, time):
    done = keys(tmp_path / "data", "create", "ann", f"--expires={time}")
    assert done.returncode == 2
    assert f"{time!r} is no time: give a number of hours, days or weeks" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_key_is_named_without_doubt(tmp_path):
    data_dir = tmp_path / "data"
    first, second = new_key(data_dir, "ann"), new_key(data_dir, "ann")
    for verb in ("rotate", "revoke"):
        done = keys(data_dir, verb, "ann")
        assert done.returncode == 1
        assert first[:11] in done.stderr
        assert second[:11] in done.stderr
    assert keys(data_dir, "revoke", first).returncode == 0
    assert keys(data_dir, "rotate", first).returncode == 1
    done = keys(data_dir, "rotate", "ann")
    assert (done.returncode, second[:11] in done.stderr) == (0, True)


@pytest.mark.parametrize(
    "arguments", [("list",), ("rotate", "ann"), ("revoke", "ann"), ("adopt", "ann")]
)
def test_where_no_service_has_been_there_are_no_keys(tmp_path, arguments):
    data_dir = tmp_path / "misspelt"
    done = keys(data_dir, *arguments)
    assert done.returncode == 1
    assert f"there is no store of a service in {data_dir}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not data_dir.exists()


def test_every_command_names_its_store(tmp_path):
    database = str(tmp_path / "data" / "georesolve.sqlite")
    told = keys(tmp_path / "data", "create", "ann").stderr
    assert f"the store is {database}, made now\n" in told
    for arguments in (("create", "ben"), ("list",), ("rotate", "ann"), ("revoke", "ben")):
        assert f"the store is {database}\n" in keys(tmp_path / "data", *arguments).stderr


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = keys(tmp_path / "file" / "data", "create", "ann")
    assert done.returncode == 1
    assert "cannot be used: Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_may_not_be_written_is_told_in_one_line(tmp_path):
    new_key(tmp_path, "ann")
    (tmp_path / "georesolve.sqlite").chmod(0o400)
    # Permissions bind root, too, where it has not these capabilities.
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if subprocess.run([*bound, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("setpriv may not take capabilities away")
    command = [sys.executable, "-m", "georesolve", "keys", "list", "--data-dir", tmp_path]
    done = subprocess.run([*bound, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "cannot be used: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


def test_beyond_loopback_the_last_key_leaves_no_open_door(tmp_path):
    data_dir = tmp_path / "data"
    key, port = new_key(data_dir, "the only one"), free_port()
    url = f"http://127.0.0.1:{port}"
    flags = [*NO_CLUSTER, "--host", "0.0.0.0", "--port", port]
    with running_service(data_dir, *flags, ready=False):
        with httpx.Client(base_url=url, timeout=60, headers={"X-API-Key": key}) as holder:
            assert holder.get("/jobs", headers={"Host": "any.name"}).status_code == 200
            assert keys(data_dir, "revoke", key).returncode == 0
            wait_until(lambda: holder.get("/jobs").status_code == 401)
        assert httpx.get(f"{url}/jobs", timeout=60).status_code == 401


def test_names_of_the_service(service):
    port = str(service.base_url).rpartition(":")[2].strip("/")

    def ask(host, path="/jobs"):
        return service.get(path, headers={"Host": host})

    for name in (f"localhost:{port}", "LOCALHOST", "127.0.0.1", f"[::1]:{port}", "localhost."):
        assert ask(name).status_code == 200, name
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "::2"):
        answer = ask(name)
        assert answer.status_code == 400, name
        assert answer.headers["content-type"] == "application/problem+json"
        assert "allowed_hosts" in answer.json()["detail"]
    assert ask("evil.example", "/livez").status_code == 200


def test_pages_of_other_sites_cannot_use_a_service_without_keys(service):
    body = {"observations": SET, "references": SET}
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        answer = look_up(service, body, {"Sec-Fetch-Site": site})
        assert answer.status_code == status
    # Over plain HTTP beyond loopback a browser tells the origin alone, and ports of one name share
    # a site.
    own = str(service.base_url).rstrip("/")
    for headers, status in (
        ({"Origin": own}, 200),
        ({"Origin": own, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
    ):
        answer = look_up(service, body, headers)
        assert answer.status_code == status, headers
    # A link to the documentation is fine.
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = service.get("/docs", headers=headers)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("localhost", "127.0.0.1", "::1")),
        ({"host": "192.0.2.7"}, ("localhost", "127.0.0.1", "::1", "192.0.2.7")),
        ({"host": "::"}, ("localhost", "127.0.0.1", "::1", "*")),
        ({"allowed_hosts": "A.example, b.example,"}, ("a.example", "b.example")),
    ],
)
def test_allowed_hosts(given, expected):
    assert Settings(**given).hosts() == expected


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("a.example:80", "a.example"),
        ("A.example.", "a.example"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("a.example:", "a.example:"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header, name):
    assert _without_port(header) == name


def test_the_description_of_the_api_declares_the_key(service):
    api = service.get("/api").json()
    assert set(api["components"]["securitySchemes"]) == {"HTTPBearer", "APIKeyHeader"}
    for path, operations in api["paths"].items():
        for operation in operations.values():
            is_probe = path in ("/livez", "/readyz", "/healthz")
            assert ("security" in operation) is not is_probe, path


def test_the_commands_about_keys_load_no_dask():
    # It takes half of the time that such a command would have.
    script = (
        "import sys, georesolve.cli.serve, georesolve.cli.keys\n"
        "sys.exit('loaded' if 'distributed' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_holders_are_told_what_a_service_is_made_of(guarded):
    client, _, _ = guarded
    key = new_key(client.log.with_suffix(""), "ops", "--role", "admin")
    with as_holder(client, key) as operator:
        wait_until(lambda: operator.get("/jobs").status_code == 200)
        checks = operator.get("/readyz").json()["checks"]
    for path in ("/readyz", "/healthz"):
        names = [check["name"] for check in checks]
        assert {"store", "disk", "workers", "dashboard"} <= set(names)
        for headers in ({"X-API-Key": "gr_wrong"}, {"Host": "elsewhere.example"}):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["checks"]) == (200, [])


def test_jobs_of_keys_take_turns(guarded, device):
    _, ann, ben = guarded
    m, n = {"cpu": (120_000, 40_000), "cuda": (500_000, 2_000_000)}[device]
    large = points(m, 1), points(n, 2)
    many = [start_job(ann, *large, algorithm="brute") for _ in range(6)]
    only = start_job(ben, points(10, 3), points(10, 4))
    done = finished(ben, only)
    assert done["status"] == "successful"
    # Those that had begun, and one more that a place became free for, began before. Told by when
    # they began: on a busy machine the others go on before this is asked.
    begun = [ann.get(job).json().get("started") for job in many]
    assert sum(begin is None or begin > done["started"] for begin in begun) >= 2, begun
    for job in many:
        ann.delete(job)
