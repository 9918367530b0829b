"""`georesolve serve` starts, ends, and says in one line why it cannot."""

import os
import re
import shlex
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import httpx
import psutil
import pytest

from georesolve.cli.serve import main
from georesolve.service.auth.access import refuse_unprotected
from georesolve.service.errors import CannotStart
from georesolve.service.settings import Settings
from tests.conftest import (
    NO_CLUSTER,
    finished,
    points,
    running_service,
    start_service,
    wait_for_url,
    wait_until,
)
from tests.service.test_jobs import parquet, shorter, start_job

REFUSED = 1


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Runs a service that cannot start; returns how it ended and the lines that it wrote."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def serve(data_dir, *flags):
        with (tmp_path / "log").open("wb") as log:
            code = start_service(data_dir, log, *flags).wait(60)
        return code, (tmp_path / "log").read_text().splitlines()

    return serve


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_ends_it_before_anything_is_opened(serve, tmp_path, host):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, lines = serve(tmp_path / "data", "--host", host, "--port", port)
    assert code == REFUSED
    [line] = lines
    assert f"cannot listen on {host} port {port}: Address already in use" in line
    assert "--port" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "others can reach, and there are no API keys: make one"),
        (["--host", "no.such.name.invalid"], "cannot listen on no.such.name.invalid"),
        (["--scheduler", "tls://127.0.0.1:1"], "Dask is configured with none: make them with"),
        (["--device", "cuda"], "device is 'cuda', but this machine shows no GPU"),
        (["--database-url", "mysql://a:b@c/d"], "begins with mysql://"),
        (["--database-url", "postgresql://a:b@127.0.0.1:1/d"], "cannot be opened: "),
        (["--data-dir", "/proc/none"], "the data folder /proc/none cannot be used"),
    ],
)
def test_a_mistake_is_told_in_one_line(serve, tmp_path, flags, message):
    code, lines = serve(tmp_path / "data", *flags)
    assert code == REFUSED
    assert message in lines[-1]
    assert "ERROR" in lines[-1]
    assert [line for line in lines if "ERROR" in line or line.startswith((" ", "Trace"))] == [
        lines[-1]
    ]


def test_the_command_that_is_told_makes_a_key_of_this_service(serve, tmp_path):
    data_dir = tmp_path / "the data"
    _, lines = serve(data_dir, "--host", "0.0.0.0")
    [command] = re.findall(
        "'(georesolve keys .*)', listen on 127.0.0.1, or give --insecure", lines[-1]
    )
    assert main(shlex.split(command)[1:]) == 0
    with running_service(data_dir, *NO_CLUSTER, "--host", "0.0.0.0", ready=False) as client:
        assert client.get("/jobs").status_code == 401


def test_the_command_about_keys_says_no_secret():
    settings = Settings(host="0.0.0.0", database_url="postgresql://me:secret@host/name")
    with pytest.raises(CannotStart, match="keys create NAME --database-url URL'") as refused:
        refuse_unprotected(settings, SimpleNamespace(all=list))
    assert "secret" not in str(refused.value)


def test_a_folder_in_use_is_told_in_one_line(serve, service):
    code, lines = serve(service.log.with_suffix(""))
    assert code == REFUSED
    assert f"is in use by process {service.process.pid}" in lines[-1]
    assert "Traceback" not in "\n".join(lines)


