"""The distributions are fit for a package index: metadata, licences, all files, and no links."""

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import PathDistribution
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
import trove_classifiers

import georesolve
from tests.conftest import ROOT
from tests.deploy.tools import check

PACKAGE = ROOT / "georesolve"
TAKEN = ("LICENSE", "README.md", "pyproject.toml", "kernels", "service", "workers")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A source distribution, and the wheel that is built of it alone."""
    # To build in the checkout would leave files there.
    tree = tmp_path_factory.mktemp("tree")
    for name in TAKEN:
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    shutil.copytree(PACKAGE, tree / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", tree]
    subprocess.run(command, check=True, capture_output=True)
    [source], [wheel] = (tree.glob(f"dist/*{suffix}") for suffix in (".tar.gz", ".whl"))
    return source, wheel


def test_an_index_takes_them(distributions):
    check("twine", "check", "--strict", *distributions)
    with ZipFile(distributions[1]) as wheel:
        folder = ZipPath(wheel, f"georesolve-{georesolve.__version__}.dist-info/")
        metadata = PathDistribution(folder).metadata
    assert metadata["Version"] == georesolve.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(metadata.get_all("License-File")) == 2
    assert set(metadata.get_all("Classifier")) <= trove_classifiers.classifiers
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_they_have_all_files_and_no_links(distributions):
    files = {path.relative_to(ROOT) for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {str(file) for file in files if "__pycache__" not in file.parts}
    with ZipFile(distributions[1]) as wheel:
        names = wheel.namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected
    with tarfile.open(distributions[0]) as source:
        members = source.getmembers()
    assert [one.name for one in members if not (one.isfile() or one.isdir())] == []
    assert expected <= {one.name.partition("/")[2] for one in members}
