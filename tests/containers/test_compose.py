"""The containers run as the compose file promises, and what they accepted outlives them."""

import hashlib
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import oracle
from tests.conftest import ROOT, SAMPLES, finished, points, run_nearest, wait_until
from tests.containers.stack import BASE, Stack, docker

PARQUET = {"Content-Type": "application/vnd.apache.parquet"}
USERS = {"proxy": 10002, "api": 10001, "scheduler": 10001, "worker-cpu": 10001}
LISTENING = {"proxy": {8080, 8081}, "api": {8000}, "scheduler": {8786, 8787}}
"""Ports by service; workers take what is free, within the network of the containers."""
BUILD_TOOLS = "cc gcc g++ make git curl wget nvcc"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(tmp_path_factory, pytestconfig):
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.build()
    try:
        # The service does not start without a key: it listens beyond loopback.
        stack.client().close()
        stack.up()
        stack.seconds["cold start to ready"] = stack.seconds["up"]
        yield stack
    except BaseException:
        sys.stderr.write(stack.compose("logs", "--tail", "50"))
        raise
    finally:
        stack.remove()
        sizes = docker("images", "--format", "{{.Repository}} {{.Size}}", "georesolve-*")
        seconds = [f"{value:6.1f} s  {name}" for name, value in stack.seconds.items()]
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            sys.stdout.write("\n" + sizes + "\n".join(seconds) + "\n")


@pytest.fixture
def client(stack):
    with stack.client() as client:
        yield client


@pytest.fixture(scope="module")
def work(stack):
    """A job of some tens of seconds, and what it gives undisturbed."""
    with stack.client() as client:
        ids = [
            client.post("/datasets", content=parquet(points(n, seed)), headers=PARQUET).json()["id"]
            for seed, n in enumerate((120_000, 100_000))
        ]
        body = {"observations": f"dataset:{ids[0]}", "references": f"dataset:{ids[1]}"}
        location = submit(client, body)
        assert finished(client, location)["status"] == "successful"
        return body, result_of(client, location)


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def submit(client, body, **parameters):
    """Start a job; returns its address."""
    headers = {"Prefer": "respond-async"}
    answer = run_nearest(client, {**body, **parameters}, headers)
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


def result_of(client, location):
    answer = client.get(f"{location}/results").raise_for_status()
    return hashlib.sha256(answer.content).hexdigest()


