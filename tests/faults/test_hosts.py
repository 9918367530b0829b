"""A cluster of several hosts with TLS between them; one is cut off in the middle of a job."""

import hashlib
import io
import subprocess
import sys
import time

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client
from distributed.security import Security

from tests import oracle
from tests.conftest import ROOT, START_SECONDS, finished, points, sphere, wait_until
from tests.deploy.hosts import Hosts, require_hosts
from tests.service.test_jobs import parquet

M, N = 120_000, 120_000
REFUSED = "Timed out|closed|reset"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run([ROOT / "deploy" / "make_certificates.sh", folder, "2"], check=True)
    return folder


@pytest.fixture(scope="module")
def cluster(certificates, tmp_path_factory):
    """A scheduler, two hosts of workers and the service, each on its host; yields two of them."""
    require_hosts()
    folder = tmp_path_factory.mktemp("hosts")
    # Less than half of Dask's own patience with a host that says nothing: the test waits as long.
    reads = {"DASK_CONFIG": str(certificates), "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s"}
    with (
        (folder / "log").open("ab") as log,
        Hosts("scheduler", "one", "two", "service", log=log) as hosts,
    ):
        at = hosts.addresses
        file = folder / "scheduler.json"
        listen = ("--host", at["scheduler"], "--port", "8786", "--scheduler-file", str(file))
        hosts.start("scheduler", "dask", "scheduler", *listen, "--no-dashboard", **reads)
        wait_until(file.exists)
        for host in ("one", "two"):
            one = ("--host", at[host], "--nworkers", "1", "--nthreads", "1", "--no-dashboard")
            hosts.start(host, "dask", "worker", "--scheduler-file", str(file), *one, **reads)
        listen = ("--host", at["service"], "--insecure", "--data-dir", str(folder / "data"))
        arguments = (*listen, "--scheduler-file", str(file))
        process = hosts.start("service", "georesolve", "serve", *arguments, **reads)
        with httpx.Client(base_url=f"http://{at['service']}:8000", timeout=60) as client:
            wait_until(lambda: workers_of(client) == 2, START_SECONDS, process=process)
            yield hosts, client


def workers_of(client):
    """How many workers the service has."""
    try:
        checks = client.get("/readyz").json()["checks"]
    except httpx.TransportError:
        return 0
    return sum(int(check["detail"].split()[0]) for check in checks if check["name"] == "workers")


def test_only_who_has_a_certificate_is_let_in(cluster, certificates, tmp_path):
    hosts, _ = cluster
    address = f"{hosts.addresses['scheduler']}:8786"
    with pytest.raises(OSError, match=REFUSED):
        Client(f"tcp://{address}", timeout=2)
    subprocess.run([ROOT / "deploy" / "make_certificates.sh", tmp_path, "2"], check=True)
    for folder, is_let_in in ((tmp_path, False), (certificates, True)):
        pair = {"tls_client_cert": f"{folder}/dask.crt", "tls_client_key": f"{folder}/dask.key"}
        security = Security(tls_ca_file=f"{certificates}/ca.crt", require_encryption=True, **pair)
        if is_let_in:
            with Client(f"tls://{address}", security=security, timeout=60) as client:
                assert client.scheduler.address.startswith("tls://")
        else:
            with pytest.raises(OSError, match=REFUSED):
                Client(f"tls://{address}", security=security, timeout=2)


def test_a_job_outlives_a_host(cluster, capsys):
    hosts, client = cluster
    files = {
        "observations": ("o.parquet", parquet(points(M, 1))),
        "references": ("r.parquet", parquet(points(N, 2))),
    }

    def submit(**parameters):
        headers = {"Prefer": "respond-async"}
        answer = client.post("/resolve", params=parameters, files=files, headers=headers)
        return answer.raise_for_status().headers["location"]

    location = submit()
    assert finished(client, location)["status"] == "successful"
    expected = client.get(f"{location}/results").content
    lat, lon = (values[::20] for values in sphere(M, 1))
    rows, _ = oracle.nearest(lat, lon, *sphere(N, 2))
    found = pq.read_table(io.BytesIO(expected))["reference"].to_numpy()[::20]
    np.testing.assert_array_equal(found, rows)

    location = submit(algorithm="brute")
    wait_until(lambda: client.get(location).json()["rows_done"] > 0)
    hosts.cut("one")
    start = time.monotonic()
    assert client.get(location).json()["status"] == "running"
    wait_until(lambda: client.get(location).json()["status"] != "running", seconds=200)
    seconds = time.monotonic() - start
    assert client.get(location).json()["status"] == "successful"
    result = client.get(f"{location}/results").content
    assert hashlib.sha256(result).digest() == hashlib.sha256(expected).digest()
    wait_until(lambda: workers_of(client) == 1)
    by_worker = client.get(f"{location}/report").json()["chunks_by_worker"]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{seconds:.1f} s from the cut to the result; chunks by worker {by_worker}\n"
        )
