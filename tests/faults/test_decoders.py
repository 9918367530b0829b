"""Processes that decode files hang: the service replaces them, and ends without them."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.conftest import NO_CLUSTER, running_service, wait_until
from tests.service.test_decoding import decoders_of, servers_of


def test_a_service_that_ends_waits_for_no_file(tmp_path):
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        wait_until(lambda: decoders_of(client))
        [decoder] = decoders_of(client)
        decoder.suspend()
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(
                client.post,
                "/datasets",
                content=b"lat,lon\n1,2\n",
                headers={"Content-Type": "text/csv"},
            )
            # It has the file once another one waits ready.
            wait_until(lambda: len(decoders_of(client)) == 2)
            # Of SIGTERM a process dies when all is closed, but not the first one of a container.
            client.process.send_signal(signal.SIGINT)
            # Requests have 10 s to end, and the file would have 300.
            client.process.wait(60)
            assert isinstance(sent.exception(), httpx.TransportError) or sent.result().is_error
        assert not decoder.is_running()


def test_a_server_of_decoders_that_hangs_is_replaced(tmp_path):
    flags = [*NO_CLUSTER, "--decode-seconds", "20"]
    with running_service(tmp_path / "data", *flags, ready=False) as client:

        def post(row):
            sent = {"content": f"lat,lon\n1,{row}\n", "headers": {"Content-Type": "text/csv"}}
            return client.post("/datasets", **sent)

        wait_until(lambda: decoders_of(client))
        [server] = servers_of(client)
        server.suspend()
        assert post(1).status_code == 201, "one waits ready"
        start = time.monotonic()
        answer = post(2)
        assert time.monotonic() - start < 60
        if answer.status_code != 201:
            assert answer.status_code == 503
            assert "started within the 20 s that were left" in answer.json()["detail"]
        wait_until(lambda: post(3).status_code in (200, 201))
        assert not server.is_running()


def test_a_service_ends_while_its_server_of_decoders_hangs(tmp_path):
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        wait_until(lambda: decoders_of(client))
        [server] = servers_of(client)
        server.suspend()
        headers = {"Content-Type": "text/csv"}
        assert client.post("/datasets", content="lat,lon\n1,2\n", headers=headers).is_success
        client.process.send_signal(signal.SIGINT)
        client.process.wait(60)
        assert not server.is_running()
