"""schemathesis, with every check it has, against a running service and its own description."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, running_service

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
HOOKS = CONFIGURATION.with_name("schemathesis_hooks.py")
SECONDS = int(os.environ.get("GEORESOLVE_FUZZ_SECONDS", "240"))
SEED = int(os.environ.get("GEORESOLVE_FUZZ_SEED", "21"))
"""Another one sends requests that nobody has sent yet."""
RUNS = {("examples", "coverage", "fuzzing"): 0.75, ("stateful",): 0.25}
"""Phases of each run, and its share of the time: on a busy machine the others leave none to the
last one."""


@pytest.mark.timeout(3 * SECONDS + 240)
def test_the_service_keeps_to_its_description(tmp_path, device):
    data_dir = tmp_path / "data"
    create = [
        sys.executable,
        "-m",
        "georesolve",
        "keys",
        "create",
        "fuzzer",
        "--data-dir",
        data_dir,
    ]
    made = subprocess.run(create, cwd=ROOT, capture_output=True, text=True, check=True)
    (key,) = re.findall(r"gr_\S{20,}", made.stdout)
    headers = {"Authorization": f"Bearer {key}"}
    with running_service(data_dir, "--device", device, "--decode-seconds", 20) as client:
        for phases, share in RUNS.items():
            fuzz(client, headers, phases, round(share * SECONDS), tmp_path / phases[0])
        log = client.log.read_text()
        assert "Traceback" not in log
        assert client.get("/jobs", headers=headers).status_code == 200


def fuzz(client, headers, phases, seconds, folder):
    """Run phases of schemathesis for so long; each must come to an end without a finding."""
    folder.mkdir()
    report = folder / "report.ndjson"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIGURATION, "run"]
    limits = ["--phases", ",".join(phases), "--max-time", seconds, "--seed", SEED]
    limits += ["--request-timeout", 90]
    about_key = ["--header", f"Authorization: {headers['Authorization']}"]
    output = ["--no-color", "--report", "ndjson", "--report-ndjson-path", report]
    fuzzed = subprocess.run(
        [str(part) for part in (*command, f"{client.base_url}/api", *limits, *about_key, *output)],
        cwd=folder,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)},
        capture_output=True,
        text=True,
    )
    assert fuzzed.returncode == 0, fuzzed.stdout[-20_000:] + fuzzed.stderr[-2_000:]
    events = [json.loads(line) for line in report.read_text().splitlines()]
    ended = [event["PhaseFinished"] for event in events if "PhaseFinished" in event]
    passed = {one["phase"]["name"] for one in ended if one["status"] == "success"}
    assert passed >= set(phases), f"only {sorted(passed)} came to an end"
