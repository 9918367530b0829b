"""The Python client and a service that is killed, full, slow, unreachable or cut off."""

import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest

from georesolve.client import Client, DamagedTransfer, ServiceRefused, ServiceUnreachable
from tests import oracle
from tests.conftest import (
    free_port,
    kill_with_children,
    points,
    running_service,
    start_service,
    wait_until,
)
from tests.lines import Line, line_to
from tests.service.test_keys import new_key

OBSERVATIONS, REFERENCES = points(300, 61), points(50, 62)
# A result of several MB.
MANY = points(150_000, 63)


def check(matches, observations, references=REFERENCES, rows=slice(None)):
    sets = (observations, references)
    columns = [table[name].to_numpy() for table in sets for name in ("lat", "lon")]
    nearest, _ = oracle.nearest(columns[0][rows], columns[1][rows], *columns[2:])
    assert matches["reference"].to_numpy()[rows].tolist() == nearest.tolist()


@pytest.fixture(scope="module")
def result(service):
    """A job with a result, and its bytes."""
    with Client(str(service.base_url)) as client:
        job = client.submit(MANY, REFERENCES)
        job.wait()
        content = service.get(f"/jobs/{job.id}/results/matches.parquet").content
        yield job.id, content


def test_a_download_that_is_cut_goes_on_where_it_stopped(service, result, tmp_path):
    id, content = result
    target = tmp_path / "matches.parquet"
    with line_to(service) as line, Client(line.address) as client:
        job = client.job(id)
        before = line.carried
        line.down += [len(content) // 3, len(content) // 3]
        job.download(target)
        assert target.read_bytes() == content
        assert line.down == []
        assert line.carried - before < len(content) + 10_000, "heads came thrice, bytes once"
    assert list(tmp_path.iterdir()) == [target]


def test_half_a_download_is_continued_by_another_process(service, result, tmp_path):
    id, content = result
    target = tmp_path / "matches.parquet"
    with line_to(service) as line:
        with Client(line.address, patience_s=0) as client:
            job = client.job(id)
            line.down += [len(content) // 2]
            with pytest.raises(ServiceUnreachable, match="was cut off"):
                job.download(target)
        assert not target.exists()
        (part,) = tmp_path.iterdir()
        assert 0 < part.stat().st_size <= len(content) // 2
        before = line.carried
        with Client(line.address) as client:
            client.job(id).download(target)
        assert target.read_bytes() == content
        assert line.carried - before < 0.6 * len(content)
        assert list(tmp_path.iterdir()) == [target]
        # One that was whole, and a file of another result under the same name.
        shutil.copy(target, part)
        with Client(line.address) as client:
            client.job(id).download(target)
        part.with_name(part.name.replace(part.suffixes[-2], f".{64 * '0'}")).write_bytes(b"else")
        with Client(line.address) as client:
            client.job(id).download(target)
        assert target.read_bytes() == content
        assert list(tmp_path.iterdir()) == [target]


def test_bytes_that_changed_on_the_way_are_not_kept(service, result, tmp_path):
    id, content = result
    with line_to(service) as line, Client(line.address) as client:
        job = client.job(id)
        middle = content[len(content) // 2 :][:64]
        line.change = lambda piece: piece.replace(middle, bytes(64))
        with pytest.raises(DamagedTransfer, match="is not what its checksum says, twice"):
            job.download(tmp_path / "matches.parquet")
        assert list(tmp_path.iterdir()) == []
        line.change = lambda piece: piece
        job.download(tmp_path / "matches.parquet")


def test_a_download_without_ranges_begins_anew(service, result, tmp_path):
    id, _ = result
    content = service.get(f"/jobs/{id}/results/matches.csv").content
    with line_to(service) as line, Client(line.address) as client:
        job = client.job(id)
        line.down += [len(content) // 2]
        assert job.download(tmp_path / "matches.csv").read_bytes() == content
        assert line.down == []
    assert list(tmp_path.iterdir()) == [tmp_path / "matches.csv"]


def test_what_is_decoded_is_waited_for_longer(service):
    with line_to(service) as line, Client(line.address, timeout_s=0.2) as client:
        held = threading.Event()

        def hold(piece):
            # Several times as long as a connection may be silent.
            if piece.startswith(b"HTTP/1.1 20"):
                held.wait(1)
            return piece

        line.change = hold
        assert client.register(OBSERVATIONS).rows == len(OBSERVATIONS)
        assert line.connections == 1


def test_an_upload_that_is_cut_is_sent_again_and_makes_one_job(service):
    with line_to(service) as line, Client(line.address) as client:
        line.up += [1_000_000]
        assert client.register(MANY).rows == len(MANY)
        assert (line.up, line.connections) == ([], 2)
        before = {job.id for job in client.jobs()}
        # The answer is lost after its first byte: its job is found by the key.
        line.down += [1]
        job = client.submit(OBSERVATIONS, REFERENCES)
        assert (line.down, line.connections) == ([], 3)
        assert {one.id for one in client.jobs()} - before == {job.id}
        check(job.to_arrow(), OBSERVATIONS)


def test_a_line_that_holds_everything_up_is_given_up_or_waited_for(service, result, tmp_path):
    id, content = result
    with line_to(service) as line:
        with Client(line.address, patience_s=1, timeout_s=0.2) as client:
            job = client.job(id)
            line.open.clear()
            start = time.monotonic()
            with pytest.raises(ServiceUnreachable, match="was cut off") as error:
                job.refresh()
            assert time.monotonic() - start < 60
            assert "It goes on for 1 s: give it more with" in error.value.__notes__[0]
        with Client(line.address, timeout_s=1) as client, ThreadPoolExecutor(1) as pool:
            download = pool.submit(lambda: client.job(id).download(tmp_path / "matches.parquet"))
            wait_until(lambda: line.connections > 4)
            line.open.set()
            assert download.result(60).read_bytes() == content


def test_what_is_unreachable_is_told_with_its_address():
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", patience_s=1) as client:
        start = time.monotonic()
        with pytest.raises(ServiceUnreachable) as error:
            client.nearest(OBSERVATIONS, REFERENCES)
        assert time.monotonic() - start < 45
    told = str(error.value)
    assert f"http://127.0.0.1:{port}/resolve cannot be reached" in told
    assert "Connection refused" in told
    assert "check the address, and that the service runs" in told
    assert error.value.__notes__[0].startswith("The client tried")
    with (
        Client("http://no-such-host.invalid", patience_s=0) as client,
        pytest.raises(ServiceUnreachable, match=r"no-such-host.invalid/jobs cannot be reached"),
    ):
        client.jobs()


def test_a_full_service_is_asked_again_for_as_long_as_there_is_patience(tmp_path):
    # No scheduler answers there: what is accepted waits.
    flags = ("--scheduler", "tcp://127.0.0.1:9", "--queue-jobs", 2, "--key-jobs", 1)
    keys = [new_key(tmp_path / "data", name) for name in ("ann", "ben", "cleo")]
    with (
        running_service(tmp_path / "data", *flags, ready=False) as service,
        Client(str(service.base_url), keys[0], patience_s=0) as ann,
        Client(str(service.base_url), keys[1], patience_s=0) as ben,
        Client(str(service.base_url), keys[2], patience_s=1) as cleo,
        Client(str(service.base_url), "wrong", patience_s=60) as stranger,
        ThreadPoolExecutor(1) as pool,
    ):
        job = ann.submit(OBSERVATIONS, REFERENCES)
        with pytest.raises(ServiceRefused, match="1 jobs of this key") as own:
            ann.submit(OBSERVATIONS, REFERENCES)
        assert (own.value.status, own.value.retry_after_s) == (429, 5)
        ben.submit(OBSERVATIONS, REFERENCES)
        with pytest.raises(ServiceRefused, match="2 jobs of the service wait") as full:
            cleo.submit(OBSERVATIONS, REFERENCES)
        assert (full.value.status, full.value.retry_after_s) == (503, 10)
        assert "the next try was due in 10 s" in full.value.__notes__[0]
        with pytest.raises(ServiceRefused, match="needs a valid key") as unknown:
            stranger.jobs()
        assert unknown.value.status == 401
        with Client(str(service.base_url), keys[0], patience_s=60) as patient:
            second = pool.submit(patient.submit, OBSERVATIONS, REFERENCES)
            wait_until(lambda: _refused(service.log, 503) >= 2)
            job.dismiss()
            assert second.result(60).status == "accepted"


def _refused(log, status):
    """How often requests were refused with a status, by the service's log."""
    return log.read_text().count(f" {status}")


def test_a_full_disk_is_told_at_once(tmp_path):
    flags = ("--scheduler", "tcp://127.0.0.1:9", "--keep-free", 1 << 60)
    with (
        running_service(tmp_path / "data", *flags, ready=False) as service,
        Client(str(service.base_url)) as client,
    ):
        for call in (client.submit, client.nearest):
            with pytest.raises(ServiceRefused) as full:
                call(OBSERVATIONS, REFERENCES)
            assert (full.value.status, full.value.title) == (507, "The service has no space left")


def test_a_service_that_is_killed_loses_nothing_of_a_client(tmp_path, device, long_job):
    port, data_dir = free_port(), tmp_path / "data"
    observations, references, options = long_job
    flags = ("--port", port, "--device", device)
    with (
        (tmp_path / "log").open("ab") as log,
        Client(f"http://127.0.0.1:{port}", patience_s=280) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        process = start_service(data_dir, log, *flags)
        try:
            done = client.submit(MANY, REFERENCES)
            done.wait()
            with Line(port) as line:
                threading.Thread(target=line.serve_forever, args=(0.01,), daemon=True).start()
                slow = Client(line.address, patience_s=280)
                found = slow.job(done.id)
                job = client.submit(observations, references, **options)
                wait_until(lambda: client.job(job.id).info["rows_done"] > 0, process=process)
                # Both stop in the middle: the line holds them there until the kill.
                line.open.clear()
                downloading = pool.submit(found.download, tmp_path / "matches.parquet")
                uploading = pool.submit(slow.register, MANY)
                waiting = pool.submit(job.to_arrow)
                wait_until(lambda: line.connections >= 2)
                kill_with_children(process)
                line.open.set()
                process = start_service(data_dir, log, *flags)
                assert uploading.result(290).rows == len(MANY)
                assert pq.read_table(downloading.result(290)).num_rows == len(MANY)
                rows = slice(0, 500)
                check(waiting.result(290), observations, references, rows)
                slow.close()
                line.shutdown()
            assert len(client.jobs()) == 2
        finally:
            kill_with_children(process)


STREAMED = """
import resource, sys
from pathlib import Path
from georesolve.client import Client
address, large, small, folder = sys.argv[1:]

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

with Client(address) as client:
    client.submit(small, small).download(f"{folder}/few.parquet")
    before = peak()
    job = client.submit(large, small)
    job.download(f"{folder}/many.parquet")
    files = (large, f"{folder}/many.parquet")
    print(peak() - before, *(Path(file).stat().st_size for file in files))
"""


def test_files_pass_through_little_memory(service, tmp_path):
    pq.write_table(points(1_500_000, 64), tmp_path / "large.parquet")
    pq.write_table(points(1_000, 65), tmp_path / "small.parquet")
    paths = [tmp_path / "large.parquet", tmp_path / "small.parquet", tmp_path]
    command = [sys.executable, "-c", STREAMED, str(service.base_url), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    grown, sent, received = map(int, done.stdout.split())
    assert sent > 24 << 20
    assert received > 12 << 20
    assert grown < 8 << 20
