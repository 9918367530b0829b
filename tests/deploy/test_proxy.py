"""The proxy tells what it refuses as the service does: nginx itself, where it is installed."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager

import pytest

from tests.conftest import ROOT, free_port, wait_until

TEMPLATE = ROOT / "deploy" / "proxy" / "nginx.conf.template"


class _Upstream(http.server.BaseHTTPRequestHandler):
    """Stands for the service."""

    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@contextmanager
def upstream():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Upstream) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@contextmanager
def nginx(folder, service, dashboard="127.0.0.1:1"):
    """An nginx with the configuration of the image; yields its port.

    `service` and `dashboard` are the addresses, host and port, of what it leads to.
    """
    if not (shutil.which("nginx") and shutil.which("envsubst")):
        pytest.skip("nginx or envsubst is not installed")
    port = free_port()
    variables = {
        "UPLOAD_BYTES": "1000",
        "BODY_SECONDS": "5",
        "RESOLVER": "127.0.0.1",
        "LISTEN": f"listen 127.0.0.1:{port};",
    }
    text = TEMPLATE.read_text().replace("api:8000", service).replace("scheduler:8787", dashboard)
    text = text.replace("127.0.0.1:8081", f"127.0.0.1:{free_port()}")
    text = text.replace("/tmp/", f"{folder}/").replace("/etc/nginx/", f"{folder}/")
    (folder / "mime.types").write_text("types {}")
    done = subprocess.run(
        ["envsubst", " ".join(f"${name}" for name in variables)],
        input=text,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "nginx.conf").write_text(done.stdout)
    command = ["nginx", "-c", folder / "nginx.conf", "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(port), process=process)
            yield port
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """The port of a proxy."""
    with (
        upstream() as service,
        nginx(tmp_path_factory.mktemp("proxy"), f"127.0.0.1:{service}") as port,
    ):
        yield port


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /a HTTP/1.1", 204),
        ("GET /a%00b HTTP/1.1", 400),
        ("GET /%2e%2e/%2e%2e/ HTTP/1.1", 400),
        ("GET /" + 40_000 * "a" + " HTTP/1.1", 400),
        ("no HTTP", 400),
        ("GET / HTTP/1.1\r\nX-A: " + 40_000 * "a", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 2000", 413),
    ],
)
def test_what_it_refuses_is_a_problem(proxy, request_line, status):
    with socket.create_connection(("127.0.0.1", proxy), 10) as connection:
        connection.sendall(f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        lines, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert int(lines.split()[1]) == status
    if status != 204:
        assert b"Content-Type: application/problem+json" in lines
        assert json.loads(body)["status"] == status