def test_all_are_healthy_and_only_the_proxy_is_published(stack):
    containers = stack.containers()
    assert set(containers) == set(stack.services)
    for service, one in containers.items():
        assert one["State"]["Health"]["Status"] == "healthy", service
        published = {
            (port, binding["HostIp"], binding["HostPort"])
            for port, bindings in one["NetworkSettings"]["Ports"].items()
            for binding in bindings or ()
        }
        own = {("8080/tcp", "127.0.0.1", stack.environment["PUBLISH_PORT"])}
        assert published == (own if service == "proxy" else set())
        assert one["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        assert one["HostConfig"]["Memory"] > 0


@pytest.mark.parametrize("service", Stack.services)
def test_what_a_process_may_do(stack, service):
    status = dict(
        line.split(":\t", 1) for line in stack.read_in(service, "/proc/1/status").splitlines()
    )
    assert status["Uid"].split() == [str(USERS[service])] * 4
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2", "the filter of the engine"

    mounts = [line.split() for line in stack.read_in(service, "/proc/mounts").splitlines()]
    [root] = [options for _, path, _, options, *_ in mounts if path == "/"]
    assert "ro" in root.split(",")
    found = stack.run_in(service, "sh", "-c", f"command -v {BUILD_TOOLS} || true")
    assert found == "", "tools to build with"


@pytest.mark.parametrize("service", Stack.services)
def test_where_a_process_listens_and_what_it_reaches(stack, service):
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in stack.read_in(service, f"/proc/net/{table}").splitlines()[1:]:
            address, port = line.split()[1].split(":")
            # The name server of the engine listens in every container.
            if line.split()[3] == "0A" and address != "0B00007F":
                sockets.add(int(port, 16))
    if service in LISTENING:
        assert sockets == LISTENING[service]
    else:
        assert sockets, "workers listen for each other"
    routes = [line.split() for line in stack.read_in(service, "/proc/net/route").splitlines()[1:]]
    leads_out = any(destination == "00000000" for _, destination, *_ in routes)
    assert leads_out == (service == "proxy")


def reached(stack, service, port):
    """Whether a container reaches a port of the scheduler by any of its names and addresses."""
    networks = stack.containers()["scheduler"]["NetworkSettings"]["Networks"].values()
    hosts = ["scheduler", "dask", *(one["IPAddress"] for one in networks)]
    connect = f"""
import socket
for host in {hosts}:
    try:
        socket.create_connection((host, {port}), timeout=2).close()
        print(host)
    except OSError:
        pass
"""
    return bool(stack.run_in(service, "python3", "-c", connect).strip())


def test_only_what_computes_reaches_the_scheduler(stack):
    for service in ("api", "worker-cpu"):
        assert reached(stack, service, 8786)
    assert not reached(stack, "proxy", 8786)
    assert reached(stack, "proxy", 8787), "the dashboard"


def test_the_processes_of_dask_speak_tls(stack):
    ask = """
from distributed import Client
print(*Client("{}://dask:8786", timeout=5).scheduler_info(n_workers=-1)["workers"])
"""
    workers = stack.run_in("api", "python", "-c", ask.format("tls")).split()
    assert workers
    assert all(address.startswith("tls://") for address in workers)
    with pytest.raises(AssertionError, match=r"Timed out|closed|reset"):
        stack.run_in("api", "env", "DASK_CONFIG=/tmp", "python", "-c", ask.format("tcp"))
    without_certificate = """
import socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
with context.wrap_socket(socket.create_connection(("dask", 8786), timeout=5)) as one:
    one.recv(1)
"""
    with pytest.raises(AssertionError, match="CERTIFICATE_REQUIRED"):
        stack.run_in("api", "python", "-c", without_certificate)


def resolve_samples(client):
    """The result of a job with the sample sets."""
    sets = {
        role: ("file.parquet", (SAMPLES / f"{name}.parquet").read_bytes())
        for role, name in (("observations", "airports"), ("references", "places"))
    }
    answer = client.post("/resolve", files=sets, headers={"Prefer": "respond-async"})
    assert finished(client, answer.headers["location"])["status"] == "successful"
    return client.get(f"{answer.headers['location']}/results").raise_for_status().content


def test_the_samples(client):
    content = resolve_samples(client)
    matches = pq.read_table(io.BytesIO(content))
    airports, places = (
        pq.read_table(SAMPLES / f"{name}.parquet") for name in ("airports", "places")
    )
    assert matches.num_rows == len(airports)
    some = np.arange(0, len(airports), 50)
    rows, metres = oracle.nearest(
        *(airports[name].to_numpy()[some] for name in ("lat", "lon")),
        *(places[name].to_numpy() for name in ("lat", "lon")),
    )
    assert matches["reference"].take(some).to_pylist() == rows.tolist()
    np.testing.assert_allclose(matches["distance_m"].to_numpy()[some], metres, rtol=1e-9, atol=1e-3)


def test_the_python_of_the_images_is_the_one_of_their_locks(stack):
    for service in ("api", "worker-cpu"):
        python = stack.run_in(service, "python", "--version").split()[1].rpartition(".")[0]
        assert BASE.startswith(f"python:{python}-")


def test_links_and_the_dashboard_lead_through_the_proxy(stack, client):
    assert client.get("/").json()["links"][0]["href"] == f"http://{stack.address}/"
    assert "georesolve_workers" in client.get("/metrics").text
    assert client.get("/dask/status").status_code == 200
    for path in ("/", "/dask/status", "/metrics"):
        assert httpx.get(f"http://{stack.address}{path}").status_code == 401


def send_the_beginning(stack, client, length):
    """Announce a body, send three bytes of it and nothing more; returns the answer."""
    with socket.create_connection(("127.0.0.1", int(stack.environment["PUBLISH_PORT"]))) as slow:
        slow.settimeout(60)
        key = client.headers["authorization"]
        slow.sendall(
            f"POST /datasets HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
            f"Content-Length: {length}\r\n\r\nlat".encode()
        )
        head, _, body = slow.makefile("rb").read().partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def test_the_proxy_refuses_what_is_too_large(stack, client):
    limit = stack.environment["GEORESOLVE_UPLOAD_BYTES"]
    head, body = send_the_beginning(stack, client, int(limit) + 1)
    assert head.startswith("HTTP/1.1 413")
    assert "application/problem+json" in head
    assert json.loads(body)["type"].endswith(":too-large")
    assert limit in body


def test_the_proxy_tells_what_it_cannot_read(stack, client):
    for path in ("/a%00b", "/" + 40_000 * "a"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (400, 400)


def test_the_proxy_waits_for_no_slow_client(stack, client):
    start = time.monotonic()
    assert send_the_beginning(stack, client, 1000) == ("", ""), "it hangs up"
    # It would wait 30 s if it were not told otherwise.
    assert time.monotonic() - start < 25


def test_the_proxy_speaks_tls_with_a_certificate(stack, client, tmp_path):
    names = {"PROXY_CERTIFICATE": tmp_path / "certificate.pem", "PROXY_KEY": tmp_path / "key.pem"}
    certificate, key = names.values()
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    own = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*make, *own], check=True, capture_output=True)
    for name, path in names.items():
        os.chown(path, USERS["proxy"], -1)
        stack.environment[name] = str(path)
    stack.recreate("proxy")
    try:
        trusting = ssl.create_default_context(cafile=certificate)
        answer = httpx.get(f"https://{stack.address}/", verify=trusting, headers=client.headers)
        assert answer.json()["links"][0]["href"] == f"https://{stack.address}/"
        plain = httpx.get(f"http://{stack.address}/", headers=client.headers)
        assert (plain.status_code, plain.json()["status"]) == (400, 400)
    finally:
        for name in names:
            del stack.environment[name]
        stack.recreate("proxy")


