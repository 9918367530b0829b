"""The running service against its own OpenAPI document: schemathesis, with every check it has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, running_service

SECONDS = int(os.environ.get("GEORESOLVE_FUZZ_SECONDS", "120"))
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.timeout(3 * SECONDS + 240)
def test_the_service_keeps_to_its_schema(tmp_path, device):
    data_dir = tmp_path / "data"
    create = [sys.executable, "-m", "service", "keys", "create", "fuzzer", "--data-dir", data_dir]
    made = subprocess.run(create, cwd=ROOT, capture_output=True, text=True, check=True)
    (key,) = re.findall(r"gr_\S{20,}", made.stdout)
    headers = {"Authorization": f"Bearer {key}"}
    with running_service(data_dir, "--device", device, "--decode-seconds", 20) as client:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIGURATION, "run"]
        options = ["--checks", "all", "--max-time", SECONDS, "--request-timeout", 90, "--no-color"]
        about_key = ["--header", f"Authorization: {headers['Authorization']}"]
        fuzzed = subprocess.run(
            [str(part) for part in (*command, f"{client.base_url}/api", *options, *about_key)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert fuzzed.returncode == 0, fuzzed.stdout[-20_000:] + fuzzed.stderr[-2_000:]
        log = client.log.read_text()
        assert "Traceback" not in log
        assert client.get("/jobs", headers=headers).status_code == 200
