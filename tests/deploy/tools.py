"""Runs the tools that check files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def check(program, *arguments):
    """Run a checker of the development requirements; what it says fails the test."""
    # Beside the interpreter, as in any virtual environment; or wherever it is installed.
    path = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    assert path, f"{program} is not installed: make test, or pip install -r requirements/dev.txt"
    _run(path, *arguments)


def check_if_installed(program, *arguments, to_see):
    """Run a checker that Python's packages do not have; skip the test where it is not installed."""
    if shutil.which(program) is None or not _succeeds(program, *to_see):
        pytest.skip(
            f"'{program} {' '.join(to_see)}' does not work here: {program} is not installed"
        )
    _run(program, *arguments)


def _succeeds(*command):
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