def ask_prometheus(stack, *paths):
    """What Prometheus answers, asked from where it runs: nobody else reaches it."""
    ask = (
        "import json, sys, urllib.request; "
        "ask = lambda path: json.load(urllib.request.urlopen('http://127.0.0.1:9090' + path)); "
        "print(json.dumps([ask(path) for path in sys.argv[1:]]))"
    )
    return json.loads(stack.run_in("prometheus", "python3", "-c", ask, *paths))


def test_prometheus_knows_what_the_dashboard_shows(stack, client, tmp_path):
    key = tmp_path / "key"
    key.write_text(stack.create_key("prometheus"))
    os.chown(key, 65534, -1)
    key.chmod(0o400)
    stack.environment |= {"PROMETHEUS_KEY_FILE": str(key), "COMPOSE_PROFILES": "cpu,monitoring"}
    stack.compose("up", "--detach", "--no-deps", "prometheus")
    try:
        assert not reached(stack, "prometheus", 8786)
        resolve_samples(client)
        dashboard = json.loads((ROOT / "deploy/monitoring/grafana/georesolve.json").read_text())
        shown = [
            target["expr"].replace("$__rate_interval", "1m")
            for panel in dashboard["panels"]
            for target in panel.get("targets", [])
        ]
        queries = [f"/api/v1/query?query={quote(one)}" for one in shown if "DCGM" not in one]

        def missing():
            answers = ask_prometheus(stack, *queries)
            return [q for q, a in zip(queries, answers, strict=True) if not a["data"]["result"]]

        wait_until(lambda: not missing(), seconds=90)
        [rules] = ask_prometheus(stack, "/api/v1/rules")
        states = {
            rule["name"]: (rule["health"], rule["state"])
            for group in rules["data"]["groups"]
            for rule in group["rules"]
        }
        assert len(states) >= 6
        assert set(states.values()) == {("ok", "inactive")}, states
    finally:
        stack.compose("rm", "--force", "--stop", "prometheus")
        stack.environment["COMPOSE_PROFILES"] = "cpu"


