"""Clients that others generate of the description of the API, against a running service.

Each program here is what a user of one would write. It asks `/nearest`, `/resolve` with files, an
execution and `/estimate`, and prints the answers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, sphere
from tests.oracle import nearest

HERE = Path(__file__).parent
PACKAGE = "georesolve_client"
NODE_PACKAGES = [
    "openapi-typescript@7.13.0",
    "openapi-fetch@0.17.0",
    "typescript@5.9.3",
    "@types/node@20",
]
PAGE = (ROOT / "docs" / "clients.md").read_text()
(CONFIGURATION,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
M, N = 50, 20


@pytest.fixture(scope="module")
def description(service, tmp_path_factory):
    """The description of the API, as a running service gives it."""
    path = tmp_path_factory.mktemp("description") / "api.json"
    path.write_bytes(service.get("/api").raise_for_status().content)
    return path


@pytest.fixture
def sets(tmp_path):
    """Two sets as JSON and, with names of the references, as files."""
    tables = {}
    for role, rows, seed in (("observations", M, 71), ("references", N, 72)):
        lat, lon = (values.tolist() for values in sphere(rows, seed))
        tables[role] = {"lat": lat, "lon": lon}
        lines = [f"place {row},{lat[row]!r},{lon[row]!r}" for row in range(rows)]
        (tmp_path / f"{role}.csv").write_text("\n".join(["name,lat,lon", *lines]))
    return tables


def run(*command, cwd, given=None, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done


def beside_python(name):
    """A program of the environment that runs the tests."""
    return Path(sys.executable).parent / name


def check(answers):
    rows, metres = nearest(*sphere(M, 71), *sphere(N, 72))
    for name in ("nearest", "resolve", "execution"):
        found = answers[name]
        assert len(found) == 2 * M, name
        first = found[::2]
        assert [row["reference"] for row in first] == rows.tolist(), name
        distances = [row["distance_m"] for row in first]
        np.testing.assert_allclose(distances, metres, rtol=1e-12, atol=1e-3)
    names = [row["reference_name"] for row in answers["resolve"]]
    assert names == [f"place {row['reference']}" for row in answers["resolve"]]
    assert answers["estimate"]["rows"] == 2000


def test_openapi_python_client(service, description, sets, tmp_path):
    configuration = tmp_path / "configuration.yaml"
    configuration.write_text(CONFIGURATION)
    generate = [beside_python("openapi-python-client"), "generate", "--meta", "none"]
    files = ["--path", description, "--output-path", PACKAGE, "--config", configuration]
    told = run(*generate, *files, cwd=tmp_path)
    # An operation that it cannot make is left out with a warning.
    assert "some pieces may be missing" in told.stderr
    assert "Endpoint will not be generated" not in told.stderr, told.stderr
    arguments = [service.base_url, tmp_path / "observations.csv", tmp_path / "references.csv"]
    answers = run(
        *(sys.executable, HERE / "openapi_python_client.py", *arguments),
        cwd=tmp_path,
        given=json.dumps(sets),
        PYTHONPATH=str(tmp_path),
    )
    check(json.loads(answers.stdout))


@pytest.mark.skipif(shutil.which("java") is None, reason="openapi-generator needs Java")
def test_openapi_generator(service, description, sets, tmp_path):
    generate = [beside_python("openapi-generator-cli"), "generate", "-g", "python"]
    run(*generate, "-i", description, "-o", tmp_path, "--package-name", PACKAGE, cwd=tmp_path)
    arguments = [service.base_url, tmp_path / "observations.csv", tmp_path / "references.csv"]
    answers = run(
        *(sys.executable, HERE / "openapi_generator.py", *arguments),
        cwd=tmp_path,
        given=json.dumps(sets),
        PYTHONPATH=str(tmp_path),
    )
    check(json.loads(answers.stdout))


@pytest.mark.skipif(shutil.which("npm") is None, reason="openapi-typescript needs npm")
def test_openapi_typescript(service, description, sets, tmp_path):
    (tmp_path / "package.json").write_text('{"type": "module"}')
    run("npm", "install", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=tmp_path)
    # Without it what has a default would have to be sent.
    options = ["--output", "api.ts", "--default-non-nullable=false"]
    run("npx", "openapi-typescript", description, *options, cwd=tmp_path)
    shutil.copy(HERE / "openapi_typescript.ts", tmp_path / "client.ts")
    compiled = ["--module", "nodenext", "--target", "es2022", "--strict", "--outDir", "made"]
    imports = ["--rewriteRelativeImportExtensions", "--types", "node"]
    run("npx", "tsc", *compiled, *imports, "client.ts", cwd=tmp_path)
    arguments = [service.base_url, tmp_path / "observations.csv", tmp_path / "references.csv"]
    answers = run("node", "made/client.js", *arguments, cwd=tmp_path, given=json.dumps(sets))
    check(json.loads(answers.stdout))
