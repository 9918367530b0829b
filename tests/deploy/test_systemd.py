"""The unit for systemd is one that systemd takes, and calls what the package installs."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNIT = ROOT / "deploy" / "systemd" / "georesolve.service"


@pytest.fixture
def unit(tmp_path):
    """The unit, with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text()
    [program] = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
    path = tmp_path / UNIT.name
    path.write_text(text.replace(program, sys.executable))
    return path


def analyse(*arguments):
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_takes_every_line(unit):
    done = analyse("verify", "--man=no", unit)
    # It tells what it does not know, and ends with 0.
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, [])
    unit.write_text(unit.read_text().replace("ProtectHome=yes", "ProtectHouse=yes"))
    assert "ProtectHouse" in analyse("verify", "--man=no", unit).stderr


def test_it_is_hardened(unit):
    done = analyse("security", "--offline=yes", "--threshold=25", unit)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_starts_what_the_package_installs():
    [command] = re.findall(r"^ExecStart=(.*)", UNIT.read_text(), re.MULTILINE)
    program, *arguments = command.split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).name in scripts
    assert arguments == ["serve"]