def test_a_result_is_written_to_the_object_store(stack, client):
    before = dict(stack.environment)
    stack.environment |= {
        "COMPOSE_PROFILES": "cpu,object-store",
        "AWS_ENDPOINT_URL": "http://object-store:8333",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "of-the-tests",
        "GEORESOLVE_SINKS": "s3://results/",
    }
    stack.up()
    try:
        files = {
            role: (name, (SAMPLES / name).read_bytes())
            for role, name in (
                ("observations", "airports.parquet"),
                ("references", "places.parquet"),
            )
        }
        output = {"output": "s3://results/one/"}
        client.post("/resolve", files=files, data=output).raise_for_status()
        listed = "from georesolve.io.storage import place_of as p; print(*p('{}').names())"
        names = stack.run_in("api", "python", "-c", listed.format(output["output"])).split()
        assert {"_SUCCESS", "_manifest.json", "_ending"} < set(names)
    finally:
        stack.compose("rm", "--force", "--stop", "object-store")
        stack.environment = before
        stack.up()


@pytest.mark.parametrize("service", Stack.services)
def test_a_job_outlives_a_kill(stack, work, service):
    body, expected = work
    with stack.client() as client:
        # The slow way to the same bytes.
        location = submit(client, body, algorithm="brute")
        wait_until(lambda: client.get(location).json()["rows_done"] > 0)
        stack.compose("kill", "--signal", "KILL", service)
        if service == "proxy":
            with pytest.raises(httpx.TransportError):
                client.get(location)
        elif service == "api":
            answer = client.get(location)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.headers["content-type"] == "application/problem+json"
        else:
            assert client.get(location).json()["status"] == "running"
        stack.up()
        stack.seconds[f"up after a kill of {service}"] = stack.seconds["up"]
        assert finished(client, location)["status"] == "successful"
        assert result_of(client, location) == expected


def test_what_ends_by_itself_is_started_again(stack):
    before = {service: one["State"] for service, one in stack.containers().items()}
    for state in before.values():
        # Not `docker kill`, after which the engine leaves a container alone.
        os.kill(state["Pid"], signal.SIGKILL)
    wait_until(
        lambda: all(
            one["State"]["StartedAt"] > before[service]["StartedAt"]
            for service, one in stack.containers().items()
        )
    )
    start = time.monotonic()
    stack.wait_until_healthy()
    stack.seconds["all killed to all healthy"] = time.monotonic() - start


def test_jobs_and_results_outlive_the_containers_and_the_volume(stack, work, tmp_path):
    body, expected = work
    with stack.client() as client:
        done = client.get("/jobs", params={"status": "successful", "limit": 1000}).json()["jobs"]
        location = submit(client, body, algorithm="brute")
        wait_until(lambda: client.get(location).json()["rows_done"] > 0)
        stack.back_up(tmp_path / "backup")
        start = time.monotonic()
        stack.compose("stop")
        stack.seconds["stop in the middle of a job"] = time.monotonic() - start
        codes = {service: one["State"]["ExitCode"] for service, one in stack.containers().items()}
        assert codes == dict.fromkeys(stack.services, 0), "they end in order when they are told to"
        stack.compose("down")
        stack.restore(tmp_path / "backup")
        stack.up()
        stack.seconds["start with compiled kernels to ready"] = stack.seconds["up"]
        for job in done:
            assert client.get(f"/jobs/{job['id']}").json() == job
            # 204 where it lies in the object store.
            assert client.get(f"/jobs/{job['id']}/results").is_success
        assert finished(client, location)["status"] == "successful"
        assert result_of(client, location) == expected
