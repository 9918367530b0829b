"""What is not installed is told in one line, with the command that installs it."""

import subprocess
import sys

import pytest

import georesolve
from georesolve.io.extras import MissingExtra, needed
from tests.conftest import ROOT


def test_a_library_of_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "geopandas", None)
    with pytest.raises(MissingExtra) as missing:
        georesolve.sjoin_nearest(None, None)
    assert str(missing.value) == (
        "sjoin_nearest needs geopandas, which is not installed: pip install 'georesolve[gis]'"
    )


def test_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(vars(georesolve), "Client", raising=False)
    with pytest.raises(MissingExtra, match=r"^georesolve\.Client needs httpx.*\[client\]'$"):
        _ = georesolve.Client


def test_an_error_within_a_library_is_its_own(monkeypatch, tmp_path):
    (tmp_path / "broken_library.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs") as error:
        needed("broken_library", "gis", "this test")
    assert type(error.value) is ModuleNotFoundError


def test_the_command_line():
    script = (
        "import sys; sys.modules['pydantic_settings'] = None; sys.argv[1:] = ['serve']\n"
        "from georesolve.__main__ import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 3
    assert ran.stderr == (
        "georesolve: georesolve serve needs pydantic_settings, which is not installed: "
        "pip install 'georesolve[service]'\n"
    )