@contextmanager
def in_a_terminal(tmp_path):
    """A service whose processes are a group of their own, as a shell starts it; and its log."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        process = start_service(tmp_path / "data", log, from_shell=True)
        try:
            yield process, path, wait_for_url(process, path, 0)
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("when", ["while it opens", "in the middle of a job"])
def test_a_ctrl_c_ends_all_in_order(tmp_path, when, long_job):
    with in_a_terminal(tmp_path) as (process, log, url), httpx.Client(base_url=url) as client:
        client.timeout = 60
        wait_until(lambda: client.get("/livez").is_success, process=process)
        told = log.read_text()
        assert f"listens at {url}" in told
        assert "answers at" not in told
        # What it waits for, in the log and to whom it is not ready yet.
        for words in ("small requests wait: the kernels", "is being opened: workers start"):
            wait_until(lambda words=words: words in log.read_text())
        if not (answer := client.get("/readyz")).is_success:
            waits_for = [one["detail"] for one in answer.json()["checks"] if not one["ok"]]
            assert any("compile" in one or "no runner" in one for one in waits_for)
        if when == "in the middle of a job":
            wait_until(lambda: client.get("/readyz").is_success, 100, process)
            assert "small requests are answered" in log.read_text()
            wait_until(lambda: f"answers at {url}" in log.read_text())
            observations, references, options = long_job
            job = start_job(client, observations, references, **options)
            wait_until(lambda: client.get(job).json()["progress"] > 0)
        # On a busy machine Dask has told of slow heartbeats by now.
        start = log.stat().st_size
        os.killpg(process.pid, signal.SIGINT)
        # As SIGTERM would: who started it sees what ended it.
        assert process.wait(60) == -signal.SIGINT
        wait_until(lambda: not _live_in(process.pid))
    assert_quiet(log.read_text()[start:])


def assert_quiet(text):
    """Nothing went wrong in the log of an end."""
    assert [word for word in ("ERROR", "CRITICAL", "Traceback") if word in text] == [], text
    assert "Finished server process" in text


def test_a_signal_stops_a_job_without_an_error_and_the_next_process_takes_it_up(
    tmp_path, device, long_job
):
    data_dir = tmp_path / "data"
    observations, references, options = shorter(long_job)
    files = {"observations": parquet(observations), "references": parquet(references)}
    with running_service(data_dir, "--device", device, "--sync-rows", 10**8) as client:
        with ThreadPoolExecutor(2) as threads:
            waiting = threads.submit(client.post, "/resolve", params=options, files=files)
            wait_until(lambda: client.get("/jobs").json()["jobs"])
            [job] = client.get("/jobs").json()["jobs"]
            location = f"/jobs/{job['jobID']}"
            wait_until(lambda: client.get(location).json()["status"] == "running")
            with client.stream("GET", f"{location}/events", timeout=60) as events:
                told = threads.submit(lambda: list(events.iter_lines()))
                start = client.log.stat().st_size
                client.process.terminate()
                assert client.process.wait(60) == -signal.SIGTERM
                assert any("running" in line for line in told.result())
            answer = waiting.result()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert httpx.URL(answer.headers["link"].partition(">")[0].strip("<")).path == location
    text = client.log.read_text()[start:]
    assert_quiet(text)
    assert f"job {job['jobID']} stopped" in text
    with running_service(data_dir, "--device", device) as client:
        assert finished(client, location)["status"] == "successful"


def test_a_client_that_is_slow_does_not_keep_it(tmp_path):
    data_dir = tmp_path / "data"
    with (
        running_service(data_dir, *NO_CLUSTER, ready=False) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as connection,
    ):
        head = "POST /datasets HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\n"
        # What comes is written a MiB at a time.
        connection.sendall(f"{head}Content-Length: 9000000\r\n\r\nlat,lon\n".encode())
        connection.sendall(b"1,2\n" * (1 << 19))
        wait_until(lambda: any(path.is_file() for path in (data_dir / "incoming").rglob("*")))
        # There is none, which may be told later than a front answers.
        wait_until(lambda: "the cluster cannot be opened" in client.log.read_text())
        start = client.log.stat().st_size
        client.process.terminate()
        assert client.process.wait(60) == -signal.SIGTERM
    text = client.log.read_text()[start:]
    assert_quiet(text)
    assert "a connection is ended whose client did not within 10 s" in text


def _live_in(group):
    """Processes of a group that have not ended, also where nobody reaps those that have."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_ended = process.status() == psutil.STATUS_ZOMBIE
            if not is_ended and os.getpgid(process.pid) == group:
                found.append(process)
    return found


def test_other_users_may_not_read_what_the_service_writes(service):
    data_dir = service.log.with_suffix("")
    location = start_job(service, points(1_000, 1), points(10, 2))
    assert finished(service, location)["status"] == "successful"
    paths = [data_dir, *data_dir.rglob("*")]
    assert any(path.parent.name == "parts" for path in paths), "a worker has written it"
    assert [path for path in paths if path.exists() and path.stat().st_mode & 0o077] == []
    service.delete(location)
